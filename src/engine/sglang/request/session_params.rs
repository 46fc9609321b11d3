// SPDX-License-Identifier: Apache-2.0
//! `session_params`: the request continues a request of an SGLang session, whose tokens the engine puts before the prompt.

use serde::Deserialize;

/// The members of `session_params` that determine the prompt. `replace` only removes branches of the session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct SessionParams {
    /// The request that is continued. A session that was opened with `streaming` continues its last request, whatever this is.
    pub rid: Option<String>,
    offset: Option<i64>,
    drop_previous_output: Option<bool>,
}

impl SessionParams {
    /// Parses the value; `None` for one that continues nothing. A value that the engine refuses has no `rid`.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        (!matches!(text, b"null" | b"{}")).then(|| serde_json::from_slice(text).unwrap_or_default())
    }

    /// Cuts the tokens of the continued request, of which the last `output` were sampled, to those that the engine puts before the prompt.
    #[must_use]
    pub fn kept<'a>(&self, tokens: &'a [u32], output: usize) -> &'a [u32] {
        let dropped = if self.drop_previous_output == Some(true) { output } else { 0 };
        let before = tokens.len().saturating_sub(dropped);
        // the end of a slice in Python; 0 is no offset
        let offset = self.offset.unwrap_or(0);
        let distance = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        let kept = match offset {
            1.. => before.min(distance),
            0 => before,
            _ => before.saturating_sub(distance),
        };
        &tokens[..kept]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_cut_as_by_the_engine() {
        let kept = |params: &str| SessionParams::parse(params.as_bytes()).unwrap().kept(&[1, 2, 3, 4, 5], 2);
        for (params, expected) in [
            (r#"{"id":"s","rid":"r"}"#, &[1, 2, 3, 4, 5][..]),
            (r#"{"rid":"r","offset":0,"replace":true}"#, &[1, 2, 3, 4, 5]),
            (r#"{"rid":"r","offset":-1}"#, &[1, 2, 3, 4]),
            (r#"{"rid":"r","offset":2}"#, &[1, 2]),
            (r#"{"rid":"r","offset":9}"#, &[1, 2, 3, 4, 5]),
            (r#"{"rid":"r","offset":-9}"#, &[]),
            (r#"{"rid":"r","drop_previous_output":true}"#, &[1, 2, 3]),
            (r#"{"rid":"r","drop_previous_output":true,"offset":-1}"#, &[1, 2]),
        ] {
            assert_eq!(kept(params), expected, "{params}");
        }
    }

    #[test]
    fn value_that_the_engine_refuses_names_no_request() {
        for refused in ["7", "[]", r#"{"rid":7}"#, r#"{"offset":"1"}"#] {
            assert_eq!(SessionParams::parse(refused.as_bytes()).unwrap().rid, None, "{refused}");
        }
        assert_eq!((SessionParams::parse(b"null"), SessionParams::parse(b"{}")), (None, None));
    }
}
