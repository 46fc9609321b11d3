// SPDX-License-Identifier: Apache-2.0
//! Asks the engine whether it takes a prompt as ids with a picture, and shows the tokens of the picture.

use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;

use crate::engine::expansion::{self, EchoedPrompt};
use crate::engine::transport::client::Client;

/// A white PNG of 64 x 64 pixels. Of a smaller one some processors make a single token, which cannot be told from the placeholder.
const PICTURE: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQAAAACCEkxzAAAAEklEQVR42mP4DwUMo4xRBukMAOPT/hAC2mzjAAAAAElFTkSuQmCC";

/// How long the engine may take. It loads the processor with its first picture.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Why pictures cannot be sent with ids.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageProbeError {
    /// The engine cannot be reached, or does not answer in time.
    #[error("the engine does not answer a prompt with a picture: {0}")]
    Unanswered(String),
    /// It refuses such prompts, or does not show the tokens of the picture.
    #[error("{0}")]
    Unsupported(String),
}

/// Sends a prompt that has one placeholder, with a picture. Returns the number of tokens of the picture.
///
/// # Errors
/// [`ImageProbeError`].
pub(crate) async fn image_tokens(client: &Client, ids: &[u32]) -> Result<usize, ImageProbeError> {
    let unanswered = |error: String| ImageProbeError::Unanswered(error);
    let unsupported = |error: String| ImageProbeError::Unsupported(error);
    let body = serde_json::json!({
        "input_ids": ids,
        "image_data": [PICTURE],
        "return_prompt_token_ids": true,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
    });
    let answer = client.call(Method::POST, "/generate", Some(body.to_string()));
    let answer = tokio::time::timeout(TIMEOUT, answer).await;
    let answer = answer.map_err(|_| unanswered(format!("no reply within {} s", TIMEOUT.as_secs())))?;
    let (status, answer) = answer.map_err(|error| unanswered(error.to_string()))?;
    if matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::INTERNAL_SERVER_ERROR)
    {
        let reply = String::from_utf8_lossy(&answer);
        let reply: String = reply.chars().take(200).collect();
        return Err(unsupported(format!("the engine refuses a prompt of ids with a picture: {reply}")));
    }
    if !status.is_success() {
        return Err(unanswered(format!("status {status}")));
    }
    let reply: EchoReply = serde_json::from_slice(&answer)
        .map_err(|error| unsupported(format!("the engine does not echo a prompt with a picture: {error}")))?;
    let echo = EchoedPrompt { ids: &reply.prompt_token_ids, image_tokens: reply.meta_info.image_tokens };
    match expansion::walk(ids, echo, 1).as_deref() {
        Ok([span]) => Ok(span.len()),
        Ok(spans) => Err(unsupported(format!("the prompt has {} pictures in place of one", spans.len()))),
        Err(error) => Err(unsupported(format!("the engine changes a prompt with a picture: {error}"))),
    }
}

/// The reply, of which the other members are not read.
#[derive(Deserialize)]
struct EchoReply {
    prompt_token_ids: Vec<u32>,
    meta_info: MetaInfo,
}

#[derive(Deserialize)]
struct MetaInfo {
    image_tokens: Option<u64>,
}
