// SPDX-License-Identifier: Apache-2.0
//! Parses logprob lists with `serde_json`, as the reference. Values are compared by their bits.

use serde_json::Value;

/// The bits of logprobs and their token ids.
pub(super) type Columns = (Vec<u32>, Vec<u32>);

/// The JSON value at the start of `bytes`, and the index after it.
pub(super) fn document(bytes: &[u8]) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter();
    let value = values.next()?.ok()?;
    Some((value, values.byte_offset()))
}

/// Whether `bytes` may hold a number that is not JSON, but that the scanner accepts from other engines.
pub(super) fn foreign(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.contains("NaN") || text.contains("Infinity")
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

pub(super) fn rows(array: &Value) -> Option<Vec<Vec<u32>>> {
    array.as_array()?.iter().map(row).collect()
}

fn row(row: &Value) -> Option<Vec<u32>> {
    if row.is_null() {
        return Some(vec![]);
    }
    row.as_array()?.iter().map(|triple| logprob(triple).filter(|_| triple[1].is_number())).collect()
}

pub(super) fn triples(array: &Value) -> Option<Columns> {
    let ids: Option<_> = array.as_array()?.iter().map(|triple| id(&triple[1])).collect();
    let logprobs: Option<_> = array.as_array()?.iter().map(logprob).collect();
    logprobs.zip(ids)
}

pub(super) fn ids(array: &Value) -> Option<Vec<u32>> {
    array.as_array()?.iter().map(id).collect()
}

pub(super) fn numbers(array: &Value) -> Option<Vec<u32>> {
    array.as_array()?.iter().map(number).collect()
}

pub(super) fn lists(array: &Value) -> Option<Vec<Vec<u32>>> {
    let list = |element: &Value| match element {
        Value::Array(_) => numbers(element),
        other => number(other).map(|_| vec![]),
    };
    array.as_array()?.iter().map(list).collect()
}

fn number(number: &Value) -> Option<u32> {
    match number {
        Value::Null => Some(f32::NAN.to_bits()),
        Value::Number(number) => Some((number.as_f64()? as f32).to_bits()),
        _ => None,
    }
}

fn logprob(triple: &Value) -> Option<u32> {
    match triple.as_array()?.as_slice() {
        [Value::Null, _, Value::Null | Value::String(_)] => Some(f32::NAN.to_bits()),
        [Value::Number(number), _, Value::Null | Value::String(_)] => Some((number.as_f64()? as f32).to_bits()),
        _ => None,
    }
}

fn id(id: &Value) -> Option<u32> {
    u32::try_from(id.as_u64()?).ok()
}
