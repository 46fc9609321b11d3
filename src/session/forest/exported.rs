// SPDX-License-Identifier: Apache-2.0
//! The rows that an export of the default classes has, kept up to date while turns are added.

use std::collections::BTreeSet;

use super::{Forest, TurnLinks};
use crate::session::{Classes, Turn};

/// A turn that ends a row of an export of the default classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) struct ExportedLeaf {
    /// Its number.
    pub(in crate::session) turn: u32,
    /// The first turn of the row.
    pub(in crate::session) root: u32,
    /// The sampled tokens of the row.
    pub(in crate::session) sampled_tokens: u64,
}

/// The rows that an export of the default classes has.
#[derive(Debug, Default)]
pub(super) struct ExportedLeaves {
    /// The turns that end a row.
    leaves: BTreeSet<u32>,
    /// The sampled tokens that the rows train.
    trained_tokens: u64,
}

impl Forest {
    /// Adds the latest turn to the rows. `is_first` is true if no earlier turn continues its parent.
    pub(super) fn update_exported(&mut self, turn: &Turn, is_first: bool) {
        if let Some(parent) = turn.parent.filter(|parent| is_first && self.superseded.contains(parent)) {
            // a reply that is continued reached its client
            self.include(parent);
        }
        for replaced in turn.about.supersedes.iter().copied() {
            let is_new = self.superseded.insert(replaced);
            if is_new && replaced < turn.id && self.places[replaced as usize].children.is_empty() {
                self.exclude(replaced);
            }
        }
        if !self.superseded.contains(&turn.id) {
            self.include(turn.id);
        }
    }

    /// The turns that end a row of an export of the default classes.
    pub(super) fn exported_leaves(&self) -> impl Iterator<Item = ExportedLeaf> {
        self.exported.leaves.iter().map(|turn| {
            let &TurnLinks { root, sampled_tokens, .. } = &self.places[*turn as usize];
            ExportedLeaf { turn: *turn, root, sampled_tokens }
        })
    }

    /// The sampled tokens that an export of the default classes trains.
    pub(super) fn trained_tokens(&self) -> u64 {
        self.exported.trained_tokens
    }

    /// Counts a turn as trained, if it is of the default classes.
    fn include(&mut self, turn: u32) {
        let included = &self.turns[turn as usize];
        if !Classes::default().trains(included) {
            return;
        }
        self.exported.trained_tokens += included.response.len() as u64;
        if self.places[turn as usize].trained_children == 0 {
            self.exported.leaves.insert(turn);
        }
        let mut at = turn;
        while let Some(parent) = self.turns[at as usize].parent {
            let trained_children = &mut self.places[parent as usize].trained_children;
            *trained_children += 1;
            if *trained_children > 1 {
                break;
            }
            if self.is_trained(parent, Classes::default()) {
                self.exported.leaves.remove(&parent);
                break;
            }
            at = parent;
        }
    }

    /// Counts a turn that no turn continues as not trained.
    fn exclude(&mut self, turn: u32) {
        let excluded = &self.turns[turn as usize];
        if !Classes::default().trains(excluded) {
            return;
        }
        self.exported.trained_tokens -= excluded.response.len() as u64;
        self.exported.leaves.remove(&turn);
        let mut at = turn;
        while let Some(parent) = self.turns[at as usize].parent {
            let trained_children = &mut self.places[parent as usize].trained_children;
            *trained_children -= 1;
            if *trained_children > 0 {
                break;
            }
            if self.is_trained(parent, Classes::default()) {
                self.exported.leaves.insert(parent);
                break;
            }
            at = parent;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::LazyForest;
    use super::*;
    use crate::session::view::{TrainedTurns, leaves, superseded_turns, upwards};
    use crate::session::{Fault, Labels, RequestClass, TurnMetadata};

    /// Random turns. Each may continue and replace any earlier turns.
    fn turns() -> impl Strategy<Value = Vec<Arc<Turn>>> {
        let class = prop_oneof![3 => Just(None), 1 => prop::sample::select(&RequestClass::ALL[..]).prop_map(Some)];
        let fault = prop_oneof![3 => Just(None), 1 => Just(Some(Fault::Aborted))];
        let turn = (prop::option::weighted(0.8, any::<u32>()), class, fault, prop::collection::vec(any::<u32>(), 0..3));
        prop::collection::vec(turn, 1..24).prop_map(|specs| {
            let turn = |(id, (parent, request_class, fault, supersedes)): (u32, (Option<u32>, _, _, Vec<u32>))| {
                let earlier = |any: u32| any.checked_rem(id);
                let about = TurnMetadata {
                    labels: Some(Arc::new(Labels { request_class, ..Labels::default() })),
                    fault,
                    supersedes: supersedes.into_iter().filter_map(earlier).collect(),
                    ..TurnMetadata::default()
                };
                let prompt = Arc::from([1000 + id]);
                let response: Box<[u32]> = vec![id; id as usize % 3].into();
                let (logprobs, entropy) = (vec![0.0; response.len()].into(), vec![0.0; response.len()].into());
                Arc::new(Turn { id, parent: parent.and_then(earlier), prompt, response, logprobs, entropy, about })
            };
            (0..).zip(specs).map(turn).collect()
        })
    }

    proptest! {
        #[test]
        fn rows_are_those_of_an_export(turns in turns()) {
            let (mut few, mut indexed) = (LazyForest::default(), LazyForest::Indexed(Box::default()));
            for (count, turn) in (1..).zip(&turns) {
                few.push(Arc::clone(turn));
                indexed.push(Arc::clone(turn));
                let turns = &turns[..count];
                let trained = TrainedTurns::new(turns, Classes::default().into());
                let leaf = |turn: u32| ExportedLeaf {
                    turn,
                    root: upwards(turns, turn).last().unwrap().id,
                    sampled_tokens: upwards(turns, turn).map(|turn| turn.response.len() as u64).sum(),
                };
                let expected: Vec<_> = leaves(turns, &trained).exported.into_iter().map(leaf).collect();
                let superseded = superseded_turns(turns);
                let counts = |turn: &&Arc<Turn>| trained.contains(turn.id) && !superseded.contains(&turn.id);
                let tokens = turns.iter().filter(counts).map(|turn| turn.response.len() as u64).sum();
                prop_assert_eq!(few.exported(), (expected.clone(), tokens));
                prop_assert_eq!(indexed.exported(), (expected, tokens));
            }
        }
    }
}
