//! The composition root: settings become running parts. The only file that knows all of them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::config::{Config, FsyncPolicy, SessionConfig};
use crate::entropy::store::{EntropyStore, StoreLimits};
use crate::entropy::{Backend, Cpu};
use crate::generation::Tools;
use crate::http::Parts;
use crate::http::control::Control;
use crate::http::data::Data;
use crate::metrics::Metrics;
use crate::server::{Phase, ServerLimits, serve};
use crate::sglang::client::Client;
use crate::sglang::probe::{Capabilities, Probe};
use crate::trajectory::log::{Fsync, Options};
use crate::trajectory::{Store, StoreLimits as SessionLimits};

/// The upstream is taken for gone after so many unanswered questions in a row, one a second.
const PATIENCE: u32 = 3;

/// A plugin that failed is probed again after this time.
const REPRIEVE: Duration = Duration::from_secs(60);

/// How long the information routes may take altogether.
const ANSWER: Duration = Duration::from_secs(10);

/// How long the aborts of what was cut may take at the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// A tokentap with its ports bound.
#[derive(Debug)]
pub struct App {
    parts: Arc<Parts>,
    data: TcpListener,
    control: TcpListener,
    probed: watch::Sender<Arc<Capabilities>>,
    ready: watch::Sender<bool>,
}

impl App {
    /// Binds the ports.
    ///
    /// # Errors
    /// A line for the user.
    pub async fn bind(config: Config, phase: watch::Receiver<Phase>) -> Result<Self, String> {
        Self::bind_with(config, phase, Arc::new(Cpu::new())).await
    }

    /// The same with a backend of the caller's.
    ///
    /// # Errors
    /// A line for the user.
    pub async fn bind_with(
        config: Config,
        phase: watch::Receiver<Phase>,
        backend: Arc<dyn Backend>,
    ) -> Result<Self, String> {
        let bound = |flag: &'static str, addr: SocketAddr| async move {
            TcpListener::bind(addr).await.map_err(|error| format!("{flag} {addr}: {error}"))
        };
        let data = bound("--listen", config.listen).await?;
        let control = bound("--control-listen", config.control_listen).await?;
        let client = Client::try_new(&config.upstream, &config.keys, &config.limits)?;
        let metrics = Arc::new(Metrics::new(backend.name()));
        let limits = StoreLimits {
            ttl: config.entropy.entropy_ttl,
            entries: config.entropy.entropy_entries,
            bytes: config.entropy.entropy_bytes,
        };
        let tools = Tools::new(backend, EntropyStore::new(limits), Arc::clone(&metrics));
        let (probed, upstream) = watch::channel(Arc::new(Capabilities::unknown(config.entropy.vocab_size)));
        let (ready, is_ready) = watch::channel(false);
        let sessions = sessions(&config.sessions, Arc::clone(&metrics)).await?;
        let parts = Parts {
            client,
            sessions: Arc::new(sessions),
            metrics,
            tools: Arc::new(tools),
            upstream,
            ready: is_ready,
            phase,
            aborting: watch::Sender::new(0),
            permits: Arc::new(Semaphore::new(config.limits.max_requests.min(Semaphore::MAX_PERMITS))),
            refused: Arc::default(),
            attempts: crate::http::attempt::Attempts::default(),
            log_slow_until: AtomicU64::default(),
            uncaptured: Mutex::default(),
            config,
        };
        Ok(Self { parts: Arc::new(parts), data, control, probed, ready })
    }

    /// Where the data port is.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn data_addr(&self) -> std::io::Result<SocketAddr> {
        self.data.local_addr()
    }

    /// Where the control port is.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn control_addr(&self) -> std::io::Result<SocketAddr> {
        self.control.local_addr()
    }

    /// What the parts share.
    #[must_use]
    pub fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    /// Serves until the phase says otherwise; returns how many connections were cut at the end.
    pub async fn run(self) -> usize {
        let Self { parts, data, control, probed, ready } = self;
        let limits = &parts.config.limits;
        let limits = ServerLimits {
            header_timeout: limits.client_header_timeout,
            idle_timeout: limits.client_idle_timeout,
            connections: limits.max_connections.min(Semaphore::MAX_PERMITS),
            drain: limits.drain_timeout,
        };
        let watching = tokio::spawn(watch_upstream(Arc::clone(&parts), probed, ready));
        let sweeping = tokio::spawn(sweep(Arc::clone(&parts)));
        // probes and metrics stay until the last request has ended
        let (stop, stopped) = watch::channel(Phase::Serving);
        let control = tokio::spawn(serve(
            control,
            Control(Arc::clone(&parts)),
            ServerLimits { drain: Duration::from_secs(1), ..limits.clone() },
            stopped,
        ));
        let mut phase = parts.phase.clone();
        let metrics = Arc::clone(&parts.metrics);
        let draining = tokio::spawn(async move {
            if phase.wait_for(|phase| *phase >= Phase::Draining).await.is_ok() {
                metrics.draining.set(1);
            }
        });
        let cut = serve(data, Data(Arc::clone(&parts)), limits, parts.phase.clone()).await;
        // what was cut is aborted before the process ends; an engine that is gone is not waited for
        let mut aborting = parts.aborting.subscribe();
        let _ = tokio::time::timeout(FAREWELL, aborting.wait_for(|count| *count == 0)).await;
        // whoever watches has gone when this fails, and so has the reason to tell
        let _ = stop.send(Phase::Draining);
        let _ = control.await;
        for task in [watching, sweeping, draining] {
            task.abort();
        }
        cut
    }
}

