//! What requests to the engine are served with.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::budget::Budget;
use crate::config::Config;
use crate::engine::client::Client;
use crate::engine::engines::Engines;
use crate::engine::probe::Capabilities;
use crate::generation::Tools;
use crate::generation::generator::Generator;
use crate::metrics::Metrics;
use crate::session::Store;

/// What requests to the engine are served with, on both ports.
#[derive(Debug)]
pub struct ProxyState {
    /// The settings.
    pub config: Arc<Config>,
    /// The upstream.
    pub client: Client,
    /// The engines, which get aborts.
    pub engines: Engines,
    /// What the probe found.
    pub upstream: watch::Receiver<Arc<Capabilities>>,
    /// Runs generations.
    pub generator: Arc<Generator>,
    /// What generations work with; here for the ids in flight.
    pub tools: Arc<Tools>,
    /// What is recorded.
    pub sessions: Arc<Store>,
    /// Bytes of requests and replies that are held whole.
    pub budget: Budget,
    /// Every metric.
    pub metrics: Arc<Metrics>,
    /// Routes whose uncaptured generations have been logged; held for a lookup only.
    pub uncaptured: Mutex<HashSet<&'static str>>,
}
