// SPDX-License-Identifier: Apache-2.0
//! Decides after each probe whether tokentap or the engine serves chat completions.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;

use super::build::EngineSenders;
use super::image_settings;
use crate::chat::model::Chats;
use crate::engine::capabilities::{Capabilities, ChatFacts, ImageFacts};
use crate::serve::discovery::Discovery;
use crate::serve::proxy::Proxy;
use crate::tokenizer::Renderer;

/// The pause after which an engine is asked about pictures again.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// The capabilities of the engine that the decision depends on.
#[derive(PartialEq)]
struct EngineFacts {
    tokenizer_path: Option<String>,
    model_path: Option<String>,
    longest_prompt: Option<u64>,
    chat: ChatFacts,
    images: ImageFacts,
}

impl EngineFacts {
    fn new(upstream: &Capabilities) -> Self {
        Self {
            tokenizer_path: upstream.tokenizer_path.clone(),
            model_path: upstream.model_path.clone(),
            longest_prompt: upstream.longest_prompt(),
            chat: upstream.chat.clone(),
            images: upstream.images.clone(),
        }
    }
}

/// Decides after each probe. `embedded` is a renderer that is used instead of the engine's tokenizer files.
pub(super) async fn watch(proxy: Arc<Proxy>, engine: EngineSenders, embedded: Option<Arc<Renderer>>) {
    let mut upstream = proxy.upstream.clone();
    let mut decided_for = None;
    let mut renderer = embedded.clone();
    let mut last_logged = None;
    // at most one task asks
    let mut asking = None;
    while upstream.changed().await.is_ok() {
        let found = Arc::clone(&upstream.borrow_and_update());
        let new = EngineFacts::new(&found);
        if decided_for.as_ref() == Some(&new) {
            drop(std::mem::replace(&mut asking, ask_images(&proxy)));
            continue;
        }
        let reads_other_files = decided_for.as_ref().is_none_or(|before: &EngineFacts| {
            before.tokenizer_path != new.tokenizer_path && proxy.config.chat.tokenizer.is_none()
                || before.chat.tool_call_parser != new.chat.tool_call_parser
        });
        if reads_other_files {
            renderer.clone_from(&embedded);
        }
        decided_for = Some(new);
        let (config, read) = (proxy.config.chat.clone(), renderer.clone());
        // reading a tokenizer takes about a second, so it runs on a blocking thread
        let image_settings = engine.image_settings.clone();
        let read = tokio::task::spawn_blocking(move || {
            image_settings.send_replace(image_settings::find(config.tokenizer.as_deref(), &found));
            Chats::find(&config, &found, read)
        });
        let mut decided =
            read.await.unwrap_or_else(|error| Chats::Forwarded(format!("the tokenizer could not be read: {error}")));
        if let Chats::Rendered(model) = &decided
            && let Err(reason) = model.check_tokenizer(&proxy.engines.any()).await
        {
            decided = Chats::Forwarded(reason);
        }
        let decided = Arc::new(decided);
        engine.chats.send_replace(Arc::clone(&decided));
        engine.discovery.send_replace(Discovery::Decided);
        drop(std::mem::replace(&mut asking, ask_images(&proxy)));
        match &*decided {
            Chats::Rendered(model) => {
                last_logged = None;
                renderer = Some(Arc::clone(&model.renderer));
                tracing::info!(model = %model.describe(), "chat completions are served from tokens");
                if proxy.think_tokens().is_none() {
                    tracing::info!(
                        "the tokenizer names no think tokens: entropies of the thinking are null; see --think-tokens"
                    );
                }
            }
            Chats::Forwarded(reason) => {
                const FORWARDED: &str = "chat completions go to the engine's own endpoint";
                let is_new = last_logged.as_ref() != Some(reason);
                match proxy.config.chat.tokenizer {
                    Some(_) if is_new => tracing::warn!(%reason, "{FORWARDED}, although --tokenizer is set"),
                    None if is_new => tracing::info!(%reason, "{FORWARDED}"),
                    _ => {}
                }
                last_logged = Some(reason.clone());
                // decide again after the next probe, because the tokenizer files may exist then
                decided_for = None;
            }
        }
    }
}

/// Asks the engine whether it takes pictures with ids, again until it answers. Nothing waits for the answer: the first picture of an engine may
/// take a minute. An engine that replaces another one is asked as well.
fn ask_images(proxy: &Proxy) -> Option<AbortOnDrop> {
    let Chats::Rendered(model) = &**proxy.chats.borrow() else { return None };
    let (model, client) = (Arc::clone(model), proxy.engines.any());
    let asking = tokio::spawn(async move {
        while !model.images.ask(&model.renderer, &client).await {
            tokio::time::sleep(ASK_AGAIN).await;
        }
    });
    Some(AbortOnDrop(asking.abort_handle()))
}

/// A task that ends when this is dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