/// The store of sessions, restored where there is a log.
async fn sessions(config: &SessionConfig, metrics: Arc<Metrics>) -> Result<Store, String> {
    let limits = SessionLimits { bytes: config.session_bytes, ttl: config.session_ttl, idle: config.session_idle };
    let Some(dir) = config.data_dir.clone().filter(|_| config.record) else {
        return Ok(Store::new(limits, None, metrics));
    };
    let fsync = match config.fsync {
        FsyncPolicy::Never => Fsync::Never,
        FsyncPolicy::Interval => Fsync::Interval(Duration::from_secs(1)),
        FsyncPolicy::Always => Fsync::Always,
    };
    let options = Options { total_bytes: config.data_bytes, fsync, ..Options::new(dir) };
    // reading a log takes seconds
    let opened = tokio::task::spawn_blocking(move || Store::open(limits, &options, metrics)).await;
    let (store, replayed) =
        opened.map_err(|error| format!("--data-dir: {error}"))?.map_err(|error| format!("--data-dir: {error}"))?;
    replayed.torn.iter().for_each(|torn| tracing::warn!(%torn, "a segment of the log ends early"));
    let (sessions, _) = store.size();
    tracing::info!(sessions, records = replayed.records, segments = replayed.segments, "sessions restored");
    Ok(store)
}

/// Keeps what is known of the upstream up to date: at start, and whenever it has come back.
async fn watch_upstream(parts: Arc<Parts>, probed: watch::Sender<Arc<Capabilities>>, ready: watch::Sender<bool>) {
    let entropy = &parts.config.entropy;
    let probe = Probe::new(parts.client.clone(), entropy.vocab_size, entropy.top_logprobs);
    let mut asking: Option<tokio::task::JoinHandle<()>> = None;
    let mut missed = 0;
    let mut told = false;
    let mut asked = tokio::time::Instant::now();
    loop {
        let up = *ready.borrow();
        let epoch = parts.sessions.policy.epoch();
        let shown = |label: &Option<String>| {
            label.iter().for_each(|label| parts.sessions.policy_shown(epoch, label));
        };
        let look = async {
            if up {
                return probe.is_up().await.map(|label| {
                    shown(&label);
                    None
                });
            }
            probe.look().await.inspect(|found| shown(&found.weight_version)).map(Some)
        };
        let answer = tokio::time::timeout(ANSWER, look).await;
        match answer
            .map_err(|_| "no answer in time".to_owned())
            .and_then(|answer| answer.map_err(|error| error.to_string()))
        {
            Ok(found) => {
                missed = 0;
                let again = parts.tools.plugin_failed.load(Ordering::Relaxed) && asked.elapsed() >= REPRIEVE;
                if found.is_none() && again {
                    asked = tokio::time::Instant::now();
                    let known = Capabilities::clone(&probed.borrow());
                    asking = Some(tokio::spawn(ask(Arc::clone(&parts), probe.clone(), known, probed.clone())));
                }
                if let Some(found) = found {
                    told = false;
                    asked = tokio::time::Instant::now();
                    tracing::info!(upstream = parts.client.upstream(), model = %found.model, version = found.version, "the upstream answers");
                    parts.refused.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    probed.send_replace(Arc::new(found.clone()));
                    parts.metrics.upstream_up.set(1);
                    ready.send_replace(true);
                    if let Some(previous) = asking.take() {
                        previous.abort();
                    }
                    asking = Some(tokio::spawn(ask(Arc::clone(&parts), probe.clone(), found, probed.clone())));
                }
            }
            Err(error) => {
                missed += 1;
                if !up && !std::mem::replace(&mut told, true) {
                    tracing::info!(%error, "waiting for the upstream");
                }
                if up && missed >= PATIENCE {
                    tracing::warn!(%error, "the upstream is gone; its return is waited for");
                    parts.metrics.upstream_up.set(0);
                    ready.send_replace(false);
                }
            }
        }
        let pause = if *ready.borrow() { Duration::from_secs(1) } else { Duration::from_millis(250) };
        tokio::time::sleep(pause).await;
    }
}

/// The questions that generate: an engine that is paused lets them wait, and nobody else waits for them. Asked again, ever more
/// rarely, as long as the engine did not answer them.
async fn ask(parts: Arc<Parts>, probe: Probe, found: Capabilities, probed: watch::Sender<Arc<Capabilities>>) {
    let mut pause = Duration::from_secs(1);
    loop {
        match probe.ask(found.clone()).await {
            Ok(found) => {
                tracing::info!(
                    vocab_size = found.vocab_size,
                    flat = found.flat,
                    streaming = ?found.streaming,
                    plugin = ?found.plugin,
                    original_logprobs = found.original_logprobs,
                    "the upstream has been probed"
                );
                let answered =
                    found.generates == Some(false) || found.refuses_logprobs || found.original_logprobs.is_some();
                parts.tools.plugin_failed.store(false, Ordering::Relaxed);
                probed.send_replace(Arc::new(found));
                if answered {
                    return;
                }
            }
            Err(error) => tracing::warn!(%error, "the probe got no answer"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(60));
    }
}

async fn sweep(parts: Arc<Parts>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        parts.sessions.sweep();
        let evicted = parts.tools.store.take_evicted();
        for (reason, count) in [("ttl", evicted.ttl), ("entries", evicted.entries), ("bytes", evicted.bytes)] {
            if count > 0 {
                parts.metrics.store_evictions.with_label_values(&[reason]).inc_by(count);
            }
        }
    }
}
