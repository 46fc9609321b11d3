//! The summary of an export, in one line.

use std::collections::BTreeMap;
use std::fmt;

use crate::export::RowCounts;

/// Counts the exported sessions and rows, and the refused leaves.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ExportSummary {
    pub(super) sessions: usize,
    /// The number of exported rows; `None` if the sidecar did not report it.
    pub(super) rows: Option<usize>,
    /// The number of refused leaves, by reason.
    pub(super) refused: BTreeMap<String, usize>,
}

impl ExportSummary {
    pub(super) fn of(sessions: usize, tally: &RowCounts) -> Self {
        let refused = tally.refused.iter().map(|(reason, count)| ((*reason).to_owned(), *count));
        Self { sessions, rows: Some(tally.rows), refused: refused.collect() }
    }
}

impl fmt::Display for ExportSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        if let Some(rows) = self.rows {
            write!(f, "{rows} row{} of ", plural(rows))?;
        }
        write!(f, "{} session{}", self.sessions, plural(self.sessions))?;
        for (at, (reason, count)) in self.refused.iter().enumerate() {
            let before = if at == 0 { ", refused: " } else { ", " };
            write!(f, "{before}{count} {reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_counts_are_not_printed() {
        let tally = RowCounts { rows: 3, refused: [("missing_logprobs", 2), ("aborted", 1)].into() };
        assert_eq!(
            ExportSummary::of(1, &tally).to_string(),
            "3 rows of 1 session, refused: 1 aborted, 2 missing_logprobs"
        );
        assert_eq!(ExportSummary { sessions: 2, ..ExportSummary::default() }.to_string(), "2 sessions");
        assert_eq!(
            ExportSummary::of(0, &RowCounts { rows: 1, ..RowCounts::default() }).to_string(),
            "1 row of 0 sessions"
        );
    }
}
