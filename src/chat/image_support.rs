// SPDX-License-Identifier: Apache-2.0
//! Whether prompts with pictures are built from tokens: the template and the engine decide.

use tokio::sync::watch;

use crate::engine::sglang::image_probe::{ImageProbeError, image_tokens};
use crate::engine::transport::client::Client;
use crate::tokenizer::Renderer;

/// What is known about prompts with pictures.
#[derive(Debug, Default)]
pub struct ImageSupport {
    /// The number of tokens of the picture that the engine was asked with, or why pictures are for its own endpoint. `None` before the engine
    /// has answered.
    answer: watch::Sender<Option<Result<usize, String>>>,
}

impl ImageSupport {
    /// Asks the engine with a picture. Returns whether it has answered.
    pub async fn ask(&self, renderer: &Renderer, client: &Client) -> bool {
        let answer = match renderer.image_prompt() {
            Ok(ids) => match image_tokens(client, &ids).await {
                Err(error @ ImageProbeError::Unanswered(_)) => {
                    tracing::debug!(%error, "the engine is asked again");
                    return false;
                }
                answer => answer.map_err(|error| error.to_string()),
            },
            Err(reason) => Err(reason.to_string()),
        };
        let answer = Some(answer);
        self.answer.send_if_modified(|known| {
            let is_new = *known != answer;
            match &answer {
                Some(Ok(_)) if is_new => tracing::info!("prompts with pictures are built from tokens"),
                Some(Err(reason)) if is_new => {
                    tracing::info!(%reason, "prompts with pictures go to the engine's own endpoint");
                }
                _ => {}
            }
            known.clone_from(&answer);
            is_new
        });
        true
    }

    /// Waits for the first answer, which is sent to all that wait.
    pub async fn wait(&self) {
        // the sender lives as long as `self`
        let _ = self.answer.subscribe().wait_for(Option::is_some).await;
    }

    /// The number of tokens of the picture that the engine was asked with.
    ///
    /// # Errors
    /// Why prompts with pictures are for the engine's own endpoint.
    pub fn answer(&self) -> Result<usize, String> {
        let unknown = || Err("the engine has not answered yet whether it takes pictures with ids".to_owned());
        self.answer.borrow().clone().unwrap_or_else(unknown)
    }
}
