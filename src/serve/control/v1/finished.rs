//! `GET /v1/trajectories?since=cursor`: each finished path once, as one JSON line.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::json;

use super::query::Query;
use super::sessions::annotate;
use super::{Problem, stream_reply};
use crate::export::{Annotate, entry};
use crate::serve::body::Body;
use crate::serve::control::trainer_state::TrainerState;
use crate::serve::offload::offload;
use crate::session::Store;

/// The default number of lines of a reply.
const LINES: usize = 10_000;

/// Formats a cursor: the name of the store, and the number of the last path.
#[must_use]
pub(crate) fn format_cursor(store: &Store, number: u64) -> String {
    format!("{}-{number:x}", store.name())
}

/// Parses a cursor and returns its number.
///
/// # Errors
/// When it is not a cursor, or belongs to another store.
pub(crate) fn parse_cursor(store: &Store, cursor: &str) -> Result<u64, Problem> {
    let (name, number) = cursor.rsplit_once('-').unwrap_or_default();
    let number = u64::from_str_radix(number, 16)
        .map_err(|_| Problem::bad(format!("since: must be the cursor of a line, not {cursor:?}")))?;
    if name != store.name() || number > store.last_finished() {
        let message = "this cursor belongs to another store or to data lost in a crash: tokentap was restarted. \
                       Begin again without since";
        return Err(Problem::new(StatusCode::GONE, "other_store", message));
    }
    Ok(number)
}

pub(super) async fn stream(state: &Arc<TrainerState>, query: Query) -> Result<Response<Body>, Problem> {
    let store = Arc::clone(&state.sessions);
    let after = query.since.as_deref().map_or(Ok(0), |since| parse_cursor(&store, since))?;
    let annotate = annotate(state);
    let (listed, limit) = (Arc::clone(&store), query.limit.unwrap_or(LINES).max(1));
    let found = offload(move || listed.finished_after(after, limit)).await;
    // a cursor must refer to the same path after a crash
    super::wait_written(state, store.written()).await;
    let missed = found.first().map_or(0, |(first, _)| first - after - 1);
    let head = (missed > 0).then(|| Bytes::from(format!("{{\"missed\":{missed}}}\n")));
    let lines = found.into_iter().map(move |(number, session)| line(&store, number, &session, &annotate));
    Ok(stream_reply("application/x-ndjson", None, Box::new(head.into_iter().chain(lines))))
}

/// Returns why the session of a finished path no longer exists.
#[must_use]
pub(crate) fn gone_reason(store: &Store, session: &str) -> &'static str {
    store.eviction_of(session).map_or("deleted", |_| "evicted")
}

/// Writes the entry of a path with its cursor, or only the session's name and the reason if the session is gone.
fn line(store: &Store, number: u64, session: &str, annotate: &Annotate) -> Bytes {
    let cursor = format_cursor(store, number);
    let mut text = Vec::new();
    match store.session(session).and_then(|session| session.finished(number)) {
        Some(path) => {
            entry::write(&path, Some(annotate), &mut text);
            text.pop();
            text.extend_from_slice(format!(",\"cursor\":\"{cursor}\"}}\n").as_bytes());
        }
        None => {
            let reason = gone_reason(store, session);
            text.extend_from_slice(
                json!({"session": session, "gone": reason, "cursor": cursor}).to_string().as_bytes(),
            );
            text.push(b'\n');
        }
    }
    text.into()
}
