// SPDX-License-Identifier: Apache-2.0
//! `POST /v1/entropy`: measures rows of logits, as safetensors in the body or in a file, or as JSON for small slices.

use std::sync::Arc;

use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout_at;

use super::json_slice::{self, JsonSlice};
use super::read_request;
use crate::logits::safetensors::{self, RowNumbers};
use crate::logits::shm::FileRange;
use crate::logits::slices::MAX_ROWS;
use crate::serve::body::{Body, Upload, upload_error};
use crate::serve::problem::{ErrorCode, Problem};
use crate::serve::proxy::Proxy;
use crate::serve::response::{json_response, response};

/// The media types of safetensors.
const SAFETENSORS: [&str; 3] = ["application/octet-stream", "application/x-safetensors", "application/vnd.safetensors"];

const JSON: &str = "application/json";

/// The maximum bytes that are read and discarded after an error.
const MAX_DISCARDED: usize = 64 << 20;

/// Measures a slice.
pub(super) async fn measure(proxy: &Arc<Proxy>, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
    let binary = wants_safetensors(request.headers());
    match media_type(request.headers(), header::CONTENT_TYPE) {
        Some(media_type) if media_type == JSON => {
            let mut slice = JsonSlice::decode(&read_request(proxy, request, json_slice::LARGEST).await?)?;
            match slice.shm.take() {
                Some(range) => encode(read_file(proxy, range).await?, binary).await,
                None => slice.measure(proxy),
            }
        }
        Some(media_type) if SAFETENSORS.contains(&&*media_type) => {
            encode(read_tensors(proxy, request).await?, binary).await
        }
        media_type => {
            let given = media_type.unwrap_or_else(|| "none".to_owned());
            let message = format!("content-type must be {} or application/json, not {given}", SAFETENSORS[0]);
            Upload::new(request.into_body(), proxy.config.limits.client_body_timeout).discard(MAX_DISCARDED).await;
            Err(Problem::new(ErrorCode::CONTENT_TYPE, message))
        }
    }
}

async fn read_tensors(proxy: &Arc<Proxy>, request: Request<Incoming>) -> Result<safetensors::Body, Problem> {
    let timeout = proxy.config.limits.client_body_timeout;
    let mut upload = Upload::new(request.into_body(), timeout);
    let mut body = safetensors::Body::new(&proxy.slices, proxy.config.slices.max_slice_bytes, MAX_ROWS);
    loop {
        // a slow client must not hold slots that others wait for
        let frame = match body.due(timeout) {
            Some(due) => timeout_at(due.into(), upload.frame()).await.map_err(|_| slow())?,
            None => upload.frame().await,
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| Problem::body(&upload_error(error)))?;
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

/// Reads a slice from a file of `--shm-dir`, and starts to measure it.
async fn read_file(proxy: &Proxy, range: FileRange) -> Result<safetensors::Body, Problem> {
    let Some(folder) = &proxy.config.shm.shm_dir else {
        return Err(Problem::new(ErrorCode::NO_SHM_DIR, "shm needs --shm-dir, which is not set"));
    };
    let mut body = safetensors::Body::new(&proxy.slices, proxy.config.slices.max_slice_bytes, MAX_ROWS);
    range.read(folder, &mut body).await?;
    Ok(body)
}

/// Encodes the numbers of a slice that has been read.
async fn encode(body: safetensors::Body, binary: bool) -> Result<Response<Body>, Problem> {
    let chosen = body.has_chosen();
    let numbers = RowNumbers::new(&body.finish().await?, chosen);
    Ok(match binary {
        false => json_response(StatusCode::OK, numbers.to_json()),
        true => response(StatusCode::OK, SAFETENSORS[0], Body::full(numbers.to_safetensors())),
    })
}

fn slow() -> Problem {
    let message = "the rows arrive too slowly: each 4 MiB must arrive within 30 s";
    Problem::new(ErrorCode::SLOW, message)
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
