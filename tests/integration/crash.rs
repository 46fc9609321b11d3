// SPDX-License-Identifier: Apache-2.0
//! The crash test: a reply that a client has read to its last byte is recorded after the next start.

mod ledger;
mod load;
pub(crate) mod trainers;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use tokio::net::TcpListener;

use tempfile::TempDir;
use tokentap::demo::{Engine, EngineOptions, Streaming};
use tokentap::serve::connection::{Phase, ServerLimits, serve};
use tokio::sync::watch;

use crate::support::binary::Binary;
use crate::support::client::post;
use crate::support::manual_upstream::soon;
use ledger::Ledger;
use load::{Agent, Dice, Trainer};

/// An engine that outlives the tokentaps in front of it.
pub(crate) struct StandaloneEngine {
    pub(crate) engine: Arc<Engine>,
    pub(crate) addr: std::net::SocketAddr,
    _stop: watch::Sender<Phase>,
}

impl StandaloneEngine {
    pub(crate) async fn start() -> Self {
        Self::start_with(EngineOptions { streaming: Streaming::Incremental, ..EngineOptions::default() }).await
    }

    pub(crate) async fn start_with(options: EngineOptions) -> Self {
        let (stop, stopped) = watch::channel(Phase::Serving);
        let engine = Engine::new(options);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let own = Arc::clone(&engine);
        let service = tower::service_fn(move |request: Request<Incoming>| {
            let engine = Arc::clone(&own);
            async move {
                // the demo engine has no chat endpoint; this one answers chats with an empty object
                let chats = request.uri().path() == "/v1/chat/completions";
                Ok::<_, Infallible>(match chats {
                    true => Response::new(Either::Left(Full::new(Bytes::from_static(b"{}")))),
                    false => engine.handle(request).await.map(Either::Right),
                })
            }
        });
        let timeout = Duration::from_secs(75);
        let limits = ServerLimits {
            header_timeout: timeout,
            idle_timeout: timeout,
            read_timeout: timeout,
            connections: 1024,
            drain: timeout,
            cutting: Arc::default(),
        };
        tokio::spawn(serve(listener, service, limits, stopped));
        Self { engine, addr, _stop: stop }
    }

    /// Starts a tokentap in front of it, with its log in `dir`.
    pub(crate) async fn start_binary(&self, dir: &TempDir, flags: &[&str]) -> Binary {
        let dir = dir.path().to_str().unwrap();
        Binary::with_flags(self.addr, &[&["--data-dir", dir], flags].concat()).await
    }
}

const AGENTS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn delivered_replies_survive_a_kill_at_any_moment() {
    let (alone, dir, ledger) =
        (StandaloneEngine::start().await, tempfile::tempdir().unwrap(), Arc::new(Ledger::default()));
    let mut dice = Dice(7);
    let mut agents: Vec<Agent> = (0..AGENTS).map(Agent::new).collect();
    let mut trainer = Trainer::default();
    for fsync in ["interval", "always", "never", "interval", "never", "always"] {
        let binary = alone.start_binary(&dir, &["--fsync", fsync]).await;
        ledger.check(binary.control, &alone.engine).await;
        let (data, control) = (binary.data, binary.control);
        let working: Vec<_> =
            agents.into_iter().map(|agent| tokio::spawn(agent.work(Arc::clone(&ledger), data))).collect();
        let training = tokio::spawn(trainer.work(Arc::clone(&ledger), control));
        ledger.wait_for(5 + dice.roll(56)).await;
        for _ in 0..dice.roll(100) {
            tokio::task::yield_now().await;
        }
        binary.kill();
        agents = Vec::new();
        for agent in working {
            agents.push(agent.await.unwrap());
        }
        ledger.nudge();
        trainer = soon("the trainer sees that tokentap is gone", training).await.unwrap();
    }
    let binary = alone.start_binary(&dir, &[]).await;
    let turns = ledger.check(binary.control, &alone.engine).await;
    let read = ledger.turns();
    let calls: Vec<&String> = read.values().flat_map(|turns| turns.keys()).collect();
    assert!(turns >= calls.len() && calls.len() >= 30, "{turns} turns, {} replies", calls.len());
    // a freeze finishes the remaining paths
    for session in read.keys() {
        assert_eq!(post(binary.control, &format!("/v1/sessions/{session}/freeze"), b"").await.status, 200);
    }
    while trainer.take(binary.control).await.unwrap() > 0 {}
    for rid in calls {
        assert_eq!(trainer.trained.get(rid), Some(&1), "{rid} is trained once");
    }
}
