// SPDX-License-Identifier: Apache-2.0
//! The proxy between load and engine: none, nginx or tokentap.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::Api;
use crate::canned::{Columns, VOCAB};
use crate::client::Connection;
use crate::nginx;
use crate::process::{HARNESS_CORE, PROXY_CORE, Process};
use crate::upstream::{CANNED, ROLE, Server};
use crate::workload::{EntropyRequest, Flow, Workload};

/// The engine's process.
pub struct Engine {
    pub process: Process,
    ports: Vec<u16>,
}

impl Engine {
    pub fn start() -> Self {
        let program = std::env::current_exe().unwrap();
        let mut process = Process::start(program.to_str().unwrap(), &[ROLE.to_owned()], HARNESS_CORE, Stdio::piped());
        let mut line = String::new();
        BufReader::new(process.stdout()).read_line(&mut line).unwrap();
        let ports = line.split_whitespace().map(|port| port.parse().unwrap()).collect();
        Self { process, ports }
    }

    pub fn port(&self, server: Server) -> u16 {
        self.ports[Server::ALL.iter().position(|other| *other == server).unwrap()]
    }
}

/// This tokentap with `--record false`.
pub const UNRECORDED: &str = "unrecorded";

/// This tokentap with `--record false --entropy off`: it only forwards.
pub const OFF: &str = "off";

/// This tokentap with a log, which is on the disk of the temporary files.
pub const LOGGED: &str = "logged";

/// This tokentap with a ledger in the Valkey that `VALKEY_SERVER` names.
pub const SHARED: &str = "shared";

/// This tokentap with a token column each: `--columns`.
pub const WITH_COLUMN: [&str; 3] = ["top_logprobs", "sampling_mask", "routed_experts"];

/// sglang-router, of the Python environment that `ROUTER` names. It only forwards.
pub const ROUTER: &str = "router";

/// The binary that `BASELINE` names, with the same settings as this one.
pub const BASELINE: &str = "baseline";

/// A kind of proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Direct,
    Nginx,
    /// The Python interpreter.
    Router(String),
    /// A name and the binary.
    Tokentap(&'static str, String),
}

impl Target {
    /// The targets that are available on this machine.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Direct];
        if nginx::exists() {
            all.push(Self::Nginx);
        } else {
            println!("(nginx is not installed: its columns are missing)\n");
        }
        all.extend(std::env::var("ROUTER").ok().map(Self::Router));
        let mut names = vec!["tokentap", UNRECORDED, OFF, LOGGED];
        names.extend(std::env::var_os("VALKEY_SERVER").map(|_| SHARED));
        names.extend(WITH_COLUMN);
        for name in names {
            all.push(Self::Tokentap(name, env!("CARGO_BIN_EXE_tokentap").to_owned()));
        }
        all.extend(std::env::var("BASELINE").ok().map(|binary| Self::Tokentap(BASELINE, binary)));
        all
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Router(_) => ROUTER,
            Self::Tokentap(name, _) => name,
        }
    }

    /// Whether it asks the engine for logprobs and adds entropies.
    pub fn measures(&self) -> bool {
        matches!(self, Self::Tokentap(name, _) if *name != OFF)
    }

    /// The columns for which it asks the engine.
    pub fn engine_columns(&self) -> Columns {
        Columns { mask: self.name() == "sampling_mask", experts: self.name() == "routed_experts" }
    }

    /// Whether it serves the workload: only tokentap has an API that the canned engine does not have.
    pub fn serves(&self, workload: &Workload) -> bool {
        match self {
            Self::Direct | Self::Nginx => workload.api == Api::Generate,
            // it drops members of requests, so that a paced stream has no pauses and another reply comes than was asked for
            Self::Router(_) => workload.name == "job flat 512 x 20",
            Self::Tokentap(name, _) if WITH_COLUMN.contains(name) => workload.has_columns(),
            Self::Tokentap(LOGGED | SHARED, _) => workload.flow == Flow::Whole && workload.is_job() && workload.k == 20,
            Self::Tokentap(..) => true,
        }
    }

    /// Starts it in front of `engine`, and waits until it is ready.
    pub async fn start(&self, engine: &Engine, workload: &Workload) -> Running {
        let upstream = engine.port(workload.server);
        let mut running = match self {
            Self::Direct => Running::new(None, upstream),
            Self::Nginx => start_nginx(upstream),
            Self::Router(python) => start_router(python, upstream),
            Self::Tokentap(name, binary) => start_tokentap(name, binary, upstream, workload.api),
        };
        running.wait(workload, self.measures()).await;
        running
    }
}

/// A running proxy.
pub struct Running {
    pub process: Option<Process>,
    pub port: u16,
    directory: Option<std::path::PathBuf>,
    /// The store that the proxy uses.
    store: Option<Process>,
}

impl Running {
    fn new(process: Option<Process>, port: u16) -> Self {
        Self { process, port, directory: None, store: None }
    }

