//! The composition root: builds the parts of the proxy from the settings and runs them. No other file depends on all of them.

mod archive;
mod chat;
mod restoration;
mod session_metrics;
pub mod settings;
mod shared_ledger;
mod think_entropy;
mod upstream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::api::anthropic_messages::AnthropicMessages;
use crate::api::openai_chat::OpenAiChat;
use crate::api::openai_completions::OpenAiCompletions;
use crate::api::openai_responses::{OpenAiResponses, StoredResponses};
use crate::api::{Api, Apis};
use crate::archive::Storage;
use crate::budget::Budget;
use crate::chat::ChatService;
use crate::chat::model::Chats;
use crate::config::{self, Config, FsyncPolicy, SessionConfig, TlsFiles};
use crate::engine::capabilities::Capabilities;
use crate::engine::engines::Engines;
use crate::engine::sglang::routes;
use crate::entropy::Backend;
use crate::generation::context::GenerationContext;
use crate::generation::entropy_store::{EntropyStore, EntropyStoreLimits};
use crate::generation::generator::Generator;
use crate::generation::retries::{ReplayLimits, Retries};
use crate::logits::slices::Slices;
use crate::metrics::Metrics;
use crate::serve;
use crate::serve::connection::{ListenDrops, Listener, Phase, ServerLimits, Tls, listen, serve};
use crate::serve::discovery::{self, Discovery};
use crate::serve::proxy::Proxy;
use crate::serve::request_info::Port;
use crate::session::ledger::SharedLog;
use crate::session::ledger::log::{Directory, Fsync, Options};
use crate::session::{Policy, Sessions, SharedLedger, StoreLimits};
use crate::tokenizer::Renderer;

use session_metrics::SessionMetrics;
pub(crate) use shared_ledger::options as ledger_options;

/// The maximum time that the shutdown waits for the aborts of the last generations.
const FINAL_ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// A proxy whose ports are bound.
#[derive(Debug)]
pub struct App {
    parts: Arc<Proxy>,
    /// The APIs of the data port, except SGLang's native API.
    apis: Apis,
    data: Listener,
    control: Listener,
    probed: watch::Sender<Arc<Capabilities>>,
    ready: watch::Sender<bool>,
    discovery: watch::Sender<Discovery>,
    chats: watch::Sender<Arc<Chats>>,
    /// The log from which sessions are restored while the ports are open.
    directory: Option<Directory>,
    /// The archive of finished paths.
    archive: Option<Storage>,
    /// An embedded chat renderer, which is used instead of the engine's tokenizer files.
    renderer: Option<Arc<Renderer>>,
}

impl App {
    /// Binds the ports and builds the parts.
    ///
    /// # Errors
    /// A line for the user.
    pub async fn bind(config: Config, phase: watch::Receiver<Phase>) -> Result<Self, String> {
        Self::assemble(config, phase, None).await
    }

    /// Like [`bind`](Self::bind), but measures with the given backend.
    ///
    /// # Errors
    /// A line for the user.
    pub async fn bind_with(
        config: Config,
        phase: watch::Receiver<Phase>,
        backend: Arc<dyn Backend>,
    ) -> Result<Self, String> {
        Self::assemble(config, phase, Some(backend)).await
    }

