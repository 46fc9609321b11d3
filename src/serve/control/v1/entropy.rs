//! `POST /v1/entropy`: whole rows of logits as safetensors, in the body or in a file, or small slices as JSON.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout_at;

use super::small::{self, Slice};
use super::{Problem, bytes_within, shm, unread};
use crate::logits::safetensors::{self, Numbers, SafetensorsError};
use crate::logits::slices::MAX_ROWS;
use crate::serve::body::{Body, Upload, broken};
use crate::serve::control::trainer_state::TrainerState;
use crate::serve::reply::json_reply;

/// What safetensors are sent and asked for as.
const SAFETENSORS: [&str; 3] = ["application/octet-stream", "application/x-safetensors", "application/vnd.safetensors"];

const JSON: &str = "application/json";

/// What is read of a slice after it has been refused.
const DISCARDED: usize = 64 << 20;

/// Measures a slice.
pub(super) async fn measure(state: &Arc<TrainerState>, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
    let binary = wants_safetensors(request.headers());
    match named(request.headers(), header::CONTENT_TYPE) {
        Some(kind) if kind == JSON => {
            let mut slice = Slice::parse(&bytes_within(state, request, small::LARGEST).await?)?;
            match slice.shm.take() {
                Some(place) => answer(shm::read(state, place).await?, binary).await,
                None => small::measure(state, &slice),
            }
        }
        Some(kind) if SAFETENSORS.contains(&&*kind) => answer(tensors(state, request).await?, binary).await,
        kind => {
            let given = kind.unwrap_or_else(|| "none".to_owned());
            let message = format!("content-type is {}, or application/json; not {given}", SAFETENSORS[0]);
            Upload::new(request.into_body(), state.config.limits.client_body_timeout).discard(DISCARDED).await;
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", message))
        }
    }
}

async fn tensors(state: &Arc<TrainerState>, request: Request<Incoming>) -> Result<safetensors::Body, Problem> {
    let patience = state.config.limits.client_body_timeout;
    let mut upload = Upload::new(request.into_body(), patience);
    let mut body = safetensors::Body::new(&state.slices, state.config.slices.max_slice_bytes, MAX_ROWS);
    loop {
        // room that others wait for is not kept by a client that fills it drop by drop
        let frame = match body.due(patience) {
            Some(due) => timeout_at(due.into(), upload.frame()).await.map_err(|_| slow())?,
            None => upload.frame().await,
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| unread(&broken(&error)))?;
        if let Ok(data) = frame.into_data()
            && let Err(refused) = body.push(&data).await
        {
            drop(body);
            upload.discard(DISCARDED).await;
            return Err(refused.into());
        }
        upload.forgive();
    }
    Ok(body)
}

/// The numbers of a slice that has been read.
async fn answer(body: safetensors::Body, binary: bool) -> Result<Response<Body>, Problem> {
    let chosen = body.has_chosen();
    let numbers = Numbers::of(&body.finish().await?, chosen);
    if !binary {
        return Ok(json_reply(StatusCode::OK, numbers.to_json()));
    }
    let mut reply = Response::new(Body::full(numbers.to_safetensors()));
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(SAFETENSORS[0]));
    Ok(reply)
}

fn slow() -> Problem {
    let message = "the rows come too slowly: 4 MiB of them are given --client-body-timeout";
    Problem::new(StatusCode::REQUEST_TIMEOUT, "slow", message)
}

/// The first media type of a header, without its parameters.
fn named(headers: &HeaderMap, name: header::HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(plain)
}

/// A media type without its parameters.
fn plain(text: &str) -> String {
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether one of its types is accepted, and named before JSON: the order counts, weights do not.
fn wants_safetensors(headers: &HeaderMap) -> bool {
    let all = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = all.flat_map(|text| text.split(',')).map(plain);
    kinds.find(|kind| kind == JSON || SAFETENSORS.contains(&&**kind)).is_some_and(|kind| kind != JSON)
}

impl From<SafetensorsError> for Problem {
    fn from(error: SafetensorsError) -> Self {
        let status = match error {
            SafetensorsError::Bad(_) => StatusCode::BAD_REQUEST,
            SafetensorsError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            SafetensorsError::Unmeasured(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let code = match error {
            SafetensorsError::Bad(_) => "bad_request",
            SafetensorsError::TooLarge(_) => "too_large",
            SafetensorsError::Unmeasured(_) => "unmeasured",
        };
        Self::new(status, code, error.to_string())
    }
}
