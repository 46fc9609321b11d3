// SPDX-License-Identifier: Apache-2.0
//! Scores: what a teacher gives for the sampled tokens of turns.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::SessionError;
use super::{Turn, Uid};
use crate::columns::{Column, TEACHER_LOGPROBS};

/// The epochs of the student's own weights that scored a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightEpochs {
    /// The epoch of the base weights.
    pub base: u64,
    /// The epoch of the adapter with which the turn was sampled.
    pub adapter: Option<u64>,
}

/// The logprobs that a teacher gives to the sampled tokens of a turn, in nats at temperature 1.
///
/// The tokens before a turn never change, so they are the same in every version and on every path that holds the turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// The turn.
    pub turn: u32,
    /// The name of the teacher.
    pub teacher: Arc<str>,
    /// The student's own weights that gave them; `None` if another engine did.
    pub weights: Option<WeightEpochs>,
    /// One for each sampled token.
    pub logprobs: Box<[f32]>,
    /// Further columns: the teacher's likeliest tokens, and its logprobs of the student's. A record has them as those of turns.
    #[serde(skip)]
    pub columns: Vec<Column>,
}

/// The scores of one turn by a teacher.
#[derive(Debug, Clone)]
pub struct ScoredTurn {
    /// The number of the turn when it was read. A session that other processes continue may have another turn of this number.
    pub turn: u32,
    /// The turn.
    pub uid: Uid,
    /// See [`Scores::weights`].
    pub weights: Option<WeightEpochs>,
    /// See [`Scores::logprobs`].
    pub logprobs: Box<[f32]>,
    /// See [`Scores::columns`].
    pub columns: Vec<Column>,
}

/// The scores of turns by a teacher.
#[derive(Debug, Clone)]
pub struct TurnScores {
    /// The name of the teacher.
    pub teacher: Arc<str>,
    /// The scores of each turn.
    pub turns: Vec<ScoredTurn>,
    /// Whether they replace stored scores that have further columns. The columns of a turn are those of one state of the weights, so columns
    /// of two requests are never put together.
    pub again: bool,
}

impl TurnScores {
    /// The scores with the numbers that their turns have among all turns of the session.
    ///
    /// # Errors
    /// [`SessionError::NoTurn`], and [`SessionError::OtherColumns`] if stored scores of the same weights have a column that these lack, unless
    /// `again`.
    pub(super) fn numbered(&self, turns: &[Arc<Turn>], stored: &SessionScores) -> Result<Vec<Scores>, SessionError> {
        let mut renumbered: Option<HashMap<Uid, u32>> = None;
        let mut number = |scored: &ScoredTurn| {
            let known = usize::try_from(scored.turn).ok().and_then(|at| turns.get(at));
            if known.is_some_and(|turn| turn.about.uid == scored.uid) {
                return Some(scored.turn);
            }
            let all = || turns.iter().map(|turn| (turn.about.uid, turn.id)).collect();
            renumbered.get_or_insert_with(all).get(&scored.uid).copied()
        };
        let scores = |scored: &ScoredTurn| {
            let (logprobs, columns) = (scored.logprobs.clone(), scored.columns.clone());
            let (turn, teacher, weights) = (number(scored)?, Arc::clone(&self.teacher), scored.weights);
            Some(Scores { turn, teacher, weights, logprobs, columns })
        };
        let numbered = self.turns.iter().map(scores).collect::<Option<Vec<_>>>();
        let numbered = numbered.ok_or(SessionError::NoTurn(u32::try_from(turns.len()).unwrap_or(u32::MAX)))?;
        let replaces = |scores: &Scores, stored: &Scores| stored.weights != scores.weights || scores.covers(stored);
        let has_all = |scores: &Scores| stored.get(scores).is_none_or(|stored| replaces(scores, stored));
        if self.again || numbered.iter().all(has_all) { Ok(numbered) } else { Err(SessionError::OtherColumns) }
    }
}

impl Scores {
    /// The bytes that they take.
    pub(super) fn bytes(&self) -> u64 {
        let columns: usize = self.columns.iter().map(Column::bytes).sum();
        (2 * size_of::<Self>() + size_of_val(&*self.logprobs) + columns) as u64
    }

    /// Whether they have every column that other scores of the same turn have, with at least as many values.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let has = |column: &Column| {
            Column::named(&self.columns, &column.name).is_some_and(|own| own.data.len() >= column.data.len())
        };
        other.columns.iter().all(has)
    }

    /// All of them as columns of the turn.
    pub(super) fn all_columns(&self) -> Arc<[Column]> {
        let logprobs = Column::of_floats(TEACHER_LOGPROBS, &self.logprobs);
        std::iter::once(logprobs).chain(self.columns.iter().cloned()).collect()
    }
}

