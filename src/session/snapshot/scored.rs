// SPDX-License-Identifier: Apache-2.0
//! Snapshots and rows with the scores of a teacher.

use std::collections::HashMap;
use std::sync::Arc;

use crate::columns::Column;
use crate::session::state::PER_LOCK;
use crate::session::{Row, Scores, Session, Snapshot, Turn};

impl Session {
    /// The scores of a teacher by turn, of the first `count` turns. The lock is released between the parts.
    #[must_use]
    pub fn scores(&self, teacher: &str, count: u32) -> HashMap<u32, Arc<Scores>> {
        let (mut found, mut next) = (HashMap::new(), 0);
        loop {
            let part: Vec<Arc<Scores>> = {
                let state = self.state();
                state.scores.from(teacher, next).take(PER_LOCK).map(Arc::clone).collect()
            };
            let Some(last) = part.last().map(|scores| scores.turn) else { return found };
            found.extend(part.into_iter().filter(|scores| scores.turn < count).map(|scores| (scores.turn, scores)));
            next = last.saturating_add(1);
        }
    }

    /// A snapshot of this session whose rows have the scores of a teacher.
    #[must_use]
    pub fn scored(&self, snapshot: &Arc<Snapshot>, teacher: &str) -> Arc<Snapshot> {
        self.scored_if(snapshot, teacher, |_, _| true)
    }

    /// The same with the scores of turns that are to be kept.
    #[must_use]
    pub fn scored_if(
        &self,
        snapshot: &Arc<Snapshot>,
        teacher: &str,
        keep: impl Fn(&Turn, &Scores) -> bool,
    ) -> Arc<Snapshot> {
        snapshot.with_scores(self.columns(teacher, snapshot.turns(), keep))
    }

    /// The same of rows that share the snapshot of this session.
    #[must_use]
    pub fn scored_rows(&self, rows: &[Row], teacher: &str, keep: impl Fn(&Turn, &Scores) -> bool) -> Vec<Row> {
        let Some(first) = rows.first() else { return Vec::new() };
        Row::with_scores(rows, self.columns(teacher, first.turns(), keep))
    }

    fn columns(
        &self,
        teacher: &str,
        turns: &[Arc<Turn>],
        keep: impl Fn(&Turn, &Scores) -> bool,
    ) -> HashMap<u32, Arc<[Column]>> {
        let count = u32::try_from(turns.len()).unwrap_or(u32::MAX);
        let is_kept = |scores: &Scores| turns.get(scores.turn as usize).is_some_and(|turn| keep(turn, scores));
        let scores = self.scores(teacher, count).into_iter().filter(|(_, scores)| is_kept(scores));
        scores.map(|(turn, scores)| (turn, scores.all_columns())).collect()
    }
}
