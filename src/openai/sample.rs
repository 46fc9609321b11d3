//! One object of a native reply, as far as a chat reply is made of it.

use bytes::Bytes;

use crate::json::{Cursor, Malformed, Object, Value};
use crate::sglang::response::{Chunk, Nothing, Numbers};

/// An object: a whole sequence, or an event of its stream.
#[derive(Debug)]
pub struct Sample {
    /// Which of the request's sequences.
    pub index: usize,
    /// The ids that are new since so many tokens as were said to be known.
    pub ids: Vec<u32>,
    /// The event repeats what came before.
    pub repeats: bool,
    /// How many tokens the sequence has by now.
    pub tokens: usize,
    /// `stop`, `length`, `abort`; `None` while it goes on.
    pub finish: Option<String>,
    /// `finish_reason.matched`, as JSON text.
    pub matched: Option<String>,
    bytes: Bytes,
    chunk: Chunk,
}

/// What the engine says of one sampled token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// The token.
    pub id: u32,
    /// Its text, where the engine says it.
    pub text: Option<String>,
    /// Its logprob, as JSON text.
    pub logprob: String,
    /// The likeliest tokens with their logprobs and texts, in the engine's order.
    pub top: Vec<(u32, String, Option<String>)>,
}

impl Sample {
    /// Reads the objects of a reply that does not stream: one, or a list.
    ///
    /// # Errors
    /// When it is neither.
    pub fn all(body: &Bytes) -> Result<Vec<Self>, Malformed> {
        let mut cursor = Cursor::new(body);
        let mut samples = Vec::new();
        if cursor.take(b'[') {
            while !cursor.take(b']') {
                if !samples.is_empty() {
                    cursor.expect(b',')?;
                }
                let mut sample = Self::read(body, &mut cursor, |_| 0)?;
                sample.index = samples.len();
                samples.push(sample);
            }
        } else {
            samples.push(Self::read(body, &mut cursor, |_| 0)?);
        }
        cursor.end()?;
        Ok(samples)
    }

    /// Reads the object at the cursor; `known` says how many tokens of a sequence have been seen.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(bytes: &Bytes, cursor: &mut Cursor<'_>, known: impl Fn(usize) -> usize) -> Result<Self, Malformed> {
        let chunk = Chunk::read(cursor, &Nothing, &mut Numbers::default())?;
        let mut ids = Vec::new();
        if let Some(span) = &chunk.output_ids {
            Chunk::ids(bytes, span, &mut ids)?;
        }
        let known = known(chunk.index);
        // counted from the start of the sequence in every kind of stream, while lists hold all tokens or the new ones
        let counted = chunk.completion_tokens.and_then(|tokens| usize::try_from(tokens).ok());
        let tokens = counted.unwrap_or(ids.len()).max(known);
        let fresh = ids.len().saturating_sub(tokens - known);
        ids.drain(..fresh);
        let reason = chunk.member(bytes, "finish_reason").and_then(|text| Value::parse(text).ok());
        let matched = reason.as_ref().and_then(|reason| reason.get("matched")).map(super::message::dumps);
        Ok(Self {
            index: chunk.index,
            repeats: fresh > 0,
            tokens,
            ids,
            finish: chunk.finish.as_ref().map(|finish| finish.kind.clone()),
            matched,
            bytes: bytes.clone(),
            chunk,
        })
    }

    /// The engine's own text: all of it, or what is new.
    #[must_use]
    pub fn text(&self) -> String {
        let text = self.chunk.object.get(&self.bytes, "text").and_then(|text| Value::parse(text).ok());
        text.and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default()
    }

    /// The prompt's ids as the engine repeats them, as JSON text.
    #[must_use]
    pub fn prompt_ids(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes[self.chunk.prompt_ids.clone()?]).ok()
    }

    /// `meta_info.id`.
    #[must_use]
    pub fn rid(&self) -> Option<&str> {
        self.chunk.rid.as_deref()
    }

    /// What its tool calls are named after: the engine's id, and the place among the samples.
    #[must_use]
    pub fn name(&self) -> (&str, usize) {
        (self.rid().unwrap_or_default(), self.index)
    }

    /// Tokens of the prompt.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.chunk.prompt_tokens.unwrap_or(0)
    }

    /// A member of `meta_info` that counts something.
    #[must_use]
    pub fn count(&self, name: &str) -> Option<u64> {
        self.chunk.count(&self.bytes, name)
    }

    /// A member of `meta_info`, as JSON text.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&str> {
        self.chunk.member(&self.bytes, name).and_then(|text| std::str::from_utf8(text).ok())
    }

    /// All of `meta_info`, as JSON text.
    #[must_use]
    pub fn meta_info(&self) -> Option<&str> {
        let span = self.chunk.meta.as_ref()?.span.clone();
        std::str::from_utf8(&self.bytes[span]).ok()
    }

    /// `error`, as JSON text: the object is an event that says why there are no more.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        let object: &Object = &self.chunk.object;
        if self.chunk.meta.is_some() {
            return None;
        }
        std::str::from_utf8(object.get(&self.bytes, "error")?).ok()
    }

    /// What the engine says of the new tokens; empty where it was not asked.
    #[must_use]
    pub fn said(&self) -> Vec<Said> {
        let list = |name: &str| match self.member(name).map(|text| Value::parse(text.as_bytes())) {
            Some(Ok(Value::Array(values))) => values,
            _ => Vec::new(),
        };
        let chosen = list("output_token_logprobs");
        let top = list("output_top_logprobs");
        let new = self.ids.len();
        let tail = |values: Vec<Value>| {
            let before = values.len().saturating_sub(new);
            values.into_iter().skip(before)
        };
        let mut rows = tail(top);
        let said = tail(chosen).filter_map(|value| {
            let (id, logprob, text) = entry(&value)?;
            let row = rows.next().unwrap_or_default();
            let top = row.as_array().unwrap_or_default().iter().filter_map(entry).collect();
            Some(Said { id, text, logprob, top })
        });
        said.collect()
    }
}

/// An entry of a list of logprobs: the logprob, the id, and perhaps the text.
fn entry(value: &Value) -> Option<(u32, String, Option<String>)> {
    let [logprob, id, rest @ ..] = value.as_array()? else { return None };
    let Value::Number(id) = id else { return None };
    let logprob = match logprob {
        Value::Number(text) if text.bytes().all(|byte| !matches!(byte, b'N' | b'I')) => text.to_string(),
        _ => "null".to_owned(),
    };
    let text = rest.first().and_then(Value::as_str).map(str::to_owned);
    Some((id.parse().ok()?, logprob, text))
}
