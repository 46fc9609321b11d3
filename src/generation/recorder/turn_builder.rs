// SPDX-License-Identifier: Apache-2.0
//! The turn of a sequence that has not finished.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bytes::Bytes;
use smallvec::SmallVec;

use super::CapturedOutput;
use super::column_builder::{BuiltColumns, ColumnBuilder, ColumnFacts};
use crate::columns::{Column, ColumnFault, ExpertShape, TurnTokens};
use crate::engine::events::Chunk;
use crate::engine::sglang::extras;
use crate::generation::entropy_lists::ListContent;
use crate::generation::sequence::Anomaly;
use crate::session::{EpochMark, Fault};

/// Collects the tokens and members of one sequence.
#[derive(Debug, Default)]
pub(super) struct TurnBuilder {
    pub(super) ids: Vec<u32>,
    pub(super) logprobs: Vec<f32>,
    pub(super) entropy: Vec<f32>,
    /// The `output_ids` of the last event that listed all of them, not parsed yet.
    pub(super) unread: Bytes,
    /// The `output_ids` of the last event that listed all of them beside logprobs.
    pub(super) listed: Bytes,
    /// How many leading ids of the last list are repeated: an abort that is merged with the previous event lists that event's tokens
    /// before all tokens.
    pub(super) repeated_ids: usize,
    pub(super) marks: SmallVec<[EpochMark; 1]>,
    /// Tokens of `marks` that no object has listed yet.
    pub(super) marked: usize,
    pub(super) first_ms: Option<u64>,
    pub(super) rid: Option<Box<str>>,
    pub(super) extras: BTreeMap<Box<str>, String>,
    /// The token columns; `None` if none is requested.
    pub(super) columns: Option<Box<ColumnBuilder>>,
    pub(super) label: Option<Box<str>>,
    /// The engine's last number of prompt tokens.
    pub(super) prompt_tokens: Option<u64>,
    /// The engine was asked for logprobs.
    pub(super) has_logprobs: bool,
    /// The two id lists of an event differ.
    pub(super) ids_differ: bool,
    /// The events contradict each other.
    pub(super) contradicted: bool,
    pub(super) recorded: bool,
}

impl TurnBuilder {
    /// Adds the tokens of an object.
    pub(super) fn add_tokens(&mut self, output: &CapturedOutput<'_>) {
        let CapturedOutput { bytes, chunk, item, numbers, step, .. } = output;
        self.contradicted |= step.anomaly == Some(Anomaly::Contradiction);
        self.prompt_tokens = chunk.prompt_tokens.or(self.prompt_tokens);
        self.has_logprobs = item.logprob;
        self.repeated_ids = step.merged;
        let all_ids = chunk.output_ids.as_ref().filter(|_| step.content == ListContent::Full);
        self.listed =
            all_ids.filter(|_| chunk.chosen.is_some()).map_or_else(Bytes::new, |span| bytes.slice(span.clone()));
        if chunk.chosen.is_some() {
            let new = step.chosen_from..step.chosen_from + step.new;
            let ids = numbers.ids.get(new.clone()).unwrap_or_default();
            self.ids.extend_from_slice(ids);
            // `resolve_ids` compares the lists of the last object, which in a cumulative stream include those of all earlier objects
            if let (ListContent::Delta, None, Some(span)) = (step.content, &chunk.finish, &chunk.output_ids) {
                let mut listed = Vec::new();
                self.ids_differ |= Chunk::ids(bytes, span, &mut listed).is_err() || listed != ids;
            }
            self.logprobs.extend_from_slice(numbers.chosen.get(new).unwrap_or_default());
        } else if let Some(span) = &chunk.output_ids {
            match step.content {
                // parsed only at the end: each event of a cumulative stream repeats the list
                ListContent::Full => {
                    self.unread = bytes.slice(span.clone());
                }
                ListContent::Delta => {
                    let before = self.ids.len();
                    if Chunk::ids(bytes, span, &mut self.ids).is_err() {
                        self.ids.truncate(before);
                    } else if step.repeats_last {
                        self.ids.pop();
                    }
                }
            }
        }
        // the label of a finished sequence is read from its last object
        if self.label.is_none() && chunk.finish.is_none() {
            self.label = chunk.weight_label(bytes).map(Into::into);
        }
    }

    /// Tokens of the objects so far.
    pub(super) fn tokens(&self) -> u32 {
        self.marks.last().map_or(0, |mark| mark.last)
    }

    pub(super) fn mark_epochs(&mut self, epochs: RangeInclusive<u64>, new: usize) {
        let (epoch, until) = epochs.into_inner();
        let tokens = self.tokens().saturating_add(u32::try_from(new).unwrap_or(u32::MAX));
        match self.marks.last_mut() {
            Some(mark) if (mark.epoch, mark.until) == (epoch, until) => mark.last = tokens,
            _ => self.marks.push(EpochMark { epoch, until, first: tokens, last: tokens }),
        }
    }

