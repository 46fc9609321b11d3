//! Decides who serves chat completions, after each probe of the engine.

use std::sync::Arc;

use tokio::sync::watch;

use super::Parts;
use crate::chat::model::Chats;
use crate::engine::probe::Capabilities;
use crate::tokenizer::Renderer;

/// The facts about the engine that decide it.
#[derive(PartialEq)]
struct EngineFacts {
    tokenizer_path: Option<String>,
    model_path: Option<String>,
    chat: crate::engine::probe::ChatFacts,
}

impl EngineFacts {
    fn of(upstream: &Capabilities) -> Self {
        Self {
            tokenizer_path: upstream.tokenizer_path.clone(),
            model_path: upstream.model_path.clone(),
            chat: upstream.chat.clone(),
        }
    }
}

/// Updates `chats` until the probe ends.
pub(super) async fn watch(parts: Arc<Parts>, chats: watch::Sender<Arc<Chats>>, embedded: Option<Arc<Renderer>>) {
    let mut upstream = parts.upstream.clone();
    let mut grounds = None;
    let mut known = embedded.clone();
    while upstream.changed().await.is_ok() {
        let found = Arc::clone(&upstream.borrow_and_update());
        let new = EngineFacts::of(&found);
        if grounds.as_ref() == Some(&new) {
            continue;
        }
        if grounds.as_ref().is_none_or(|before: &EngineFacts| before.tokenizer_path != new.tokenizer_path)
            && parts.config.chat.tokenizer.is_none()
        {
            known.clone_from(&embedded);
        }
        grounds = Some(new);
        let (config, read) = (parts.config.chat.clone(), known.clone());
        // reading a tokenizer takes a second
        let read = tokio::task::spawn_blocking(move || Chats::find(&config, &found, read)).await;
        let mut decided =
            read.unwrap_or_else(|error| Chats::Forwarded(format!("the tokenizer could not be read: {error}")));
        if let Chats::Rendered(model) = &decided
            && let Err(reason) = model.agrees(&parts.engines.any()).await
        {
            decided = Chats::Forwarded(reason);
        }
        let decided = Arc::new(decided);
        chats.send_replace(Arc::clone(&decided));
        match &*decided {
            Chats::Rendered(model) => {
                known = Some(Arc::clone(&model.renderer));
                tracing::info!(model = %model.describe(), "chat completions are served from tokens");
                if parts.trainers.think_tokens().is_none() {
                    tracing::info!(
                        "the tokenizer names no think tokens: entropies of the thinking are null; see --think-tokens"
                    );
                }
            }
            Chats::Forwarded(reason) => {
                tracing::info!(%reason, "chat completions go to the engine's own endpoint");
                // the files may exist when the next probe result arrives
                grounds = None;
            }
        }
    }
}
