//! `POST /v1/entropy`: measures rows of logits, as safetensors in the body or in a file, or as JSON for small slices.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout_at;

use super::small::{self, Slice};
use super::{Problem, body_problem, bytes_within, shm};
use crate::logits::safetensors::{self, RowNumbers, SafetensorsError};
use crate::logits::slices::MAX_ROWS;
use crate::serve::body::{Body, Upload, upload_error};
use crate::serve::proxy::Proxy;
use crate::serve::reply::json_reply;

/// The media types of safetensors.
const SAFETENSORS: [&str; 3] = ["application/octet-stream", "application/x-safetensors", "application/vnd.safetensors"];

const JSON: &str = "application/json";

/// The maximum bytes that are read and discarded after an error.
const MAX_DISCARDED: usize = 64 << 20;

/// Measures a slice.
pub(super) async fn measure(state: &Arc<Proxy>, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
    let binary = wants_safetensors(request.headers());
    match media_type(request.headers(), header::CONTENT_TYPE) {
        Some(media_type) if media_type == JSON => {
            let mut slice = Slice::parse(&bytes_within(state, request, small::LARGEST).await?)?;
            match slice.shm.take() {
                Some(place) => answer(shm::read(state, place).await?, binary).await,
                None => small::measure(state, &slice),
            }
        }
        Some(media_type) if SAFETENSORS.contains(&&*media_type) => answer(tensors(state, request).await?, binary).await,
        media_type => {
            let given = media_type.unwrap_or_else(|| "none".to_owned());
            let message = format!("content-type must be {} or application/json, not {given}", SAFETENSORS[0]);
            Upload::new(request.into_body(), state.config.limits.client_body_timeout).discard(MAX_DISCARDED).await;
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", message))
        }
    }
}

async fn tensors(state: &Arc<Proxy>, request: Request<Incoming>) -> Result<safetensors::Body, Problem> {
    let timeout = state.config.limits.client_body_timeout;
    let mut upload = Upload::new(request.into_body(), timeout);
    let mut body = safetensors::Body::new(&state.slices, state.config.slices.max_slice_bytes, MAX_ROWS);
    loop {
        // a slow client must not hold slots that others wait for
        let frame = match body.due(timeout) {
            Some(due) => timeout_at(due.into(), upload.frame()).await.map_err(|_| slow())?,
            None => upload.frame().await,
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| body_problem(&upload_error(error)))?;
        if let Ok(data) = frame.into_data()
            && let Err(refused) = body.push(&data).await
        {
            drop(body);
            upload.discard(MAX_DISCARDED).await;
            return Err(refused.into());
        }
        upload.reset_timeout();
    }
    Ok(body)
}

/// Replies the numbers of a slice that has been read.
async fn answer(body: safetensors::Body, binary: bool) -> Result<Response<Body>, Problem> {
    let chosen = body.has_chosen();
    let numbers = RowNumbers::new(&body.finish().await?, chosen);
    if !binary {
        return Ok(json_reply(StatusCode::OK, numbers.to_json()));
    }
    let mut reply = Response::new(Body::full(numbers.to_safetensors()));
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(SAFETENSORS[0]));
    Ok(reply)
}

fn slow() -> Problem {
    let message = "the rows arrive too slowly: each 4 MiB must arrive within 30 s";
    Problem::new(StatusCode::REQUEST_TIMEOUT, "slow", message)
}

/// The first media type of a header, without its parameters.
fn media_type(headers: &HeaderMap, name: header::HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(plain)
}

/// A media type without its parameters.
fn plain(text: &str) -> String {
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether `Accept` lists a safetensors type before JSON. Weights are ignored.
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
            SafetensorsError::Measure(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let code = match error {
            SafetensorsError::Bad(_) => "bad_request",
            SafetensorsError::TooLarge(_) => "too_large",
            SafetensorsError::Measure(_) => "unmeasured",
        };
        Self::new(status, code, error.to_string())
    }
}
