// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/trajectories?since=cursor`: each finished path once, as one JSON line.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use serde_json::json;

use super::query::Query;
use super::sessions::annotate;
use crate::export::{Annotate, entry, row_key};
use crate::serve::body::Body;
use crate::serve::problem::Problem;
use crate::serve::proxy::Proxy;
use crate::serve::response::stream_response;
use crate::session::{Classes, FinishedItem, FinishedLimits, ListedPath, NoPath};

pub(super) async fn stream(proxy: &Arc<Proxy>, query: Query) -> Result<Response<Body>, Problem> {
    let Query { since, limit: paths, consumer, classes, .. } = query;
    let after = proxy.sessions.cursor(since.as_deref().filter(|since| !since.is_empty())).await?;
    let listed = proxy.sessions.finished(&after, FinishedLimits { consumer, paths }).await?;
    // a cursor must refer to the same path after a crash
    proxy.wait_written(listed.written).await;
    let annotate = annotate(proxy);
    let lines = listed.items.into_iter().map(move |item| match item {
        FinishedItem::Missed { count, .. } => Bytes::from(format!("{}\n", json!({"missed": count}))),
        FinishedItem::Path(path) => line(&path, classes, &annotate),
    });
    Ok(stream_response("application/x-ndjson", None, Box::new(lines)))
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
