//! The flat forms of top logprobs in 0.5.23: one list of values and one of ids, plain or in base64, with a shape.

use std::ops::Range;

use crate::json::{Cursor, Edit, Malformed, Object};
use crate::logprobs::Rows;

/// The largest number of rows without values that is accepted from a reply: more than any generation has tokens.
const MOST_MISSING: usize = 1 << 20;

/// Which of the two top logprob lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopLogprobsField {
    /// That of the prompt tokens.
    Input,
    /// That of the sampled tokens.
    Output,
}

impl TopLogprobsField {
    fn key(self, rest: &str) -> String {
        let side = match self {
            Self::Input => "input",
            Self::Output => "output",
        };
        format!("{side}_top_logprobs_{rest}")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RowShape {
    rows: usize,
    k: usize,
}

fn malformed(span: &Range<usize>) -> Malformed {
    Malformed::new(span.start)
}

fn shape(side: TopLogprobsField, bytes: &[u8], meta: &Object) -> Result<Option<(RowShape, Range<usize>)>, Malformed> {
    let Some(span) = meta.value_span(bytes, &side.key("shape")) else { return Ok(None) };
    let [rows, k]: [usize; 2] = serde_json::from_slice(&bytes[span.clone()]).map_err(|_| malformed(&span))?;
    Ok(Some((RowShape { rows, k }, span)))
}

/// Reads the output list into `rows`. Returns whether the reply has one in this form.
///
/// # Errors
/// When the shape and the values do not match.
pub fn read(bytes: &[u8], meta: &Object, rows: &mut Rows) -> Result<bool, Malformed> {
    let Some((shape, at)) = shape(TopLogprobsField::Output, bytes, meta)? else { return Ok(false) };
    let missing = meta
        .get(bytes, &TopLogprobsField::Output.key("null_prefix"))
        .and_then(|text| serde_json::from_slice(text).ok());
    for _ in 0..missing.unwrap_or(0_usize).min(MOST_MISSING) {
        rows.push_missing();
    }
    let values = shape.rows.checked_mul(shape.k).ok_or_else(|| malformed(&at))?;
    if values == 0 {
        (0..shape.rows.min(MOST_MISSING)).for_each(|_| rows.push_missing());
        return Ok(true);
    }
    if let Some(span) = meta.value_span(bytes, &TopLogprobsField::Output.key("val_flat_b64")) {
        let decoded = decode(bytes, &span)?;
        if decoded.len() != values.checked_mul(4).ok_or_else(|| malformed(&at))? {
            return Err(malformed(&span));
        }
        let target = rows.extend_zeroed(shape.rows, shape.k);
        for (value, raw) in target.iter_mut().zip(decoded.chunks_exact(4)) {
            *value = f32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
        }
        return Ok(true);
    }
    let Some(span) = meta.value_span(bytes, &TopLogprobsField::Output.key("val_flat")) else { return Ok(false) };
    let list: Vec<Option<f64>> = serde_json::from_slice(&bytes[span.clone()]).map_err(|_| malformed(&span))?;
    if list.len() != values {
        return Err(malformed(&span));
    }
    let target = rows.extend_zeroed(shape.rows, shape.k);
    for (value, read) in target.iter_mut().zip(list) {
        *value = read.map_or(f32::NAN, |value| value as f32);
    }
    Ok(true)
}

fn decode(bytes: &[u8], span: &Range<usize>) -> Result<Vec<u8>, Malformed> {
    let text = Cursor::at(bytes, span.start).string()?;
    base64_simd::STANDARD.decode_to_vec(text.raw).map_err(|_| malformed(span))
}

/// Keeps the first `keep` columns of a list: the reply that a client with a smaller k expects.
///
/// # Errors
/// When the shape and the lists do not match.
pub fn keep_columns(
    side: TopLogprobsField,
    keep: usize,
    bytes: &[u8],
    meta: &Object,
    edit: &mut Edit<'_>,
) -> Result<(), Malformed> {
    let Some((shape, at)) = shape(side, bytes, meta)? else { return Ok(()) };
    if keep >= shape.k {
        return Ok(());
    }
    let row = shape.k.checked_mul(4).ok_or_else(|| malformed(&at))?;
    edit.set(&side.key("shape"), format!("[{},{keep}]", shape.rows).as_bytes());
    for list in ["val_flat", "idx_flat"] {
        if let Some(span) = meta.value_span(bytes, &side.key(list)) {
            let kept = columns(bytes, &span, shape, keep)?;
            edit.set(&side.key(list), &kept);
        }
        let encoded = format!("{list}_b64");
        if let Some(span) = meta.value_span(bytes, &side.key(&encoded)) {
            let all = decode(bytes, &span)?;
            if Some(all.len()) != shape.rows.checked_mul(row) {
                return Err(malformed(&span));
            }
            let kept: Vec<u8> = all.chunks_exact(row).flat_map(|row| &row[..keep * 4]).copied().collect();
            let text = format!("\"{}\"", base64_simd::STANDARD.encode_to_string(&kept));
            edit.set(&side.key(&encoded), text.as_bytes());
        }
    }
    Ok(())
}

/// Copies the elements in the first `keep` columns of a plain list, in their original spelling.
fn columns(bytes: &[u8], span: &Range<usize>, shape: RowShape, keep: usize) -> Result<Vec<u8>, Malformed> {
    let mut cursor = Cursor::at(bytes, span.start);
    cursor.expect(b'[')?;
    let mut kept = vec![b'['];
    let mut at = 0;
    while !cursor.take(b']') {
        if at > 0 {
            cursor.expect(b',')?;
        }
        let element = cursor.skip()?;
        if at % shape.k < keep {
            if kept.len() > 1 {
                kept.push(b',');
            }
            kept.extend_from_slice(&bytes[element]);
        }
        at += 1;
    }
    kept.push(b']');
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversize_shape_is_refused_or_capped() {
        let wide = br#"{"output_top_logprobs_shape":[0,4611686018427387904],"output_top_logprobs_val_flat_b64":""}"#;
        let meta = Object::parse(wide).unwrap();
        let mut edit = Edit::new(wide, &meta);
        assert!(keep_columns(TopLogprobsField::Output, 1, wide, &meta, &mut edit).is_err());
        let long = br#"{"output_top_logprobs_shape":[9000000000000000000,0]}"#;
        let mut rows = Rows::new();
        assert_eq!(read(long, &Object::parse(long).unwrap(), &mut rows), Ok(true));
        assert_eq!(rows.len(), MOST_MISSING);
    }
}
