// SPDX-License-Identifier: Apache-2.0
//! Continues an aborted generation: which requests allow it, the request for the rest, and how its reply is joined to what the client has.
//!
//! The continuation is a separate request, whose prompt is the first prompt with the tokens sampled so far. The counts, lists and
//! positions in its reply begin at its first token. [`JoinedReply`] rewrites each object of it as an object of the joined reply.

mod members;
mod request;

use crate::engine::events::Chunk;
use crate::json::{Cursor, Edit, Malformed, Object, Splice};
use crate::named_enum::named_enum;
use members::{Join, OF_PROMPT, OF_TOKENS, REASONING_AT, ROUTED_EXPERTS_AT, decoded, encoded};
pub(crate) use request::{ResumableRequest, STATELESS};

named_enum! {
    /// Why a generation is not continued.
    pub(crate) enum ResumeObstacle {
        /// Its prompt is not one list of ids, or continues a session of the engine.
        Prompt = "prompt",
        /// It is a batch, or asks for several samples.
        Batch = "batch",
        /// A grammar constrains the output from its first token.
        Grammar = "grammar",
        /// A penalty counts the output tokens.
        Penalty = "penalty",
        /// `min_new_tokens` counts the output tokens.
        MinNewTokens = "min_new_tokens",
        /// A stop string may span the end of what was sampled, or `stop_regex` is set.
        Stop = "stop",
        /// `sampling_seed`: who sets it expects the tokens of one generation.
        Seed = "seed",
        /// A custom logit processor may depend on the output, or `custom_params` are set.
        Processor = "processor",
        /// It has a member whose effect on a continuation is unknown, or whose data cannot be joined.
        Member = "member",
        /// The text ends within a character.
        Character = "character",
        /// It has been continued as often as is allowed.
        Attempts = "attempts",
        /// Its reply cannot be read.
        Unreadable = "unreadable",
        /// The engine did not accept the continuation.
        Refused = "refused",
        /// The reply to the continuation broke off before its first tokens.
        Broken = "broken",
        /// The trainer aborted it without a pause or new weights.
        NoPause = "no_pause",
        /// The pause did not end in time, or tokentap ends.
        Paused = "paused",
    }
}

/// The echo of the prompt, beside `meta_info`.
const PROMPT: &str = "prompt_token_ids";

/// The tokens of one attempt, or of all attempts before it.
#[derive(Debug, Default)]
struct AttemptTokens {
    ids: Vec<u32>,
    /// The text as the content of a JSON string.
    text: Vec<u8>,
    /// The values of the members of [`OF_TOKENS`].
    values: [Option<Vec<u8>>; OF_TOKENS.len()],
    /// `weight_versions`.
    spans: Vec<(Box<str>, u32, u32)>,
}

/// What an object of the engine's reply becomes.
#[derive(Debug)]
pub(crate) struct JoinedObject {
    /// The object of the one reply; `None` if it is the engine's.
    pub json: Option<Vec<u8>>,
    pub kind: ObjectKind,
    /// Tokens that earlier objects do not have.
    pub new_tokens: usize,
}

/// The kind of an object of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    /// Tokens, after which others may come.
    Tokens,
    /// The engine aborted the generation because it was asked to.
    Aborted,
    /// The engine ended the generation.
    Ended,
    /// An error of the engine.
    Error,
}

/// Joins the replies of a request and its continuations.
#[derive(Debug)]
pub(crate) struct JoinedReply {
    request: ResumableRequest,
    /// Objects repeat the tokens of earlier ones, as in a cumulative stream.
    repeats: bool,
    /// The tokens before the current attempt.
    before: AttemptTokens,
    /// The tokens of the current attempt. While objects repeat earlier ones, those of the last object that was needed.
    current: AttemptTokens,
    /// The number of tokens of the current attempt so far.
    count: usize,
    /// The first sampled tokens that attempts with routed experts ended with.
    with_experts: Option<usize>,
    /// `id` of the first attempt.
    id: Option<Vec<u8>>,
    /// The members of [`OF_PROMPT`] in the first attempt.
    of_prompt: [Option<Vec<u8>>; OF_PROMPT.len()],
    /// `prompt_token_ids` in the first attempt.
    prompt: Option<Vec<u8>>,
    attempts: u32,
}

