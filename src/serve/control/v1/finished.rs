//! `GET /v1/trajectories?since=cursor`: each finished path once, one a line.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::json;

use super::query::Query;
use super::sessions::annotate;
use super::{Problem, made};
use crate::export::{Annotate, entry};
use crate::serve::body::Body;
use crate::serve::control::offload::offload;
use crate::serve::control::trainer_state::TrainerState;
use crate::session::Store;

/// Lines of one answer unless it says otherwise.
const LINES: usize = 10_000;

/// A cursor: the store whose numbers they are, and the last number.
#[must_use]
pub fn cursor(store: &Store, number: u64) -> String {
    format!("{}-{number:x}", store.name())
}

/// The number that a cursor says.
///
/// # Errors
/// What is no cursor, or another store's.
pub fn number(store: &Store, cursor: &str) -> Result<u64, Problem> {
    let (name, number) = cursor.rsplit_once('-').unwrap_or_default();
    let number = u64::from_str_radix(number, 16)
        .map_err(|_| Problem::bad(format!("since: the cursor of a line, not {cursor:?}")))?;
    if name != store.name() || number > store.last_finished() {
        let message = "this cursor is of another store, or of what a crash has lost: tokentap has been started anew in between. \
                       Begin again without since";
        return Err(Problem::new(StatusCode::GONE, "other_store", message));
    }
    Ok(number)
}

pub(super) async fn stream(state: &Arc<TrainerState>, query: Query) -> Result<Response<Body>, Problem> {
    let store = Arc::clone(&state.sessions);
    let after = query.since.as_deref().map_or(Ok(0), |since| number(&store, since))?;
    let annotate = annotate(state);
    let (listed, limit) = (Arc::clone(&store), query.limit.unwrap_or(LINES).max(1));
    let found = offload(move || listed.finished_after(after, limit)).await;
    // a cursor must mean the same after a crash
    super::written(state, store.written()).await;
    let missed = found.first().map_or(0, |(first, _)| first - after - 1);
    let head = (missed > 0).then(|| Bytes::from(format!("{{\"missed\":{missed}}}\n")));
    let lines = found.into_iter().map(move |(number, session)| line(&store, number, &session, &annotate));
    Ok(made("application/x-ndjson", None, Box::new(head.into_iter().chain(lines))))
}

/// Why the session of a finished path is not there any more.
#[must_use]
pub fn reason(store: &Store, session: &str) -> &'static str {
    store.gone(session).map_or("deleted", |_| "evicted")
}

/// The entry of a path with its cursor; of one whose session is gone, only that.
fn line(store: &Store, number: u64, session: &str, annotate: &Annotate) -> Bytes {
    let cursor = cursor(store, number);
    let mut text = Vec::new();
    match store.session(session).and_then(|session| session.finished(number)) {
        Some(path) => {
            entry::write(&path, Some(annotate), &mut text);
            text.pop();
            text.extend_from_slice(format!(",\"cursor\":\"{cursor}\"}}\n").as_bytes());
        }
        None => {
            let reason = reason(store, session);
            text.extend_from_slice(
                json!({"session": session, "gone": reason, "cursor": cursor}).to_string().as_bytes(),
            );
            text.push(b'\n');
        }
    }
    text.into()
}
