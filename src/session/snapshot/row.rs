// SPDX-License-Identifier: Apache-2.0
//! A row of an export, without a list of its turns.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::columns::Column;
use crate::session::view::upwards;
use crate::session::{Advantages, ExportMarks, Path, Segment, Snapshot, Step, Turn};

/// One path of a snapshot. Rows share the turns of their session. [`Row::path`] lists the turns of one row while it is written.
#[derive(Debug, Clone)]
pub struct Row {
    snapshot: Arc<Snapshot>,
    leaf: u32,
    /// Turns from this number on are trained, if the snapshot trains them.
    trained_from: u32,
    /// What the export adds.
    pub marks: ExportMarks,
}

/// A leaf that is not exported, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcludedLeaf {
    /// Its session.
    pub session: Arc<str>,
    /// Its last turn.
    pub leaf: u32,
    /// The name of a [`Fault`](crate::session::Fault), or of a value that the format needs and the row lacks.
    pub reason: &'static str,
}

impl Row {
    /// The path of `snapshot` that ends in `leaf`, trained from the turn `trained_from` on.
    pub(in crate::session) fn new(snapshot: Arc<Snapshot>, leaf: u32, trained_from: u32) -> Self {
        Self { snapshot, leaf, trained_from, marks: ExportMarks::default() }
    }

    /// The same path, trained from another turn on.
    #[must_use]
    pub(crate) fn trained_from(&self, turn: u32) -> Self {
        Self { trained_from: turn, ..self.clone() }
    }

