//! `GET /v1/sessions/{id}/paths/{leaf}`: one path, in state.

use http::{Response, StatusCode};
use serde_json::json;

use super::query::Query;
use super::sessions::annotate;
use super::{Problem, refused, session};
use crate::export::part;
use crate::serve::body::Body;
use crate::serve::control::trainer_state::TrainerState;
use crate::serve::reply::json_reply;

/// Tokens of an answer unless it says otherwise, and at most.
const TOKENS: (usize, usize) = (16_384, 131_072);

/// Without `from` all but the tokens; with it the tokens from there on.
pub(super) fn show(state: &TrainerState, id: &str, leaf: &str, query: Query) -> Result<Response<Body>, Problem> {
    let leaf = leaf.parse().map_err(|_| Problem::bad(format!("a path is named by its last turn, not {leaf:?}")))?;
    let session = session(state, id)?;
    let snapshot = session.snapshot(query.version).map_err(|error| refused(id, error))?;
    let path = snapshot.path(leaf).map_err(|error| refused(id, error))?;
    let mut text = Vec::new();
    match query.from {
        Some(from) => {
            let limit = query.limit.unwrap_or(TOKENS.0).clamp(1, TOKENS.1);
            part::tokens(&path, from..from.saturating_add(limit), &mut text);
        }
        None => {
            part::head(&path, Some(&annotate(state)), &mut text);
            text.pop();
            let think = state.think_tokens().map(|tokens| json!({"start": tokens.start, "end": tokens.end}));
            text.extend_from_slice(format!(",\"think\":{}}}", json!(think)).as_bytes());
        }
    }
    Ok(json_reply(StatusCode::OK, text))
}
