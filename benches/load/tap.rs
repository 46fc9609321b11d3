// SPDX-License-Identifier: Apache-2.0
//! A tokentap in a separate process, with the system's and its own measurements.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::client::Connection;

/// A running tokentap, ended when dropped.
pub struct Tap {
    child: Child,
    pub data: SocketAddr,
    pub control: SocketAddr,
}

impl Tap {
    /// Starts the binary that `TOKENTAP` names, else the one built with this program, and waits until its upstream is known.
    pub async fn start(upstream: SocketAddr, flags: &[&str]) -> Self {
        Self::start_with(upstream, flags, &[]).await
    }

    /// The same with these variables of the environment.
    pub async fn start_with(upstream: SocketAddr, flags: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut tap = Self::spawn_with(upstream, flags, environment);
        let limit = Instant::now() + Duration::from_secs(20);
        while !tap.is_ready().await {
            assert!(matches!(tap.child.try_wait(), Ok(None)), "tokentap has ended");
            assert!(Instant::now() < limit, "tokentap does not become ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tap
    }

    /// Starts it without waiting.
    pub fn spawn(upstream: SocketAddr, flags: &[&str]) -> Self {
        Self::spawn_with(upstream, flags, &[])
    }

    fn spawn_with(upstream: SocketAddr, flags: &[&str], environment: &[(&str, &str)]) -> Self {
        let binary = std::env::var("TOKENTAP").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tokentap").to_owned());
        let [data, control] = [free(), free()];
        let mut command = Command::new(&binary);
        std::env::vars()
            .filter(|(name, _)| name.starts_with("TOKENTAP_"))
            .for_each(|(name, _)| _ = command.env_remove(name));
        command.args(["serve", "--log", "error", "--upstream", &format!("http://{upstream}")]);
        command.args(["--listen", &data.to_string(), "--control-listen", &control.to_string()]).args(flags);
        command.envs(environment.iter().copied());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Self { child: child.unwrap_or_else(|error| panic!("{binary}: {error}")), data, control }
    }

    /// Whether the probe has ended, by the `entropy_info` of a first generation.
    async fn is_ready(&self) -> bool {
        let body = r#"{"input_ids":[1,2],"sampling_params":{"max_new_tokens":2,"temperature":1.0}}"#;
        let Ok((200, reply)) = ask(self.data, &post("/generate", &[], body.as_bytes())).await else { return false };
        let has = |text: &str| memchr::memmem::find(&reply, text.as_bytes()).is_some();
        has("\"vocab_size\":") && has("\"estimator\":\"estimate\"") && !has("\"reason\":")
    }

    /// The system's measurements.
    pub fn usage(&self) -> Usage {
        Usage::of(self.child.id())
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The metrics as text.
    pub async fn metrics(&self) -> String {
        let (status, body) = ask(self.control, &get("/metrics")).await.expect("metrics are served");
        assert_eq!(status, 200, "/metrics");
        String::from_utf8(body).expect("metrics are text")
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // both fail only if the process has ended
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory and descriptors at one time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Resident bytes.
    pub rss: u64,
    /// The peak.
    pub peak: u64,
    pub descriptors: usize,
}

impl Usage {
    pub fn of(process: u32) -> Self {
        let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
        };
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count);
        Self { rss: bytes("VmRSS:"), peak: bytes("VmHWM:"), descriptors }
    }
}

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} MB, {} descriptors", self.rss as f64 / 1e6, self.descriptors)
    }
}

/// The sum of the series of a metric whose labels contain `labels`.
pub fn metric(text: &str, name: &str, labels: &str) -> f64 {
    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let ours = lines.filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels));
    ours.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Sends one request on a new connection. Returns the status and the body.
pub async fn ask(addr: SocketAddr, request: &[u8]) -> std::io::Result<(u16, Vec<u8>)> {
    let mut connection = Connection::open(addr.port()).await?;
    let mut body = Vec::new();
    let status = connection.exchange(request, |data| body.extend_from_slice(data)).await?;
    Ok((status, body))
}

pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
}

pub fn post(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{more}content-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// An address that was free a moment ago.
fn free() -> SocketAddr {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("a bound port has an address")
}