    /// A new folder, which is removed at the end.
    fn folder(&mut self) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("tokentap-bench-{}-{}", std::process::id(), self.port));
        std::fs::create_dir(&path).unwrap();
        self.directory = Some(path.clone());
        path
    }

    /// Waits until it forwards or renders chats; with `measures` also until its probe of the server has ended, which its replies show.
    async fn wait(&mut self, workload: &Workload, measures: bool) {
        let limit = Instant::now() + Duration::from_secs(10);
        while !self.is_ready(workload, measures).await {
            assert!(self.process.as_mut().is_none_or(Process::is_alive), "the proxy has ended");
            assert!(Instant::now() < limit, "the proxy does not become ready");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn is_ready(&self, workload: &Workload, measures: bool) -> bool {
        let Ok(mut connection) = Connection::open(self.port).await else { return false };
        // a chat is forwarded to the engine, which answers 404, until the tokenizer has been read; sglang-router answers 503 until it has
        // found the engine healthy
        let status = connection.exchange(&workload.requests(measures)[0], |_| ()).await;
        if !status.is_ok_and(|status| status == 200) {
            return false;
        }
        if !measures {
            return true;
        }
        let (server, flow) = (workload.server, Flow::Whole);
        let job = Workload {
            name: "",
            api: Api::Generate,
            server,
            entropy_request: EntropyRequest::Entropy,
            flow,
            tokens: 16,
            k: 20,
            prompt: 32,
            connections: &[],
        };
        let mut body = Vec::new();
        let status = connection.exchange(&job.requests(true)[0], |data| body.extend_from_slice(data)).await;
        let form = if server == Server::Flat { "flat/" } else { "nested/" };
        let vocab = format!("\"vocab_size\":{VOCAB}");
        let has_vocab = memchr::memmem::find(&body, vocab.as_bytes()).is_some();
        let has_form = connection.header(CANNED).is_some_and(|label| label.starts_with(form));
        status.is_ok_and(|status| status == 200) && has_vocab && has_form
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process = None;
        self.store = None;
        if let Some(directory) = &self.directory {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

/// The folder of the demo's tokenizer, which has all ids that the canned engine samples.
const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/demo/assets");

/// The store of sessions is small, so that it is soon full, as in a long run.
fn start_tokentap(name: &str, binary: &str, upstream: u16, api: Api) -> Running {
    let port = nginx::free_port();
    let recording = match name {
        UNRECORDED => " --record false",
        OFF => " --record false --entropy off",
        _ => " --session-bytes 16MiB",
    };
    let mut running = Running::new(None, port);
    let arguments = format!(
        "serve --upstream http://127.0.0.1:{upstream} --listen 127.0.0.1:{port} --control-listen 127.0.0.1:{} --log warn{recording}",
        nginx::free_port()
    );
    let mut arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
    if api == Api::Chat {
        arguments.extend(["--tokenizer", TOKENIZER].map(str::to_owned));
    }
    if WITH_COLUMN.contains(&name) {
        arguments.extend(["--columns", name, "--moe-shape", "48x8x128"].map(str::to_owned));
    }
    if name == LOGGED {
        let folder = running.folder();
        arguments.extend(["--data-dir".to_owned(), folder.to_str().unwrap().to_owned()]);
    }
    if name == SHARED {
        let folder = running.folder();
        let (store, ledger) = start_valkey(&folder);
        running.store = Some(store);
        arguments.extend(["--ledger", &ledger, "--ledger-replicas", "0"].map(str::to_owned));
    }
    running.process = Some(Process::start(binary, &arguments, PROXY_CORE, Stdio::null()));
    running
}

/// Starts a Valkey on the core of the harness, with the settings that a ledger needs; also returns its URL.
fn start_valkey(folder: &std::path::Path) -> (Process, String) {
    let port = nginx::free_port();
    let program = std::env::var("VALKEY_SERVER").unwrap();
    let arguments = format!(
        "--port {port} --bind 127.0.0.1 --dir {} --appendonly yes --appendfsync everysec --save {} --maxmemory-policy noeviction",
        folder.display(),
        "\"\""
    );
    let arguments: Vec<String> = arguments.split(' ').map(|word| word.replace('"', "")).collect();
    let process = Process::start(&program, &arguments, HARNESS_CORE, Stdio::null());
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    (process, format!("redis://127.0.0.1:{port}"))
}

/// Starts sglang-router.
fn start_router(python: &str, upstream: u16) -> Running {
    let port = nginx::free_port();
    let arguments = format!(
        "-m sglang_router.launch_router --worker-urls http://127.0.0.1:{upstream} --host 127.0.0.1 --port {port} --prometheus-port {} --log-level error",
        nginx::free_port()
    );
    let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
    Running::new(Some(Process::start(python, &arguments, PROXY_CORE, Stdio::null())), port)
}

/// Starts nginx.
fn start_nginx(upstream: u16) -> Running {
    let port = nginx::free_port();
    let mut running = Running::new(None, port);
    let directory = running.folder();
    let [program, arguments @ ..] = &nginx::command(port, upstream, &directory)[..] else { unreachable!() };
    running.process = Some(Process::start(program, arguments, PROXY_CORE, Stdio::null()));
    running
}
