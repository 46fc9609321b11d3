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
use crate::serve::proxy::Proxy;
use crate::session::{Classes, FinishedError, FinishedItem, FinishedLimits, ListedPath, NoPath};

/// The problem of finished paths that cannot be listed.
pub(crate) fn finished_problem(error: &FinishedError) -> Problem {
    match error {
        FinishedError::Ledger(error) => ledger_problem(error),
        FinishedError::OtherStore | FinishedError::OtherFleet => {
            Problem::new(StatusCode::GONE, "other_store", error.to_string())
        }
        FinishedError::Malformed(_) | FinishedError::NoPartitions => Problem::bad(error.to_string()),
    }
}

pub(super) async fn stream(state: &Arc<Proxy>, query: Query) -> Result<Response<Body>, Problem> {
    let Query { since, limit: paths, consumer, classes, .. } = query;
    let listed = async {
        let after = state.sessions.cursor(since.as_deref()).await?;
        state.sessions.finished(&after, FinishedLimits { consumer, paths }).await
    };
    let listed = listed.await.map_err(|error| finished_problem(&error))?;
    // a cursor must refer to the same path after a crash
    super::wait_written(state, listed.written).await;
    let annotate = annotate(state);
    let lines = listed.items.into_iter().map(move |item| match item {
        FinishedItem::Missed { count, .. } => Bytes::from(format!("{}\n", json!({"missed": count}))),
        FinishedItem::Path(path) => line(&path, classes, &annotate),
    });
    Ok(stream_reply("application/x-ndjson", None, Box::new(lines)))
}

/// Writes the entry of a path with its cursor. If the session is gone, or the classes exclude the path, the line has the session's name and
/// the reason instead.
fn line(listed: &ListedPath, classes: Classes, annotate: &Annotate) -> Bytes {
    let ListedPath { session, cursor, .. } = listed;
    let mut text = Vec::new();
    match listed.path(classes) {
        Ok(path) => {
            entry::write(&path, Some(annotate), &mut text);
            text.pop();
            let key = row_key(&path);
            text.extend_from_slice(format!(",\"row_key\":\"{key}\",\"cursor\":\"{cursor}\"}}").as_bytes());
        }
        Err(NoPath::Excluded(excluded)) => {
            let excluded = json!({
                "session": &**session,
                "leaf": excluded.leaf,
                "refused": excluded.reason,
                "cursor": cursor.to_string(),
            });
            text.extend_from_slice(excluded.to_string().as_bytes());
        }
        Err(NoPath::Gone(reason)) => {
            let gone = json!({"session": &**session, "gone": reason, "cursor": cursor.to_string()});
            text.extend_from_slice(gone.to_string().as_bytes());
        }
    }
    text.push(b'\n');
    text.into()
}
