//! `POST /v1/advantages`: GRPO and EGPO over recorded paths.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use http::{Response, StatusCode};

use super::{Problem, ok};
use crate::http::Parts;
use crate::http::body::Body;
use crate::rl::{self, Request, RequestError};

pub(super) fn compute(parts: &Parts, body: &Bytes) -> Result<Response<Body>, Problem> {
    let request = Request::parse(body).map_err(|error| problem(&error))?;
    // a turn that several paths of a session share is trained in the first of them
    let mut seen: HashMap<String, HashSet<u32>> = HashMap::new();
    let answer = rl::advantages(&request, |id, leaf| {
        let session = parts.sessions.session(id).ok_or_else(|| format!("there is no session {id:?}"))?;
        let snapshot = session.snapshot(None).map_err(|error| error.to_string())?;
        let seen = seen.entry(id.to_owned()).or_default();
        snapshot.path(leaf, seen).map_err(|error| format!("session {id:?}: {error}"))
    });
    let answer = answer.map_err(|error| problem(&error))?;
    serde_json::to_value(&answer)
        .map(|answer| ok(&answer))
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string()))
}

fn problem(error: &RequestError) -> Problem {
    let status = if error.code == "not_found" { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST };
    Problem::new(status, error.code, error.to_string())
}
