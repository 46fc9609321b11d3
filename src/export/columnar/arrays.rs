// SPDX-License-Identifier: Apache-2.0
//! Arrays with their fields: the parts of which the record batch is built.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Int64Array, ListArray, StringArray, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::Field;

/// An array with its field.
pub(super) type Named = (Field, ArrayRef);

pub(super) fn required(name: &str, array: impl Array + 'static) -> Named {
    (Field::new(name, array.data_type().clone(), false), Arc::new(array))
}

pub(super) fn optional(name: &str, array: impl Array + 'static) -> Named {
    (Field::new(name, array.data_type().clone(), true), Arc::new(array))
}

/// Texts, or null.
pub(super) fn texts<'a>(name: &str, texts: impl Iterator<Item = Option<&'a str>>) -> Named {
    optional(name, texts.collect::<StringArray>())
}

pub(super) fn integers(numbers: impl Iterator<Item = impl Into<i64>>) -> Int64Array {
    Int64Array::from_iter_values(numbers.map(Into::into))
}

/// A column of counters. They are unsigned 64-bit numbers, and none exceeds an int64 in practice.
pub(super) fn counts(numbers: impl Iterator<Item = u64>) -> Int64Array {
    Int64Array::from_iter_values(numbers.map(signed))
}

pub(super) fn maybe_counts(numbers: impl Iterator<Item = Option<u64>>) -> Int64Array {
    numbers.map(|number| number.map(signed)).collect()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn structs(columns: Vec<Named>) -> StructArray {
    let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = columns.into_iter().unzip();
    StructArray::new(fields.into(), arrays, None)
}

/// Lists of these lengths over the items.
pub(super) fn list(lengths: impl Iterator<Item = usize>, items: impl Array + 'static, nullable: bool) -> ListArray {
    let field = Field::new_list_field(items.data_type().clone(), nullable);
    ListArray::new(field.into(), OffsetBuffer::from_lengths(lengths), Arc::new(items), None)
}

/// A count of tokens.
pub(super) fn position(at: usize) -> i64 {
    i64::try_from(at).expect("tokens in memory can be counted")
}