    async fn assemble(
        config: Config,
        phase: watch::Receiver<Phase>,
        backend: Option<Arc<dyn Backend>>,
    ) -> Result<Self, String> {
        let bound =
            |flag: &'static str, addr: SocketAddr| listen(addr).map_err(|error| format!("{flag} {addr}: {error}"));
        let data = bound("--listen", config.listen)?;
        let control = bound("--control-listen", config.control_listen)?;
        let client = settings::client(&config)?;
        let engines = Engines::try_new(client.clone(), &config.engine)?;
        let name = backend.as_ref().map_or_else(|| Slices::backend_name(&config.slices), |backend| backend.name());
        let metrics = Arc::new(Metrics::new(name));
        let with_tls = |listener, files: Option<TlsFiles>, port| {
            let tls = files.map(|files| Tls::load(&files, port, &metrics).map(Arc::new)).transpose()?;
            Ok::<_, String>(Listener { listener, tls, drops: Some(ListenDrops::new(Arc::clone(&metrics))) })
        };
        let data = with_tls(data, config.tls.data(), "data")?;
        let control = with_tls(control, config.tls.control(), "control")?;
        let slices = Slices::start(&config.slices, &metrics);
        let slices = slices.map_err(|error| format!("threads for rows of logits: {error}"))?;
        let backend = backend.unwrap_or_else(|| slices.backend());
        let limits = EntropyStoreLimits {
            ttl: config.entropy.entropy_ttl,
            entries: config.entropy.entropy_entries,
            bytes: config.entropy.entropy_bytes,
        };
        let (probed, upstream) = watch::channel(Arc::new(Capabilities::unknown(config.entropy.vocab_size)));
        let (chats, serving) = watch::channel(Arc::new(Chats::unknown()));
        let (ready, is_ready) = watch::channel(false);
        let (discovery, discovered) = watch::channel(Discovery::Unanswered(0));
        let log = SharedLog::default();
        let policy = Arc::new(Policy::new(log.clone()));
        let archive = config.archive.archive.as_deref().map(Storage::open).transpose();
        let archive = archive.map_err(|error| format!("--archive: {error}"))?;
        let ledger = shared_ledger::open(&config, &metrics)?;
        let (sessions, directory) = sessions(&config.sessions, ledger, log, &metrics)?;
        let (config, sessions) = (Arc::new(config), Arc::new(sessions));
        let budget = Budget::new(config.limits.max_bytes_in_flight);
        let entropies = EntropyStore::new(limits);
        let settings = settings::generation(&config);
        let context =
            GenerationContext::new(settings, engines.clone(), backend, entropies, Arc::clone(&metrics), budget.clone());
        let retries = Retries::new(replay_limits(config.limits.max_bytes_in_flight));
        let generator = Generator::new(context, Arc::clone(&sessions), policy, upstream.clone(), retries);
        let slices = Arc::new(slices);
        let generator = Arc::new(generator);
        let parts = Proxy {
            client,
            engines,
            sessions,
            metrics,
            slices,
            upstream,
            ready: is_ready,
            discovery: discovered,
            chats: serving,
            phase,
            budget,
            generator,
            config,
        };
        let apis = apis(&parts);
        Ok(Self {
            parts: Arc::new(parts),
            apis,
            data,
            control,
            probed,
            ready,
            discovery,
            chats,
            directory,
            archive,
            renderer: None,
        })
    }

    /// Renders chats with `renderer`, unless `--tokenizer` is set.
    #[must_use]
    pub fn with_renderer(mut self, renderer: Renderer) -> Self {
        self.renderer = Some(Arc::new(renderer)).filter(|_| self.parts.config.chat.tokenizer.is_none());
        self
    }

    /// Adds an API, which serves the requests to `path` on the data port.
    #[must_use]
    pub fn with_api(mut self, path: &'static str, api: Arc<dyn Api>) -> Self {
        self.apis = self.apis.with(path, api);
        self
    }