/// The scores of a session: by teacher, and by turn. They are beside the turns and the rewards, so a frozen version does not change.
#[derive(Debug, Default)]
pub(super) struct SessionScores(BTreeMap<Arc<str>, BTreeMap<u32, Arc<Scores>>>);

impl SessionScores {
    /// Adds scores. Replaces and returns the earlier ones of the same teacher and turn.
    pub(super) fn set(&mut self, scores: Arc<Scores>) -> Option<Arc<Scores>> {
        self.0.entry(Arc::clone(&scores.teacher)).or_default().insert(scores.turn, scores)
    }

    /// The stored scores of the same teacher and turn.
    pub(super) fn get(&self, scores: &Scores) -> Option<&Arc<Scores>> {
        self.0.get(&scores.teacher)?.get(&scores.turn)
    }

    /// All scores, in a fixed order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Scores>> {
        self.0.values().flat_map(BTreeMap::values)
    }

    /// The scores by a teacher, from a turn on.
    pub(super) fn from(&self, teacher: &str, turn: u32) -> impl Iterator<Item = &Arc<Scores>> {
        self.0.get(teacher).into_iter().flat_map(move |known| known.range(turn..).map(|(_, scores)| scores))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::TurnMetadata;

    /// Three turns of two tokens.
    fn turns() -> Vec<Arc<Turn>> {
        let turn = |id: u32| {
            let about = TurnMetadata { uid: Uid::unique(), ..TurnMetadata::default() };
            let (prompt, response) = ([1].into(), [2, 3].into());
            let (logprobs, entropy) = ([-1.0; 2].into(), [0.0; 2].into());
            Arc::new(Turn { id, parent: None, prompt, response, logprobs, entropy, about })
        };
        (0..3).map(turn).collect()
    }

    fn scored(turn: u32, uid: Uid, columns: Vec<Column>) -> ScoredTurn {
        ScoredTurn { turn, uid, weights: None, logprobs: [-1.0; 2].into(), columns }
    }

    fn by_t(turns: Vec<ScoredTurn>) -> TurnScores {
        TurnScores { teacher: "t".into(), turns, again: false }
    }

    #[test]
    fn turns_are_found_by_their_uids_if_their_numbers_have_changed() {
        let turns = turns();
        let numbers = |scored: Vec<ScoredTurn>| {
            let scores = by_t(scored).numbered(&turns, &SessionScores::default())?;
            Ok(scores.iter().map(|scores| scores.turn).collect::<Vec<_>>())
        };
        let of = |turn: u32, uid: Uid| scored(turn, uid, Vec::new());
        let uid = |at: usize| turns[at].about.uid;
        assert_eq!(numbers(vec![of(0, uid(0)), of(1, uid(2)), of(9, uid(1))]), Ok(vec![0, 2, 1]));
        assert_eq!(numbers(vec![of(0, uid(0)), of(1, Uid::unique())]), Err(SessionError::NoTurn(3)));
    }

    #[test]
    fn scores_take_no_column_away_unless_they_are_asked_again() {
        let turns = turns();
        let column = |name: &str, width: usize| Column::of_floats(name, &vec![-1.0; 2 * width]);
        let mut stored = SessionScores::default();
        let replace = |columns: &[Column], again: bool, stored: &SessionScores| {
            let scores = TurnScores { again, ..by_t(vec![scored(1, turns[1].about.uid, columns.to_vec())]) };
            scores.numbered(&turns, stored)
        };
        let first = replace(&[column("a", 2)], false, &stored).unwrap().swap_remove(0);
        assert!(stored.set(Arc::new(first)).is_none());
        for (columns, expected) in [
            (vec![], Err(SessionError::OtherColumns)),
            (vec![column("b", 2)], Err(SessionError::OtherColumns)),
            (vec![column("a", 1)], Err(SessionError::OtherColumns)),
            (vec![column("a", 2)], Ok(1)),
            (vec![column("b", 1), column("a", 3)], Ok(1)),
        ] {
            assert_eq!(replace(&columns, false, &stored).map(|scores| scores.len()), expected, "{columns:?}");
            assert_eq!(replace(&columns, true, &stored).map(|scores| scores.len()), Ok(1), "{columns:?}");
        }
        let other = TurnScores { teacher: "other".into(), ..by_t(vec![scored(1, turns[1].about.uid, Vec::new())]) };
        assert!(other.numbered(&turns, &stored).is_ok(), "teachers have columns of their own");
    }
}
