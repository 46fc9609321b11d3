// SPDX-License-Identifier: Apache-2.0
//! Finds the change to earlier turns with which a prompt begins a branch.

use std::sync::Arc;

use super::radix::{Departure, ROOT};
use super::{Forest, shared};
use crate::session::view::upwards;
use crate::session::{Cause, HistoryChange, Turn};

/// Tokens of the shortest response that proves by itself that a prompt holds an edited history. Shorter ones occur by chance.
const EVIDENCE: usize = 8;

/// Where a prompt diverges from the recorded turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Divergence {
    /// Inside a prompt; `turn` has that prompt, if the two share a token.
    InPrompt {
        shared: usize,
        turn: Option<u32>,
    },
    InResponse {
        but_stop: bool,
    },
    Ends,
}

impl Forest {
    /// The change that begins a branch. Messages show it better than tokens do, except for the end of a response.
    pub(super) fn branches(&self, parent: Option<u32>, rest: &[u32], history_change: Option<Cause>) -> Option<Cause> {
        match (history_change, self.divergence(parent, rest)) {
            (Some(Cause::ResponseEdited | Cause::HistoryEdited | Cause::Forks) | None, Divergence::Ends) => {
                Some(Cause::RolledBack)
            }
            (Some(Cause::ResponseEdited) | None, Divergence::InResponse { but_stop }) => {
                Some(if but_stop { Cause::StopReplaced } else { Cause::ResponseEdited })
            }
            (Some(history_change), _) => Some(history_change),
            (None, Divergence::InPrompt { shared, turn }) => {
                let stem = turn.and_then(|turn| self.stem(parent, turn)).or(self.stems(parent).first())?;
                let latest = &self.turns[self.stems[stem as usize].last as usize].response;
                (latest.len() >= EVIDENCE && contains(&rest[shared..], latest)).then_some(Cause::HistoryEdited)
            }
        }
    }

    /// Whether an earlier call made this change: its prompt has the whole message that differs from the conversation of the change. The
    /// message ends with the stop token, as that of another role does in most templates.
    pub(super) fn was_made_before(&self, change: &HistoryChange, prompt: &[u32]) -> bool {
        let is_of_message = matches!(
            change.cause,
            Cause::SystemChanged | Cause::ToolsChanged | Cause::ToolResultCleared | Cause::ResponseEdited
        );
        let turn = change.turn.filter(|_| is_of_message).map(|turn| &self.turns[turn as usize]);
        let has_stopped = |turn: &&Arc<Turn>| turn.about.finish.as_deref() == Some("stop");
        let turn = turn.filter(has_stopped).filter(|turn| turn.about.cause != Cause::Unplaced);
        let Some((turn, stop)) = turn.and_then(|turn| Some((turn, turn.response.last()?))) else { return false };
        let shared = self.tokens.departure(&self.turns, ROOT, prompt, |_| ()).known;
        prompt[self.shared_with(turn.id, prompt)..shared].contains(stop)
    }

    /// The number of leading tokens that a prompt shares with the path that ends with a turn.
    fn shared_with(&self, turn: u32, prompt: &[u32]) -> usize {
        let path: Vec<&Arc<Turn>> = upwards(&self.turns, turn).collect();
        let mut known = 0;
        for part in path.iter().rev().flat_map(|turn| [turn.prompt_keys(), &*turn.response]) {
            let same = shared(part, &prompt[known..]);
            known += same;
            if same < part.len() {
                break;
            }
        }
        known
    }

    /// Compares a prompt with all prompts after a turn and their samples.
    fn divergence(&self, parent: Option<u32>, rest: &[u32]) -> Divergence {
        let mut is_past_prompt = false;
        let mut visit = |node: u32| {
            let stem = self.prompts.get(&(parent, node)).map(|stem| &self.stems[*stem as usize]);
            is_past_prompt |= stem.is_some_and(|stem| stem.is_sampled);
        };
        let from = self.end(parent);
        // earlier prompts without a new token end here
        visit(from);
        let Departure { known, turn, but_stop, is_inside } = self.tokens.departure(&self.turns, from, rest, &mut visit);
        match (is_inside, is_past_prompt) {
            (true, _) => Divergence::Ends,
            (false, true) => Divergence::InResponse { but_stop },
            (false, false) => Divergence::InPrompt { shared: known, turn },
        }
    }

    /// The stem that holds a turn with this parent.
    fn stem(&self, parent: Option<u32>, turn: u32) -> Option<u32> {
        let prompt = self.turns[turn as usize].prompt_keys();
        let node = self.tokens.find(&self.turns, self.end(parent), prompt)?;
        self.prompts.get(&(parent, node)).copied()
    }
}

/// Whether `part` occurs in `list`. Uses Knuth-Morris-Pratt, because prompts may repeat themselves.
fn contains(list: &[u32], part: &[u32]) -> bool {
    let mut borders = vec![0; part.len()];
    let advance = |borders: &[usize], mut matched: usize, token: u32| {
        while matched > 0 && part[matched] != token {
            matched = borders[matched - 1];
        }
        matched + usize::from(part[matched] == token)
    };
    for at in 1..part.len() {
        borders[at] = advance(&borders, borders[at - 1], part[at]);
    }
    let mut matched = 0;
    for token in list {
        matched = advance(&borders, matched, *token);
        if matched == part.len() {
            return true;
        }
    }
    part.is_empty()
}