/// The object of the reply is not in SGLang's format, or its lists and counts disagree.
#[derive(Debug)]
pub(crate) struct JoinError;

impl From<Malformed> for JoinError {
    fn from(_: Malformed) -> Self {
        Self
    }
}

impl JoinedReply {
    /// The reply to `request`. In a stream, `repeats` says whether events list all tokens so far; a whole reply does.
    pub(crate) fn new(request: ResumableRequest, repeats: bool) -> Self {
        Self {
            request,
            repeats,
            before: AttemptTokens::default(),
            current: AttemptTokens::default(),
            count: 0,
            with_experts: None,
            id: None,
            of_prompt: [const { None }; OF_PROMPT.len()],
            prompt: None,
            attempts: 1,
        }
    }

    /// The number of attempts, the first one included.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Reads an object of the reply to the current attempt.
    ///
    /// # Errors
    /// When it cannot be joined. No later object can be.
    pub(crate) fn join(&mut self, json: &[u8]) -> Result<JoinedObject, JoinError> {
        let mut cursor = Cursor::new(json);
        let chunk = Chunk::outline(&mut cursor)?;
        cursor.end()?;
        let Some(meta) = &chunk.meta else {
            return Ok(JoinedObject { json: None, kind: ObjectKind::Error, new_tokens: 0 });
        };
        let kind = match &chunk.finish {
            None => ObjectKind::Tokens,
            Some(_) if is_requested_abort(&chunk) => ObjectKind::Aborted,
            Some(_) => ObjectKind::Ended,
        };
        let count = chunk.completion_tokens.and_then(|count| usize::try_from(count).ok()).ok_or(JoinError)?;
        let new_tokens = count.checked_sub(self.count).ok_or(JoinError)?;
        // a later object repeats this one, and nothing of it is needed unless it is the last one
        let is_needed = !self.repeats || self.attempts > 1 || kind == ObjectKind::Aborted;
        if is_needed {
            self.take_tokens(json, &chunk, meta, new_tokens)?;
        }
        self.count = count;
        if self.attempts == 1 && is_needed {
            self.take_prompt(json, &chunk, meta);
        }
        let json = if self.attempts == 1 { None } else { Some(self.rewrite(json, &chunk, meta)?) };
        Ok(JoinedObject { json, kind, new_tokens })
    }

