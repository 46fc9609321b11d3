//! Metrics of sessions: their names, and the attachment of turns.

use prometheus::IntCounterVec;

use super::declare::Declare;

/// Handles of the metrics.
#[derive(Debug)]
pub struct SessionMetrics {
    /// Turns by how they were attached to their sessions, `cause`.
    pub attachments: IntCounterVec,
    /// Calls with an ignored invalid session name, by `field`: metadata, user, key.
    pub names_ignored: IntCounterVec,
}

impl SessionMetrics {
    pub(super) fn declare(d: &Declare<'_>) -> Self {
        let names_ignored = d.counters(
            "session_names_ignored_total",
            "Calls without a session, because the field has an invalid session name.",
            &["field"],
        );
        // alerts see an increase only in a series that began at 0
        for field in ["metadata", "user", "key"] {
            names_ignored.with_label_values(&[field]);
        }
        Self {
            attachments: d.counters(
                "attachments_total",
                "Turns by how they were attached to their sessions.",
                &["cause"],
            ),
            names_ignored,
        }
    }
}
