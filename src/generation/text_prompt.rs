//! The ids of prompts that came as text, from the engine's own tokenizer while the engine generates.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::engine::engines::Engines;
use crate::engine::request::{GenerateRequest, IdShape, Texts};
use crate::engine::tokenize::tokenize;
use crate::error::Error;

/// How long the tokenizer may take; beyond, the turn's prompt stays unknown.
const PATIENCE: Duration = Duration::from_secs(2);

/// Text whose ids nobody else says.
#[derive(Debug)]
pub struct TextPrompt {
    text: Bytes,
}

impl TextPrompt {
    /// The text of a request; `None` where there is none, or ids stand beside it, which the engine runs.
    #[must_use]
    pub fn of(request: &GenerateRequest) -> Option<Self> {
        let text = matches!(request.text, Texts::One { .. } | Texts::Many { .. });
        let alone = request.ids.shape == IdShape::Absent;
        let span = request.text_span.clone().filter(|_| text && alone)?;
        Some(Self { text: request.bytes.slice(span) })
    }

    /// Asks the engine. Whatever goes wrong costs the record its prompt, and nobody their generation.
    ///
    /// # Errors
    /// Never; the type is what `try_join` wants.
    pub async fn tokenize(self, engines: &Engines) -> Result<Option<Vec<Arc<[u32]>>>, Error> {
        let text = String::from_utf8_lossy(&self.text);
        let answer = tokio::time::timeout(PATIENCE, tokenize(&engines.any(), &text)).await;
        Ok(match answer.map_err(|_| "no answer in time".to_owned()).and_then(|answer| answer) {
            Ok(prompts) => Some(prompts.into_iter().map(Arc::from).collect()),
            Err(error) => {
                tracing::debug!(%error, "the ids of a text prompt are not known");
                None
            }
        })
    }
}
