// SPDX-License-Identifier: Apache-2.0
//! The tasks that run beside the ports until the process ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::build::EngineSenders;
use super::ports::Ports;
use super::restoration::after;
use super::{chat, upstream};
use crate::rl::{HIGH_ENTROPY, ThinkStats};
use crate::serve::connection::Tls;
use crate::serve::discovery;
use crate::serve::proxy::Proxy;
use crate::tokenizer::Renderer;

/// Spawns the tasks. Those that change sessions or the policy start once the sessions are restored.
pub(super) fn spawn(
    proxy: &Arc<Proxy>,
    engine: EngineSenders,
    renderer: Option<Arc<Renderer>>,
    ports: &Ports,
    restored: &watch::Receiver<bool>,
) -> Vec<JoinHandle<()>> {
    let reload = |tls: &Option<Arc<Tls>>| tokio::spawn(reload_certificates(tls.clone()));
    vec![
        after(restored, discovery::limit(engine.discovery.clone())),
        after(restored, upstream::watch(Arc::clone(proxy), engine.clone())),
        after(restored, sweep(Arc::clone(proxy))),
        after(restored, Arc::clone(&proxy.sessions).run()),
        tokio::spawn(chat::watch(Arc::clone(proxy), engine, renderer)),
        tokio::spawn(observe_thinking(Arc::clone(proxy))),
        reload(&ports.data.tls),
        reload(&ports.control.tls),
    ]
}

/// Reloads the certificate of a port whenever its files change.
async fn reload_certificates(tls: Option<Arc<Tls>>) {
    if let Some(tls) = tls {
        tls.follow().await;
    }
}

/// Evicts expired sessions, replies for retries and entropies, once a second.
async fn sweep(proxy: Arc<Proxy>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        let sessions = Arc::clone(&proxy.sessions);
        // a panic in the store must not end this task
        drop(tokio::task::spawn_blocking(move || sessions.sweep()).await);
        proxy.generator.retries.sweep(proxy.config.sessions.session_idle);
        let evicted = proxy.generator.context.entropies.take_evicted();
        for (reason, count) in [("ttl", evicted.ttl), ("entries", evicted.entries), ("bytes", evicted.bytes)] {
            if count > 0 {
                proxy.metrics.store_evictions.with_label_values(&[reason]).inc_by(count);
            }
        }
    }
}

/// Observes the mean entropy of the thinking in each recorded turn, until the store is dropped. If a thousand turns arrive at once, the
/// task skips those that it cannot keep up with: no sender waits for it, and the mean over many turns does not change.
async fn observe_thinking(proxy: Arc<Proxy>) {
    let mut turns = proxy.sessions.watch_turns();
    loop {
        let turn = match turns.recv().await {
            Ok((_, turn)) => turn.upgrade(),
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => return,
        };
        let (Some(turn), Some(tokens)) = (turn, proxy.think_tokens()) else { continue };
        if !turn.response.contains(&tokens.start) && !turn.prompt.contains(&tokens.start) {
            continue; // no thinking
        }
        if let Some(mean) = ThinkStats::of_turn(&turn, Some(tokens), HIGH_ENTROPY).mean {
            proxy.metrics.think_entropy.with_label_values(&[&*turn.about.model]).observe(mean);
        }
    }
}