    /// Takes the tokens of an object, of which `new` are not in earlier ones, and what it says about them.
    fn take_tokens(&mut self, json: &[u8], chunk: &Chunk, meta: &Object, new: usize) -> Result<(), JoinError> {
        if self.repeats {
            self.current.ids.clear();
            self.take_ids(json, chunk, self.count + new)?;
        } else {
            self.take_ids(json, chunk, new)?;
        }
        // an abort in the queue repeats what was sent
        let is_repeated = !self.repeats && is_requested_abort(chunk) && new == 0;
        if let Some(text) = chunk.object.get(json, "text").filter(|_| !is_repeated) {
            let content = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).ok_or(JoinError)?;
            if self.repeats {
                self.current.text.clear();
            }
            self.current.text.extend_from_slice(content);
        }
        for ((name, join), value) in OF_TOKENS.iter().zip(&mut self.current.values) {
            if let Some(found) = meta.get(json, name).filter(|_| self.repeats || *join != Join::List) {
                *value = (found != b"null").then(|| found.to_vec());
            }
        }
        let spans = chunk.weight_versions(json);
        if !spans.is_empty() {
            self.current.spans = spans;
        }
        Ok(())
    }

    /// Takes what an object of the first attempt says about the request.
    fn take_prompt(&mut self, json: &[u8], chunk: &Chunk, meta: &Object) {
        let taken = |name: &str, value: &mut Option<Vec<u8>>| {
            if let Some(found) = meta.get(json, name) {
                *value = Some(found.to_vec());
            }
        };
        OF_PROMPT.iter().zip(&mut self.of_prompt).for_each(|(name, value)| taken(name, value));
        taken("id", &mut self.id);
        if let Some(found) = chunk.object.get(json, PROMPT) {
            self.prompt = Some(found.to_vec());
        }
    }

    /// Whether a reply, or an object of it, ends a generation that the engine was asked to abort.
    pub(crate) fn is_requested_abort(json: &[u8]) -> bool {
        let mut cursor = Cursor::new(json);
        let mut found = false;
        let mut read = |cursor: &mut Cursor<'_>| {
            found |= is_requested_abort(&Chunk::outline(cursor)?);
            Ok(())
        };
        let read = if cursor.peek() == Some(b'[') { cursor.elements(read) } else { read(&mut cursor) };
        read.is_ok() && found
    }

    /// Appends the `new` last ids of an object.
    fn take_ids(&mut self, json: &[u8], chunk: &Chunk, new: usize) -> Result<(), JoinError> {
        let Some(span) = chunk.output_ids.as_ref().filter(|_| new > 0) else {
            return if new == 0 { Ok(()) } else { Err(JoinError) };
        };
        let repeated = usize::from(!self.repeats && chunk.repeats_last_id(json, self.count));
        let mut ids = Vec::with_capacity(new + repeated);
        Chunk::last_ids(json, span, new + repeated, &mut ids)?;
        ids.truncate(new);
        if ids.len() < new {
            return Err(JoinError);
        }
        self.current.ids.append(&mut ids);
        Ok(())
    }

    /// The object as one of the one reply.
    fn rewrite(&self, json: &[u8], chunk: &Chunk, meta: &Object) -> Result<Vec<u8>, JoinError> {
        let (before, current) = (&self.before, &self.current);
        let mut splice = Splice::default();
        let mut edit = Edit::new(json, meta);
        if let Some(id) = &self.id {
            edit.set("id", id);
        }
        edit.set("prompt_tokens", self.request.prompt_len().to_string().as_bytes());
        for (name, value) in OF_PROMPT.iter().zip(&self.of_prompt) {
            match value {
                Some(value) if meta.get(json, name).is_some() => edit.set(name, value),
                // it describes the prompt with the tokens sampled before
                None if !before.ids.is_empty() => edit.remove(|key| key.is(name)),
                _ => {}
            }
        }
        let is_end = chunk.finish.is_some();
        for (at, (name, _)) in OF_TOKENS.iter().enumerate() {
            let joined = self.joined_value(at)?;
            if let Some(joined) = joined.filter(|_| is_end || at != ROUTED_EXPERTS_AT) {
                edit.set(name, &joined);
            }
        }
        edit.set("completion_tokens", (before.ids.len() + current.ids.len()).to_string().as_bytes());
        if meta.get(json, "weight_versions").is_some() {
            let span = |(version, start, end)| serde_json::json!({"version": version, "start": start, "end": end});
            let spans: Vec<serde_json::Value> = self.spans().into_iter().map(span).collect();
            edit.set("weight_versions", serde_json::Value::from(spans).to_string().as_bytes());
        }
        if let Some(finish) = meta
            .get(json, "finish_reason")
            .filter(|_| chunk.finish.as_ref().is_some_and(|finish| finish.kind == "length"))
        {
            edit.set("finish_reason", &self.whole_length(finish)?);
        }
        edit.finish(&mut splice);
        let mut edit = Edit::new(json, &chunk.object);
        if let (Some(prompt), true) = (&self.prompt, chunk.object.get(json, PROMPT).is_some()) {
            edit.set(PROMPT, prompt);
        }
        if self.repeats {
            if chunk.object.get(json, "text").is_some() {
                edit.set("text", &[b"\"", &before.text[..], &current.text, b"\""].concat());
            }
            if chunk.output_ids.is_some() {
                let ids: Vec<String> = before.ids.iter().chain(&current.ids).map(u32::to_string).collect();
                edit.set("output_ids", format!("[{}]", ids.join(", ")).as_bytes());
            }
        }
        edit.finish(&mut splice);
        Ok(splice.apply(json))
    }

    /// The value of the member at `at` of [`OF_TOKENS`] for all attempts.
    fn joined_value(&self, at: usize) -> Result<Option<Vec<u8>>, JoinError> {
        let (before, current) = (self.before.values[at].as_deref(), self.current.values[at].as_deref());
        if at == REASONING_AT && self.request.requires_reasoning && !self.before.ids.is_empty() {
            let reasoning = before.and_then(|text| std::str::from_utf8(text).ok()?.parse::<usize>().ok());
            // the reasoning has ended, but the engine counts from the beginning of its output until the output ends it
            if reasoning.is_none_or(|reasoning| reasoning < self.before.ids.len()) {
                return Ok(before.map(<[u8]>::to_vec));
            }
        }
        match (before, current) {
            (Some(before), Some(current)) if at == ROUTED_EXPERTS_AT => self.joined_experts(before, current).map(Some),
            _ => OF_TOKENS[at].1.join(before, current),
        }
    }

    /// The routed experts of all attempts. An engine that ignores the start in the request for the rest repeats the rows of the tokens before.
    fn joined_experts(&self, before: &[u8], current: &[u8]) -> Result<Vec<u8>, JoinError> {
        let (mut joined, mut current) = (decoded(before)?, decoded(current)?);
        // each token but the last of an attempt has a row
        let rows = |sampled: usize| (self.request.prompt_len() + sampled).saturating_sub(1);
        let known = rows(self.with_experts.unwrap_or(0));
        let all = rows(self.before.ids.len() + self.current.ids.len());
        let earlier = known.saturating_sub(self.request.experts_start());
        if earlier > 0 && current.len() * earlier == joined.len() * all {
            current.drain(..joined.len() / earlier * known);
        }
        joined.extend(current);
        Ok(encoded(&joined))
    }

    /// `weight_versions` of all attempts: those of the current one after the earlier tokens, equal neighbours as one.
    fn spans(&self) -> Vec<(Box<str>, u32, u32)> {
        let offset = u32::try_from(self.before.ids.len()).unwrap_or(u32::MAX);
        let mut spans = self.before.spans.clone();
        for (version, start, end) in &self.current.spans {
            let (start, end) = (start.saturating_add(offset), end.saturating_add(offset));
            match spans.last_mut().filter(|(last, _, last_end)| last == version && *last_end == start) {
                Some((_, _, last_end)) => *last_end = end,
                None => spans.push((version.clone(), start, end)),
            }
        }
        spans
    }

    /// The finish reason `length` with the `max_new_tokens` of the first request.
    fn whole_length(&self, finish: &[u8]) -> Result<Vec<u8>, JoinError> {
        let object = Object::parse(finish)?;
        let length = object.get(finish, "length").and_then(|text| std::str::from_utf8(text).ok()?.parse::<u64>().ok());
        let Some(length) = length else { return Ok(finish.to_vec()) };
        let (mut splice, mut edit) = (Splice::default(), Edit::new(finish, &object));
        edit.set("length", (length + self.before.ids.len() as u64).to_string().as_bytes());
        edit.finish(&mut splice);
        Ok(splice.apply(finish))
    }

    /// The request for the rest, with the id `rid`. SGLang aborts the id of a stream again two seconds after its end, so a continuation
    /// cannot have that of the aborted request.
    ///
    /// # Errors
    /// Why it would be sampled otherwise than the aborted one.
    pub(crate) fn continuation(&self, rid: &str) -> Result<Vec<u8>, ResumeObstacle> {
        let (before, current) = (&self.before, &self.current);
        let text = [b"\"", &before.text[..], &current.text, b"\""].concat();
        let text: String = serde_json::from_slice(&text).map_err(|_| ResumeObstacle::Unreadable)?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Err(ResumeObstacle::Character);
        }
        if self.request.stops.iter().any(|stop| may_span_end(&text, stop)) {
            return Err(ResumeObstacle::Stop);
        }
        let sampled: Vec<u32> = before.ids.iter().chain(&current.ids).copied().collect();
        self.request.continued(&sampled, self.with_experts(), rid)
    }

    /// The first sampled tokens that attempts with routed experts ended with, the current one included.
    fn with_experts(&self) -> Option<usize> {
        let has_experts = self.current.values[ROUTED_EXPERTS_AT].is_some();
        if has_experts { Some(self.before.ids.len() + self.current.ids.len()) } else { self.with_experts }
    }

    /// Begins the reply to the continuation.
    ///
    /// # Errors
    /// When the values of the last attempt cannot be joined to those before.
    pub(crate) fn begin_continuation(&mut self) -> Result<(), JoinError> {
        let (spans, with_experts) = (self.spans(), self.with_experts());
        let mut values = [const { None }; OF_TOKENS.len()];
        for (at, value) in values.iter_mut().enumerate() {
            *value = self.joined_value(at)?;
        }
        let (before, current) = (&mut self.before, std::mem::take(&mut self.current));
        (before.spans, before.values) = (spans, values);
        before.ids.extend(current.ids);
        before.text.extend(current.text);
        (self.count, self.with_experts) = (0, with_experts);
        self.attempts += 1;
        Ok(())
    }
}

