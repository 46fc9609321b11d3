// SPDX-License-Identifier: Apache-2.0
//! The turns of a session, which become a [`Forest`] when a call needs it. Most sessions have one turn, for which the indexes of a forest
//! would take as much memory as the turn.

use std::collections::HashSet;
use std::sync::Arc;

use super::conversation::{Fingerprint, HistoryChange, Prefix};
use super::leaves::{DescendantSearch, TurnCounts};
use super::{ExportedLeaf, Forest, Placement};
use crate::session::view::{TrainedTurns, leaves, superseded_turns, upwards};
use crate::session::{Cause, Classes, Digest, Fault, Turn, TurnKey};

/// The most turns without indexes. More are indexed when they are added, because a session is locked while its turns are indexed.
const UNINDEXED: usize = 16;

/// The bytes that the indexes of a turn take: its tokens, its links, and its place among the rows of an export.
const INDEX: u64 = 320;

/// The bytes of indexes without a turn, with the first nodes of the maps.
const EMPTY: u64 = size_of::<Forest>() as u64 + 128;

/// The turns, with or without indexes.
#[derive(Debug)]
pub(in crate::session) enum LazyForest {
    /// A few turns.
    Turns(Vec<Arc<Turn>>),
    /// Turns with their indexes.
    Indexed(Box<Forest>),
}

impl Default for LazyForest {
    fn default() -> Self {
        Self::Turns(Vec::new())
    }
}

impl LazyForest {
    /// All turns by their numbers.
    pub(in crate::session) fn turns(&self) -> &[Arc<Turn>] {
        match self {
            Self::Turns(turns) => turns,
            Self::Indexed(forest) => forest.turns(),
        }
    }

    /// The turn with this number, for a change that its indexes do not depend on.
    pub(in crate::session) fn turn_mut(&mut self, id: u32) -> Option<&mut Arc<Turn>> {
        match self {
            Self::Turns(turns) => turns.get_mut(id as usize),
            Self::Indexed(forest) => forest.turns.get_mut(id as usize),
        }
    }

    /// The number of the next turn.
    pub(in crate::session) fn next_id(&self) -> u32 {
        u32::try_from(self.turns().len()).expect("a session has fewer turns than tokens fit into memory")
    }

    /// The forest.
    fn indexed(&mut self) -> &mut Forest {
        if let Self::Turns(turns) = self {
            *self = Self::Indexed(Box::new(std::mem::take(turns).into_iter().collect()));
        }
        match self {
            Self::Indexed(forest) => forest,
            Self::Turns(_) => unreachable!("it was indexed above"),
        }
    }

    /// See [`Forest::place`].
    pub(in crate::session) fn place(&mut self, prompt: &[u32], changes: &[HistoryChange]) -> Placement {
        if self.turns().is_empty() {
            return Placement { parent: None, known: 0, same: None, cause: Cause::First, predecessor: None };
        }
        self.indexed().place(prompt, changes)
    }

    /// See [`Forest::parent`].
    pub(in crate::session) fn parent(&mut self, prompt: &[u32]) -> (Option<u32>, usize) {
        if self.turns().is_empty() { (None, 0) } else { self.indexed().parent(prompt) }
    }

    /// See [`Forest::shared`].
    pub(in crate::session) fn shared(&self, parent: Option<u32>, prompt: &[u32]) -> Option<&Arc<Turn>> {
        match self {
            Self::Turns(turns) => {
                let is_placed = |turn: &&Arc<Turn>| turn.about.cause != Cause::Unplaced;
                let mut placed = turns.iter().filter(is_placed);
                placed.find(|turn| (turn.parent, turn.prompt_keys()) == (parent, prompt))
            }
            Self::Indexed(forest) => forest.shared(parent, prompt),
        }
    }

