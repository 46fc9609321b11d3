// SPDX-License-Identifier: Apache-2.0
//! `POST /v1/advantages`: GRPO and EGPO over recorded paths.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::samples::selection;
use super::sessions::find;
use crate::long_work::{BodyLength, on_body};
use crate::rl::{self, Request, RowIndex};
use crate::serve::body::Body;
use crate::serve::problem::{ErrorCode, Problem};
use crate::serve::proxy::Proxy;
use crate::serve::response::json_response;

pub(super) async fn decode(proxy: &Proxy, body: &Bytes) -> Result<Request, Problem> {
    let think = proxy.think_tokens();
    Ok(on_body(BodyLength::Request(body.len()), || Request::parse(body, think)).await?)
}

/// The names of the sessions of a request, one for each sample.
pub(super) fn names(request: &Request) -> impl Iterator<Item = &str> {
    request.options.groups.iter().flat_map(|group| &group.samples).map(|sample| &*sample.session)
}

pub(super) fn compute(proxy: &Proxy, request: &Request) -> Result<Response<Body>, Problem> {
    let selection = selection(&request.classes, request.train_resumed)?;
    let (mut rows, mut read) = (Vec::new(), BTreeSet::new());
    for id in names(request).filter(|id| read.insert(*id)) {
        let session = find(proxy, id)?;
        let snapshot = session.snapshot_of(request.version, selection);
        let mut snapshot = snapshot.map_err(|error| Problem::session(id, error))?;
        if let Some(teacher) = &request.options.teacher {
            snapshot = session.scored(&snapshot, teacher);
        }
        rows.append(&mut snapshot.rows(true).0);
    }
    let mut index = RowIndex::new(&rows);
    let computed = rl::advantages(request, |id, leaf| Ok(rows[index.take(id, leaf)?].path()))?;
    let body = serde_json::to_vec(&computed).map_err(|error| Problem::new(ErrorCode::INTERNAL, error.to_string()))?;
    Ok(json_response(StatusCode::OK, body))
}
