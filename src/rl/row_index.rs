//! Finds the rows of requested samples.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::session::Row;

/// The rows by session and leaf. Each is found once, because in an export a token is trained in one row only.
#[derive(Debug)]
pub struct RowIndex {
    sessions: HashMap<String, SessionRows>,
}

#[derive(Debug)]
struct SessionRows {
    /// The position of each row by its leaf.
    by_leaf: BTreeMap<u32, usize>,
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
            let by_leaf = session.iter().zip(at..).map(|(row, at)| (row.leaf(), at)).collect();
            at += session.len();
            sessions.insert(session[0].session().to_string(), SessionRows { by_leaf, longest });
        }
        Self { sessions }
    }

    /// The position of the row that ends in `leaf`; without a leaf, of the row with the most trained tokens on its path.
    ///
    /// # Errors
    /// The message for the caller, if no such row is left.
    pub fn take(&mut self, session: &str, leaf: Option<u32>) -> Result<usize, String> {
        let rows = self.sessions.get_mut(session).ok_or_else(|| format!("session {session:?} has no exported path"))?;
        let leaf = leaf.unwrap_or(rows.longest);
        let unknown =
            || format!("session {session:?}: turn {leaf} is not the leaf of an exported path, or is listed twice");
        rows.by_leaf.remove(&leaf).ok_or_else(unknown)
    }

    /// The first row that was not taken.
    pub(super) fn first_left(&self) -> Option<usize> {
        self.sessions.values().flat_map(|rows| rows.by_leaf.values().copied()).min()
    }
}