    /// See [`Forest::push`]. Returns the bytes that the indexes grow by, those of a second turn at the latest with it.
    pub(in crate::session) fn push(&mut self, turn: Arc<Turn>) -> u64 {
        match self {
            Self::Turns(turns) if turns.len() < UNINDEXED => {
                if turns.is_empty() {
                    turns.reserve_exact(1);
                }
                turns.push(turn);
            }
            _ => self.indexed().push(turn),
        }
        match self.turns().len() {
            1 => 0,
            2 => EMPTY + 2 * INDEX,
            _ => INDEX,
        }
    }

    /// See [`Forest::answers`].
    pub(in crate::session) fn answers(&mut self, conversation: Digest) -> impl Iterator<Item = &Arc<Turn>> {
        self.indexed().answers(conversation)
    }

    /// See [`Forest::history_change`].
    pub(in crate::session) fn history_change(
        &mut self,
        prefixes: &[Prefix],
        call: &Fingerprint,
        continues: bool,
    ) -> Option<HistoryChange> {
        self.indexed().history_change(prefixes, call, continues)
    }

    /// See [`Forest::stored`].
    pub(in crate::session) fn stored(&mut self, key: TurnKey) -> Option<&Arc<Turn>> {
        self.indexed().stored(key)
    }

    /// See [`Forest::descendants`].
    pub(in crate::session) fn descendants(&mut self, leaf: u32) -> Option<DescendantSearch> {
        self.indexed().descendants(leaf)
    }

    /// See [`Forest::finds_trained`].
    pub(in crate::session) fn finds_trained(&mut self, search: &mut DescendantSearch, steps: usize) -> Option<bool> {
        self.indexed().finds_trained(search, steps)
    }

    /// The turns that end a row of an export of the default classes, and the sampled tokens that it trains.
    pub(in crate::session) fn exported(&self) -> (Vec<ExportedLeaf>, u64) {
        let turns = match self {
            Self::Turns(turns) => turns,
            Self::Indexed(forest) => return (forest.exported_leaves().collect(), forest.trained_tokens()),
        };
        let leaf = |turn: u32| {
            let path = || upwards(turns, turn);
            let root = path().last().map_or(turn, |root| root.id);
            ExportedLeaf { turn, root, sampled_tokens: path().map(|turn| turn.response.len() as u64).sum() }
        };
        if let [turn] = &**turns {
            // most sessions
            return match Classes::default().trains(turn) {
                true => (vec![leaf(0)], turn.response.len() as u64),
                false => (Vec::new(), 0),
            };
        }
        let trained = TrainedTurns::new(turns, Classes::default().into());
        let leaves = leaves(turns, &trained);
        let superseded = superseded_turns(turns);
        let exported = turns.iter().filter(|turn| trained.contains(turn.id) && !superseded.contains(&turn.id));
        let trained_tokens = exported.map(|turn| turn.response.len() as u64).sum();
        (leaves.exported.into_iter().map(leaf).collect(), trained_tokens)
    }

    /// The counts of turns by kind.
    pub(in crate::session) fn counts(&self) -> TurnCounts {
        match self {
            // those who list sessions must not make all of them larger
            Self::Turns(turns) => {
                let (mut counts, mut continued) = (TurnCounts::default(), HashSet::new());
                for turn in turns {
                    counts.add(turn, turn.parent.is_some_and(|parent| continued.insert(parent)));
                }
                counts
            }
            Self::Indexed(forest) => forest.counts().clone(),
        }
    }

    /// Whether a turn has this fault.
    pub(in crate::session) fn has(&self, fault: Fault) -> bool {
        match self {
            Self::Turns(turns) => turns.iter().any(|turn| turn.about.fault == Some(fault)),
            Self::Indexed(forest) => forest.counts().has(fault),
        }
    }
}

impl FromIterator<Arc<Turn>> for Forest {
    fn from_iter<T: IntoIterator<Item = Arc<Turn>>>(turns: T) -> Self {
        let mut forest = Self::default();
        turns.into_iter().for_each(|turn| forest.push(turn));
        forest
    }
}
