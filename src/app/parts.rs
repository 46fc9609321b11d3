//! The running parts, for the tasks of the app.

use std::sync::Arc;

use tokio::sync::watch;

use crate::budget::Budget;
use crate::chat::model::Chats;
use crate::config::Config;
use crate::engine::client::Client;
use crate::engine::engines::Engines;
use crate::engine::probe::Capabilities;
use crate::generation::CaptureTools;
use crate::generation::generator::Generator;
use crate::logits::slices::Slices;
use crate::metrics::Metrics;
use crate::serve::connection::Phase;
use crate::serve::control::trainer_state::TrainerState;
use crate::session::Store;

/// The running parts.
#[derive(Debug)]
pub struct Parts {
    /// The settings.
    pub config: Arc<Config>,
    /// The upstream.
    pub client: Client,
    /// The engines that run what is sent there.
    pub engines: Engines,
    /// Every metric.
    pub metrics: Arc<Metrics>,
    /// What is recorded.
    pub sessions: Arc<Store>,
    /// What captures work with.
    pub tools: Arc<CaptureTools>,
    /// Where whole rows are measured.
    pub slices: Arc<Slices>,
    /// What the probe found.
    pub upstream: watch::Receiver<Arc<Capabilities>>,
    /// Whether the upstream answers.
    pub ready: watch::Receiver<bool>,
    /// Who serves chat completions.
    pub chats: watch::Receiver<Arc<Chats>>,
    /// Serving, draining or ending.
    pub phase: watch::Receiver<Phase>,
    /// Runs generations.
    pub generator: Arc<Generator>,
    /// Bytes of requests and replies that are held whole.
    pub budget: Budget,
    /// What trainers are served with.
    pub trainers: Arc<TrainerState>,
}
