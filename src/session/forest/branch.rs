//! Finds the change to earlier turns with which a prompt begins a branch.

use super::Forest;
use super::radix::Departure;
use crate::session::Cause;

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
    /// The change that begins a branch. Messages show it better than tokens do, except for a response, which only tokens show exactly.
    pub(super) fn branches(&self, parent: Option<u32>, rest: &[u32], history_change: Option<Cause>) -> Option<Cause> {
        match (history_change, self.divergence(parent, rest)) {
            (Some(Cause::ResponseEdited | Cause::HistoryEdited | Cause::Forks) | None, Divergence::Ends) => {
                Some(Cause::RolledBack)
            }
            (Some(Cause::HistoryEdited | Cause::Forks) | None, Divergence::InResponse { but_stop }) => {
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
        let prompt = &self.turns[turn as usize].prompt;
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
