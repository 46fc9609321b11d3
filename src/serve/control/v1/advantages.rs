//! `POST /v1/advantages`: GRPO and EGPO over recorded paths.

use std::collections::HashMap;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::{Problem, refused, session};
use crate::rl::{self, Request, RequestError};
use crate::serve::body::Body;
use crate::serve::control::trainer_state::TrainerState;
use crate::serve::reply::json_reply;
use crate::session::Row;

/// The paths of a session as an export of it alone has them, and which of them is taken where none is named.
struct Paths {
    rows: HashMap<u32, Row>,
    longest: Option<u32>,
}

pub(super) fn compute(state: &TrainerState, body: &Bytes) -> Result<Response<Body>, Problem> {
    let request = Request::parse(body, state.think_tokens()).map_err(|error| problem(&error))?;
    let mut known: HashMap<String, Paths> = HashMap::new();
    for sample in request.groups.iter().flat_map(|group| &group.samples) {
        if !known.contains_key(&sample.session) {
            known.insert(sample.session.clone(), paths(state, &sample.session, request.version)?);
        }
    }
    // each path is given once: its masks are those of an export, where a token is trained in one row
    let answer = rl::advantages(&request, |id, leaf| {
        let paths = known.get_mut(id).ok_or_else(|| format!("there is no session {id:?}"))?;
        let leaf = leaf.or(paths.longest).ok_or_else(|| format!("session {id:?} has no path that is exported"))?;
        let unknown = || format!("session {id:?}: turn {leaf} ends no exported path, or its path stands there already");
        paths.rows.remove(&leaf).map(|row| row.path()).ok_or_else(unknown)
    });
    let answer = answer.map_err(|error| problem(&error))?;
    let internal =
        |error: serde_json::Error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string());
    Ok(json_reply(StatusCode::OK, serde_json::to_vec(&answer).map_err(internal)?))
}

fn paths(state: &TrainerState, id: &str, version: Option<u32>) -> Result<Paths, Problem> {
    let snapshot = session(state, id)?.snapshot(version).map_err(|error| refused(id, error))?;
    let longest = snapshot.rows(false).0.first().map(Row::leaf);
    let rows = snapshot.rows(true).0.into_iter().map(|row| (row.leaf(), row)).collect();
    Ok(Paths { rows, longest })
}

fn problem(error: &RequestError) -> Problem {
    let status = if error.code == "not_found" { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST };
    Problem::new(status, error.code, error.to_string())
}
