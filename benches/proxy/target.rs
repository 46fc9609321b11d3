//! The proxy between load and engine: none, nginx or tokentap.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::Api;
use crate::canned::VOCAB;
use crate::client::Connection;
use crate::nginx;
use crate::process::{self, HARNESS_CORE, PROXY_CORE, Process};
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

/// The binary that `BASELINE` names, with the same settings as this one.
pub const BASELINE: &str = "baseline";

/// A kind of proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Direct,
    Nginx,
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
        all.push(Self::Tokentap("tokentap", env!("CARGO_BIN_EXE_tokentap").to_owned()));
        for name in [UNRECORDED, OFF] {
            all.push(Self::Tokentap(name, env!("CARGO_BIN_EXE_tokentap").to_owned()));
        }
        all.extend(std::env::var("BASELINE").ok().map(|binary| Self::Tokentap(BASELINE, binary)));
        all
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Tokentap(name, _) => name,
        }
    }

    /// Whether it asks the engine for logprobs and adds entropies.
    pub fn measures(&self) -> bool {
        matches!(self, Self::Tokentap(name, _) if *name != OFF)
    }

    /// Whether it serves the workload: only tokentap has an API that the canned engine does not have.
    pub fn serves(&self, workload: &Workload) -> bool {
        workload.api == Api::Generate || matches!(self, Self::Tokentap(..))
    }

    /// Starts it in front of `engine`, and waits until it is ready.
    pub async fn start(&self, engine: &Engine, workload: &Workload) -> Running {
        let upstream = engine.port(workload.server);
        let mut running = match self {
            Self::Direct => Running { process: None, port: upstream, directory: None },
            Self::Nginx => start_nginx(upstream),
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
}

impl Running {
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
        if workload.api == Api::Chat {
            // forwarded to the engine, which answers 404, until the tokenizer has been read
            let status = connection.exchange(&workload.requests(measures)[0], |_| ()).await;
            if !status.is_ok_and(|status| status == 200) {
                return false;
            }
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
    let arguments = format!(
        "serve --upstream http://127.0.0.1:{upstream} --listen 127.0.0.1:{port} --control-listen 127.0.0.1:{} --log warn{recording}",
        nginx::free_port()
    );
    let mut arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
    if api == Api::Chat {
        arguments.extend(["--tokenizer", TOKENIZER].map(str::to_owned));
    }
    let process = Process::start(binary, &arguments, PROXY_CORE, Stdio::null());
    Running { process: Some(process), port, directory: None }
}

/// Starts nginx.
fn start_nginx(upstream: u16) -> Running {
    let port = nginx::free_port();
    let directory = std::env::temp_dir().join(format!("tokentap-bench-{}-{port}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let [program, arguments @ ..] = &nginx::command(port, upstream, &directory)[..] else { unreachable!() };
    let process = Process::start(program, arguments, PROXY_CORE, Stdio::null());
    Running { process: Some(process), port, directory: Some(directory) }
}
