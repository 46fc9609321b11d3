//! `POST /v1/advantages`: GRPO and EGPO over recorded paths.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use http::{Response, StatusCode};

use super::samples::selection;
use super::{Problem, session, session_problem};
use crate::rl::{self, Request, RequestError};
use crate::serve::body::Body;
use crate::serve::control::trainer_state::TrainerState;
use crate::serve::reply::json_reply;
use crate::session::{Row, TurnSelection};

/// The paths that an export of this session alone has, and the leaf of the default path.
struct SessionPaths {
    rows: HashMap<u32, Row>,
    longest: Option<u32>,
}

/// The names of the sessions of a request.
pub(super) fn sessions(state: &TrainerState, body: &Bytes) -> Result<BTreeSet<String>, Problem> {
    let request = Request::parse(body, state.think_tokens()).map_err(|error| problem(&error))?;
    Ok(request.options.groups.into_iter().flat_map(|group| group.samples).map(|sample| sample.session).collect())
}

pub(super) fn compute(state: &TrainerState, body: &Bytes) -> Result<Response<Body>, Problem> {
    let request = Request::parse(body, state.think_tokens()).map_err(|error| problem(&error))?;
    let selection = selection(&request.classes, request.train_resumed)?;
    let mut sessions: HashMap<String, SessionPaths> = HashMap::new();
    for sample in request.options.groups.iter().flat_map(|group| &group.samples) {
        if !sessions.contains_key(&sample.session) {
            sessions.insert(sample.session.clone(), paths(state, &sample.session, request.version, selection)?);
        }
    }
    // each path is used once, because in an export a token is trained in one row only
    let answer = rl::advantages(&request, |id, leaf| {
        let paths = sessions.get_mut(id).ok_or_else(|| format!("there is no session {id:?}"))?;
        let leaf = leaf.or(paths.longest).ok_or_else(|| format!("session {id:?} has no exported path"))?;
        let unknown = || format!("session {id:?}: turn {leaf} is not the leaf of an exported path, or is listed twice");
        paths.rows.remove(&leaf).map(|row| row.path()).ok_or_else(unknown)
    });
    let answer = answer.map_err(|error| problem(&error))?;
    let internal =
        |error: serde_json::Error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string());
    Ok(json_reply(StatusCode::OK, serde_json::to_vec(&answer).map_err(internal)?))
}

fn paths(
    state: &TrainerState,
    id: &str,
    version: Option<u32>,
    selection: TurnSelection,
) -> Result<SessionPaths, Problem> {
    let snapshot = session(state, id)?.snapshot_of(version, selection).map_err(|error| session_problem(id, error))?;
    let longest = snapshot.rows(false).0.first().map(Row::leaf);
    let rows = snapshot.rows(true).0.into_iter().map(|row| (row.leaf(), row)).collect();
    Ok(SessionPaths { rows, longest })
}

fn problem(error: &RequestError) -> Problem {
    let status = if error.code == "not_found" { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST };
    Problem::new(status, error.code, error.to_string())
}
