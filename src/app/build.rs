// SPDX-License-Identifier: Apache-2.0
//! Builds the proxy from the settings.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use super::{sessions, settings};
use crate::budget::Budget;
use crate::chat::model::Chats;
use crate::config::{Config, TEACHER_SELF};
use crate::engine::capabilities::Capabilities;
use crate::engine::engines::Engines;
use crate::generation::context::GenerationContext;
use crate::generation::entropy_store::{EntropyStore, EntropyStoreLimits};
use crate::generation::generator::{EngineReceivers, Generator};
use crate::generation::retries::{ReplayLimits, Retries};
use crate::logits::slices::Slices;
use crate::metrics::Metrics;
use crate::serve::connection::Phase;
use crate::serve::discovery::Discovery;
use crate::serve::proxy::Proxy;
use crate::serve::teacher::{PLACES, TeacherEngine};
use crate::session::Policy;
use crate::session::ledger::SharedLog;
use crate::session::ledger::log::Directory;
use crate::traces::{Exporter, Traces};

/// What the tasks find out about the engine. The proxy has the receivers.
#[derive(Debug, Clone)]
pub(super) struct EngineSenders {
    pub(super) capabilities: watch::Sender<Arc<Capabilities>>,
    pub(super) ready: watch::Sender<bool>,
    pub(super) discovery: watch::Sender<Discovery>,
    pub(super) chats: watch::Sender<Arc<Chats>>,
    /// The settings of its image processor, JSON text, if they are known.
    pub(super) image_settings: watch::Sender<Option<Arc<str>>>,
}

/// The proxy, and what only its tasks use.
pub(super) struct Built {
    pub(super) proxy: Arc<Proxy>,
    pub(super) engine: EngineSenders,
    /// The log from which the sessions will be restored.
    pub(super) directory: Option<Directory>,
    /// Sends the spans of generations to the collector.
    pub(super) exporter: Option<Exporter>,
}

/// Builds the proxy.
///
/// # Errors
/// A line for the user.
pub(super) fn build(config: Config, phase: watch::Receiver<Phase>, metrics: Arc<Metrics>) -> Result<Built, String> {
    let client = settings::client(&config)?;
    let named = settings::teachers(&config)?.into_iter().chain([(TEACHER_SELF.to_owned(), client.clone())]);
    let teachers = named.map(|(name, client)| (name, TeacherEngine::new(client))).collect();
    let engines = Engines::try_new(client.clone(), &config.engine)?;
    let slices = Slices::start(&config.slices, &metrics);
    let slices = slices.map_err(|error| format!("threads for rows of logits: {error}"))?;
    let (capabilities, upstream) = watch::channel(Arc::new(Capabilities::unknown(config.entropy.vocab_size)));
    let (chats, chats_known) = watch::channel(Arc::new(Chats::unknown()));
    let (image_settings, image_settings_known) = watch::channel(None);
    let (ready, is_ready) = watch::channel(false);
    let (discovery, discovered) = watch::channel(Discovery::Unanswered(0));
    let log = SharedLog::default();
    let policy = Arc::new(Policy::new(log.clone()));
    let (sessions, directory) = sessions::open(&config, log, &metrics)?;
    let (config, sessions) = (Arc::new(config), Arc::new(sessions));
    let budget = Budget::new(config.limits.max_bytes_in_flight);
    let context = GenerationContext::new(
        settings::generation(&config),
        engines.clone(),
        EntropyStore::new(store_limits(&config)),
        Arc::clone(&metrics),
        budget.clone(),
    );
    let collector = config.otlp.as_deref().map(|url| Traces::try_new(url, Arc::clone(&metrics))).transpose();
    let (traces, exporter) = collector.map_err(|error| format!("--otlp: {error}"))?.unzip();
    let context = context.with_traces(traces);
    let retries = Retries::new(replay_limits(config.limits.max_bytes_in_flight));
    let facts = EngineReceivers { capabilities: upstream.clone(), image_settings: image_settings_known };
    let generator = Generator::new(context, Arc::clone(&sessions), policy, facts, retries);
    let proxy = Arc::new(Proxy {
        client,
        teachers,
        places_at_urls: Arc::new(Semaphore::new(PLACES)),
        engines,
        sessions,
        metrics,
        slices: Arc::new(slices),
        upstream,
        ready: is_ready,
        discovery: discovered,
        chats: chats_known,
        phase,
        budget,
        generator: Arc::new(generator),
        config,
    });
    Ok(Built {
        proxy,
        engine: EngineSenders { capabilities, ready, discovery, chats, image_settings },
        directory,
        exporter,
    })
}

fn store_limits(config: &Config) -> EntropyStoreLimits {
    let entropy = &config.entropy;
    EntropyStoreLimits { ttl: entropy.entropy_ttl, entries: entropy.entropy_entries, bytes: entropy.entropy_bytes }
}

/// The default limits of retries, with the memory for undelivered replies limited to an eighth of `in_flight`, the value of
/// `--max-bytes-in-flight`.
fn replay_limits(in_flight: u64) -> ReplayLimits {
    let part = usize::try_from(in_flight / 8).unwrap_or(usize::MAX);
    let usual = ReplayLimits::default();
    ReplayLimits { reply: usual.reply.min(part), all: usual.all.min(part), ..usual }
}
