// SPDX-License-Identifier: Apache-2.0
//! Scores tokens that another policy sampled: asks an engine for the logprobs of a prompt, and generates nothing.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::request::CUSTOM_PROCESSOR;
use crate::json::write_ids;

/// The path of the request.
pub(crate) const PATH: &str = "/generate";

/// The bytes of an id in a request, at most.
const ID_BYTES: usize = 11;

/// The bytes of an entry of a reply, at most: `[-3.4028234663852886e+38,4294967295,null],` is shorter, and a row has two brackets and a comma.
const ENTRY_BYTES: usize = 48;

/// The bytes of the other members of a reply, at most.
const REST_BYTES: usize = 64 << 10;

/// The rounding of a logprob, in nats, at most: one of almost 0 may be above 0.
const ROUNDING: f64 = 0.01;

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
    /// The number of entries of the engine's vocabulary, if it is known.
    pub vocab_size: Option<u32>,
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
        let request = ID_BYTES * (self.ids.len() + self.candidates.len());
        request + self.reply_bytes() + size_of::<Entry>().saturating_mul(self.entries())
    }

    /// The bytes of the reply, at most.
    pub(crate) fn reply_bytes(&self) -> usize {
        ENTRY_BYTES.saturating_mul(self.entries()).saturating_add(REST_BYTES)
    }

    /// The logprobs of the reply, at most.
    fn entries(&self) -> usize {
        // the token before the first one has an entry, and so has the position after the last one
        let tokens = self.ids.len() - self.first + 2;
        tokens.saturating_mul(1 + usize::try_from(self.top).unwrap_or(usize::MAX) + self.candidates.len())
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
    /// What is wrong with the reply: it is of other tokens, lacks a logprob, or has likeliest tokens that cannot be such.
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
            for row in self.rows(top, self.top as usize, "likeliest tokens")? {
                let logprobs: Vec<f32> = row.iter().map(logprob).collect::<Result<_, _>>()?;
                let ids: Vec<u32> = row.iter().map(|entry| entry.1).collect();
                self.check_likeliest(&ids, &logprobs)?;
                scores.top_ids.extend(ids);
                scores.top_logprobs.extend(logprobs);
            }
        }
        if !self.candidates.is_empty() {
            for row in self.rows(candidates, self.candidates.len(), "requested tokens")? {
                if let Some((entry, id)) = row.iter().zip(self.candidates).find(|(entry, id)| entry.1 != **id) {
                    return Err(format!("the reply has the logprob of token {} instead of {id}", entry.1));
                }
                scores.candidates.extend(row.iter().map(logprob).collect::<Result<Vec<_>, _>>()?);
            }
        }
        Ok(scores)
    }

    /// The rows of the tokens that are asked, each of `width` entries.
    fn rows(&self, rows: Option<Rows>, width: usize, what: &str) -> Result<Vec<Vec<Entry>>, String> {
        let rows = rows.ok_or_else(|| format!("the reply has no logprobs of the {what}"))?;
        let asked = self.ids.len() - self.first;
        let of_asked: Vec<Vec<Entry>> = rows.into_iter().skip(1).map(Option::unwrap_or_default).collect();
        match of_asked.iter().find(|row| row.len() != width) {
            None if of_asked.len() == asked => Ok(of_asked),
            None => Err(format!("the reply has logprobs of the {what} at {} tokens, not {asked}", of_asked.len())),
            Some(row) => Err(format!("the reply has logprobs of {} {what} at a token, not {width}", row.len())),
        }
    }

    /// Checks what holds for the likeliest tokens of any vocabulary, and whether they are in this one.
    fn check_likeliest(&self, ids: &[u32], logprobs: &[f32]) -> Result<(), String> {
        if let Some((id, size)) = self.vocab_size.and_then(|size| Some((ids.iter().find(|id| **id >= size)?, size))) {
            return Err(format!("the reply has token {id}, and the vocabulary has {size} entries"));
        }
        if !logprobs.is_sorted_by(|one, next| one >= next) {
            return Err("the reply has likeliest tokens that are not in the order of their logprobs".to_owned());
        }
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("the reply has token {} twice among the likeliest at a token", pair[0])),
            None => Ok(()),
        }
    }
}

fn logprob((logprob, id, _): &Entry) -> Result<f32, String> {
    #[expect(clippy::cast_possible_truncation, reason = "the engine computed it as a float32")]
    let single = logprob.filter(|nats| *nats <= ROUNDING).map(|nats| nats as f32).filter(|nats| nats.is_finite());
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
    let changes = |(name, _): &&(&str, f64)| sampling.get(*name).is_some_and(|value| changes_logprobs(name, value));
    CHANGING.iter().find(changes).map(|(name, _)| *name)
}

