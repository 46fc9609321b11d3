//! Scores: the logprobs that a teacher gives to the sampled tokens of turns.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Turn, Uid};
use crate::columns::{Column, NumberType, Shape};

/// The name of the column.
const TEACHER_LOGPROBS: &str = "teacher_logprobs";

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
}

/// The scores of turns by a teacher, by the uids of the turns.
#[derive(Debug)]
pub(super) struct TurnScores {
    pub(super) teacher: Arc<str>,
    pub(super) turns: Vec<(Uid, Box<[f32]>)>,
}

impl TurnScores {
    /// The scores with the numbers of their turns; `None` if a turn is not among these.
    pub(super) fn numbered(&self, turns: &[Arc<Turn>]) -> Option<Vec<Scores>> {
        let number = |uid: Uid| turns.iter().rev().find(|turn| turn.about.uid == uid).map(|turn| turn.id);
        let scores = |(uid, logprobs): &(Uid, Box<[f32]>)| {
            Some(Scores { turn: number(*uid)?, teacher: Arc::clone(&self.teacher), logprobs: logprobs.clone() })
        };
        self.turns.iter().map(scores).collect()
    }
}

impl Scores {
    /// The bytes that they take.
    pub(super) fn bytes(&self) -> u64 {
        (2 * size_of::<Self>() + size_of_val(&*self.logprobs)) as u64
    }

    pub(super) fn column(&self) -> Column {
        Column {
            name: TEACHER_LOGPROBS.into(),
            number: NumberType::F32,
            tokens: 0..i32::try_from(self.logprobs.len()).unwrap_or(i32::MAX),
            shape: Shape::Fixed(Box::default()),
            data: self.logprobs.iter().flat_map(|nats| nats.to_le_bytes()).collect::<Vec<u8>>().into(),
        }
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
