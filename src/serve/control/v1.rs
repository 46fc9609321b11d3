// SPDX-License-Identifier: Apache-2.0
//! `/v1/*` of the control port: the router of the routes for trainers.

mod advantages;
mod data_port;
mod entropy;
mod finished;
mod groups;
mod high_entropy_tokens;
mod images;
mod json_slice;
mod policy;
mod query;
mod running;
pub(crate) mod samples;
mod search;
pub(crate) mod sessions;
mod steps;
mod teacher_scores;
mod turn_walk;

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::json::{decode, percent_decode};
use crate::long_work::{BodyLength, offload, offload_export, on_body};
use crate::serve::body::{Body, read_body};
use crate::serve::control_route::{self, ControlRoute};
use crate::serve::problem::{Problem, method_not_allowed};
use crate::serve::proxy::Proxy;
use crate::serve::response::json_response;
use query::Query;
use samples::SamplesRequest;

/// The maximum bytes of a trainer's request, which lists names, not tokens.
pub(crate) const LARGEST: u64 = 64 << 20;

/// Serves a route below `/v1/`.
pub(crate) async fn handle(proxy: &Arc<Proxy>, route: &ControlRoute, request: Request<Incoming>) -> Response<Body> {
    let ControlRoute { methods, query, .. } = route;
    let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
    if !methods.contains(method) {
        return method_not_allowed(methods);
    }
    let query = Query::parse(request.uri(), if *method == Method::GET { query } else { &[] });
    let response = async { dispatch(proxy, query?, request).await };
    response.await.unwrap_or_else(Problem::into_response)
}

async fn dispatch(proxy: &Arc<Proxy>, query: Query, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
    let path = request.uri().path().to_owned();
    let names: Vec<String> = path.split('/').skip(2).map(|part| percent_decode(part).into_owned()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let owned = Arc::clone(proxy);
    if let (&Method::GET | &Method::HEAD, ["sessions", id, ..]) = (request.method(), &*names) {
        proxy.sessions.refresh([id]).await?;
    }
    match *names {
        ["sessions"] => sessions::list(proxy, query).await,
        ["sessions", id] if request.method() == Method::DELETE => sessions::delete(proxy, id).await,
        ["sessions", id] => {
            let id = id.to_owned();
            offload(move || sessions::show(&owned, &id, query)).await
        }
        ["sessions", id, "trajectories"] => {
            let id = id.to_owned();
            offload_export(move || sessions::trajectories(&owned, &id, query)).await
        }
        ["sessions", id, "paths", leaf] => {
            let (id, leaf) = (id.to_owned(), leaf.to_owned());
            offload_export(move || sessions::path(&owned, &id, &leaf, query)).await
        }
        ["sessions", id, "images", digest] => images::show(proxy, id, digest),
        ["sessions", id, "freeze"] => sessions::freeze(proxy, id).await,
        ["sessions", id, "tags"] => sessions::set_tags(proxy, id, request).await,
        ["sessions", id, _] => sessions::reward(proxy, id, request).await,
        ["search"] => search::find(proxy, query).await,
        ["steps"] => steps::list(proxy, query).await,
        ["groups"] => groups::list(proxy, query).await,
        ["high-entropy-tokens"] => high_entropy_tokens::list(proxy, query).await,
        ["requests"] => offload(move || Ok(running::list(&owned, &query))).await,
        ["requests", ..] => running::entropy(proxy, control_route::rid_of_entropy(&path).unwrap_or_default(), &query),
        ["trajectories"] => finished::stream(proxy, query).await,
        ["policy"] if request.method() == Method::POST => policy::name(proxy, decode_body(proxy, request).await?).await,
        ["policy"] => Ok(policy::show(proxy)),
        ["data-port"] => Ok(data_port::show(proxy)),
        ["entropy"] => entropy::measure(proxy, request).await,
        ["teacher-scores"] => {
            let request: teacher_scores::ScoreRequest = decode_body(proxy, request).await?;
            proxy.sessions.refresh(teacher_scores::names(&request)).await?;
            teacher_scores::score(proxy, request).await
        }
        ["samples"] => {
            let request: SamplesRequest = decode_body(proxy, request).await?;
            proxy.sessions.refresh(request.sessions.iter().flatten()).await?;
            offload_export(move || samples::export(&owned, &request).map(samples::into_response)).await
        }
        _ => {
            let request = advantages::decode(proxy, &read_request(proxy, request, LARGEST).await?).await?;
            proxy.sessions.refresh(advantages::names(&request).collect::<BTreeSet<_>>()).await?;
            offload_export(move || advantages::compute(&owned, &request)).await
        }
    }
}

/// Reads the body of a request. It gets a share of the whole budget, so that agents cannot block trainers.
async fn read_request(proxy: &Proxy, request: Request<Incoming>, most: u64) -> Result<bytes::Bytes, Problem> {
    let body = read_body(request.into_body(), &proxy.config.limits, Some(proxy.budget.reply()), most);
    body.await.map_err(|error| Problem::body(&error))
}

async fn decode_body<T: DeserializeOwned>(proxy: &Proxy, request: Request<Incoming>) -> Result<T, Problem> {
    decode_json(&read_request(proxy, request, LARGEST).await?).await
}

async fn decode_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let decoded = on_body(BodyLength::Request(bytes.len()), || decode(bytes)).await;
    decoded.map_err(|error| Problem::bad_request(error.to_string()))
}

/// The response 200 with this JSON.
fn ok(body: &Value) -> Response<Body> {
    json_response(StatusCode::OK, body.to_string())
}
