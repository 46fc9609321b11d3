//! Scores: what a teacher gives for the sampled tokens of turns.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Turn, Uid};
use crate::columns::{Column, TEACHER_LOGPROBS};

/// The logprobs that a teacher gives to the sampled tokens of a turn, in nats at temperature 1.
///
/// The tokens before a turn never change, so they are the same in every version and on every path that holds the turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// The turn.
    pub turn: u32,
    /// The name of the teacher.
    pub teacher: Arc<str>,
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
    /// See [`Scores::logprobs`].
    pub logprobs: Box<[f32]>,
    /// See [`Scores::columns`].
    pub columns: Vec<Column>,
}

/// The scores of turns by a teacher.
#[derive(Debug)]
pub(super) struct TurnScores {
    pub(super) teacher: Arc<str>,
    pub(super) turns: Vec<ScoredTurn>,
}

impl TurnScores {
    /// The scores with the numbers that their turns have among all turns of the session; `None` if a turn is not among them.
    pub(super) fn numbered(&self, turns: &[Arc<Turn>]) -> Option<Vec<Scores>> {
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
            Some(Scores { turn: number(scored)?, teacher: Arc::clone(&self.teacher), logprobs, columns })
        };
        self.turns.iter().map(scores).collect()
    }
}

impl Scores {
    /// The bytes that they take.
    pub(super) fn bytes(&self) -> u64 {
        let columns: usize = self.columns.iter().map(Column::bytes).sum();
        (2 * size_of::<Self>() + size_of_val(&*self.logprobs) + columns) as u64
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

    #[test]
    fn turns_are_found_by_their_uids_if_their_numbers_have_changed() {
        let turn = |id: u32| {
            let about = TurnMetadata { uid: Uid::unique(), ..TurnMetadata::default() };
            let (prompt, response) = ([1].into(), [2].into());
            Arc::new(Turn { id, parent: None, prompt, response, logprobs: [-1.0].into(), entropy: [0.0].into(), about })
        };
        let turns: Vec<Arc<Turn>> = (0..3).map(turn).collect();
        let scored = |turn: u32, uid: Uid| ScoredTurn { turn, uid, logprobs: [-1.0].into(), columns: Vec::new() };
        let numbers = |scored: Vec<ScoredTurn>| {
            let scores = TurnScores { teacher: "t".into(), turns: scored }.numbered(&turns)?;
            Some(scores.iter().map(|scores| scores.turn).collect::<Vec<_>>())
        };
        let uid = |at: usize| turns[at].about.uid;
        assert_eq!(numbers(vec![scored(0, uid(0)), scored(1, uid(2)), scored(9, uid(1))]), Some(vec![0, 2, 1]));
        assert_eq!(numbers(vec![scored(0, uid(0)), scored(1, Uid::unique())]), None);
    }
}
