//! `GET /v1/sessions/{id}/paths/{leaf}`: one path, read in parts.

use http::{Response, StatusCode};
use serde_json::json;

use super::query::Query;
use super::sessions::annotate;
use super::{Problem, session, session_problem};
use crate::export::{part, repeated_rows};
use crate::serve::body::Body;
use crate::serve::proxy::Proxy;
use crate::serve::reply::json_reply;

/// The default and the maximum number of tokens of a reply.
const TOKENS: (usize, usize) = (16_384, 131_072);

/// Without `from`, replies everything except the tokens. With it, replies the tokens from there on.
pub(super) fn show(state: &Proxy, id: &str, leaf: &str, query: Query) -> Result<Response<Body>, Problem> {
    let leaf = leaf
        .parse()
        .map_err(|_| Problem::bad(format!("a path is named by the number of its last turn, not {leaf:?}")))?;
    let session = session(state, id)?;
    let snapshot = session.snapshot_of(query.version, query.classes).map_err(|error| session_problem(id, error))?;
    let mut path = snapshot.path(leaf).map_err(|error| session_problem(id, error))?;
    let mut text = Vec::new();
    match query.from {
        Some(from) => {
            let limit = query.limit.unwrap_or(TOKENS.0).clamp(1, TOKENS.1);
            part::tokens(&path, from..from.saturating_add(limit), &mut text);
        }
        None => {
            let (rows, _) = snapshot.rows(true);
            let mut repeated = rows.iter().zip(repeated_rows(&rows));
            path.repeats_sample = repeated.any(|(row, repeats)| repeats && row.leaf() == leaf);
            part::head(&path, Some(&annotate(state)), &mut text);
            text.pop();
            let think = state.think_tokens().map(|tokens| json!({"start": tokens.start, "end": tokens.end}));
            text.extend_from_slice(format!(",\"think\":{}}}", json!(think)).as_bytes());
        }
    }
    Ok(json_reply(StatusCode::OK, text))
}
