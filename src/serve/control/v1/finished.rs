//! `GET /v1/trajectories?since=cursor`: each finished path once, as one JSON line.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::json;

use super::query::Query;
use super::sessions::annotate;
use super::{Problem, ledger_problem, stream_reply};
use crate::export::{Annotate, entry, row_key};
use crate::serve::body::Body;
use crate::serve::control::trainer_state::TrainerState;
use crate::serve::offload::offload;
use crate::session::{Classes, ExcludedLeaf, FleetCursor, Path, Store, StreamedPath};

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
    if store.sharing().is_some() {
        return stream_shared(state, query).await;
    }
    if query.consumer.is_some() {
        return Err(Problem::bad("partitions: sessions are not shared, see --ledger"));
    }
    let after = query.since.as_deref().map_or(Ok(0), |since| parse_cursor(&store, since))?;
    let (annotate, classes) = (annotate(state), query.classes);
    let (listed, limit) = (Arc::clone(&store), query.limit.unwrap_or(LINES).max(1));
    let found = offload(move || listed.finished_after(after, limit)).await;
    // a cursor must refer to the same path after a crash
    super::wait_written(state, store.written()).await;
    let missed = found.first().map_or(0, |(first, _)| first - after - 1);
    let head = (missed > 0).then(|| Bytes::from(format!("{{\"missed\":{missed}}}\n")));
    let lines = found.into_iter().map(move |(number, session)| line(&store, (number, &session), classes, &annotate));
    Ok(stream_reply("application/x-ndjson", None, Box::new(head.into_iter().chain(lines))))
}

/// The default number of lines of a reply from a shared ledger. Their sessions are loaded first.
const SHARED_LINES: usize = 1000;

/// The maximum number of such lines.
const MOST_SHARED_LINES: usize = 10_000;

/// Parses a cursor of a fleet.
///
/// # Errors
/// When it is not a cursor, or belongs to another fleet.
pub(crate) fn parse_fleet_cursor(start: &FleetCursor, cursor: &str) -> Result<FleetCursor, Problem> {
    let parsed: Result<FleetCursor, _> = cursor.parse();
    let cursor = parsed.map_err(|_| Problem::bad(format!("since: must be the cursor of a line, not {cursor:?}")))?;
    check_fleet(start, &cursor)?;
    Ok(cursor)
}

/// Checks that a cursor belongs to the fleet of the ledger.
///
/// # Errors
/// When it belongs to another one.
pub(crate) fn check_fleet(start: &FleetCursor, cursor: &FleetCursor) -> Result<(), Problem> {
    if cursor.fleet != start.fleet {
        let message =
            "this cursor belongs to another fleet, or the shared ledger has lost its data. Begin again without since";
        return Err(Problem::new(StatusCode::GONE, "other_store", message));
    }
    Ok(())
}

async fn stream_shared(state: &Arc<TrainerState>, query: Query) -> Result<Response<Body>, Problem> {
    let store = Arc::clone(&state.sessions);
    let sharing = store.sharing().expect("sessions are shared");
    let start = sharing.stream_start().await.map_err(|error| ledger_problem(&error))?;
    let after = query.since.as_deref().map_or(Ok(start.clone()), |since| parse_fleet_cursor(&start, since))?;
    let limit = query.limit.unwrap_or(SHARED_LINES).clamp(1, MOST_SHARED_LINES);
    let page = sharing.finished_after(&store, &after, query.consumer.unwrap_or_default(), limit).await;
    let page = page.map_err(|error| ledger_problem(&error))?;
    let (annotate, classes) = (annotate(state), query.classes);
    let head = page.trimmed.then(|| Bytes::from_static(b"{\"missed\":null}\n"));
    let lines = page.paths.into_iter().map(move |path| shared_line(&path, classes, &annotate));
    Ok(stream_reply("application/x-ndjson", None, Box::new(head.into_iter().chain(lines))))
}

/// Writes the entry of a path of a shared session with its cursor.
fn shared_line(path: &StreamedPath, classes: Classes, annotate: &Annotate) -> Bytes {
    let (found, gone) = match &path.found {
        Ok((session, number)) => (session.finished(*number, classes), "deleted"),
        Err(reason) => (None, *reason),
    };
    write_line(found, (&path.session, gone), &path.cursor.to_string(), annotate)
}

/// Returns why the session of a finished path no longer exists.
#[must_use]
pub(crate) fn gone_reason(store: &Store, session: &str) -> &'static str {
    store.eviction_of(session).map_or("deleted", |_| "evicted")
}

/// Writes the entry of a path with its cursor. If the session is gone, or the classes exclude the path, the line has the session's name and
/// the reason instead.
fn line(store: &Store, (number, session): (u64, &str), classes: Classes, annotate: &Annotate) -> Bytes {
    let found = store.session(session).and_then(|session| session.finished(number, classes));
    write_line(found, (session, gone_reason(store, session)), &format_cursor(store, number), annotate)
}

fn write_line(
    found: Option<Result<Path, ExcludedLeaf>>,
    (session, gone): (&str, &str),
    cursor: &str,
    annotate: &Annotate,
) -> Bytes {
    let mut text = Vec::new();
    match found {
        Some(Ok(path)) => {
            entry::write(&path, Some(annotate), &mut text);
            text.pop();
            let key = row_key(&path);
            text.extend_from_slice(format!(",\"row_key\":\"{key}\",\"cursor\":\"{cursor}\"}}\n").as_bytes());
        }
        Some(Err(excluded)) => {
            let excluded = json!({
                "session": session,
                "leaf": excluded.leaf,
                "refused": excluded.reason,
                "cursor": cursor,
            });
            text.extend_from_slice(excluded.to_string().as_bytes());
            text.push(b'\n');
        }
        None => {
            text.extend_from_slice(json!({"session": session, "gone": gone, "cursor": cursor}).to_string().as_bytes());
            text.push(b'\n');
        }
    }
    text.into()
}
