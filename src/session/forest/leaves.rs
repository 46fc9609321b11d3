// SPDX-License-Identifier: Apache-2.0
//! Counts the turns of a forest by kind, and finds those that end a path.

use std::collections::HashMap;

use super::Forest;
use crate::session::{Cause, Classes, Fault, Turn};

/// Counts over all turns of a session.
#[derive(Debug, Clone, Default)]
pub(in crate::session) struct TurnCounts {
    /// Sampled tokens.
    pub(in crate::session) sampled_tokens: usize,
    /// Turns that end a path.
    pub(in crate::session) leaves: usize,
    faults: HashMap<Fault, usize>,
    causes: HashMap<Cause, usize>,
}

impl TurnCounts {
    /// Counts a turn. `extends` is true if its parent ended a path until now.
    pub(super) fn add(&mut self, turn: &Turn, extends: bool) {
        self.sampled_tokens += turn.response.len();
        self.leaves += usize::from(!extends);
        if let Some(fault) = turn.about.fault {
            *self.faults.entry(fault).or_default() += 1;
        }
        *self.causes.entry(turn.about.cause).or_default() += 1;
    }

    /// Whether a turn has this fault.
    pub(in crate::session) fn has(&self, fault: Fault) -> bool {
        self.faults.contains_key(&fault)
    }

    /// Turns that are not trained, by the name of their fault.
    pub(in crate::session) fn faults(&self) -> Vec<(&'static str, usize)> {
        Fault::ALL.into_iter().filter_map(|fault| Some((fault.name(), *self.faults.get(&fault)?))).collect()
    }

    /// Turns by the name of their cause.
    pub(in crate::session) fn causes(&self) -> Vec<(&'static str, usize)> {
        Cause::ALL.into_iter().filter_map(|cause| Some((cause.name(), *self.causes.get(&cause)?))).collect()
    }
}

impl Forest {
    /// The counts of turns by kind.
    pub(in crate::session) fn counts(&self) -> &TurnCounts {
        &self.counts
    }

    /// Whether an export of `classes` trains a turn, and its reply reached the client.
    pub(super) fn is_trained(&self, turn: u32, classes: Classes) -> bool {
        let is_lost = self.superseded.contains(&turn) && self.places[turn as usize].children.is_empty();
        classes.trains(&self.turns[turn as usize]) && !is_lost
    }

    /// Continues a search for a trained turn among `search`, for at most `steps` turns. Returns whether one was found, or `None` if turns
    /// are left in `search`.
    pub(in crate::session) fn finds_trained(&self, search: &mut DescendantSearch, steps: usize) -> Option<bool> {
        for _ in 0..steps {
            let Some(turn) = search.next(self) else { return Some(false) };
            if self.is_trained(turn, search.classes) {
                return Some(true);
            }
        }
        None
    }

    /// The search for the turns after `leaf`; `None` if `leaf` does not exist or is not trained.
    pub(in crate::session) fn descendants(&self, leaf: u32) -> Option<DescendantSearch> {
        if leaf >= self.next_id() || !self.is_trained(leaf, Classes::ALL) {
            return None;
        }
        let stems = self.places[leaf as usize].children.first().into_iter().collect();
        let is_default = Classes::default().contains(self.turns[leaf as usize].request_class());
        let classes = if is_default { Classes::default() } else { Classes::ALL };
        Some(DescendantSearch { stems, sample: None, classes })
    }
}

/// A search through the turns after a turn. It holds positions, not references, so it may continue after turns were added.
#[derive(Debug)]
pub(in crate::session) struct DescendantSearch {
    /// Prompts that were not visited, each with those after the same parent.
    stems: Vec<u32>,
    /// The next sample of the current prompt.
    sample: Option<u32>,
    /// The classes of the turns that are searched.
    classes: Classes,
}

impl DescendantSearch {
    fn next(&mut self, forest: &Forest) -> Option<u32> {
        if self.sample.is_none() {
            let stem = &forest.stems[self.stems.pop()? as usize];
            self.stems.extend(stem.next);
            self.sample = Some(stem.last);
        }
        let turn = self.sample?;
        let place = &forest.places[turn as usize];
        self.sample = place.sample_before;
        self.stems.extend(place.children.first());
        Some(turn)
    }
}
