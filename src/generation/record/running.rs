//! One sequence that has not ended.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::Seen;
use crate::engine::response::Chunk;
use crate::generation::forcing::Item;
use crate::generation::sequence::{Anomaly, Content};
use crate::session::{Fault, Mark};

/// What has come of it.
#[derive(Debug, Default)]
pub(super) struct Running {
    pub(super) ids: Vec<u32>,
    pub(super) logprobs: Vec<f32>,
    pub(super) entropy: Vec<f32>,
    /// The `output_ids` of the last event that repeated all of them, not yet read.
    pub(super) unread: Bytes,
    /// Ids at its beginning that stand there twice: an abort merged with the event before it lists that event's tokens in front of all.
    pub(super) twice: usize,
    pub(super) marks: Vec<Mark>,
    pub(super) first_ms: Option<u64>,
    pub(super) rid: Option<Box<str>>,
    pub(super) extras: BTreeMap<Box<str>, String>,
    pub(super) label: Option<Box<str>>,
    /// An event's two lists of ids are not the same.
    differs: bool,
    /// The events contradict each other.
    contradicted: bool,
    pub(super) recorded: bool,
}

impl Running {
    /// Adds the tokens of an object.
    pub(super) fn tokens(&mut self, seen: &Seen<'_>) {
        let Seen { bytes, chunk, numbers, step, .. } = seen;
        self.contradicted |= step.anomaly == Some(Anomaly::Contradiction);
        if chunk.chosen.is_some() {
            let new = step.chosen_from..step.chosen_from + step.new;
            let ids = numbers.ids.get(new.clone()).unwrap_or_default();
            self.ids.extend_from_slice(ids);
            // the last object's lists are compared in `read`, and with them all that earlier ones of a cumulative stream held
            if let (Content::Delta, None, Some(span)) = (step.content, &chunk.finish, &chunk.output_ids) {
                let mut listed = Vec::new();
                self.differs |= Chunk::ids(bytes, span, &mut listed).is_err() || listed != ids;
            }
            self.logprobs.extend_from_slice(numbers.chosen.get(new).unwrap_or_default());
        } else if let Some(span) = &chunk.output_ids {
            match step.content {
                // read only once nothing replaces it: the events of a long stream repeat it over and over
                Content::Full => {
                    self.unread = bytes.slice(span.clone());
                    self.twice = step.chosen_from.saturating_sub(self.seen() as usize);
                }
                Content::Delta => {
                    let before = self.ids.len();
                    if Chunk::ids(bytes, span, &mut self.ids).is_err() {
                        self.ids.truncate(before);
                    }
                }
            }
        }
        if self.label.is_none() {
            self.label = chunk.text(bytes, "weight_version").map(Into::into);
        }
    }

    /// Tokens that had come before the object at hand.
    fn seen(&self) -> u32 {
        self.marks.last().map_or(0, |mark| mark.last)
    }

    pub(super) fn mark(&mut self, epoch: u64, new: usize) {
        let tokens = self.seen().saturating_add(u32::try_from(new).unwrap_or(u32::MAX));
        match self.marks.last_mut() {
            Some(mark) if mark.epoch == epoch => mark.last = tokens,
            _ => self.marks.push(Mark { epoch, first: tokens, last: tokens }),
        }
    }

    /// Keeps what the client asked for besides tokens.
    pub(super) fn keep(&mut self, seen: &Seen<'_>) {
        let Seen { bytes, chunk, item, step, edit, cuts, .. } = seen;
        let whole = chunk.finish.is_some();
        if !whole && step.content == Content::Full {
            return; // a later object repeats it
        }
        let Some(meta) = &chunk.meta else { return };
        for member in &meta.members {
            let key = meta.key(bytes, member);
            if !item.asked && !UNASKED.iter().any(|name| key.is(name)) {
                continue; // most requests, with each event
            }
            let name = key.decode();
            if !is_kept(&name, item) {
                continue;
            }
            let Some(value) = edit.value(member, cuts) else { continue };
            let Ok(value) = String::from_utf8(value) else { continue };
            if matches!(&*value, "null" | "[]") {
                continue;
            }
            let grows = step.content == Content::Delta && name.starts_with("output_") && value.starts_with('[');
            match self.extras.get_mut(&*name) {
                // in place: a long stream must not copy all of it with each event
                Some(known) if grows && known.ends_with(']') => {
                    known.pop();
                    known.push(',');
                    known.push_str(&value[1..]);
                }
                _ => {
                    self.extras.insert(name.into(), value);
                }
            }
        }
    }

    /// Reads what is still unread, and compares the engine's two lists of ids where it sent both.
    pub(super) fn read(&mut self, last: Option<(&Bytes, &Chunk)>, ids_are_sampled: bool) -> Result<(), Fault> {
        let mut listed = Vec::new();
        let unread = std::mem::take(&mut self.unread);
        if !unread.is_empty() {
            Chunk::ids(&unread, &(0..unread.len()), &mut listed).map_err(|_| Fault::Unreadable)?;
            listed.drain(..self.twice.min(listed.len()));
            self.ids = listed;
            return if ids_are_sampled { Ok(()) } else { Err(Fault::IdsUnverified) };
        }
        if !ids_are_sampled {
            let unverified = self.logprobs.is_empty() && !self.ids.is_empty();
            return if unverified { Err(Fault::IdsUnverified) } else { Ok(()) };
        }
        let Some((bytes, chunk)) = last else { return Ok(()) };
        let (Some(span), Some(_)) = (&chunk.output_ids, &chunk.chosen) else { return Ok(()) };
        Chunk::ids(bytes, span, &mut listed).map_err(|_| Fault::Unreadable)?;
        // the last event of an incremental stream lists only what is new
        if self.ids.ends_with(&listed) && !self.differs { Ok(()) } else { Err(Fault::IdsMismatch) }
    }

    /// What does not fit together.
    pub(super) fn fault(&self, chunk: &Chunk, item: &Item, prompt: Option<&[u32]>) -> Option<Fault> {
        let is = |count: Option<u64>, len: usize| count.is_none_or(|count| count == len as u64);
        let Some(prompt) = prompt else { return Some(Fault::PromptUnknown) };
        let tokens = self.ids.len();
        if !is(chunk.prompt_tokens, prompt.len()) {
            Some(Fault::PromptMismatch)
        } else if !is(chunk.completion_tokens, tokens) {
            Some(Fault::CompletionMismatch)
        } else if self.contradicted {
            Some(Fault::IdsUnverified)
        } else if item.logprob && self.logprobs.len() != tokens {
            Some(Fault::LogprobsMismatch)
        } else if !self.entropy.is_empty() && self.entropy.len() != tokens {
            Some(Fault::EntropiesMismatch)
        } else {
            None
        }
    }
}

/// What is kept also where no logprobs were asked for: the engine sends it on request only.
const UNASKED: [&str; 2] = ["routed_experts", "indexer_topk"];

/// Whether a member of `meta_info` is kept with the turn: only what the client asked for.
fn is_kept(name: &str, item: &Item) -> bool {
    let prompt = ["input_token_logprobs", "input_token_ids_logprobs", "output_token_ids_logprobs"];
    let top = ["input_top_logprobs", "output_top_logprobs"];
    UNASKED.contains(&name)
        || item.asked && prompt.contains(&name)
        || item.asked_k > 0 && top.iter().any(|top| name.starts_with(top))
}
