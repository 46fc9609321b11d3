// SPDX-License-Identifier: Apache-2.0
//! Finds the rows of requested samples.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::RequestError;
use crate::session::Row;

/// The leaves that an error message lists, at most.
const MOST_LEAVES: usize = 20;

/// The rows by session and leaf. Each is found once, because in an export a token is trained in one row only.
#[derive(Debug)]
pub struct RowIndex {
    sessions: HashMap<String, SessionRows>,
}

#[derive(Debug)]
struct SessionRows {
    /// The position of each row by its leaf, and whether it was taken.
    by_leaf: BTreeMap<u32, (usize, bool)>,
    /// The leaf of the row with the most trained tokens on its path; the earliest of several.
    longest: u32,
}

impl RowIndex {
    /// An index of these rows. Rows of one session are adjacent.
    #[must_use]
    pub fn new(rows: &[Row]) -> Self {
        let mut sessions = HashMap::new();
        let mut at = 0;
        for session in rows.chunk_by(Row::shares_turns) {
            let longest = session.iter().max_by_key(|row| (row.trained_path_tokens(), Reverse(row.leaf())));
            let longest = longest.expect("a chunk has a row").leaf();
            let by_leaf = session.iter().zip(at..).map(|(row, at)| (row.leaf(), (at, false))).collect();
            at += session.len();
            sessions.insert(session[0].session().to_string(), SessionRows { by_leaf, longest });
        }
        Self { sessions }
    }

    /// The position of the row that ends in `leaf`; without a leaf, of the row with the most trained tokens on its path.
    ///
    /// # Errors
    /// `not_found` if there is no such row, and `bad_request` if it was taken before.
    pub fn take(&mut self, session: &str, leaf: Option<u32>) -> Result<usize, RequestError> {
        let unknown = |message| RequestError::new("not_found", "", message);
        let rows = self.sessions.get_mut(session);
        let rows = rows.ok_or_else(|| unknown(format!("session {session:?} has no exported path")))?;
        let leaf = leaf.unwrap_or(rows.longest);
        let Some((at, is_taken)) = rows.by_leaf.get_mut(&leaf) else {
            let mut leaves: Vec<String> = rows.by_leaf.keys().take(MOST_LEAVES).map(u32::to_string).collect();
            leaves.extend((rows.by_leaf.len() > MOST_LEAVES).then(|| "...".to_owned()));
            let leaves = leaves.join(", ");
            let message = format!("session {session:?}: no exported path ends in turn {leaf}; they end in {leaves}");
            return Err(unknown(message));
        };
        if std::mem::replace(is_taken, true) {
            let message = format!("session {session:?}: the path that ends in turn {leaf} is listed twice");
            return Err(RequestError::new("bad_request", "", message));
        }
        Ok(*at)
    }

    /// The first row that was not taken.
    pub(super) fn first_left(&self) -> Option<usize> {
        self.sessions
            .values()
            .flat_map(|rows| rows.by_leaf.values())
            .filter(|(_, is_taken)| !is_taken)
            .map(|(at, _)| *at)
            .min()
    }
}