    /// Keeps the token columns, and the other members that the client requested. At most `top_k` of the likeliest tokens are kept; `None`
    /// if they are not wanted.
    pub(super) fn add_members(&mut self, output: &CapturedOutput<'_>, top_k: Option<u32>) {
        let CapturedOutput { bytes, chunk, item, numbers, step, edit, cuts, .. } = output;
        if self.columns.is_none() {
            self.columns = ColumnBuilder::for_item(item, top_k).map(Box::new);
        }
        if let Some(columns) = self.columns.as_mut().filter(|_| top_k.is_some()) {
            columns.add_top(&numbers.rows, step.new);
        }
        // a later object repeats the members, unless the reply is cut off
        let is_repeated = chunk.finish.is_none() && step.content == ListContent::Full;
        if is_repeated && !item.has_columns() {
            return;
        }
        let Some(meta) = &chunk.meta else { return };
        for member in &meta.members {
            if !extras::may_be_recorded(meta, bytes, member, item) {
                continue; // most requests, with each event
            }
            let name = meta.key(bytes, member).decode();
            let grows = |value: &[u8]| {
                step.content == ListContent::Delta && extras::is_per_sampled_token(&name) && value.starts_with(b"[")
            };
            if let Some(at) = extras::column_at(&name) {
                let value = bytes.slice(member.value.clone());
                if !matches!(&value[..], b"null" | b"[]") {
                    let grows = grows(&value);
                    self.columns.get_or_insert_default().add_payload(at, value, grows);
                }
                continue;
            }
            let is_retraction = extras::is_retraction(&name, &bytes[member.value.clone()], item);
            if is_repeated || !is_retraction && !extras::is_recorded(&name, item) {
                continue;
            }
            let Some(value) = edit.value(member, cuts) else { continue };
            let Ok(value) = String::from_utf8(value) else { continue };
            if matches!(&*value, "null" | "[]") {
                continue;
            }
            let grows = grows(value.as_bytes());
            match self.extras.get_mut(&*name) {
                // in place: a long stream must not copy the whole list for each event
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

    /// Takes the token columns, and why others are missing. A payload that the client requested and that cannot be read becomes one of the
    /// extras. `prompt` is the number of prompt tokens, if it is known.
    pub(super) fn take_columns(
        &mut self,
        prompt: Option<usize>,
        experts: Option<ExpertShape>,
        facts: &ColumnFacts<'_>,
    ) -> (Vec<Column>, BTreeMap<Box<str>, ColumnFault>) {
        let Some(columns) = self.columns.take() else { return Default::default() };
        let tokens = TurnTokens { prompt, sampled: self.ids.len(), experts, ..TurnTokens::default() };
        let BuiltColumns { columns, missing, unread } = columns.build(tokens, facts);
        self.extras.extend(unread.into_iter().map(|(name, text)| (name.into(), text)));
        (columns, missing)
    }

    /// Parses the ids that are not parsed yet, and compares the engine's two id lists if it sent both. `last` is the object with the
    /// finish reason; `None` if the reply was cut off.
    pub(super) fn resolve_ids(&mut self, last: Option<(&Bytes, &Chunk)>, ids_are_sampled: bool) -> Result<(), Fault> {
        let mut listed = Vec::with_capacity(self.ids.len());
        let unread = std::mem::take(&mut self.unread);
        if !unread.is_empty() {
            Chunk::ids(&unread, &(0..unread.len()), &mut listed).map_err(|_| Fault::Unreadable)?;
            listed.drain(..self.repeated_ids.min(listed.len()));
            self.ids = listed;
            return if ids_are_sampled { Ok(()) } else { Err(Fault::IdsUnverified) };
        }
        if !ids_are_sampled {
            let unverified = self.logprobs.is_empty() && !self.ids.is_empty();
            return if unverified { Err(Fault::IdsUnverified) } else { Ok(()) };
        }
        let text = match last {
            Some((bytes, Chunk { output_ids: Some(span), chosen: Some(_), .. })) => bytes.slice(span.clone()),
            Some(_) => Bytes::new(),
            None => std::mem::take(&mut self.listed),
        };
        if !text.is_empty() {
            Chunk::ids(&text, &(0..text.len()), &mut listed).map_err(|_| Fault::Unreadable)?;
            listed.drain(..self.repeated_ids.min(listed.len()));
            self.ids_differ |= match last {
                // the last event of an incremental stream lists only the new ids
                Some(_) => !self.ids.ends_with(&listed),
                // before the end, one list may run ahead of the other
                None => !(self.ids.starts_with(&listed) || listed.starts_with(&self.ids)),
            };
        }
        if self.ids_differ { Err(Fault::IdsMismatch) } else { Ok(()) }
    }

    /// Returns the first inconsistency of the turn. `completion_tokens` is the engine's number at the end; `None` if the reply was cut
    /// off, because before the end the ids may run ahead of it.
    pub(super) fn fault(
        &self,
        completion_tokens: Option<u64>,
        prompt: Option<&[u32]>,
        vocab_size: Option<u32>,
    ) -> Option<Fault> {
        let is = |count: Option<u64>, len: usize| count.is_none_or(|count| count == len as u64);
        let Some(prompt) = prompt else { return Some(Fault::PromptUnknown) };
        let tokens = self.ids.len();
        if !is(self.prompt_tokens, prompt.len()) {
            Some(Fault::PromptMismatch)
        } else if !is(completion_tokens, tokens) {
            Some(Fault::CompletionMismatch)
        } else if self.contradicted {
            Some(Fault::IdsUnverified)
        } else if vocab_size.is_some_and(|size| self.ids.iter().any(|id| *id >= size)) {
            Some(Fault::IdsOutside)
        } else if self.has_logprobs && self.logprobs.len() != tokens {
            Some(Fault::LogprobsMismatch)
        } else if !self.entropy.is_empty() && self.entropy.len() != tokens {
            Some(Fault::EntropiesMismatch)
        } else {
            None
        }
    }
}
