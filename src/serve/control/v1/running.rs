// SPDX-License-Identifier: Apache-2.0
//! `/v1/requests`: lists running sequences, and the entropies of one of them.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::ok;
use super::query::Query;
use crate::generation::entropy_lists::number;
use crate::generation::entropy_store::{RunningQuery, RunningSequence};
use crate::json::percent_decode;
use crate::serve::body::Body;
use crate::serve::problem::Problem;
use crate::serve::proxy::Proxy;
use crate::serve::response::json_response;

/// The default and the maximum number of entries of a reply.
const ENTRIES: (usize, usize) = (100, 1000);

/// The maximum number of entropies of an entry. It bounds the size of a reply.
const RECENT: usize = 64;

pub(super) fn list(proxy: &Proxy, query: &Query) -> Response<Body> {
    let limit = query.limit.unwrap_or(ENTRIES.0).clamp(1, ENTRIES.1);
    let recent = query.recent.map(|recent| recent.min(RECENT));
    let wanted = RunningQuery { session: query.session.as_deref(), limit, recent: recent.unwrap_or(0) };
    let (running, total) = proxy.generator.context.entropies.running(wanted);
    let entries: Vec<Value> = running
        .iter()
        .map(|sequence| {
            let RunningSequence { rid, index, session, tokens, age, epoch, .. } = sequence;
            // a session exists from its first turn on
            let listed = session.as_deref().is_some_and(|id| proxy.sessions.session(id).is_some());
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
pub(super) fn nats(value: f32) -> Value {
    value.is_finite().then(|| value.to_string().parse::<f64>().ok()).flatten().into()
}

/// Replies `{rid, index, entropy, token_ids?, next, finished, finish_reason}` from token `since` on. The ids are only there while the sequence
/// runs.
pub(super) fn entropy(proxy: &Proxy, rid: &str, query: &Query) -> Result<Response<Body>, Problem> {
    let since = query.since.as_deref().map_or(Ok(0), |since| {
        since.parse().map_err(|_| Problem::bad_request(format!("since: must be a number, not {since:?}")))
    })?;
    let rid = percent_decode(rid);
    let found = proxy.generator.context.entropies.read(&rid, query.index, since);
    let (index, progress) = found.ok_or_else(Problem::no_entropies)?;
    let mut list = Vec::new();
    progress.entropy.iter().for_each(|value| number(&mut list, *value));
    let ids = if progress.ids.is_empty() { String::new() } else { format!("\"token_ids\":{},", json!(progress.ids)) };
    let body = format!(
        "{{\"rid\":{},\"index\":{index},\"entropy\":[{}],{ids}\"next\":{},\"finished\":{},\"finish_reason\":{}}}",
        json!(rid),
        String::from_utf8_lossy(&list),
        progress.next,
        progress.finished,
        json!(progress.finish_reason),
    );
    Ok(json_response(StatusCode::OK, body))
}
