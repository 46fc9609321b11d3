//! What trainers are served with.

use std::sync::Arc;

use tokio::sync::watch;

use crate::budget::Budget;
use crate::chat::model::Chats;
use crate::config::{Config, ThinkIds};
use crate::engine::probe::Capabilities;
use crate::entropy::Backend;
use crate::generation::entropy_store::EntropyStore;
use crate::generation::log_wait::LogWait;
use crate::logits::slices::Slices;
use crate::rl::ThinkTokens;
use crate::session::{Policy, Store};

/// What `/v1` of the control port and gRPC `Trajectories` are served with.
#[derive(Debug)]
pub struct TrainerState {
    /// The settings.
    pub config: Arc<Config>,
    /// What was recorded.
    pub sessions: Arc<Store>,
    /// Which policy samples.
    pub policy: Arc<Policy>,
    /// Entropies of requests that run, or ran a while ago.
    pub entropies: EntropyStore,
    /// Measures small slices.
    pub backend: Arc<dyn Backend>,
    /// Where whole rows are measured.
    pub slices: Arc<Slices>,
    /// What renders chats, and decodes tokens for exports.
    pub chats: watch::Receiver<Arc<Chats>>,
    /// What the probe found.
    pub upstream: watch::Receiver<Arc<Capabilities>>,
    /// Bytes of requests that are held whole.
    pub budget: Budget,
    /// The wait for the log.
    pub log_wait: Arc<LogWait>,
}

impl TrainerState {
    /// The tokens around the thinking, by the settings or by the tokenizer that chats are rendered with; `None` where neither names them.
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
