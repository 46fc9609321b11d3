//! The state of the trainers' routes.

use std::sync::Arc;

use tokio::sync::watch;

use crate::budget::Budget;
use crate::chat::model::Chats;
use crate::config::{Config, ThinkIds};
use crate::engine::capabilities::Capabilities;
use crate::entropy::Backend;
use crate::generation::entropy_store::EntropyStore;
use crate::generation::log_wait::LogWait;
use crate::logits::slices::Slices;
use crate::rl::ThinkTokens;
use crate::session::{Policy, Sessions};

/// The state of `/v1` on the control port and of gRPC `Trajectories`.
#[derive(Debug)]
pub struct TrainerState {
    /// The settings.
    pub config: Arc<Config>,
    /// The recorded sessions.
    pub sessions: Arc<Sessions>,
    /// Which policy samples.
    pub policy: Arc<Policy>,
    /// The entropies of running requests and of recently ended ones.
    pub entropies: EntropyStore,
    /// Measures small slices.
    pub backend: Arc<dyn Backend>,
    /// Measures whole rows of logits.
    pub slices: Arc<Slices>,
    /// Renders chats and decodes tokens for exports.
    pub chats: watch::Receiver<Arc<Chats>>,
    /// The capabilities that the probe found.
    pub upstream: watch::Receiver<Arc<Capabilities>>,
    /// The memory budget of buffered requests.
    pub budget: Budget,
    /// Waits for the log.
    pub log_wait: Arc<LogWait>,
}

impl TrainerState {
    /// Returns the think tokens from the settings, else from the tokenizer of chats; `None` if neither defines them.
    #[must_use]
    pub fn think_tokens(&self) -> Option<ThinkTokens> {
        let named = self.config.sessions.think_tokens.map(|ThinkIds { start, end }| (start, end));
        let by_tokenizer = || match &**self.chats.borrow() {
            Chats::Rendered(model) => model.renderer.think_tokens(),
            Chats::Forwarded(_) => None,
        };
        named.or_else(by_tokenizer).map(|(start, end)| ThinkTokens { start, end })
    }
}
