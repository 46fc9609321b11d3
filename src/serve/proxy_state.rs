//! The state of requests to the engine.

use std::sync::Arc;

use tokio::sync::watch;

use crate::budget::Budget;
use crate::config::Config;
use crate::engine::capabilities::Capabilities;
use crate::engine::engines::Engines;
use crate::engine::transport::client::Client;
use crate::generation::CaptureTools;
use crate::generation::generator::Generator;
use crate::metrics::Metrics;
use crate::serve::discovery::Discovery;
use crate::session::Sessions;

/// The state of requests to the engine, on both ports.
#[derive(Debug)]
pub struct ProxyState {
    /// The settings.
    pub config: Arc<Config>,
    /// The client of the upstream.
    pub client: Client,
    /// The engines that get aborts.
    pub engines: Engines,
    /// The capabilities that the probe found.
    pub upstream: watch::Receiver<Arc<Capabilities>>,
    /// What is known of the engine since the start.
    pub discovery: watch::Receiver<Discovery>,
    /// Runs generations.
    pub generator: Arc<Generator>,
    /// The shared parts of generations; used here for the ids in flight.
    pub tools: Arc<CaptureTools>,
    /// The recorded sessions.
    pub sessions: Arc<Sessions>,
    /// The memory budget of buffered requests and replies.
    pub budget: Budget,
    /// All metrics.
    pub metrics: Arc<Metrics>,
}