    /// The paths of the APIs on the data port, without SGLang's native API.
    pub fn api_paths(&self) -> impl Iterator<Item = &'static str> {
        self.apis.paths()
    }

    /// The address of the data port.
    ///
    /// # Errors
    /// If the system does not return the address.
    pub fn data_addr(&self) -> std::io::Result<SocketAddr> {
        self.data.listener.local_addr()
    }

    /// The address of the control port.
    ///
    /// # Errors
    /// If the system does not return the address.
    pub fn control_addr(&self) -> std::io::Result<SocketAddr> {
        self.control.listener.local_addr()
    }

    /// The URLs of the data port and the control port.
    ///
    /// # Errors
    /// If the system does not return the address.
    pub fn urls(&self) -> std::io::Result<[String; 2]> {
        Ok([self.data.url()?, self.control.url()?])
    }

    /// The parts of the proxy.
    #[must_use]
    pub fn parts(&self) -> &Arc<Proxy> {
        &self.parts
    }

    /// Serves until the drain has ended. Returns the number of connections that were still open and were closed.
    ///
    /// # Errors
    /// A line for the user when sessions cannot be restored, or the shared ledger cannot be used.
    pub async fn run(self) -> Result<usize, String> {
        let Self { parts, apis, data, control, probed, ready, discovery, chats, directory, archive, renderer } = self;
        let limits = &parts.config.limits;
        let shared = serve::SharedState {
            proxy: Arc::clone(&parts),
            apis: Arc::new(apis),
            permits: Arc::new(Semaphore::new(limits.max_requests.min(Semaphore::MAX_PERMITS))),
            cutting: Arc::default(),
        };
        let limits = ServerLimits {
            header_timeout: limits.client_header_timeout,
            idle_timeout: limits.client_idle_timeout,
            read_timeout: limits.client_read_timeout,
            connections: limits.max_connections.min(Semaphore::MAX_PERMITS),
            drain: limits.drain_timeout,
            cutting: Arc::clone(&shared.cutting),
        };
        let (restored, is_restored) = watch::channel(directory.is_none());
        let restoring = restoration::restore(Arc::clone(&parts), directory, restored);
        // neither task may change the sessions or the policy during the restoration
        let watching =
            restoration::after(&is_restored, upstream::watch(Arc::clone(&parts), probed, (ready, discovery.clone())));
        let limiting = restoration::after(&is_restored, discovery::limit(discovery.clone()));
        let sweeping = restoration::after(&is_restored, sweep(Arc::clone(&parts)));
        let sharing = restoration::after(&is_restored, Arc::clone(&parts.sessions).run());
        let archiving = archive.map(|storage| archive::start(&parts, storage, &is_restored));
        let thinking = tokio::spawn(think_entropy::watch(Arc::clone(&parts)));
        let rendering = tokio::spawn(chat::watch(Arc::clone(&parts), (chats, discovery), renderer));
        let reloading = [&data, &control].map(|listener| tokio::spawn(reload_certificates(listener.tls.clone())));
        // the control port serves probes and metrics until the last request has ended
        let (stop, stopped) = watch::channel(Phase::Serving);
        let control = tokio::spawn(serve(
            control,
            serve::port(&shared, Port::Control, stopped.clone()),
            ServerLimits {
                drain: Duration::from_secs(1),
                cutting: Arc::default(),
                connections: config::control_connections(limits.connections),
                ..limits.clone()
            },
            stopped,
        ));
        let mut phase = parts.phase.clone();
        let metrics = Arc::clone(&parts.metrics);
        let (drain, drain_end) = watch::channel(None);
        let drain_timeout = limits.drain;
        let draining = tokio::spawn(async move {
            if phase.wait_for(|phase| *phase >= Phase::Draining).await.is_ok() {
                metrics.draining.set(1);
                drain.send_replace(Some(Instant::now() + drain_timeout));
            }
        });
        let routes = serve::port(&shared, Port::Data, parts.phase.clone());
        let serving = serve(data, routes, limits, parts.phase.clone());
        let cut = tokio::select! {
            cut = serving => Ok(cut),
            error = restoring => Err(error),
            error = parts.sessions.ledger_refusal() => Err(format!("--ledger: {error}")),
        };
        // the runtime waits for blocking threads when it shuts down
        parts.sessions.cancel_restore();
        // the engine must receive the aborts of closed connections before the process ends, but it may not answer any more
        let mut aborting = parts.generator.context.aborting.subscribe();
        let _ = tokio::time::timeout(FINAL_ABORT_TIMEOUT, aborting.wait_for(|count| *count == 0)).await;
        if let Some(archiving) = archiving {
            let left = drain_end.borrow().map_or(drain_timeout, |end| end.saturating_duration_since(Instant::now()));
            archive::finish(&parts, archiving, left).await;
        }
        // an error means that all receivers were dropped, so no task must be notified
        let _ = stop.send(Phase::Draining);
        let _ = control.await;
        // detached turns of a process without a local log would be lost
        let _ = tokio::time::timeout(parts.config.ledger.ledger_timeout, parts.sessions.settle()).await;
        for task in [watching, limiting, sweeping, sharing, thinking, rendering, draining].into_iter().chain(reloading)
        {
            task.abort();
        }
        parts.slices.close().await;
        cut
    }
}

