// SPDX-License-Identifier: Apache-2.0
//! A brute-force model of a session: each turn holds all its tokens, and each query visits all turns.

use std::collections::BTreeSet;

use super::super::{Cause, Fault};

/// A turn with its whole prompt.
#[derive(Debug, Clone)]
pub(super) struct ModelTurn {
    /// `None` if the ids are unknown.
    pub(super) prompt: Option<Vec<u32>>,
    pub(super) response: Vec<u32>,
    pub(super) finish: Option<&'static str>,
    pub(super) fault: Option<Fault>,
    pub(super) supersedes: Vec<usize>,
    /// Computed by the model, like the next field.
    pub(super) parent: Option<usize>,
    pub(super) cause: Option<Cause>,
}

/// A session.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) turns: Vec<ModelTurn>,
    /// The number of turns of each version.
    pub(super) frozen: Vec<usize>,
    /// Version, leaf, value.
    pub(super) rewards: Vec<(usize, Option<usize>, i64)>,
    /// The first version that lacks a generation.
    pub(super) incomplete: Option<usize>,
    /// Published leaves in order, each with the number of turns at that time.
    pub(super) published: Vec<(usize, usize)>,
}

/// A row of an export.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ModelRow {
    pub(super) leaf: usize,
    pub(super) tokens: Vec<u32>,
    /// The turns of the path, and which of them are trained.
    pub(super) steps: Vec<(usize, bool)>,
    pub(super) reward: Option<i64>,
    pub(super) incomplete: bool,
}

impl ModelTurn {
    pub(super) fn is_trainable(&self) -> bool {
        self.fault.is_none() && !self.response.is_empty()
    }

    /// All tokens from the root to its end.
    pub(super) fn full(&self) -> Vec<u32> {
        [self.prompt.as_deref().unwrap_or_default(), &self.response].concat()
    }
}

impl Model {
    /// Places a turn and adds it.
    pub(super) fn commit(&mut self, mut turn: ModelTurn) {
        if let Some(prompt) = &turn.prompt {
            turn.parent = self.parent(prompt);
            turn.cause = self.cause(prompt, turn.parent);
        } else {
            turn.cause = Some(Cause::Unplaced);
        }
        self.turns.push(turn);
    }

    /// The turn that is the longest prefix of the prompt, unless it failed without a response; among equal ones one with a response, then a
    /// trainable one, then the latest. The prompt of a turn without a response is sampled again.
    fn parent(&self, prompt: &[u32]) -> Option<usize> {
        let begins = |turn: &ModelTurn| {
            let is_reply = !turn.response.is_empty() || turn.fault.is_none() && !turn.full().is_empty();
            turn.prompt.is_some() && is_reply && prompt.starts_with(&turn.full())
        };
        let candidates = (0..self.turns.len()).filter(|at| begins(&self.turns[*at]));
        let rank = |turn: &ModelTurn| (turn.full().len(), !turn.response.is_empty(), turn.is_trainable());
        let parent = candidates.max_by_key(|at| (rank(&self.turns[*at]), *at))?;
        let turn = &self.turns[parent];
        if turn.response.is_empty() && turn.full() == prompt { turn.parent } else { Some(parent) }
    }

    /// The cause, if the documented rules determine it.
    fn cause(&self, prompt: &[u32], parent: Option<usize>) -> Option<Cause> {
        let siblings: Vec<&ModelTurn> =
            self.turns.iter().filter(|turn| turn.prompt.is_some() && turn.parent == parent).collect();
        let known = parent.map_or(0, |parent| self.turns[parent].full().len());
        if siblings.iter().any(|turn| turn.prompt.as_deref() == Some(prompt)) {
            return Some(Cause::Sample);
        }
        match parent {
            None if self.turns.iter().all(|turn| turn.prompt.is_none()) => return Some(Cause::First),
            Some(_) if siblings.is_empty() && prompt.len() == known => return Some(Cause::Resumes),
            Some(parent) if siblings.is_empty() && self.turns[parent].finish == Some("length") => {
                return Some(Cause::ExtendsLength);
            }
            Some(_) if siblings.is_empty() => return Some(Cause::Extends),
            _ => {}
        }
        // the prompt ends inside a turn
        let inside = |turn: &ModelTurn| turn.full().len() > prompt.len() && turn.full().starts_with(prompt);
        if self.turns.iter().filter(|turn| turn.prompt.is_some()).any(inside) {
            return Some(Cause::RolledBack);
        }
        // the prompt does not even share its first token with another root
        let apart =
            |turn: &ModelTurn| turn.prompt.as_deref().is_some_and(|other| !other.is_empty() && other[0] != prompt[0]);
        (parent.is_none() && siblings.iter().all(|turn| apart(turn))).then_some(Cause::NewConversation)
    }

