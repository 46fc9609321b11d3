// SPDX-License-Identifier: Apache-2.0
//! Counts generations whose tokens are not captured.

use std::collections::HashSet;
use std::sync::Arc;

use http::StatusCode;
use parking_lot::Mutex;

use crate::metrics::Metrics;
use crate::session::Sessions;

/// Counts them by endpoint, and logs the first of each.
#[derive(Debug)]
pub(crate) struct UncapturedGenerations {
    sessions: Arc<Sessions>,
    metrics: Arc<Metrics>,
    /// Endpoints that were logged. The lock is held for a lookup only.
    logged: Mutex<HashSet<&'static str>>,
}

/// A generation whose tokens are not captured so far. When it is dropped, the generation is counted and its session is marked as incomplete,
/// unless the engine replied an error. It is counted without a reply too, because the engine may have generated tokens.
#[derive(Debug)]
pub(crate) struct UncapturedGeneration {
    all: Arc<UncapturedGenerations>,
    endpoint: &'static str,
    session: Option<Arc<str>>,
    /// Nothing was generated, or its tokens were captured.
    resolved: bool,
}

impl UncapturedGenerations {
    /// Counts none so far.
    #[must_use]
    pub(crate) fn new(sessions: Arc<Sessions>, metrics: Arc<Metrics>) -> Self {
        Self { sessions, metrics, logged: Mutex::default() }
    }

    /// A generation that is about to be sent. `session` is its session, if turns are recorded and the client named it.
    #[must_use]
    pub(crate) fn begin(self: &Arc<Self>, endpoint: &'static str, session: Option<Arc<str>>) -> UncapturedGeneration {
        UncapturedGeneration { all: Arc::clone(self), endpoint, session, resolved: false }
    }
}

impl UncapturedGeneration {
    /// Records the status of the engine's reply.
    pub(crate) fn answered(mut self, status: StatusCode) {
        self.resolved = status.is_client_error() || status.is_server_error();
    }

    /// Records that the tokens were captured.
    pub(crate) fn captured(mut self) {
        self.resolved = true;
    }
}

impl Drop for UncapturedGeneration {
    fn drop(&mut self) {
        if self.resolved {
            return;
        }
        let Self { all, endpoint, session, .. } = self;
        if let Some(session) = session {
            all.sessions.mark_incomplete(session);
        }
        all.metrics.uncaptured.with_label_values(&[*endpoint]).inc();
        if all.logged.lock().insert(endpoint) {
            tracing::warn!(
                endpoint,
                "the tokens of this endpoint are not captured; agents should send JSON to /generate"
            );
        }
    }
}
