//! Scores tokens that another policy sampled: asks an engine for the logprobs of a prompt, and generates nothing.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::request::CUSTOM_PROCESSOR;
use crate::json::write_ids;

/// The path of the request.
pub(crate) const PATH: &str = "/generate";

/// The bytes of an id in a request, at most.
const ID_BYTES: usize = 11;

/// The bytes of an entry of a reply, at most: `[-3.4028234663852886e+38,4294967295,null],` is shorter, and it is parsed as well.
const ENTRY_BYTES: usize = 48 + size_of::<Entry>();

/// An entry of a reply: the logprob, the id and the text of a token.
type Entry = (Option<f64>, u32, IgnoredAny);

/// The entries of each token. SGLang writes null where it has none, as for the first token.
type Rows = Vec<Option<Vec<Entry>>>;

/// What is asked about consecutive tokens.
///
/// All logprobs are those of temperature 1: SGLang scales the logits of prompt tokens by no temperature, and the request has none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScoreQuery<'a> {
    /// The tokens up to the last one that is asked.
    pub ids: &'a [u32],
    /// The first token that is asked, which is not the first one of all.
    pub first: usize,
    /// The number of likeliest tokens at each token that is asked.
    pub top: u32,
    /// Tokens whose logprobs at each token are asked. SGLang takes one list for the whole request.
    pub candidates: &'a [u32],
    /// The adapter that scores them; `None` for the base weights.
    pub adapter: Option<&'a str>,
}

/// The logprobs of consecutive tokens, in nats.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct TokenScores {
    /// One for each token.
    pub logprobs: Vec<f32>,
    /// The ids of the likeliest tokens at each token, the likeliest first.
    pub top_ids: Vec<u32>,
    /// Their logprobs.
    pub top_logprobs: Vec<f32>,
    /// The logprobs of the candidates at each token, in the order of the query.
    pub candidates: Vec<f32>,
    /// The engine's label of the weights, if it has one.
    pub label: Option<String>,
}

#[derive(Deserialize)]
struct Reply {
    meta_info: Meta,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    weight_version: Option<String>,
    input_token_logprobs: Vec<Entry>,
    #[serde(default)]
    input_top_logprobs: Option<Rows>,
    #[serde(default)]
    input_token_ids_logprobs: Option<Rows>,
}

