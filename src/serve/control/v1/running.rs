//! `GET /v1/requests`: lists running sequences.

use http::Response;
use serde_json::{Value, json};

use super::ok;
use super::query::Query;
use crate::generation::entropy_store::{RunningQuery, RunningSequence};
use crate::serve::body::Body;
use crate::serve::proxy::Proxy;

/// The default and the maximum number of entries of a reply.
const ENTRIES: (usize, usize) = (100, 1000);

/// The maximum number of entropies of an entry. It bounds the size of a reply.
const RECENT: usize = 64;

pub(super) fn list(state: &Proxy, query: &Query) -> Response<Body> {
    let limit = query.limit.unwrap_or(ENTRIES.0).clamp(1, ENTRIES.1);
    let recent = query.recent.map(|recent| recent.min(RECENT));
    let wanted = RunningQuery { session: query.session.as_deref(), limit, recent: recent.unwrap_or(0) };
    let (running, total) = state.generator.context.entropies.running(wanted);
    let entries: Vec<Value> = running
        .iter()
        .map(|sequence| {
            let RunningSequence { rid, index, session, tokens, age, epoch, .. } = sequence;
            // a session exists from its first turn on
            let listed = session.as_deref().is_some_and(|id| state.sessions.session(id).is_some());
            let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            let mut entry = json!({
                "rid": rid, "index": index, "session": session.as_deref(), "listed": listed,
                "tokens": tokens, "age_ms": age_ms, "epoch": epoch,
            });
            if recent.is_some() {
                entry["entropy"] = sequence.recent.iter().copied().map(nats).collect();
            }
            entry
        })
        .collect();
    ok(&json!({"requests": entries, "total": total}))
}

/// An entropy as the shortest decimal of the float32, as in the other routes; null if it is missing.
fn nats(value: f32) -> Value {
    value.is_finite().then(|| value.to_string().parse::<f64>().ok()).flatten().into()
}