/// The APIs of the data port by path, except SGLang's native API.
fn apis(parts: &Proxy) -> Apis {
    let (config, upstream) = (Arc::clone(&parts.config), parts.upstream.clone());
    let chats = Arc::new(ChatService::new(Arc::clone(&config), Arc::clone(&parts.metrics), parts.chats.clone()));
    let messages =
        |counts_tokens| AnthropicMessages { chats: Arc::clone(&chats), upstream: upstream.clone(), counts_tokens };
    let (messages, count_tokens) = (messages(false), messages(true));
    let responses = |counts_tokens| OpenAiResponses {
        chats: Arc::clone(&chats),
        budget: parts.budget.clone(),
        upstream: upstream.clone(),
        counts_tokens,
    };
    let (responses, input_tokens) = (responses(false), responses(true));
    let stored = |shows_input| StoredResponses {
        responses: responses.clone(),
        sessions: Arc::clone(&parts.sessions),
        shows_input,
    };
    let (stored_response, input_items) = (stored(false), stored(true));
    let chat = OpenAiChat { chats, upstream: upstream.clone() };
    let completions = OpenAiCompletions { config, upstream };
    Apis::default()
        .with(routes::CHAT, Arc::new(chat))
        .with(routes::COMPLETIONS, Arc::new(completions))
        .with(routes::RESPONSES, Arc::new(responses))
        .with(routes::INPUT_TOKENS, Arc::new(input_tokens))
        .with(routes::RESPONSE, Arc::new(stored_response))
        .with(routes::INPUT_ITEMS, Arc::new(input_items))
        .with(routes::MESSAGES, Arc::new(messages))
        .with(routes::COUNT_TOKENS, Arc::new(count_tokens))
}

/// The default limits of retries, with the memory for undelivered replies limited to an eighth of `in_flight`, the value of
/// `--max-bytes-in-flight`.
fn replay_limits(in_flight: u64) -> ReplayLimits {
    let part = usize::try_from(in_flight / 8).unwrap_or(usize::MAX);
    let usual = ReplayLimits::default();
    ReplayLimits { reply: usual.reply.min(part), all: usual.all.min(part), ..usual }
}

/// Builds the sessions, and locks the log from which they will be restored, if any.
fn sessions(
    config: &SessionConfig,
    ledger: Option<SharedLedger>,
    log: SharedLog,
    metrics: &Arc<Metrics>,
) -> Result<(Sessions, Option<Directory>), String> {
    let limits = StoreLimits { bytes: config.session_bytes, ttl: config.session_ttl, idle: config.session_idle };
    let observer = Arc::new(SessionMetrics(Arc::clone(metrics)));
    // with a ledger, the log has the turns that the ledger lacks
    let folder = if ledger.is_some() { "detached" } else { "" };
    let sessions = match ledger {
        Some(ledger) => Sessions::shared(limits, log, observer, ledger),
        None => Sessions::local(limits, log, observer),
    };
    let Some(dir) = config.data_dir.as_ref().filter(|_| config.record) else { return Ok((sessions, None)) };
    let fsync = match config.fsync {
        FsyncPolicy::Never => Fsync::Never,
        FsyncPolicy::Interval => Fsync::Interval(Duration::from_secs(1)),
        FsyncPolicy::Always => Fsync::Always,
    };
    let options = Options { total_bytes: config.data_bytes, fsync, ..Options::new(dir.join(folder)) };
    let directory = Directory::lock(&options).map_err(|error| format!("--data-dir: {error}"))?;
    sessions.begin_restore(directory.bytes());
    Ok((sessions, Some(directory)))
}

/// Reloads the certificate of a port whenever its files change.
async fn reload_certificates(tls: Option<Arc<Tls>>) {
    if let Some(tls) = tls {
        tls.follow().await;
    }
}

