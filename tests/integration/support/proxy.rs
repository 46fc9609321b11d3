// SPDX-License-Identifier: Apache-2.0
//! A tokentap in this process, on free ports.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;

use tokentap::api::Api;
use tokentap::app::App;
use tokentap::config::{self, Config, Invalid};
use tokentap::engine::capabilities::Capabilities;
use tokentap::serve::connection::Phase;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A running tokentap, which ends on drop.
pub struct Proxy {
    pub data: SocketAddr,
    pub control: SocketAddr,
    pub parts: Arc<tokentap::serve::proxy::Proxy>,
    pub phase: watch::Sender<Phase>,
    pub task: JoinHandle<usize>,
}

/// The settings of `tokentap serve` with these flags. `limit:NAME` and a value set a limit that has no flag.
pub fn config(upstream: SocketAddr, flags: &[&str]) -> Config {
    config_at(&format!("http://{upstream}"), flags)
}

fn config_at(upstream: &str, flags: &[&str]) -> Config {
    let fixed =
        ["tokentap", "serve", "--upstream", upstream, "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"];
    let (mut limits, mut args) = (Vec::new(), fixed.to_vec());
    let mut flags = flags.iter();
    while let Some(flag) = flags.next() {
        match flag.strip_prefix("limit:") {
            Some(name) => limits.push((name, *flags.next().expect("a limit has a value"))),
            None => args.push(*flag),
        }
    }
    let mut config = match config::load(args.iter().map(OsString::from)) {
        Ok(cli) => cli.command.config().expect("it serves").clone(),
        Err(Invalid::Line(line) | Invalid::Shown(line)) => panic!("{line}"),
    };
    for (name, value) in limits {
        set_limit(&mut config, name, value);
    }
    config
}

fn set_limit(config: &mut Config, name: &str, value: &str) {
    let time = || config::duration(value).unwrap();
    let size = || config::bytes(value).unwrap();
    match name {
        "client-header-timeout" => config.limits.client_header_timeout = time(),
        "client-idle-timeout" => config.limits.client_idle_timeout = time(),
        "client-body-timeout" => config.limits.client_body_timeout = time(),
        "client-read-timeout" => config.limits.client_read_timeout = time(),
        "max-reply-bytes" => config.limits.max_reply_bytes = size(),
        "pool-idle-timeout" => config.limits.pool_idle_timeout = time(),
        "breaker-failures" => config.limits.breaker_failures = value.parse().unwrap(),
        "max-session-turns" => config.sessions.max_session_turns = value.parse().unwrap(),
        "max-export-bytes" => config.sessions.max_export_bytes = size(),
        "slice-memory" => config.slices.slice_memory = size(),
        "max-slice-bytes" => config.slices.max_slice_bytes = size(),
        "entropy-threads" => config.slices.entropy_threads = value.parse().unwrap(),
        "reply-budget" => config.entropy.reply_budget = size(),
        "cumulative-stream-tokens" => config.entropy.cumulative_stream_tokens = value.parse().unwrap(),
        "max-top-logprobs" => config.entropy.max_top_logprobs = value.parse().unwrap(),
        "drift-sample" => config.chat.drift_sample = value.parse().unwrap(),
        _ => panic!("{name} is not a limit"),
    }
}

impl Proxy {
    /// Starts a tokentap without waiting for its upstream.
    pub async fn start(upstream: SocketAddr, flags: &[&str]) -> Self {
        Self::at(&format!("http://{upstream}"), flags).await
    }

    /// Starts a tokentap with this `--upstream`, without waiting for it.
    pub async fn at(upstream: &str, flags: &[&str]) -> Self {
        let (phase, watched) = watch::channel(Phase::Serving);
        let app = App::bind(config_at(upstream, flags), watched).await.unwrap();
        Self::run(app, phase)
    }

    /// Starts a tokentap with an additional API, and waits until it has probed its upstream.
    pub async fn with_api(upstream: SocketAddr, flags: &[&str], path: &'static str, api: Arc<dyn Api>) -> Self {
        let (phase, watched) = watch::channel(Phase::Serving);
        let app = App::bind(config(upstream, flags), watched).await.unwrap();
        let proxy = Self::run(app.with_api(path, api), phase);
        proxy.until(|found| found.original_logprobs.is_some()).await;
        proxy
    }

    fn run(app: App, phase: watch::Sender<Phase>) -> Self {
        let (data, control) = (app.data_addr().unwrap(), app.control_addr().unwrap());
        let parts = Arc::clone(app.proxy());
        let task = tokio::spawn(async { app.run().await.unwrap() });
        Self { data, control, parts, phase, task }
    }

    /// Starts a tokentap and waits until it has probed its upstream.
    pub async fn probed(upstream: SocketAddr, flags: &[&str]) -> Self {
        let proxy = Self::start(upstream, flags).await;
        proxy.until(|found| found.original_logprobs.is_some()).await;
        proxy
    }

    /// Waits until the capabilities of the upstream satisfy a condition.
    pub async fn until(&self, known: impl Fn(&Capabilities) -> bool) {
        let mut upstream = self.parts.upstream.clone();
        upstream.wait_for(|found| known(found)).await.unwrap();
    }

    /// The value of a metric without labels, or with exactly these.
    pub async fn metric(&self, name: &str) -> f64 {
        let text = super::client::get(self.control, "/metrics").await.text();
        let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }
}
