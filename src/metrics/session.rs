//! Metrics of sessions: their names, and how turns attach.

use prometheus::IntCounterVec;

use super::declare::Declare;

/// Handles.
#[derive(Debug)]
pub struct SessionMetrics {
    /// How turns found their place in their sessions, by `cause`.
    pub attachments: IntCounterVec,
    /// Calls without a session whose name in a field with other uses was passed over, by `field`: metadata, user, key.
    pub names_ignored: IntCounterVec,
}

impl SessionMetrics {
    pub(super) fn declare(d: &Declare<'_>) -> Self {
        let names_ignored = d.counters(
            "session_names_ignored_total",
            "Calls without a session because a field with other uses holds no valid name.",
            &["field"],
        );
        // an alert needs a first value to see an increase
        for field in ["metadata", "user", "key"] {
            names_ignored.with_label_values(&[field]);
        }
        Self {
            attachments: d.counters("attachments_total", "How turns found their place in their sessions.", &["cause"]),
            names_ignored,
        }
    }
}