/// Evicts expired sessions, replies for retries and entropies, once a second.
async fn sweep(parts: Arc<Proxy>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        let sessions = Arc::clone(&parts.sessions);
        // a panic in the store must not end this task
        drop(tokio::task::spawn_blocking(move || sessions.sweep()).await);
        parts.generator.retries.sweep(parts.config.sessions.session_idle);
        let evicted = parts.generator.context.entropies.take_evicted();
        for (reason, count) in [("ttl", evicted.ttl), ("entries", evicted.entries), ("bytes", evicted.bytes)] {
            if count > 0 {
                parts.metrics.store_evictions.with_label_values(&[reason]).inc_by(count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::ffi::OsString;

    use http::uri::PathAndQuery;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::demo::{Engine, EngineOptions, Model, Streaming};
    use crate::engine::sglang::response::read_on_this_thread;
    use crate::serve::grpc::pb;

    /// The number of tokens of a reply.
    const TOKENS: usize = 12;

    /// Starts a demo engine and returns its address.
    async fn engine(phase: watch::Receiver<Phase>) -> SocketAddr {
        let engine = Engine::new(EngineOptions { streaming: Streaming::Incremental, ..EngineOptions::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let service = tower::service_fn(move |request| {
            let engine = Arc::clone(&engine);
            async move { Ok::<_, Infallible>(engine.handle(request).await) }
        });
        let time = Duration::from_secs(60);
        let limits = ServerLimits {
            header_timeout: time,
            idle_timeout: time,
            read_timeout: time,
            connections: 64,
            drain: time,
            cutting: Arc::default(),
        };
        tokio::spawn(serve(listener, service, limits, phase));
        addr
    }

    /// Sends a request over a new connection. Returns the complete reply.
    async fn ask(addr: SocketAddr, path: &str, body: &serde_json::Value) -> String {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}",
            body.len()
        );
        let mut connection = TcpStream::connect(addr).await.unwrap();
        connection.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
        let mut reply = String::new();
        connection.read_to_string(&mut reply).await.unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{path}: {reply}");
        reply
    }

    /// Sends a gRPC call over a new connection. Returns the number of its replies.
    async fn ask_grpc(addr: SocketAddr, body: &serde_json::Value) -> usize {
        let channel =
            tonic::transport::Endpoint::from_shared(format!("http://{addr}")).unwrap().connect().await.unwrap();
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let call = pb::GenerateRequest { json: body.to_string().into(), session: "s".to_owned() };
        let codec = tonic_prost::ProstCodec::<pb::GenerateRequest, pb::GenerateReply>::default();
        let path = PathAndQuery::from_static("/tokentap.v1.Generate/Generate");
        let mut replies = client.server_streaming(tonic::Request::new(call), path, codec).await.unwrap().into_inner();
        let mut count = 0;
        while replies.message().await.unwrap().is_some() {
            count += 1;
        }
        count
    }

    // on one thread, because the counter of parsed objects is per thread
    #[tokio::test]
    async fn each_api_parses_each_object_of_a_reply_once() {
        let (_stop, phase) = watch::channel(Phase::Serving);
        let engine = engine(phase.clone()).await;
        let upstream = format!("http://{engine}");
        let flags = [
            "tokentap",
            "serve",
            "--upstream",
            &upstream,
            "--listen",
            "127.0.0.1:0",
            "--control-listen",
            "127.0.0.1:0",
        ];
        let cli = config::load(flags.map(OsString::from)).unwrap();
        let app = App::bind(cli.command.config().unwrap().clone(), phase).await.unwrap();
        let app = app.with_renderer(Renderer::new(Model::folder()));
        let (data, parts) = (app.data_addr().unwrap(), Arc::clone(app.parts()));
        tokio::spawn(app.run());
        drop(parts.upstream.clone().wait_for(|found| found.original_logprobs.is_some()).await.unwrap());
        drop(parts.chats.clone().wait_for(|chats| matches!(&**chats, Chats::Rendered(_))).await.unwrap());

        let sampling = json!({"max_new_tokens": TOKENS, "ignore_eos": true});
        let native = json!({"input_ids": [10, 11, 12], "sampling_params": sampling});
        let text = json!({"model": "m", "prompt": "The lamp", "max_tokens": TOKENS, "ignore_eos": true});
        let chat = json!({"model": "m", "messages": [{"role": "user", "content": "The lamp"}], "max_tokens": TOKENS,
            "ignore_eos": true});
        let mut two_with_logprobs = chat.clone();
        two_with_logprobs["n"] = 2.into();
        two_with_logprobs["logprobs"] = true.into();
        two_with_logprobs["top_logprobs"] = 3.into();
        const GRPC: &str = "gRPC";
        for (path, call, sequences) in [
            ("/generate", &native, 1),
            ("/sessions/s/generate", &native, 1),
            (GRPC, &native, 1),
            ("/sessions/s/v1/completions", &text, 1),
            ("/v1/chat/completions", &chat, 1),
            ("/sessions/s/v1/chat/completions", &chat, 1),
            ("/v1/chat/completions", &two_with_logprobs, 2),
        ] {
            let mut counts = Vec::new();
            for stream in [false, true] {
                let mut call = call.clone();
                call["stream"] = stream.into();
                let before = read_on_this_thread();
                if path == GRPC {
                    assert_eq!(ask_grpc(data, &call).await, if stream { TOKENS } else { 1 });
                } else {
                    ask(data, path, &call).await;
                }
                counts.push(read_on_this_thread() - before);
            }
            assert_eq!(
                counts,
                [sequences, sequences * TOKENS],
                "{path}: of a whole reply, and of a stream with an event for each token"
            );
        }
    }
}