    /// The turn and its ancestors, the root first.
    pub(super) fn line(&self, leaf: usize) -> Vec<usize> {
        let mut line = vec![leaf];
        while let Some(parent) = self.turns[line[0]].parent {
            line.insert(0, parent);
        }
        line
    }

    fn is_continued(&self, turn: usize, turns: usize) -> bool {
        self.turns[..turns].iter().any(|other| other.parent == Some(turn))
    }

    fn is_superseded(&self, turn: usize, turns: usize) -> bool {
        let named = self.turns[..turns].iter().any(|other| other.supersedes.contains(&turn));
        named && !self.is_continued(turn, turns)
    }

    /// Those of the first `turns` turns whose tokens are trained.
    pub(super) fn trained(&self, turns: usize) -> BTreeSet<usize> {
        (0..turns).filter(|turn| self.turns[*turn].is_trainable() && !self.is_superseded(*turn, turns)).collect()
    }

    /// Trained turns without a trained turn after them.
    pub(super) fn exported(&self, turns: usize) -> Vec<usize> {
        let trained = self.trained(turns);
        let is_last = |turn: &usize| !trained.iter().any(|other| other != turn && self.line(*other).contains(turn));
        trained.iter().copied().filter(is_last).collect()
    }

    /// Turns that end a path and are not trained.
    pub(super) fn refused(&self, turns: usize) -> Vec<(usize, &'static str)> {
        let trained = self.trained(turns);
        let ends = (0..turns).filter(|turn| !self.is_continued(*turn, turns) && !trained.contains(turn));
        let reason = |turn: usize| match self.turns[turn].fault {
            _ if self.is_superseded(turn, turns) => "superseded",
            Some(fault) => fault.name(),
            None => "empty",
        };
        ends.map(|turn| (turn, reason(turn))).collect()
    }

    /// The rows of these leaves. A turn is trained in the first row that holds it.
    fn rows(&self, leaves: &[usize], version: usize) -> Vec<ModelRow> {
        let mut taken = BTreeSet::new();
        let mut row = |leaf: usize| ModelRow {
            leaf,
            tokens: self.turns[leaf].full(),
            steps: self
                .line(leaf)
                .into_iter()
                .map(|turn| (turn, self.turns[turn].is_trainable() && taken.insert(turn)))
                .collect(),
            reward: self.reward(leaf, version),
            incomplete: self.incomplete.is_some_and(|since| since <= version),
        };
        leaves.iter().map(|leaf| row(*leaf)).collect()
    }

    fn reward(&self, leaf: usize, version: usize) -> Option<i64> {
        let said = |of: Option<usize>| {
            self.rewards.iter().rfind(|(when, turn, _)| *when <= version && *turn == of).map(|reward| reward.2)
        };
        said(Some(leaf)).or_else(|| said(None))
    }

    /// The number of turns of a version, counted from 1.
    pub(super) fn turns_of(&self, version: usize) -> usize {
        self.frozen.get(version - 1).copied().unwrap_or(self.turns.len())
    }

    /// The export of a version.
    pub(super) fn export(&self, version: usize, branches: bool) -> Vec<ModelRow> {
        let mut leaves = self.exported(self.turns_of(version));
        if !branches {
            let tokens = |leaf: usize| -> usize {
                let line = self.line(leaf).into_iter().map(|turn| &self.turns[turn]);
                line.filter(|turn| turn.is_trainable()).map(|turn| turn.response.len()).sum()
            };
            let most = leaves.iter().map(|leaf| tokens(*leaf)).max();
            leaves = leaves.into_iter().find(|leaf| Some(tokens(*leaf)) == most).into_iter().collect();
        }
        self.rows(&leaves, version)
    }

    /// The rows that were returned as finished, each with the first version that holds it.
    pub(super) fn finished(&self) -> Vec<ModelRow> {
        let leaves: Vec<usize> = self.published.iter().map(|(leaf, _)| *leaf).collect();
        let mut rows = self.rows(&leaves, self.open_version());
        for (row, (leaf, turns)) in rows.iter_mut().zip(&self.published) {
            let version = 1 + self.frozen.iter().filter(|frozen| *frozen < turns).count();
            row.reward = self.reward(*leaf, version);
            row.incomplete = self.incomplete.is_some_and(|since| since <= version);
        }
        rows
    }

    pub(super) fn open_version(&self) -> usize {
        self.frozen.len() + 1
    }

    /// Whether nothing was added since the last freeze.
    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.last() == Some(&self.turns.len()) && self.incomplete != Some(self.open_version())
    }

    /// Publishes the leaves that were not published before.
    pub(super) fn finish(&mut self) {
        let turns = self.turns.len();
        for leaf in self.exported(turns) {
            if !self.published.iter().any(|(other, _)| *other == leaf) {
                self.published.push((leaf, turns));
            }
        }
    }
}
