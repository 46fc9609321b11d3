//! `POST /v1/advantages`: GRPO and EGPO over recorded paths.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::samples::selection;
use super::{Problem, session, session_problem};
use crate::long_work::{BodyLength, on_body};
use crate::rl::{self, Request, RequestError, RowIndex};
use crate::serve::body::Body;
use crate::serve::proxy::Proxy;
use crate::serve::reply::json_reply;

pub(super) async fn parse(state: &Proxy, body: &Bytes) -> Result<Request, Problem> {
    let parsed = on_body(BodyLength::Request(body.len()), || Request::parse(body, state.think_tokens())).await;
    parsed.map_err(|error| problem(&error))
}

/// The names of the sessions of a request, one for each sample.
pub(super) fn names(request: &Request) -> impl Iterator<Item = &str> {
    request.options.groups.iter().flat_map(|group| &group.samples).map(|sample| &*sample.session)
}

pub(super) fn compute(state: &Proxy, request: &Request) -> Result<Response<Body>, Problem> {
    let selection = selection(&request.classes, request.train_resumed)?;
    let (mut rows, mut read) = (Vec::new(), BTreeSet::new());
    for id in names(request).filter(|id| read.insert(*id)) {
        let snapshot = session(state, id)?.snapshot_of(request.version, selection);
        rows.append(&mut snapshot.map_err(|error| session_problem(id, error))?.rows(true).0);
    }
    let mut index = RowIndex::new(&rows);
    let answer = rl::advantages(request, |id, leaf| Ok(rows[index.take(id, leaf)?].path()));
    let answer = answer.map_err(|error| problem(&error))?;
    let internal =
        |error: serde_json::Error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string());
    Ok(json_reply(StatusCode::OK, serde_json::to_vec(&answer).map_err(internal)?))
}

pub(super) fn problem(error: &RequestError) -> Problem {
    let status = if error.code == "not_found" { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST };
    Problem::new(status, error.code, error.to_string())
}
