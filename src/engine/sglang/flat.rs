// SPDX-License-Identifier: Apache-2.0
//! The flat forms of top logprobs in 0.5.23: one list of values and one of ids, plain or in base64, with a shape.

#[cfg(target_arch = "x86_64")]
mod avx2;

use std::ops::Range;

use base64_simd::AsOut;

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
    /// What the names of its members begin with.
    fn prefix(self) -> &'static str {
        match self {
            Self::Input => "input_top_logprobs_",
            Self::Output => "output_top_logprobs_",
        }
    }

    fn key(self, rest: &str) -> String {
        format!("{}{rest}", self.prefix())
    }
}

/// Floats that are decoded at a time: their bytes stay in the first-level cache.
const BLOCK: usize = 192;

/// The base64 text of a block.
const BLOCK_TEXT: usize = BLOCK * 4 / 3 * 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RowShape {
    rows: usize,
    k: usize,
}

impl RowShape {
    /// Reads `[rows,k]` of numbers with at most 15 digits.
    fn read(mut cursor: Cursor<'_>) -> Option<Self> {
        cursor.expect(b'[').ok()?;
        let rows = cursor.small_integer().and_then(|rows| usize::try_from(rows).ok())?;
        cursor.expect(b',').ok()?;
        let k = cursor.small_integer().and_then(|k| usize::try_from(k).ok())?;
        cursor.expect(b']').ok()?;
        cursor.end().ok().map(|()| Self { rows, k })
    }
}

fn malformed(span: &Range<usize>) -> Malformed {
    Malformed::new(span.start)
}

/// The ranges of the members of a list; `None` where a member is missing.
#[derive(Debug, Default)]
struct FlatMembers {
    shape: Option<Range<usize>>,
    null_prefix: Option<Range<usize>>,
    values: Option<Range<usize>>,
    encoded_values: Option<Range<usize>>,
    ids: Option<Range<usize>>,
    encoded_ids: Option<Range<usize>>,
}

impl FlatMembers {
    fn find(field: TopLogprobsField, bytes: &[u8], meta: &Object) -> Self {
        let mut found = Self::default();
        for member in &meta.members {
            let Some(rest) = meta.key(bytes, member).raw.strip_prefix(field.prefix().as_bytes()) else { continue };
            let slot = match rest {
                b"shape" => &mut found.shape,
                b"null_prefix" => &mut found.null_prefix,
                b"val_flat" => &mut found.values,
                b"val_flat_b64" => &mut found.encoded_values,
                b"idx_flat" => &mut found.ids,
                b"idx_flat_b64" => &mut found.encoded_ids,
                _ => continue,
            };
            *slot = Some(member.value.clone());
        }
        found
    }

    fn shape(&self, bytes: &[u8]) -> Result<Option<(RowShape, Range<usize>)>, Malformed> {
        let Some(span) = self.shape.clone() else { return Ok(None) };
        let read = RowShape::read(Cursor::at(&bytes[..span.end], span.start)).or_else(|| {
            let [rows, k] = serde_json::from_slice(&bytes[span.clone()]).ok()?;
            Some(RowShape { rows, k })
        });
        Ok(Some((read.ok_or_else(|| malformed(&span))?, span)))
    }
}

/// Reads the output list into `rows`. Returns whether the reply has one in this form.
///
/// # Errors
/// When the shape and the values do not match.
pub fn read(bytes: &[u8], meta: &Object, rows: &mut Rows) -> Result<bool, Malformed> {
    let members = FlatMembers::find(TopLogprobsField::Output, bytes, meta);
    let Some((shape, at)) = members.shape(bytes)? else { return Ok(false) };
    let missing = members.null_prefix.and_then(|span| serde_json::from_slice(&bytes[span]).ok());
    for _ in 0..missing.unwrap_or(0_usize).min(MOST_MISSING) {
        rows.push_missing();
    }
    let values = shape.rows.checked_mul(shape.k).ok_or_else(|| malformed(&at))?;
    if values == 0 {
        (0..shape.rows.min(MOST_MISSING)).for_each(|_| rows.push_missing());
        return Ok(true);
    }
    if rows.keeps_ids()
        && let Some(ids) = read_ids(bytes, members.ids, members.encoded_ids)?.filter(|ids| ids.len() == values)
    {
        rows.extend_ids(ids);
    }
    if let Some(span) = members.encoded_values {
        // the range is that of a whole value, so its quotes are where the string begins and ends
        let text = bytes[span.clone()].strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
        let text = text.ok_or_else(|| malformed(&span))?;
        // checked before the rows are allocated: a wrong shape must not make the allocation larger than the text
        let length = base64_simd::STANDARD.decoded_length(text).ok();
        if length.is_none() || length != values.checked_mul(4) {
            return Err(malformed(&span));
        }
        let target = rows.extend_zeroed(shape.rows, shape.k);
        return decode_floats(text, target).map(|()| true).ok_or_else(|| malformed(&span));
    }
    let Some(span) = members.values else { return Ok(false) };
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

/// The token ids of all values: a plain list, or the base64 of little-endian int32. `None` without either.
fn read_ids(
    bytes: &[u8],
    plain: Option<Range<usize>>,
    encoded: Option<Range<usize>>,
) -> Result<Option<Vec<u32>>, Malformed> {
    if let Some(span) = encoded {
        let decoded = decode(bytes, &span)?;
        return Ok(Some(decoded.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect()));
    }
    let read = |span: Range<usize>| serde_json::from_slice(&bytes[span.clone()]).map_err(|_| malformed(&span));
    plain.map(read).transpose()
}

/// Decodes the base64 text of little-endian floats into `target`. `None` if the text is not valid or has another length.
fn decode_floats(text: &[u8], target: &mut [f32]) -> Option<()> {
    #[cfg(target_arch = "x86_64")]
    let decoded = avx2::decode(text, target).unwrap_or(0);
    #[cfg(not(target_arch = "x86_64"))]
    let decoded = 0;
    // three floats are 16 characters, and the other decoder ends at such a place
    decode_blocks(&text[decoded / 3 * 16..], &mut target[decoded..])
}

/// [`decode_floats`], block by block.
fn decode_blocks(text: &[u8], target: &mut [f32]) -> Option<()> {
    let mut buffer = [0; BLOCK * 4];
    let mut blocks = text.chunks(BLOCK_TEXT);
    for values in target.chunks_mut(BLOCK) {
        let decoded = base64_simd::STANDARD.decode(blocks.next()?, buffer[..].as_out()).ok()?;
        // a block that is not the last is shorter if it has padding inside the text
        if decoded.len() != 4 * values.len() {
            return None;
        }
        for (value, bytes) in values.iter_mut().zip(decoded.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }
    Some(())
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
    let Some((shape, at)) = FlatMembers::find(side, bytes, meta).shape(bytes)? else { return Ok(()) };
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
    fn floats_of_any_number_are_decoded_in_blocks() {
        for count in [1, 2, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK + 7] {
            let floats: Vec<f32> = (0..count).map(|at| -(at as f32) * 0.37 - 1e-3).collect();
            let raw: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
            let text = base64_simd::STANDARD.encode_to_string(&raw);
            let mut decoded = vec![0.0; count];
            assert_eq!((decode_floats(text.as_bytes(), &mut decoded), &decoded), (Some(()), &floats), "{count}");
            let mut damaged = text.clone().into_bytes();
            let at = damaged.len() / 2;
            damaged[at] = b'=';
            assert_eq!(decode_floats(&damaged, &mut decoded), None, "{count}: padding inside the text");
        }
    }

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
