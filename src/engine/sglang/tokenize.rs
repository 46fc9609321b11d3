// SPDX-License-Identifier: Apache-2.0
//! The engine's tokenizer: the ids of text prompts, while the engine generates.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;

use crate::budget::{Share, Stopped, Work};
use crate::engine::sglang::request::{GenerateRequest, IdShape, Texts};
use crate::engine::transport::client::Client;
use crate::error::Error;
use crate::json::Object;

/// How long the tokenizer may take. After that the turn's prompt stays unknown.
const TOKENIZE_TIMEOUT: Duration = Duration::from_secs(2);

/// The memory of a call of the tokenizer, as a multiple of the text's length: the body, the reply, and the ids before and after they are
/// shared.
const CALL_FACTOR: usize = 6;

/// A text prompt whose ids only the tokenizer can provide.
#[derive(Debug)]
pub(crate) struct TextPrompt {
    text: Bytes,
    /// The memory of the call, once it is counted.
    memory: Option<Share>,
}

impl TextPrompt {
    /// The text of a request; `None` without text, if the request also has ids, which the engine then uses, or if it has pictures or other
    /// media, whose tokens the tokenizer does not know.
    #[must_use]
    pub(crate) fn from_request(request: &GenerateRequest) -> Option<Self> {
        let text = matches!(request.text, Texts::One { .. } | Texts::Many { .. });
        let alone = request.ids.shape == IdShape::Absent && !request.has_media();
        let span = request.text_span.clone().filter(|_| text && alone)?;
        Some(Self { text: request.bytes.slice(span), memory: None })
    }

    /// Counts the memory of [`Self::tokenize`].
    ///
    /// # Errors
    /// [`Stopped`] if the budget has no room for it.
    pub(crate) fn reserve(&mut self, work: &Work) -> Result<(), Stopped> {
        self.memory = Some(work.take(CALL_FACTOR * self.text.len())?);
        Ok(())
    }

    /// Asks the engine's tokenizer. A failure leaves the prompt of the record unknown and does not affect the generation.
    ///
    /// # Errors
    /// Never; `try_join` requires the type.
    pub(crate) async fn tokenize(self, client: &Client) -> Result<Option<Vec<Arc<[u32]>>>, Error> {
        let text = String::from_utf8_lossy(&self.text);
        let answer = tokio::time::timeout(TOKENIZE_TIMEOUT, tokenize(client, &text)).await;
        let late = |_| TokenizeError::Unanswered("no answer in time".to_owned());
        Ok(match answer.map_err(late).and_then(|answer| answer) {
            Ok(prompts) => Some(prompts.into_iter().map(Arc::from).collect()),
            Err(error) => {
                tracing::debug!(%error, "the ids of a text prompt are unknown");
                None
            }
        })
    }
}

/// Why a text has no ids: a line for the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenizeError {
    /// The engine cannot be reached, or does not answer in time.
    #[error("{0}")]
    Unanswered(String),
    /// The engine has no such route, or no tokenizer.
    #[error("/tokenize {0}")]
    Unsupported(String),
}

/// Returns the ids that /generate would use for a prompt, or for a list of prompts. `text` is its JSON text.
///
/// # Errors
/// [`TokenizeError`].
pub(crate) async fn tokenize(client: &Client, text: &str) -> Result<Vec<Vec<u32>>, TokenizeError> {
    let body = format!("{{\"prompt\":{text},\"add_special_tokens\":true}}");
    let answer = client.call(Method::POST, "/tokenize", Some(body)).await;
    let (status, answer) = answer.map_err(|error| TokenizeError::Unanswered(error.to_string()))?;
    let unsupported = |error: String| TokenizeError::Unsupported(error);
    if !status.is_success() {
        return Err(unsupported(format!("answered {status}")));
    }
    let object = Object::parse(&answer).map_err(|error| unsupported(format!("returned {error}")))?;
    let tokens = object.get(&answer, "tokens").ok_or_else(|| unsupported("returned no tokens".to_owned()))?;
    // a derived enumeration of both forms would copy the list into values of 32 bytes
    let is_nested = tokens.strip_prefix(b"[").is_some_and(|inner| inner.trim_ascii_start().starts_with(b"["));
    let lists = match is_nested {
        true => serde_json::from_slice(tokens),
        false => serde_json::from_slice(tokens).map(|ids| vec![ids]),
    };
    lists.map_err(|error| unsupported(format!("returned other tokens than numbers: {error}")))
}

/// The path that decodes ids.
pub(crate) const DETOKENIZE: &str = "/detokenize";

/// The body of a call that decodes lists of ids, special tokens included.
pub(crate) fn detokenize_body(lists: &[Vec<u32>]) -> String {
    serde_json::json!({"tokens": lists, "skip_special_tokens": false}).to_string()
}

/// Parses the texts of the lists.
///
/// # Errors
/// When the reply has none.
pub(crate) fn detokenized(reply: &[u8]) -> Result<Vec<String>, String> {
    #[derive(serde::Deserialize)]
    struct Reply {
        text: Vec<String>,
    }
    let reply: Reply = serde_json::from_slice(reply).map_err(|error| error.to_string())?;
    Ok(reply.text)
}
