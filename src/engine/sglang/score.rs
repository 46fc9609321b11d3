//! Scores tokens that another policy sampled: asks an engine for the logprobs of a prompt, and generates nothing.

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::json::write_ids;

/// The path of the request.
pub(crate) const PATH: &str = "/generate";

/// The bytes of a token in the request and in the reply, at most: `[-3.4028234663852886e+38,4294967295,null],` is shorter.
pub(crate) const TOKEN_BYTES: usize = 11 + 48;

/// The body of a request for the logprobs of `ids` from the token `first` on, which is not the first one.
///
/// The logprobs are those of temperature 1: SGLang scales the logits of prompt tokens by no temperature, and the request has none.
pub(crate) fn body(ids: &[u32], first: usize) -> String {
    let mut out = Vec::with_capacity(7 * ids.len() + 160);
    out.extend_from_slice(b"{\"input_ids\":[");
    write_ids(&mut out, ids);
    // the entry of the first token is null, so it is asked one token earlier
    let start = first - 1;
    let options = format!(
        r#"],"sampling_params":{{"max_new_tokens":0,"temperature":1}},"return_logprob":true,"logprob_start_len":{start}}}"#
    );
    out.extend_from_slice(options.as_bytes());
    String::from_utf8(out).expect("numbers and ASCII are text")
}

#[derive(Deserialize)]
struct Reply {
    meta_info: Meta,
}

#[derive(Deserialize)]
struct Meta {
    /// The logprob, the id and the text of each token.
    input_token_logprobs: Vec<(Option<f64>, u32, IgnoredAny)>,
}

/// Parses the logprobs of the tokens of `ids` from `first` on, in nats.
///
/// # Errors
/// What is wrong with the reply: it is of other tokens, or lacks a logprob.
pub(crate) fn parse(reply: &[u8], ids: &[u32], first: usize) -> Result<Vec<f32>, String> {
    let reply: Reply = serde_json::from_slice(reply).map_err(|error| format!("the reply has no logprobs: {error}"))?;
    let (rows, asked) = (reply.meta_info.input_token_logprobs, &ids[first - 1..]);
    if rows.len() != asked.len() {
        return Err(format!("the reply has {} logprobs for {} tokens", rows.len(), asked.len()));
    }
    if let Some((row, id)) = rows.iter().zip(asked).find(|((_, echoed, _), id)| echoed != *id) {
        return Err(format!("the reply is of other tokens: {} instead of {id}", row.1));
    }
    let logprob = |(logprob, id, _): &(Option<f64>, u32, IgnoredAny)| {
        #[expect(clippy::cast_possible_truncation, reason = "the engine computed it as a float32")]
        let single = logprob.map(|nats| nats as f32).filter(|nats| nats.is_finite());
        single.ok_or_else(|| format!("the reply has no logprob of token {id}"))
    };
    rows[1..].iter().map(logprob).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn first_token_is_asked_one_token_earlier() {
        let body: serde_json::Value = serde_json::from_str(&body(&[5, 6, 7], 2)).unwrap();
        let expected = serde_json::json!({
            "input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 0, "temperature": 1}, "return_logprob": true,
            "logprob_start_len": 1,
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn logprobs_are_those_of_the_asked_tokens() {
        let reply = |rows: &str| format!(r#"{{"text":"","meta_info":{{"id":"r","input_token_logprobs":{rows}}}}}"#);
        let parsed = |rows: &str| parse(reply(rows).as_bytes(), &[5, 6, 7], 1);
        assert_eq!(parsed(r#"[[null,5,null],[-0.5,6,null],[-1.5,7,"x"]]"#), Ok(vec![-0.5, -1.5]));
        assert!(parsed("[[null,5,null],[-0.5,6,null]]").unwrap_err().contains("2 logprobs for 3 tokens"));
        assert!(parsed("[[null,5,null],[-0.5,9,null],[-1.5,7,null]]").unwrap_err().contains("9 instead of 6"));
        assert!(parsed("[[null,5,null],[null,6,null],[-1.5,7,null]]").unwrap_err().contains("token 6"));
        assert!(parse(br#"{"error":{"message":"x"}}"#, &[5, 6], 1).unwrap_err().contains("no logprobs"));
    }

    proptest! {
        #[test]
        fn arbitrary_replies_do_not_panic(reply in prop::collection::vec(any::<u8>(), 0..200), first in 1..3_usize) {
            let _ = parse(&reply, &[1, 2, 3], first);
        }
    }
}
