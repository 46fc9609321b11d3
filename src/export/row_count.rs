//! Counts of the exported and refused rows of an export.

use std::collections::BTreeMap;

use super::{ExcludedLeaf, Export};

/// Exported rows and excluded leaves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Exported rows.
    pub rows: usize,
    /// Excluded leaves by reason.
    pub refused: BTreeMap<&'static str, usize>,
}

impl RowCounts {
    pub(super) fn of(rows: usize, leaves: &[ExcludedLeaf]) -> Self {
        let mut refused = BTreeMap::new();
        for leaf in leaves {
            *refused.entry(leaf.reason).or_default() += 1;
        }
        Self { rows, refused }
    }
}

impl Export {
    pub(super) fn counted(self, tally: RowCounts) -> Self {
        Self { tally, ..self }
    }
}
