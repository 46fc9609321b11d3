// SPDX-License-Identifier: Apache-2.0
//! The turns of a version whose sampled tokens an export trains.

use std::collections::HashSet;
use std::sync::Arc;

use crate::session::{Classes, Fault, Turn};

/// The turns that an export trains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TurnSelection {
    /// The classes of turns.
    pub classes: Classes,
    /// Also turns that were cut off, if a trained turn continues them without a token in between.
    pub resumed: bool,
}

impl From<Classes> for TurnSelection {
    fn from(classes: Classes) -> Self {
        Self { classes, resumed: false }
    }
}

/// Whether each turn of a version is trained, by its number.
#[derive(Debug, Clone)]
pub(in crate::session) struct TrainedTurns(Box<[bool]>);

impl TrainedTurns {
    pub(in crate::session) fn new(turns: &[Arc<Turn>], selection: TurnSelection) -> Self {
        let TurnSelection { classes, resumed } = selection;
        let mut trained: Box<[bool]> = turns.iter().map(|turn| classes.trains(turn)).collect();
        if resumed {
            train_resumed(turns, classes, &mut trained);
        }
        Self(trained)
    }

    pub(in crate::session) fn contains(&self, turn: u32) -> bool {
        self.0[turn as usize]
    }

    /// The same without these turns that were cut off; `None` if none of them is trained.
    pub(in crate::session) fn without_resumed(
        &self,
        turns: &[Arc<Turn>],
        is_context: impl Fn(&Turn) -> bool,
    ) -> Option<Self> {
        let is_excluded =
            |turn: &Turn| self.contains(turn.id) && turn.about.fault.is_some_and(Fault::is_cut_off) && is_context(turn);
        let mut excluded = turns.iter().filter(|turn| is_excluded(turn)).peekable();
        excluded.peek()?;
        let mut trained = self.clone();
        excluded.for_each(|turn| trained.0[turn.id as usize] = false);
        Some(trained)
    }
}

/// Trains the turns that were cut off and resumed. The last of the turns that resume each other is trained anyway, so no row ends in a
/// turn that was cut off.
fn train_resumed(turns: &[Arc<Turn>], classes: Classes, trained: &mut [bool]) {
    let superseded = superseded(turns, &continued(turns));
    let mut is_resumed = vec![false; turns.len()];
    // a parent's number is below its children's
    for turn in turns.iter().rev() {
        let at = turn.id as usize;
        let is_cut_off = turn.about.fault.is_some_and(Fault::is_cut_off);
        if is_cut_off && is_resumed[at] {
            trained[at] = !turn.response.is_empty() && classes.contains(turn.request_class());
        }
        let leads_to_trained = if is_cut_off { is_resumed[at] } else { trained[at] && !superseded.contains(&turn.id) };
        if let Some(parent) = turn.parent
            && turn.prompt.is_empty()
            && leads_to_trained
        {
            is_resumed[parent as usize] = true;
        }
    }
}

/// Whether a later turn continues each turn, by its number.
pub(in crate::session) fn continued(turns: &[Arc<Turn>]) -> Vec<bool> {
    let mut continued = vec![false; turns.len()];
    for parent in turns.iter().filter_map(|turn| turn.parent) {
        continued[parent as usize] = true;
    }
    continued
}

/// The turns that another turn replaces. A reply that was continued must have reached its client.
pub(in crate::session) fn superseded(turns: &[Arc<Turn>], continued: &[bool]) -> HashSet<u32> {
    let replaced = turns.iter().flat_map(|turn| turn.about.supersedes.iter().copied());
    replaced.filter(|id| continued.get(*id as usize) == Some(&false)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Snapshot;
    use crate::session::forest::{Forest, tests::add};

    fn trained(forest: &Forest) -> Vec<(u32, Vec<bool>)> {
        let selection = TurnSelection { resumed: true, ..TurnSelection::default() };
        let rows = Snapshot::selected(forest.turns(), selection).rows(true).0;
        rows.iter().map(|row| (row.leaf(), row.path().steps.iter().map(|step| step.trained).collect())).collect()
    }

    #[test]
    fn cut_off_turn_is_trained_if_a_trained_turn_resumes_it() {
        let mut forest = Forest::default();
        add(&mut forest, &[1], &[2], "stop");
        add(&mut forest, &[1, 2, 3], &[4], "abort");
        assert_eq!(trained(&forest), [(0, vec![true])], "no row ends in a turn that was cut off");
        add(&mut forest, &[1, 2, 3, 4], &[5], "abort");
        assert_eq!(trained(&forest), [(0, vec![true])], "the turn that resumes it is cut off as well");
        add(&mut forest, &[1, 2, 3, 4, 5], &[6], "stop");
        assert_eq!(trained(&forest), [(3, vec![true; 4])], "each of the turns resumes the one before");
    }

    #[test]
    fn cut_off_turn_before_a_new_prompt_is_context() {
        let mut forest = Forest::default();
        add(&mut forest, &[1], &[2], "abort");
        add(&mut forest, &[1, 2, 3], &[4], "stop");
        assert_eq!(trained(&forest), [(1, vec![false, true])]);
    }

    #[test]
    fn superseded_turn_resumes_nothing() {
        let mut forest = Forest::default();
        add(&mut forest, &[1], &[2], "abort");
        add(&mut forest, &[1, 2], &[3], "stop");
        add(&mut forest, &[9], &[4], "stop");
        let mut turns = forest.turns().to_vec();
        Arc::make_mut(&mut turns[2]).about.supersedes = vec![1];
        let selection = TurnSelection { resumed: true, ..TurnSelection::default() };
        let rows = Snapshot::selected(&turns, selection).rows(true).0;
        assert_eq!(rows.iter().map(crate::session::Row::leaf).collect::<Vec<_>>(), [2]);
    }
}
