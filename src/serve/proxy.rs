// SPDX-License-Identifier: Apache-2.0
//! The parts of a running proxy, which the routes of both ports and the tasks share.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use crate::budget::Budget;
use crate::chat::model::Chats;
use crate::config::{Config, RoutingKey, ThinkIds};
use crate::engine::capabilities::Capabilities;
use crate::engine::engines::Engines;
use crate::engine::transport::client::Client;
use crate::generation::generator::Generator;
use crate::logits::slices::Slices;
use crate::metrics::Metrics;
use crate::serve::connection::Phase;
use crate::serve::discovery::Discovery;
use crate::serve::teacher::TeacherEngine;
use crate::session::Sessions;
use crate::session::ThinkTokens;
use crate::session::ledger::Ack;

/// The parts of a running proxy.
#[derive(Debug)]
pub struct Proxy {
    /// The settings.
    pub config: Arc<Config>,
    /// The HTTP client of the upstream.
    pub client: Client,
    /// The teachers by name, among them the upstream.
    pub teachers: BTreeMap<String, TeacherEngine>,
    /// The places for paths at teachers that requests name by their URL.
    pub places_at_urls: Arc<Semaphore>,
    /// The engines that run the requests to the upstream.
    pub engines: Engines,
    /// All metrics.
    pub metrics: Arc<Metrics>,
    /// The recorded sessions.
    pub sessions: Arc<Sessions>,
    /// Measures whole rows of logits.
    pub slices: Arc<Slices>,
    /// The capabilities that the probe detected.
    pub upstream: watch::Receiver<Arc<Capabilities>>,
    /// Whether the upstream answers.
    pub ready: watch::Receiver<bool>,
    /// What is known of the engine since the start.
    pub discovery: watch::Receiver<Discovery>,
    /// Whether tokentap or the engine serves chat completions.
    pub chats: watch::Receiver<Arc<Chats>>,
    /// The phase: serving, draining or ending.
    pub phase: watch::Receiver<Phase>,
    /// Runs generations.
    pub generator: Arc<Generator>,
    /// The memory budget of requests and replies that are buffered completely.
    pub budget: Budget,
}

impl Proxy {
    /// Waits until a record is on disk, or until the time limit of replies.
    pub(crate) async fn wait_written(&self, ack: Ack) {
        self.generator.context.log_wait.wait(vec![ack]).await;
    }

    /// Whether calls of named sessions get a routing key.
    pub(crate) fn adds_routing_keys(&self) -> bool {
        match self.config.routing_key {
            RoutingKey::Auto => self.engines.are_routed(),
            RoutingKey::Always => true,
            RoutingKey::Off => false,
        }
    }

    /// Returns the think tokens from the settings, else from the tokenizer of chats; `None` if neither defines them.
    #[must_use]
    pub fn think_tokens(&self) -> Option<ThinkTokens> {
        let named = self.config.sessions.think_tokens.map(|ThinkIds { start, end }| (start, end));
        let by_tokenizer = || match &**self.chats.borrow() {
            Chats::Rendered(model) => model.renderer.think_tokens(),
            Chats::Forwarded(_) => None,
        };
        named.or_else(by_tokenizer).map(|(start, end)| ThinkTokens { start, end })
    }
}
