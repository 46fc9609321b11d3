//! `GET /v1/requests`: lists running sequences.

use http::Response;
use serde_json::{Value, json};

use super::ok;
use super::query::Query;
use crate::serve::body::Body;
use crate::serve::control::trainer_state::TrainerState;

/// The default and the maximum number of entries of a reply.
const ENTRIES: (usize, usize) = (100, 1000);

pub(super) fn list(state: &TrainerState, query: &Query) -> Response<Body> {
    let limit = query.limit.unwrap_or(ENTRIES.0).clamp(1, ENTRIES.1);
    let running = state.entropies.running(query.session.as_deref(), limit);
    let entries: Vec<Value> = running
        .iter()
        .map(|sequence| {
            let session = sequence.session.as_deref();
            // a session exists from its first turn on
            let listed = session.is_some_and(|id| state.sessions.session(id).is_some());
            json!({"rid": sequence.rid, "index": sequence.index, "session": session, "listed": listed, "tokens": sequence.tokens})
        })
        .collect();
    ok(&json!({"requests": entries}))
}
