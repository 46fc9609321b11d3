// SPDX-License-Identifier: Apache-2.0
//! Sums over paths, and which of their turns are new, without a list of turns for each path.
//!
//! A branched session has far fewer turns than all its paths have steps. The time here is linear in turns, not in steps.

use std::sync::Arc;

use super::trained_turns::TrainedTurns;
use crate::session::Turn;

/// Sums over the path from a root to one turn.
#[derive(Debug, Clone, Copy)]
pub(in crate::session) struct Lineage {
    /// The first turn of the path.
    pub(in crate::session) root: u32,
    /// Tokens of the path.
    pub(in crate::session) tokens: u64,
    /// Sampled tokens of the trained turns of the path.
    pub(in crate::session) trained: u64,
}

/// The lineage of each turn, by its number, in an export that trains these turns. A parent's number is below its children's.
pub(in crate::session) fn lineages(turns: &[Arc<Turn>], trained_turns: &TrainedTurns) -> Box<[Lineage]> {
    let mut known: Vec<Lineage> = Vec::with_capacity(turns.len());
    for turn in turns {
        let parent = turn.parent.map(|parent| known[parent as usize]);
        let Lineage { root, tokens, trained } = parent.unwrap_or(Lineage { root: turn.id, tokens: 0, trained: 0 });
        let sampled = turn.response.len() as u64;
        known.push(Lineage {
            root,
            tokens: tokens + turn.prompt.len() as u64 + sampled,
            trained: trained + if trained_turns.contains(turn.id) { sampled } else { 0 },
        });
    }
    known.into()
}

/// The turns from `leaf` up to its root.
pub(in crate::session) fn upwards(turns: &[Arc<Turn>], leaf: u32) -> impl Iterator<Item = &Arc<Turn>> {
    std::iter::successors(turns.get(leaf as usize), |turn| turns.get(turn.parent? as usize))
}

/// The turns that earlier paths hold. A path that holds a turn also holds all turns before it, so the new turns of a path are its last
/// ones, and each turn is visited once.
#[derive(Debug, Default)]
pub(in crate::session) struct Claims(Vec<bool>);

impl Claims {
    /// Claims the path that ends in `leaf`. Returns its first turn that no earlier path holds, or `u32::MAX` if it has none.
    pub(in crate::session) fn claim(&mut self, turns: &[Arc<Turn>], leaf: u32) -> u32 {
        if self.0.len() < turns.len() {
            self.0.resize(turns.len(), false);
        }
        let mut first = u32::MAX;
        for turn in upwards(turns, leaf) {
            if std::mem::replace(&mut self.0[turn.id as usize], true) {
                break;
            }
            first = turn.id;
        }
        first
    }
}
