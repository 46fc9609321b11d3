// SPDX-License-Identifier: Apache-2.0
//! How members of `meta_info` of two attempts become those of one reply.

use super::JoinError;

/// How the values of two attempts are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Join {
    /// A list with an entry for each token. Events of an incremental stream have those of new tokens only.
    List,
    /// Bytes in base64, in the order of the tokens.
    Base64,
    /// `[rows, columns]` of such bytes.
    Shape,
    /// A number of tokens or events.
    Sum,
}

/// Members about the sampled tokens.
pub(super) const OF_TOKENS: [(&str, Join); 15] = [
    ("output_token_logprobs", Join::List),
    ("output_top_logprobs", Join::List),
    ("output_top_logprobs_val_flat", Join::List),
    ("output_top_logprobs_idx_flat", Join::List),
    ("output_top_logprobs_val_flat_b64", Join::Base64),
    ("output_top_logprobs_idx_flat_b64", Join::Base64),
    ("output_top_logprobs_shape", Join::Shape),
    ("output_token_ids_logprobs", Join::List),
    ("output_token_entropy", Join::List),
    ("output_token_sampling_mask", Join::List),
    ("output_token_sampling_logprobs", Join::List),
    ("output_token_sampling_mask_length", Join::Sum),
    ("reasoning_tokens", Join::Sum),
    ("num_retractions", Join::Sum),
    (ROUTED_EXPERTS, Join::Base64),
];

/// Comes with the end of an attempt, for all its tokens, in a stream too.
pub(super) const ROUTED_EXPERTS: &str = "routed_experts";

/// The position of [`ROUTED_EXPERTS`] in [`OF_TOKENS`].
pub(super) const ROUTED_EXPERTS_AT: usize = OF_TOKENS.len() - 1;

/// The position of `reasoning_tokens` in [`OF_TOKENS`].
pub(super) const REASONING_AT: usize = OF_TOKENS.len() - 3;

/// Members that describe the prompt: those of the first attempt count.
pub(super) const OF_PROMPT: [&str; 11] = [
    "cached_tokens",
    "cached_tokens_details",
    "input_token_logprobs",
    "input_top_logprobs",
    "input_top_logprobs_val_flat",
    "input_top_logprobs_idx_flat",
    "input_top_logprobs_val_flat_b64",
    "input_top_logprobs_idx_flat_b64",
    "input_top_logprobs_shape",
    "input_top_logprobs_null_prefix",
    "input_token_ids_logprobs",
];

impl Join {
    /// The values of all attempts: the JSON texts of the earlier ones, and of the current one.
    ///
    /// # Errors
    /// When a value has another form.
    pub(super) fn join(self, earlier: Option<&[u8]>, later: Option<&[u8]>) -> Result<Option<Vec<u8>>, JoinError> {
        let (Some(earlier), Some(later)) = (earlier, later) else {
            return Ok(earlier.or(later).map(<[u8]>::to_vec));
        };
        let joined = match self {
            Self::List => {
                let (earlier, later) = (content(earlier)?, content(later)?);
                let between: &[u8] = if earlier.is_empty() || later.is_empty() { b"" } else { b"," };
                [b"[", earlier, between, later, b"]"].concat()
            }
            Self::Base64 => {
                let mut bytes = decoded(earlier)?;
                bytes.extend(decoded(later)?);
                encoded(&bytes)
            }
            Self::Shape => {
                let ([rows, columns], [more, later_columns]): ([u64; 2], [u64; 2]) = (parsed(earlier)?, parsed(later)?);
                // an attempt without tokens has no columns
                if rows > 0 && more > 0 && columns != later_columns {
                    return Err(JoinError);
                }
                let rows = rows.checked_add(more).ok_or(JoinError)?;
                format!("[{rows},{}]", columns.max(later_columns)).into_bytes()
            }
            Self::Sum => {
                let (earlier, later): (u64, u64) = (parsed(earlier)?, parsed(later)?);
                earlier.checked_add(later).ok_or(JoinError)?.to_string().into_bytes()
            }
        };
        Ok(Some(joined))
    }
}

/// The entries of a list, without brackets.
fn content(list: &[u8]) -> Result<&[u8], JoinError> {
    let content = list.strip_prefix(b"[").and_then(|list| list.strip_suffix(b"]")).ok_or(JoinError)?;
    Ok(content.trim_ascii())
}

/// The base64 of bytes, as a JSON string.
pub(super) fn encoded(bytes: &[u8]) -> Vec<u8> {
    format!("\"{}\"", base64_simd::STANDARD.encode_to_string(bytes)).into_bytes()
}

/// The bytes of a JSON string in base64.
pub(super) fn decoded(text: &[u8]) -> Result<Vec<u8>, JoinError> {
    let text = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).ok_or(JoinError)?;
    base64_simd::STANDARD.decode_to_vec(text).map_err(|_| JoinError)
}

fn parsed<'a, T: serde::Deserialize<'a>>(text: &'a [u8]) -> Result<T, JoinError> {
    serde_json::from_slice(text).map_err(|_| JoinError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_two_attempts_are_joined() {
        let joined = |join: Join, earlier: &str, later: &str| {
            let value = join.join(Some(earlier.as_bytes()), Some(later.as_bytes()));
            value.map(|value| String::from_utf8(value.unwrap()).unwrap()).ok()
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(joined(Join::List, "[ 1, 2 ]", "[]"), some("[1, 2]"));
        assert_eq!(joined(Join::List, "[1]", "[[2], 3]"), some("[1,[2], 3]"));
        assert_eq!(joined(Join::List, "[1]", "7"), None);
        assert_eq!(joined(Join::Base64, "\"AAE=\"", "\"Ag==\""), some("\"AAEC\""));
        assert_eq!(joined(Join::Base64, "\"\"", "\"Ag==\""), some("\"Ag==\""));
        assert_eq!(joined(Join::Base64, "\"?\"", "\"Ag==\""), None);
        assert_eq!(joined(Join::Shape, "[3,20]", "[2, 20]"), some("[5,20]"));
        assert_eq!(joined(Join::Shape, "[0,0]", "[2,20]"), some("[2,20]"));
        assert_eq!(joined(Join::Shape, "[3,20]", "[2,5]"), None);
        assert_eq!(joined(Join::Sum, "3", "4"), some("7"));
        assert_eq!(joined(Join::Sum, "3", "\"4\""), None);
        assert_eq!(Join::Sum.join(None, Some(b"4")).ok(), Some(Some(b"4".to_vec())));
        assert_eq!(Join::List.join(None, None).ok(), Some(None));
        assert_eq!((OF_TOKENS[ROUTED_EXPERTS_AT].0, OF_TOKENS[REASONING_AT].0), (ROUTED_EXPERTS, "reasoning_tokens"));
    }
}
