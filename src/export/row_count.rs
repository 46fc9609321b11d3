//! What became of the rows of an export.

use std::collections::BTreeMap;

use super::{ExcludedLeaf, Export};

/// Rows that left, and leaves that did not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Exported rows.
    pub rows: usize,
    /// Excluded leaves by reason.
    pub refused: BTreeMap<&'static str, usize>,
}

impl Tally {
    pub(super) fn of(rows: usize, leaves: &[ExcludedLeaf]) -> Self {
        let mut refused = BTreeMap::new();
        for leaf in leaves {
            *refused.entry(leaf.reason).or_default() += 1;
        }
        Self { rows, refused }
    }
}

impl Export {
    pub(super) fn counted(self, tally: Tally) -> Self {
        Self { tally, ..self }
    }
}
