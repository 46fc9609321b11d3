// SPDX-License-Identifier: Apache-2.0
//! The flat formats of top logprobs.

use serde_json::{Value, json};
use tokentap::engine::sglang::flat::{TopLogprobsField, keep_columns, read};
use tokentap::json::{Edit, Object, Splice};
use tokentap::logprobs::Rows;

use super::grammar::shown;

/// The largest accepted number of rows without values.
const MOST: usize = 1 << 20;

/// The first byte is the client's k, the rest is `meta_info`. The parsed rows equal those of a naive parser bit by bit, and cutting the
/// prompt's or the output's columns to k leaves the reply that the engine would send for k.
pub fn flat(bytes: &[u8]) {
    let Some((keep, meta)) = bytes.split_first() else { return };
    let (keep, Ok(object)) = (usize::from(keep % 8), Object::parse(meta)) else { return };
    let value = serde_json::from_slice::<Value>(meta).ok();
    // the naive parser does not handle escapes, which base64 never needs
    let value = value.filter(|_| !meta.contains(&b'\\'));

    let mut rows = Rows::new();
    let done = read(meta, &object, &mut rows);
    if let Some(value) = &value {
        let got = done.map(|is_flat| (is_flat, rows.len(), bits(&rows))).ok();
        assert_eq!(got, naive(value), "{}", shown(bytes));
    }
    for (side, name) in [(TopLogprobsField::Input, "input"), (TopLogprobsField::Output, "output")] {
        let mut edit = Edit::new(meta, &object);
        let done = keep_columns(side, keep, meta, &object, &mut edit);
        let wanted = value.as_ref().map(|value| cut(value, name, keep));
        if let Some(wanted) = &wanted {
            assert_eq!(done.is_ok(), wanted.is_some(), "{done:?} {}", shown(bytes));
        }
        let mut splice = Splice::default();
        if done.is_ok() {
            edit.finish(&mut splice);
            let made = splice.apply(meta);
            if let Some(wanted) = wanted.flatten() {
                assert_eq!(serde_json::from_slice::<Value>(&made).unwrap(), wanted, "{}", shown(bytes));
            }
        }
    }
}

/// The bits of the rows that are not missing.
fn bits(rows: &Rows) -> Vec<Vec<u32>> {
    let known = rows.iter().filter(|row| !row.is_empty());
    known.map(|row| row.iter().map(|value| value.to_bits()).collect()).collect()
}

fn size(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

fn shape(meta: &Value, side: &str) -> Option<Option<[usize; 2]>> {
    match meta.get(format!("{side}_top_logprobs_shape")) {
        None => Some(None),
        Some(Value::Array(shape)) => match &shape[..] {
            [rows, k] => Some(Some([size(rows)?, size(k)?])),
            _ => None,
        },
        Some(_) => None,
    }
}

/// A naive parser. Returns whether there are flat rows, their number, and the bits of those that are not missing, which are last; `None` if
/// the lists do not match their shape.
fn naive(meta: &Value) -> Option<(bool, usize, Vec<Vec<u32>>)> {
    let Some([count, k]) = shape(meta, "output")? else { return Some((false, 0, vec![])) };
    let missing = meta.get("output_top_logprobs_null_prefix").and_then(size).unwrap_or(0).min(MOST);
    let values = count.checked_mul(k)?;
    if values == 0 {
        return Some((true, missing + count.min(MOST), vec![]));
    }
    let list: Vec<u32> = if let Some(text) = meta.get("output_top_logprobs_val_flat_b64") {
        let bytes = base64(text.as_str()?)?;
        bytes.chunks(4).map(|four| Some(u32::from_le_bytes(four.try_into().ok()?))).collect::<Option<_>>()?
    } else if let Some(list) = meta.get("output_top_logprobs_val_flat") {
        let number = |value: &Value| match value {
            Value::Null => Some(f32::NAN.to_bits()),
            value => Some((value.as_f64()? as f32).to_bits()),
        };
        list.as_array()?.iter().map(number).collect::<Option<_>>()?
    } else {
        return Some((false, missing, vec![]));
    };
    if list.len() != values {
        return None;
    }
    Some((true, missing + count, list.chunks(k).map(<[u32]>::to_vec).collect()))
}

/// `meta` with only the first `keep` columns of a side; `None` if the lists do not match their shape.
fn cut(meta: &Value, side: &str, keep: usize) -> Option<Value> {
    let mut cut = meta.clone();
    let Some([rows, k]) = shape(meta, side)? else { return Some(cut) };
    if keep >= k {
        return Some(cut);
    }
    k.checked_mul(4)?;
    cut[format!("{side}_top_logprobs_shape")] = json!([rows, keep]);
    for list in ["val_flat", "idx_flat"] {
        let name = format!("{side}_top_logprobs_{list}");
        if let Some(value) = meta.get(&name) {
            let kept =
                value.as_array()?.iter().enumerate().filter(|(at, _)| at % k < keep).map(|(_, value)| value.clone());
            cut[name] = Value::Array(kept.collect());
        }
        let name = format!("{side}_top_logprobs_{list}_b64");
        if let Some(value) = meta.get(&name) {
            let bytes = base64(value.as_str()?)?;
            if Some(bytes.len()) != rows.checked_mul(k).and_then(|values| values.checked_mul(4)) {
                return None;
            }
            let kept = bytes.chunks(4).enumerate().filter(|(at, _)| at % k < keep).flat_map(|(_, four)| four.to_vec());
            cut[name] = Value::String(encoded(&kept.collect::<Vec<u8>>()));
        }
    }
    Some(cut)
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Strict base64 (RFC 4648, section 4): padded, and the unused bits are zero.
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for four in text.as_bytes().chunks(4) {
        let digits = four.iter().take_while(|digit| **digit != b'=').count();
        if four.len() != 4 || digits < 2 || four[digits..].iter().any(|digit| *digit != b'=') {
            return None;
        }
        let value = |digit: &u8| DIGITS.iter().position(|other| other == digit);
        let bits =
            four[..digits].iter().try_fold(0, |bits, digit| Some(bits << 6 | value(digit)?))? << (6 * (4 - digits));
        bytes.extend((0..digits - 1).map(|at| (bits >> (16 - 8 * at)) as u8));
    }
    (encoded(&bytes) == text).then_some(bytes)
}

fn encoded(bytes: &[u8]) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let digit = if at <= three.len() { DIGITS[bits >> (18 - 6 * at) & 63] } else { b'=' };
            text.push(char::from(digit));
        }
    }
    text
}