/// Whether this sampling parameter changes the distribution of which SGLang returns logprobs.
pub(crate) fn changes_logprobs(name: &str, value: &serde_json::Value) -> bool {
    let off = CHANGING.iter().find(|(known, _)| *known == name).map(|(_, off)| *off);
    off.is_some_and(|off| !value.is_null() && value.as_f64() != Some(off))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn plain(ids: &[u32], first: usize) -> ScoreQuery<'_> {
        ScoreQuery { ids, first, top: 0, candidates: &[], adapter: None, vocab_size: None }
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
        assert!(parsed("[[null,5,null],[0.5,6,null],[-1.5,7,null]]").unwrap_err().contains("token 6"), "above 0");
        assert_eq!(parsed("[[null,5,null],[1e-7,6,null],[-1.5,7,null]]"), Ok(vec![1e-7, -1.5]), "rounding");
        assert_eq!(parsed("[[null,5,null],[-0.5,6,null],[-1.5,0,null]]"), Ok(vec![-0.5, -1.5]), "the last id");
        assert!(parsed("[[null,5,null],[-0.5,0,null],[-1.5,7,null]]").unwrap_err().contains("0 instead of 6"));
        let error = plain(&[5, 6], 1).parse(br#"{"error":{"message":"x"}}"#).unwrap_err();
        assert!(error.contains("no logprobs"), "{error}");
    }

    /// The members of a reply of SGLang 0.5.23.
    #[test]
    fn likeliest_tokens_and_candidates_are_those_at_the_asked_tokens() {
        let query = ScoreQuery { top: 2, candidates: &[5, 100], vocab_size: Some(80_000), ..plain(&[9, 6], 1) };
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
            ("[null,[[-0.25,72607,null],[-0.5,72607,null]]]", candidates, "token 72607 twice"),
            ("[null,[[-0.5,72607,null],[-0.25,4,null]]]", candidates, "not in the order"),
            ("[null,[[-0.5,80000,null],[-0.75,4,null]]]", candidates, "token 80000, and the vocabulary has 80000"),
            (top, "null", "no logprobs of the requested"),
            (top, "[null,null]", "of 0 requested tokens at a token, not 2"),
            (top, "[null,[[-13.5,100,null],[-15.5,5,null]]]", "token 100 instead of 5"),
        ] {
            let error = parsed(top, candidates).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    /// A request and the numbers of its reply.
    #[derive(Debug, Clone)]
    struct Answered {
        ids: Vec<u32>,
        first: usize,
        top: u32,
        candidates: Vec<u32>,
        logprobs: Vec<f32>,
        /// `top` tokens and logprobs at each asked token.
        likeliest: Vec<(u32, f32)>,
        of_candidates: Vec<(u32, f32)>,
    }

    fn answered() -> impl Strategy<Value = Answered> {
        let ids = prop::collection::vec(1..1000_u32, 2..9);
        let sizes = (ids, any::<prop::sample::Index>(), 0..4_u32, prop::collection::btree_set(0..1000_u32, 0..4));
        sizes.prop_flat_map(|(ids, at, top, candidates)| {
            let first = 1 + at.index(ids.len() - 1);
            let asked = ids.len() - first;
            let nats = |count: usize| prop::collection::vec(-50.0..0.0_f32, count);
            let likeliest = prop::collection::vec(
                (prop::collection::hash_set(0..1000_u32, top as usize), nats(top as usize)).prop_map(
                    |(ids, mut nats)| {
                        nats.sort_unstable_by(|one, other| other.total_cmp(one));
                        ids.into_iter().zip(nats).collect::<Vec<_>>()
                    },
                ),
                asked,
            );
            (nats(asked), likeliest, nats(asked * candidates.len())).prop_map(
                move |(logprobs, likeliest, of_candidates)| {
                    let candidates: Vec<u32> = candidates.iter().copied().collect();
                    let of_candidates = candidates.iter().copied().cycle().zip(of_candidates).collect();
                    let (ids, likeliest) = (ids.clone(), likeliest.concat());
                    Answered { ids, first, top, candidates, logprobs, likeliest, of_candidates }
                },
            )
        })
    }

    proptest! {
        #[test]
        fn arbitrary_replies_do_not_panic(reply in prop::collection::vec(any::<u8>(), 0..200), first in 1..3_usize) {
            let _ = plain(&[1, 2, 3], first).parse(&reply);
        }

        /// A reply as SGLang writes it, of which one part may be another: it is parsed exactly if all its parts are as asked.
        #[test]
        fn reply_is_parsed_as_it_was_written_or_refused(
            (asked, damage) in (answered(), prop::option::of(0..16_usize)), at in any::<prop::sample::Index>(),
        ) {
            let Answered { ids, first, top, candidates, logprobs, likeliest, of_candidates } = asked;
            let query = ScoreQuery { top, candidates: &candidates, vocab_size: Some(1000), ..plain(&ids, first) };
            let entry = |(id, nats): (&u32, &f32)| json!([nats, id, null]);
            let rows = |cells: &[(u32, f32)], width: usize| -> Vec<serde_json::Value> {
                let of_token = |row: &[(u32, f32)]| row.iter().map(|(id, nats)| entry((id, nats))).collect();
                std::iter::once(json!(null)).chain(cells.chunks(width.max(1)).map(of_token)).collect()
            };
            let mut chosen = vec![json!([null, ids[first - 1], null])];
            chosen.extend(ids[first..].iter().zip(&logprobs).map(entry));
            let mut meta = json!({
                "id": "r", "weight_version": "w", "prompt_tokens": ids.len(), "input_token_logprobs": chosen,
            });
            if top > 0 {
                meta["input_top_logprobs"] = rows(&likeliest, top as usize).into();
            }
            if !candidates.is_empty() {
                meta["input_token_ids_logprobs"] = rows(&of_candidates, candidates.len()).into();
            }
            let lists: Vec<&str> = ["input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"]
                .into_iter().filter(|name| meta.get(*name).is_some()).collect();
            let list = *at.get(&lists);
            let row = 1 + at.index(logprobs.len());
            let is_chosen = list == lists[0];
            let target = if is_chosen { format!("/{list}/{row}") } else { format!("/{list}/{row}/0") };
            let mut is_damaged = true;
            match damage {
                Some(0) => drop(meta[list].as_array_mut().unwrap().pop()),
                Some(1) => meta[list].as_array_mut().unwrap().push(json!(null)),
                Some(2) => meta[list] = json!(null),
                Some(3) => *meta.pointer_mut(&format!("{target}/0")).unwrap() = json!(null),
                Some(4) => *meta.pointer_mut(&format!("{target}/0")).unwrap() = json!(7.5),
                Some(5) => *meta.pointer_mut(&format!("{target}/0")).unwrap() = json!(-1e300),
                Some(6) => *meta.pointer_mut(&format!("{target}/1")).unwrap() = json!(5000),
                Some(7) => *meta.pointer_mut(&format!("{target}/1")).unwrap() = json!(-1),
                Some(8) => *meta.pointer_mut(&target).unwrap() = json!([]),
                Some(9) => *meta.pointer_mut(&target).unwrap() = json!("x"),
                _ => is_damaged = false,
            }
            let parsed = query.parse(json!({"text": "", "output_ids": [], "meta_info": meta}).to_string().as_bytes());
            let nats = |cells: &[(u32, f32)]| cells.iter().map(|cell| cell.1).collect::<Vec<f32>>();
            if is_damaged {
                prop_assert!(parsed.is_err(), "{meta} is refused, not {parsed:?}");
            } else {
                let expected = TokenScores {
                    logprobs,
                    top_ids: likeliest.iter().map(|cell| cell.0).collect(),
                    top_logprobs: nats(&likeliest),
                    candidates: nats(&of_candidates),
                    label: Some("w".to_owned()),
                };
                prop_assert_eq!(parsed, Ok(expected));
            }
        }

        /// Text that is almost a reply: whatever is accepted has the asked shape, and finite numbers.
        #[test]
        fn accepted_rows_have_the_asked_shape(
            top in "\\[(null|\\[\\])?(,\\[(\\[-?[0-9]{1,2}(\\.5|e9|e99)?,[0-9]{1,3},(null|\"x\")\\]){1,2}\\]){1,2}\\]",
            candidates in "\\[null(,\\[\\[(-[0-9]|null|-1e999),[4-6],null\\]\\]){1,2}\\]",
        ) {
            let others = format!(r#","input_top_logprobs":{top},"input_token_ids_logprobs":{candidates}"#);
            let query = ScoreQuery { top: 1, candidates: &[5], vocab_size: Some(100), ..plain(&[9, 6], 1) };
            if let Ok(scores) = query.parse(reply("[[null,9,null],[-0.5,6,null]]", &others).as_bytes()) {
                let TokenScores { logprobs, top_ids, top_logprobs, candidates, .. } = &scores;
                prop_assert_eq!([logprobs.len(), top_ids.len(), top_logprobs.len(), candidates.len()], [1; 4]);
                let mut all = logprobs.iter().chain(top_logprobs).chain(candidates);
                prop_assert!(all.all(|nats| nats.is_finite() && *nats <= 0.01), "{scores:?}");
                prop_assert!(top_ids[0] < 100);
            }
        }

        #[test]
        fn replies_are_within_the_expected_bytes(
            (tokens, top, candidates) in (1..20_usize, 0..5_u32, 0..5_u32), nats in -3.4e38..0.0_f64,
        ) {
            let (ids, candidates): (Vec<u32>, Vec<u32>) = (vec![u32::MAX; tokens + 1], (0..candidates).collect());
            let query = ScoreQuery { top, candidates: &candidates, ..plain(&ids, 1) };
            let entry = json!([nats, u32::MAX, null]).to_string();
            let row = |width: usize| format!("[{}]", vec![entry.as_str(); width].join(","));
            let rows = |width: usize| match width {
                0 => String::new(),
                _ => format!("[null,{}]", vec![row(width); tokens + 1].join(",")),
            };
            let written = rows(1).len() + rows(top as usize).len() + rows(candidates.len()).len() + query.body().len();
            prop_assert!(written <= query.bytes(), "{written} for {}", query.bytes());
            let reply = written - query.body().len();
            prop_assert!(reply <= query.reply_bytes() - REST_BYTES, "{reply} for {}", query.reply_bytes());
        }
    }
}
