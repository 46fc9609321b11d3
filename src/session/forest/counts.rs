//! Running counts of a session's turns by kind.

use std::collections::HashMap;

use crate::session::{Cause, Fault, Turn};

/// Counts over all turns of a session.
#[derive(Debug, Clone, Default)]
pub struct TurnCounts {
    /// Sampled tokens.
    pub sampled_tokens: usize,
    /// Turns that end a path.
    pub leaves: usize,
    faults: HashMap<Fault, usize>,
    causes: HashMap<Cause, usize>,
}

impl TurnCounts {
    /// Counts a turn. `extends` is true if its parent ended a path until now.
    pub(in crate::session) fn add(&mut self, turn: &Turn, extends: bool) {
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
    #[must_use]
    pub fn faults(&self) -> Vec<(&'static str, usize)> {
        Fault::ALL.into_iter().filter_map(|fault| Some((fault.name(), *self.faults.get(&fault)?))).collect()
    }

    /// Turns by the name of their cause.
    #[must_use]
    pub fn causes(&self) -> Vec<(&'static str, usize)> {
        Cause::ALL.into_iter().filter_map(|cause| Some((cause.name(), *self.causes.get(&cause)?))).collect()
    }
}
