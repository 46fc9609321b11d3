// SPDX-License-Identifier: Apache-2.0
//! A row of a record batch as one line of JSON.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int8Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrowPrimitiveType, PrimitiveArray, RecordBatch};
use arrow_schema::{DataType, Fields};

use crate::export::text::Text;

/// The lines of these rows. Each has all members of the schema in its order, with null for a missing value, so that every member has the
/// same type in every line.
pub(super) fn lines(record: RecordBatch) -> impl Iterator<Item = Vec<u8>> + Send {
    (0..record.num_rows()).map(move |at| {
        let mut text = Text::default();
        let schema = record.schema();
        object(schema.fields(), record.columns(), at, &mut text);
        let mut line = text.into_bytes();
        line.push(b'\n');
        line
    })
}

fn object(fields: &Fields, columns: &[impl AsRef<dyn Array>], at: usize, text: &mut Text) {
    text.object(|text| {
        for (field, column) in fields.iter().zip(columns) {
            value(column.as_ref(), at, text.key(field.name()));
        }
    });
}

fn value(array: &dyn Array, at: usize, text: &mut Text) {
    if array.is_null(at) {
        return text.literal("null");
    }
    match array.data_type() {
        DataType::Utf8 => text.string(array.as_string::<i32>().value(at)),
        DataType::Binary => text.base64(array.as_binary::<i32>().value(at)),
        DataType::Boolean => text.literal(if array.as_boolean().value(at) { "true" } else { "false" }),
        DataType::Int8 => text.integer(array.as_primitive::<Int8Type>().value(at)),
        DataType::Int64 => text.integer(array.as_primitive::<Int64Type>().value(at)),
        DataType::Float64 => text.float(array.as_primitive::<Float64Type>().value(at)),
        DataType::List(_) => items(&*array.as_list::<i32>().value(at), text),
        DataType::Struct(fields) => object(fields, array.as_struct().columns(), at, text),
        other => unreachable!("no column is {other}"),
    }
}

/// Writes a list. The type of the items is determined once, not for each item.
fn items(array: &dyn Array, text: &mut Text) {
    text.array(|list| match array.data_type() {
        DataType::Int8 => integers(array.as_primitive::<Int8Type>(), list),
        DataType::Int32 => integers(array.as_primitive::<Int32Type>(), list),
        DataType::Float32 => {
            let numbers = array.as_primitive::<Float32Type>();
            let numbers: Vec<f32> = numbers.iter().map(|number| number.unwrap_or(f32::NAN)).collect();
            list.floats(&numbers);
        }
        _ => (0..array.len()).for_each(|at| value(array, at, list)),
    });
}

fn integers<T: ArrowPrimitiveType<Native: itoa::Integer>>(numbers: &PrimitiveArray<T>, list: &mut Text) {
    numbers.values().iter().for_each(|number| list.integer(*number));
}
