//! Whether prompts with pictures are built from tokens: the template and the engine decide.

use tokio::sync::{Mutex, SetOnce};

use crate::engine::sglang::image_probe::{ImageProbeError, image_tokens};
use crate::engine::transport::client::Client;
use crate::tokenizer::Renderer;

/// What is known about prompts with pictures.
#[derive(Debug, Default)]
pub struct ImageSupport {
    /// The number of tokens of the picture that the engine was asked with, or why pictures are for its own endpoint. Not set before the
    /// engine has answered.
    answer: SetOnce<Result<usize, String>>,
    /// Locked while the engine is asked.
    asking: Mutex<()>,
}

impl ImageSupport {
    /// Asks the engine with a picture, unless it has answered already or is being asked.
    pub async fn ask(&self, renderer: &Renderer, client: &Client) {
        let Ok(_asking) = self.asking.try_lock() else { return };
        if self.is_known() {
            return;
        }
        let answer = match renderer.image_prompt() {
            Ok(ids) => match image_tokens(client, &ids).await {
                Err(error @ ImageProbeError::Unanswered(_)) => {
                    tracing::debug!(%error, "it is asked again after the next probe");
                    return;
                }
                answer => answer.map_err(|error| error.to_string()),
            },
            Err(reason) => Err(reason.to_string()),
        };
        match &answer {
            Ok(_) => tracing::info!("prompts with pictures are built from tokens"),
            Err(reason) => tracing::info!(%reason, "prompts with pictures go to the engine's own endpoint"),
        }
        // never set before: only one task asks at a time
        let _ = self.answer.set(answer);
    }

    /// Whether the engine has answered.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.answer.get().is_some()
    }

    /// Waits for the answer.
    pub async fn wait(&self) {
        self.answer.wait().await;
    }

    /// The number of tokens of the picture that the engine was asked with.
    ///
    /// # Errors
    /// Why prompts with pictures are for the engine's own endpoint.
    pub fn answer(&self) -> Result<usize, String> {
        let unknown = || Err("the engine has not been asked yet whether it takes pictures with ids".to_owned());
        self.answer.get().cloned().unwrap_or_else(unknown)
    }
}