/// The object without its finish reason: the reply goes on.
///
/// # Errors
/// When it is not an object of a reply.
pub(crate) fn without_finish(json: &[u8]) -> Result<Vec<u8>, JoinError> {
    let chunk = Chunk::outline(&mut Cursor::new(json))?;
    let meta = chunk.meta.as_ref().ok_or(JoinError)?;
    let (mut splice, mut edit) = (Splice::default(), Edit::new(json, meta));
    edit.set("finish_reason", b"null");
    edit.finish(&mut splice);
    Ok(splice.apply(json))
}

/// An abort that the engine was not asked for has a status.
fn is_requested_abort(chunk: &Chunk) -> bool {
    chunk.finish.as_ref().is_some_and(|finish| finish.kind == "abort" && finish.status_code.is_none())
}

/// Whether a stop string that is not complete yet may have begun at the end of the text.
fn may_span_end(text: &str, stop: &str) -> bool {
    stop.char_indices().skip(1).any(|(length, _)| text.ends_with(&stop[..length]))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::sglang::request::GenerateRequest;

    fn resumable(sampling: &Value) -> ResumableRequest {
        let body = json!({"input_ids": [1, 2, 3], "sampling_params": sampling});
        let bytes = Bytes::from(body.to_string());
        ResumableRequest::try_new(&GenerateRequest::parse(bytes.clone()).unwrap(), bytes).unwrap()
    }

    /// Tokens of a reply: those of all attempts are 100, 101, ...
    #[derive(Debug, Clone, Copy)]
    struct Attempt {
        /// The tokens of earlier attempts.
        before: usize,
        prompt: usize,
        /// With the flat form of the top logprobs, as in whole replies.
        is_flat: bool,
    }

    impl Attempt {
        /// An object with the tokens of the attempt up to `end`. It lists those from `start` on.
        fn object(self, start: usize, end: usize, finish: &Value) -> Value {
            let tokens = || self.before + start..self.before + end;
            let rows: Vec<Value> = tokens().map(|token| json!([-0.5, 100 + token, null])).collect();
            let text: String = tokens().map(|token| format!("\"{token} ")).collect();
            let versions: Vec<Value> = self.versions(end);
            let mut object = json!({
                "text": text, "output_ids": tokens().map(|token| 100 + token).collect::<Vec<_>>(),
                "meta_info": {
                    "id": "r", "finish_reason": finish, "prompt_tokens": self.prompt, "cached_tokens": self.prompt - 1,
                    "completion_tokens": end, "weight_version": "w", "weight_versions": versions,
                    "output_token_logprobs": rows, "output_token_sampling_mask": rows, "reasoning_tokens": end, "e2e_latency": 0.5,
                },
            });
            let encoded = |bytes: Vec<u8>| json!(base64_simd::STANDARD.encode_to_string(bytes));
            let meta = &mut object["meta_info"];
            if self.is_flat {
                meta["output_top_logprobs_val_flat_b64"] = encoded(tokens().map(|token| token as u8).collect());
                meta["output_top_logprobs_shape"] = json!([end - start, 1]);
            } else {
                meta["output_top_logprobs"] = json!(rows);
            }
            if !finish.is_null() {
                // from the last token of the earlier attempt on, without the last token
                let first = if self.before == 0 { 0 } else { self.prompt - 1 };
                meta["routed_experts"] = encoded((first..self.prompt + end - 1).map(|row| row as u8).collect());
            }
            object
        }

        /// The version changes with every fifth token of the whole reply.
        fn versions(self, end: usize) -> Vec<Value> {
            let mut spans: Vec<Value> = Vec::new();
            for token in 0..end {
                let version = format!("w{}", (self.before + token) / 5);
                match spans.last_mut().filter(|span| span["version"] == *version) {
                    Some(span) => span["end"] = json!(token + 1),
                    None => spans.push(json!({"version": version, "start": token, "end": token + 1})),
                }
            }
            spans
        }
    }

    proptest! {
        /// Whatever the points of the aborts and of the events, each event is that of a reply without aborts.
        #[test]
        fn joined_events_are_those_of_one_reply(
            events in prop::collection::vec((1..4_usize, prop::bool::weighted(0.3)), 1..20),
            repeats in any::<bool>(),
            ignores_start in any::<bool>(),
        ) {
            let total: usize = events.iter().map(|(tokens, _)| tokens).sum();
            let whole = Attempt { before: 0, prompt: 3, is_flat: repeats };
            let mut joined = JoinedReply::new(resumable(&json!({"max_new_tokens": total})), repeats);
            let mut attempt = whole;
            let mut at = 0;
            for (number, (tokens, aborts)) in events.iter().enumerate() {
                let is_last = number + 1 == events.len();
                let (start, end) = (at, at + tokens);
                let length = |length: usize| json!({"type": "length", "length": length});
                let finish = match (is_last, aborts) {
                    (true, _) => length(total - attempt.before),
                    (false, true) => json!({"type": "abort", "message": "Aborted", "status_code": null}),
                    (false, false) => Value::Null,
                };
                let first = if repeats { 0 } else { start - attempt.before };
                let mut sent = attempt.object(first, end - attempt.before, &finish);
                if ignores_start && !finish.is_null() {
                    let rows = (0..attempt.prompt + end - attempt.before - 1).map(|row| row as u8).collect::<Vec<_>>();
                    sent["meta_info"]["routed_experts"] = json!(base64_simd::STANDARD.encode_to_string(rows));
                }
                let object = joined.join(sent.to_string().as_bytes()).unwrap();
                prop_assert_eq!((object.kind == ObjectKind::Aborted, object.new_tokens), (!is_last && *aborts, *tokens));
                let found = object.json.map_or(sent, |json| serde_json::from_slice(&json).unwrap());
                let finish = if is_last { length(total) } else { finish };
                let expected = whole.object(if repeats { 0 } else { start }, end, &finish);
                prop_assert_eq!(&found, &expected);
                if object.kind == ObjectKind::Aborted {
                    let open: Value = serde_json::from_slice(&without_finish(found.to_string().as_bytes()).unwrap()).unwrap();
                    prop_assert_eq!(&open["meta_info"]["finish_reason"], &Value::Null);
                    let next: Value = serde_json::from_slice(&joined.continuation("next").unwrap()).unwrap();
                    prop_assert_eq!(&next["rid"], "next");
                    let ids: Vec<usize> = (1..=3).chain((0..end).map(|token| 100 + token)).collect();
                    prop_assert_eq!(&next["input_ids"], &json!(ids));
                    prop_assert_eq!(&next["sampling_params"]["max_new_tokens"], &json!(total - end));
                    joined.begin_continuation().unwrap();
                    attempt = Attempt { before: end, prompt: 3 + end, is_flat: repeats };
                }
                at = end;
            }
        }
    }

    #[test]
    fn abort_in_the_queue_has_no_new_tokens() {
        let attempt = Attempt { before: 0, prompt: 3, is_flat: false };
        let abort = json!({"type": "abort", "message": "Abort in waiting queue"});
        let mut joined = JoinedReply::new(resumable(&json!({"max_new_tokens": 9})), false);
        joined.join(attempt.object(0, 4, &Value::Null).to_string().as_bytes()).unwrap();
        // SGLang repeats the last id, and the whole text
        let mut echo = attempt.object(0, 4, &abort);
        echo["output_ids"] = json!([103]);
        let object = joined.join(echo.to_string().as_bytes()).unwrap();
        assert_eq!((object.kind, object.new_tokens), (ObjectKind::Aborted, 0));
        let next: Value = serde_json::from_slice(&joined.continuation("next").unwrap()).unwrap();
        assert_eq!(next["input_ids"], json!([1, 2, 3, 100, 101, 102, 103]));
        let mut unsent = JoinedReply::new(resumable(&json!({})), true);
        let before = json!({"text": "", "meta_info": {"id": "r", "finish_reason": abort, "completion_tokens": 0}});
        assert_eq!(unsent.join(before.to_string().as_bytes()).unwrap().kind, ObjectKind::Aborted);
        unsent.begin_continuation().unwrap();
        let reply = attempt.object(0, 2, &json!({"type": "stop", "matched": 7}));
        let found: Value =
            serde_json::from_slice(&unsent.join(reply.to_string().as_bytes()).unwrap().json.unwrap()).unwrap();
        let expected = attempt.object(0, 2, &json!({"type": "stop", "matched": 7}));
        assert_eq!(found, expected, "the prompt was not counted before");
    }

    #[test]
    fn failure_of_the_engine_is_no_requested_abort() {
        let failure = json!({"type": "abort", "message": "out of memory", "status_code": 500});
        let mut joined = JoinedReply::new(resumable(&json!({})), true);
        let object = Attempt { before: 0, prompt: 3, is_flat: false }.object(0, 2, &failure);
        assert_eq!(joined.join(object.to_string().as_bytes()).unwrap().kind, ObjectKind::Ended);
    }

    #[test]
    fn text_that_ends_within_a_stop_string_or_a_character_is_not_continued() {
        let after = |stop: Value, text: &str| {
            let mut joined = JoinedReply::new(resumable(&json!({"stop": stop})), true);
            let mut object = Attempt { before: 0, prompt: 3, is_flat: false }.object(0, 2, &json!({"type": "abort"}));
            object["text"] = json!(text);
            joined.join(object.to_string().as_bytes()).unwrap();
            joined.continuation("next").err()
        };
        for text in ["a </", "<", "x </sto"] {
            assert_eq!(after(json!(["</stop>"]), text), Some(ResumeObstacle::Stop), "{text}");
        }
        for text in ["a", "</x", "", "stop>"] {
            assert_eq!(after(json!("</stop>"), text), None, "{text}");
        }
        assert_eq!(after(json!(null), "a\u{fffd}"), Some(ResumeObstacle::Character));
    }

    #[test]
    fn object_whose_counts_disagree_is_not_joined() {
        let mut joined = JoinedReply::new(resumable(&json!({})), false);
        let attempt = Attempt { before: 0, prompt: 3, is_flat: false };
        joined.join(attempt.object(0, 4, &Value::Null).to_string().as_bytes()).unwrap();
        assert!(joined.join(attempt.object(0, 3, &Value::Null).to_string().as_bytes()).is_err(), "fewer tokens");
        let mut joined = JoinedReply::new(resumable(&json!({})), false);
        let mut missing = attempt.object(0, 4, &Value::Null);
        missing["output_ids"] = json!([100]);
        assert!(joined.join(missing.to_string().as_bytes()).is_err());
        assert!(joined.join(b"{\"meta_info\": {}}").is_err() && joined.join(b"[").is_err());
        assert_eq!(joined.join(b"{\"error\": {}}").unwrap().kind, ObjectKind::Error);
    }
}
