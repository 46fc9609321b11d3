//! `GET /v1/requests`: sequences that are running.

use http::Response;
use serde_json::{Value, json};

use super::ok;
use super::query::Query;
use crate::serve::body::Body;
use crate::serve::control::trainer_state::TrainerState;

/// Entries of an answer unless it says otherwise, and at most.
const ENTRIES: (usize, usize) = (100, 1000);

pub(super) fn list(state: &TrainerState, query: &Query) -> Response<Body> {
    let limit = query.limit.unwrap_or(ENTRIES.0).clamp(1, ENTRIES.1);
    let running = state.entropies.running(query.session.as_deref(), limit);
    let shown: Vec<Value> = running
        .iter()
        .map(|found| {
            let session = found.session.as_deref();
            // a session is there from its first turn on
            let listed = session.is_some_and(|id| state.sessions.session(id).is_some());
            json!({"rid": found.rid, "index": found.index, "session": session, "listed": listed, "tokens": found.tokens})
        })
        .collect();
    ok(&json!({"requests": shown}))
}
