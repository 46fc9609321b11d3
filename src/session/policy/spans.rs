// SPDX-License-Identifier: Apache-2.0
//! The policies that sampled the tokens of a response: divides them into spans of epochs.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};

use serde::{Deserialize, Serialize};

use super::{AdapterSpan, Epoch};
use crate::session::ProcessId;

/// SGLang's `weight_version` before an update sets another.
pub const INITIAL_WEIGHT_VERSION: &str = "default";

/// Tokens of one response that one policy sampled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The first token, counted from the start of the response.
    pub start: u32,
    /// The position after the last token.
    pub end: u32,
    /// tokentap's policy epoch. If the weights changed and the engine did not report at which token, the first possible epoch.
    pub epoch: u64,
    /// The last possible epoch; equal to `epoch` if the epoch is certain.
    pub until: u64,
    /// The engine's `weight_version`.
    pub weight_version: Option<Box<str>>,
    /// The trainer's name of the epoch (`POST /v1/policy`).
    pub version: Option<Box<str>>,
    /// The process that counted the epochs, if sessions are shared. Epochs of different processes cannot be compared.
    pub process: Option<ProcessId>,
    /// The adapter; `None` for the base weights alone. Boxed, because few requests have one.
    pub adapter: Option<Box<AdapterSpan>>,
}

impl Span {
    /// Whether exactly one epoch of the base weights is possible.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.epoch == self.until
    }

    /// Whether exactly one policy is possible: one epoch of the base weights, and one of the adapter.
    pub(in crate::session) fn has_one_policy(&self) -> bool {
        self.is_certain() && self.adapter.as_ref().is_none_or(|adapter| adapter.epoch == adapter.until)
    }

    /// The bytes that it takes in memory.
    pub(in crate::session) fn bytes(&self) -> usize {
        let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        let adapter = |adapter: &AdapterSpan| size_of::<AdapterSpan>() + adapter.name.len() + text(&adapter.version);
        let adapter = self.adapter.as_deref().map_or(0, adapter);
        size_of::<Self>() + text(&self.weight_version) + text(&self.version) + adapter
    }

    /// The engine's `weight_version`, unless it is empty or SGLang's initial one: every engine begins with that one.
    #[must_use]
    pub fn updated_weight_version(&self) -> Option<&str> {
        self.weight_version.as_deref().filter(|label| !label.is_empty() && *label != INITIAL_WEIGHT_VERSION)
    }
}

/// The weight versions that the engine reported for a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportedVersions {
    /// `weight_version`.
    pub label: Option<Box<str>>,
    /// `weight_versions`: label, first token, position after the last token.
    pub spans: Vec<(Box<str>, u32, u32)>,
}

/// The possible epochs of tokens of a running response, and how many tokens had been received when these epochs were observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochMark {
    /// The first epoch.
    pub epoch: u64,
    /// The last epoch.
    pub until: u64,
    /// Tokens received up to the first observation.
    pub first: u32,
    /// Tokens received up to the last observation.
    pub last: u32,
}

/// Whether the engine's spans cover the response without a gap.
pub(super) fn covers(spans: &[(Box<str>, u32, u32)], tokens: u32) -> bool {
    let end = spans.iter().try_fold(0, |at, (_, start, end)| (*start == at && end >= start).then_some(*end));
    end.is_some_and(|end| end >= tokens) && !spans.is_empty()
}

/// The number of the last epoch up to `asked` that began with a call or on request. Later ones began with labels.
pub(super) fn begun(epochs: &VecDeque<Epoch>, asked: u64) -> u64 {
    let mut earlier = epochs.iter().rev().filter(|epoch| epoch.number <= asked);
    let found = earlier.find(|epoch| !epoch.by_label).or(epochs.front());
    found.map_or(asked, |epoch| epoch.number)
}

/// The first and the last epoch since `from` in which tokens with this label may have been sampled.
pub(super) fn possible(epochs: &VecDeque<Epoch>, from: u64, label: Option<&str>) -> (u64, u64) {
    let now = epochs.back().map_or(from, |epoch| epoch.number);
    let fits = |epoch: &&Epoch| epoch.label.is_none() || label.is_none() || epoch.label.as_deref() == label;
    let mut possible = epochs.iter().filter(|epoch| epoch.number >= from).filter(fits).map(|epoch| epoch.number);
    match possible.next() {
        Some(first) => (first, possible.next_back().unwrap_or(first)),
        // a label that was not observed elsewhere: only the time limits its epoch
        None => (from, now.max(from)),
    }
}

/// Tokens of a response that have one label, and the epochs in which they may have been sampled.
#[derive(Debug, Clone, Copy)]
pub(super) struct LabelledPart<'a> {
    pub(super) label: Option<&'a str>,
    /// The first token.
    pub(super) start: u32,
    /// The position after the last token.
    pub(super) end: u32,
    /// The first possible epoch.
    pub(super) first: u64,
    /// The last possible epoch.
    pub(super) until: u64,
    /// The engine reported the label for exactly these tokens.
    pub(super) is_exact: bool,
}

impl LabelledPart<'_> {
    /// Appends the spans of the part, which is divided where different epochs were observed.
    pub(super) fn divide(self, epochs: &VecDeque<Epoch>, seen: &[EpochMark], spans: &mut Vec<Span>) {
        let mut push = |tokens: Range<u32>, possible: RangeInclusive<u64>| {
            let Some(span) = self.span(epochs, tokens, &possible) else { return };
            let is_same = |last: &&mut Span| {
                (last.end, last.epoch, last.until) == (span.start, span.epoch, span.until)
                    && (&last.weight_version, &last.version) == (&span.weight_version, &span.version)
            };
            match spans.last_mut().filter(is_same) {
                Some(last) => last.end = span.end,
                None => spans.push(span),
            }
        };
        let (mut at, mut from) = (self.start, self.first);
        for pair in seen.windows(2) {
            let [old, new] = [pair[0], pair[1]].map(|mark| EpochMark {
                epoch: mark.epoch.clamp(from, self.until),
                until: mark.until.clamp(from, self.until),
                ..mark
            });
            if (old.epoch, old.until) == (new.epoch, new.until) {
                continue;
            }
            // tokens received before the change belong to the old epochs at the latest, tokens after its first event to the new ones
            let (known, reached) = (old.last.clamp(at, self.end), new.first.clamp(at, self.end));
            push(at..known, from..=old.until);
            push(known..reached, old.epoch..=new.until);
            (at, from) = (reached, new.epoch);
        }
        push(at..self.end, from..=self.until);
    }

    /// The span of these tokens of the part; `None` without tokens.
    fn span(self, epochs: &VecDeque<Epoch>, tokens: Range<u32>, possible: &RangeInclusive<u64>) -> Option<Span> {
        if tokens.is_empty() {
            return None;
        }
        let (epoch, until) = (*possible.start(), *possible.end());
        let known = epochs.iter().find(|known| known.number == epoch && epoch == until);
        let mut others = epochs.iter().filter(|known| possible.contains(&known.number));
        let is_clear =
            self.is_exact || others.all(|known| known.label.is_none() || known.label.as_deref() == self.label);
        let own = known.and_then(|epoch| epoch.label.as_deref());
        let weight_version = own.filter(|_| !self.is_exact).or(self.label.filter(|_| is_clear)).map(Into::into);
        let version = known.and_then(|epoch| epoch.version.clone());
        // sharing sets the process, and the policy the adapter
        Some(Span {
            start: tokens.start,
            end: tokens.end,
            epoch,
            until,
            weight_version,
            version,
            process: None,
            adapter: None,
        })
    }
}