    /// Rows of one session where these turns that were cut off are context.
    pub(crate) fn without_resumed(rows: &[Self], is_context: impl Fn(&Turn) -> bool) -> Cow<'_, [Self]> {
        let narrowed = rows.first().and_then(|row| row.snapshot.without_resumed(is_context)).map(Arc::new);
        let Some(snapshot) = narrowed else { return Cow::Borrowed(rows) };
        rows.iter().map(|row| Self { snapshot: Arc::clone(&snapshot), ..row.clone() }).collect()
    }

    /// Rows of one session with the scores of a teacher.
    pub(in crate::session) fn with_scores(rows: &[Self], scores: HashMap<u32, Arc<[Column]>>) -> Vec<Self> {
        let Some(snapshot) = rows.first().map(|row| row.snapshot.with_scores(scores)) else { return Vec::new() };
        rows.iter().map(|row| Self { snapshot: Arc::clone(&snapshot), ..row.clone() }).collect()
    }

    /// The columns of a teacher's scores of a turn of the session.
    #[must_use]
    pub fn scores(&self, turn: &Turn) -> Option<&Arc<[Column]>> {
        self.snapshot.scores(turn.id)
    }

    /// Whether the reader asked for the scores of a teacher, and a trained turn has none.
    #[must_use]
    pub fn lacks_scores(&self) -> bool {
        self.snapshot.wants_scores() && self.trained().any(|turn| self.scores(turn).is_none())
    }

    /// Sets the advantages of the trained tokens, and whether the entropy that shapes them lacks that of a token.
    pub(crate) fn set_advantages(&mut self, advantages: Advantages, lacks_entropy: bool) {
        (self.marks.advantages, self.marks.advantage_lacks_entropy) = (Some(advantages), lacks_entropy);
    }

    /// Sampled tokens of the path that the export trains in any row.
    #[must_use]
    pub fn trained_path_tokens(&self) -> u64 {
        self.snapshot.lineage(self.leaf).trained
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Arc<str> {
        &self.snapshot.session
    }

    /// The number of its last turn.
    #[must_use]
    pub fn leaf(&self) -> u32 {
        self.leaf
    }

    /// All turns of its session.
    #[must_use]
    pub fn turns(&self) -> &[Arc<Turn>] {
        self.snapshot.turns()
    }

    /// Whether a row of the export trains a turn of its session.
    #[must_use]
    pub(crate) fn export_trains(&self, turn: &Turn) -> bool {
        self.snapshot.trains(turn.id)
    }

    /// Whether a turn of the path is trained.
    pub(crate) fn trains(&self, turn: &Turn) -> bool {
        turn.id >= self.trained_from && self.export_trains(turn)
    }

    /// Whether both rows share their turns.
    #[must_use]
    pub fn shares_turns(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.snapshot, &other.snapshot)
    }

    /// The first prompt.
    #[must_use]
    pub fn prompt(&self) -> &Arc<[u32]> {
        &self.root().prompt
    }

    /// What the first prompt is compared by: its ids, and the digests of its pictures.
    pub(crate) fn prompt_keys(&self) -> &[u32] {
        self.root().prompt_keys()
    }

    fn root(&self) -> &Turn {
        &self.turns()[self.snapshot.lineage(self.leaf).root as usize]
    }

    /// Tokens of the first prompt.
    #[must_use]
    pub fn prompt_len(&self) -> usize {
        self.prompt().len()
    }

    /// Tokens of the whole path.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a row has a turn, and a turn has tokens")]
    pub fn len(&self) -> usize {
        usize::try_from(self.snapshot.lineage(self.leaf).tokens).expect("tokens in memory can be counted")
    }

    /// Tokens after the first prompt.
    #[must_use]
    pub fn response_len(&self) -> usize {
        self.len() - self.prompt_len()
    }

    /// The reward of the whole path, else of the session.
    #[must_use]
    pub fn reward(&self) -> Option<&Arc<Value>> {
        self.snapshot.reward(self.leaf)
    }

    /// The reward of a turn of the session.
    #[must_use]
    pub fn turn_reward(&self, turn: &Turn) -> Option<&Arc<Value>> {
        self.snapshot.turn_reward(turn.id)
    }

    /// The rewards of the turns of the path, the last first.
    pub fn turn_rewards(&self) -> impl Iterator<Item = &Arc<Value>> {
        let has_rewards = self.snapshot.has_turn_rewards();
        self.upwards().take_while(move |_| has_rewards).filter_map(|turn| self.turn_reward(turn))
    }

    /// The turns of the path, the last first.
    pub fn upwards(&self) -> impl Iterator<Item = &Arc<Turn>> {
        upwards(self.turns(), self.leaf)
    }

    /// The turns that no earlier row holds, the last first.
    pub fn own(&self) -> impl Iterator<Item = &Arc<Turn>> {
        self.upwards().take_while(|turn| turn.id >= self.trained_from)
    }

    /// The turns that are trained, the last first.
    pub fn trained(&self) -> impl Iterator<Item = &Arc<Turn>> {
        self.own().filter(|turn| self.trains(turn))
    }

    /// The tokens in order, like [`Path::segments`].
    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        let mut turns: Vec<&Arc<Turn>> = self.upwards().collect();
        turns.reverse();
        let segments = |turn| Segment::of_turn(turn, self.trains(turn));
        turns.into_iter().flat_map(move |turn| segments(turn)).filter(|segment| !segment.ids.is_empty())
    }

    /// The segments after the first prompt. Trainers call them the response.
    pub fn response(&self) -> impl Iterator<Item = Segment<'_>> {
        self.segments().skip(usize::from(self.prompt_len() > 0))
    }

    /// The path with its turns in order.
    #[must_use]
    pub fn path(&self) -> Path {
        let step = |turn: &Arc<Turn>| Step {
            turn: Arc::clone(turn),
            trained: self.trains(turn),
            reward: self.turn_reward(turn).cloned(),
            scores: self.snapshot.scores(turn.id).cloned(),
        };
        let mut steps: Vec<Step> = self.upwards().map(step).collect();
        steps.reverse();
        Path {
            session: Arc::clone(&self.snapshot.session),
            version: self.snapshot.version,
            steps,
            reward: self.reward().cloned(),
            incomplete: self.snapshot.incomplete,
            tags: self.snapshot.tags.clone(),
            marks: self.marks.clone(),
        }
    }
}