impl ScoreQuery<'_> {
    /// The bytes of the request and the reply, and of the parsed reply, at most.
    pub(crate) fn bytes(&self) -> usize {
        // the token before the first one has an entry, and so has the position after the last one
        let tokens = self.ids.len() - self.first + 2;
        let entries = 1 + usize::try_from(self.top).unwrap_or(usize::MAX) + self.candidates.len();
        ID_BYTES * (self.ids.len() + self.candidates.len()) + ENTRY_BYTES.saturating_mul(tokens).saturating_mul(entries)
    }

    /// The body of the request.
    pub(crate) fn body(&self) -> String {
        let mut out = Vec::with_capacity(7 * (self.ids.len() + self.candidates.len()) + 200);
        out.extend_from_slice(b"{\"input_ids\":[");
        write_ids(&mut out, self.ids);
        // the entry of the first token is null, so it is asked one token earlier
        let start = self.first - 1;
        let options = format!(
            r#"],"sampling_params":{{"max_new_tokens":0,"temperature":1}},"return_logprob":true,"logprob_start_len":{start}"#
        );
        out.extend_from_slice(options.as_bytes());
        if self.top > 0 {
            out.extend_from_slice(format!(r#","top_logprobs_num":{}"#, self.top).as_bytes());
        }
        if let Some(adapter) = self.adapter {
            out.extend_from_slice(format!(r#","lora_path":{}"#, serde_json::Value::from(adapter)).as_bytes());
        }
        if !self.candidates.is_empty() {
            out.extend_from_slice(b",\"token_ids_logprob\":[");
            write_ids(&mut out, self.candidates);
            out.push(b']');
        }
        out.push(b'}');
        String::from_utf8(out).expect("numbers and ASCII are text")
    }

    /// Parses the reply.
    ///
    /// # Errors
    /// What is wrong with the reply: it is of other tokens, or lacks a logprob.
    pub(crate) fn parse(&self, reply: &[u8]) -> Result<TokenScores, String> {
        let reply: Reply =
            serde_json::from_slice(reply).map_err(|error| format!("the reply has no logprobs: {error}"))?;
        let Meta {
            weight_version: label,
            input_token_logprobs: rows,
            input_top_logprobs: top,
            input_token_ids_logprobs: candidates,
        } = reply.meta_info;
        let asked = &self.ids[self.first - 1..];
        if rows.len() != asked.len() {
            return Err(format!("the reply has {} logprobs for {} tokens", rows.len(), asked.len()));
        }
        // SGLang 0.5.23 echoes the last id of the vocabulary as 0, and no other id of the request is greater
        let greatest = self.ids.iter().max();
        let is_other = |echoed: u32, id: &u32| echoed != *id && (echoed != 0 || Some(id) != greatest);
        if let Some((row, id)) = rows.iter().zip(asked).find(|((_, echoed, _), id)| is_other(*echoed, id)) {
            return Err(format!("the reply is of other tokens: {} instead of {id}", row.1));
        }
        let logprobs = rows[1..].iter().map(logprob).collect::<Result<_, _>>()?;
        let mut scores = TokenScores { logprobs, label, ..TokenScores::default() };
        if self.top > 0 {
            for entry in self.entries(top, self.top as usize, "likeliest tokens")?.iter().flatten() {
                scores.top_ids.push(entry.1);
                scores.top_logprobs.push(logprob(entry)?);
            }
        }
        if !self.candidates.is_empty() {
            for row in self.entries(candidates, self.candidates.len(), "requested tokens")? {
                if let Some((entry, id)) = row.iter().zip(self.candidates).find(|(entry, id)| entry.1 != **id) {
                    return Err(format!("the reply has the logprob of token {} instead of {id}", entry.1));
                }
                scores.candidates.extend(row.iter().map(logprob).collect::<Result<Vec<_>, _>>()?);
            }
        }
        Ok(scores)
    }

    /// The rows of the tokens that are asked, each of `width` entries.
    fn entries(&self, rows: Option<Rows>, width: usize, what: &str) -> Result<Vec<Vec<Entry>>, String> {
        let rows = rows.ok_or_else(|| format!("the reply has no logprobs of the {what}"))?;
        let asked = self.ids.len() - self.first;
        let of_asked: Vec<Vec<Entry>> = rows.into_iter().skip(1).map(Option::unwrap_or_default).collect();
        match of_asked.iter().find(|row| row.len() != width) {
            None if of_asked.len() == asked => Ok(of_asked),
            None => Err(format!("the reply has logprobs of the {what} at {} tokens, not {asked}", of_asked.len())),
            Some(row) => Err(format!("the reply has logprobs of {} {what} at a token, not {width}", row.len())),
        }
    }
}

fn logprob((logprob, id, _): &Entry) -> Result<f32, String> {
    #[expect(clippy::cast_possible_truncation, reason = "the engine computed it as a float32")]
    let single = logprob.map(|nats| nats as f32).filter(|nats| nats.is_finite());
    single.ok_or_else(|| format!("the reply has no logprob of token {id}"))
}

/// What SGLang applies to the logits before it computes logprobs, with the value that has no effect.
const CHANGING: [(&str, f64); 10] = [
    ("frequency_penalty", 0.0),
    ("presence_penalty", 0.0),
    ("repetition_penalty", 1.0),
    ("min_new_tokens", 0.0),
    ("logit_bias", f64::NAN),
    ("json_schema", f64::NAN),
    ("regex", f64::NAN),
    ("ebnf", f64::NAN),
    ("structural_tag", f64::NAN),
    (CUSTOM_PROCESSOR, f64::NAN),
];

/// The first of these sampling parameters that changed the distribution, if one did.
pub(crate) fn changing_parameter(sampling: &str) -> Option<&'static str> {
    let sampling: serde_json::Value = serde_json::from_str(sampling).ok()?;
    let changes = |(name, off): &&(&str, f64)| {
        sampling.get(*name).is_some_and(|value| !value.is_null() && value.as_f64() != Some(*off))
    };
    CHANGING.iter().find(changes).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(ids: &[u32], first: usize) -> ScoreQuery<'_> {
        ScoreQuery { ids, first, top: 0, candidates: &[], adapter: None }
    }

    #[test]
    fn first_token_is_asked_one_token_earlier() {
        let body = |query: ScoreQuery<'_>| serde_json::from_str::<serde_json::Value>(&query.body()).unwrap();
        let mut expected = serde_json::json!({
            "input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 0, "temperature": 1}, "return_logprob": true,
            "logprob_start_len": 1,
        });
        assert_eq!(body(plain(&[5, 6, 7], 2)), expected);
        expected["top_logprobs_num"] = 3.into();
        expected["token_ids_logprob"] = serde_json::json!([1, 9]);
        assert_eq!(body(ScoreQuery { top: 3, candidates: &[1, 9], ..plain(&[5, 6, 7], 2) }), expected);
        expected["lora_path"] = "a\"b".into();
        let query = ScoreQuery { top: 3, candidates: &[1, 9], adapter: Some("a\"b"), ..plain(&[5, 6, 7], 2) };
        assert_eq!(body(query), expected);
    }

    fn reply(rows: &str, others: &str) -> String {
        format!(r#"{{"text":"","meta_info":{{"id":"r","input_token_logprobs":{rows}{others}}}}}"#)
    }

    #[test]
    fn logprobs_are_those_of_the_asked_tokens() {
        let parsed = |rows: &str| plain(&[5, 6, 7], 1).parse(reply(rows, "").as_bytes()).map(|scores| scores.logprobs);
        assert_eq!(parsed(r#"[[null,5,null],[-0.5,6,null],[-1.5,7,"x"]]"#), Ok(vec![-0.5, -1.5]));
        assert!(parsed("[[null,5,null],[-0.5,6,null]]").unwrap_err().contains("2 logprobs for 3 tokens"));
        assert!(parsed("[[null,5,null],[-0.5,9,null],[-1.5,7,null]]").unwrap_err().contains("9 instead of 6"));
        assert!(parsed("[[null,5,null],[null,6,null],[-1.5,7,null]]").unwrap_err().contains("token 6"));
        assert_eq!(parsed("[[null,5,null],[-0.5,6,null],[-1.5,0,null]]"), Ok(vec![-0.5, -1.5]), "the last id");
        assert!(parsed("[[null,5,null],[-0.5,0,null],[-1.5,7,null]]").unwrap_err().contains("0 instead of 6"));
        let error = plain(&[5, 6], 1).parse(br#"{"error":{"message":"x"}}"#).unwrap_err();
        assert!(error.contains("no logprobs"), "{error}");
    }

    /// The members of a reply of SGLang 0.5.23.
    #[test]
    fn likeliest_tokens_and_candidates_are_those_at_the_asked_tokens() {
        let query = ScoreQuery { top: 2, candidates: &[5, 100], ..plain(&[9, 6], 1) };
        let parsed = |top: &str, candidates: &str| {
            let others = format!(r#","input_top_logprobs":{top},"input_token_ids_logprobs":{candidates}"#);
            query.parse(reply("[[null,9,null],[-0.5,6,null]]", &others).as_bytes())
        };
        let (top, candidates) =
            ("[null,[[-0.25,72607,null],[-3.5,49920,null]]]", "[null,[[-13.5,5,null],[-15.5,100,null]]]");
        let expected = TokenScores {
            logprobs: vec![-0.5],
            top_ids: vec![72607, 49920],
            top_logprobs: vec![-0.25, -3.5],
            candidates: vec![-13.5, -15.5],
            label: None,
        };
        assert_eq!(parsed(top, candidates), Ok(expected));
        for (top, candidates, part) in [
            ("null", candidates, "no logprobs of the likeliest"),
            ("[null]", candidates, "at 0 tokens, not 1"),
            ("[null,[[-0.25,72607,null]]]", candidates, "of 1 likeliest tokens at a token, not 2"),
            ("[null,[[-0.25,72607,null],[null,4,null]]]", candidates, "no logprob of token 4"),
            (top, "null", "no logprobs of the requested"),
            (top, "[null,null]", "of 0 requested tokens at a token, not 2"),
            (top, "[null,[[-13.5,100,null],[-15.5,5,null]]]", "token 100 instead of 5"),
        ] {
            let error = parsed(top, candidates).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_replies_do_not_panic(reply in prop::collection::vec(any::<u8>(), 0..200), first in 1..3_usize) {
            let _ = plain(&[1, 2, 3], first).parse(&reply);
        }

        #[test]
        fn arbitrary_rows_do_not_panic(top in "[\\[\\],0-9nul-]{0,40}", candidates in "[\\[\\],0-9nul-]{0,40}") {
            let others = format!(r#","input_top_logprobs":{top},"input_token_ids_logprobs":{candidates}"#);
            let query = ScoreQuery { top: 1, candidates: &[5], ..plain(&[9, 6], 1) };
            let _ = query.parse(reply("[[null,9,null],[-0.5,6,null]]", &others).as_bytes());
        }

        #[test]
        fn replies_are_within_the_expected_bytes(
            (tokens, top, candidates) in (1..20_usize, 0..5_u32, 0..5_u32), nats in -3.4e38..0.0_f64,
        ) {
            let (ids, candidates): (Vec<u32>, Vec<u32>) = (vec![u32::MAX; tokens + 1], (0..candidates).collect());
            let query = ScoreQuery { top, candidates: &candidates, ..plain(&ids, 1) };
            let entry = format!("[{nats},{},null]", u32::MAX);
            let row = |width: usize| format!("[{}]", vec![entry.as_str(); width].join(","));
            let rows = |width: usize| format!("[null,{}]", vec![row(width); tokens + 1].join(","));
            let written = rows(1).len() + rows(top as usize).len() + rows(candidates.len()).len() + query.body().len();
            prop_assert!(written <= query.bytes() + 300, "{written} for {}", query.bytes());
        }
    }
}
