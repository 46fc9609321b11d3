//! The HTTP edge: bytes to types and back, on the data port and on the control port.

pub mod aborts;
pub mod access_log;
pub mod api;
pub mod body;
pub mod control;
pub mod data;
pub mod denied;
pub mod forward;
pub mod gate;
pub mod generate;
pub mod identity;
mod misdirected;
pub mod offload;
pub mod page;
pub mod passthrough;
pub mod policy;
pub mod redact;
pub mod request_info;
pub mod v1;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use http::{HeaderValue, Response, header};
use tokio::sync::watch;

use crate::budget::Budget;
use crate::chat::model::Chats;
use crate::config::Config;
use crate::entropy::slices::Slices;
use crate::error::Error;
use crate::generation::Tools;
use crate::generation::generator::Generator;
use crate::metrics::Metrics;
use crate::rl::ThinkTokens;
use crate::server::Phase;
use crate::sglang::client::Client;
use crate::sglang::engines::Engines;
use crate::sglang::probe::Capabilities;
use crate::trajectory::Store;
use body::Body;

/// What both ports work with.
#[derive(Debug)]
pub struct Parts {
    /// The settings.
    pub config: Arc<Config>,
    /// The upstream.
    pub client: Client,
    /// The engines that run what is sent there.
    pub engines: Engines,
    /// Every metric.
    pub metrics: Arc<Metrics>,
    /// What is recorded.
    pub sessions: Arc<Store>,
    /// What captures work with.
    pub tools: Arc<Tools>,
    /// Where whole rows are measured.
    pub slices: Arc<Slices>,
    /// What the probe found.
    pub upstream: watch::Receiver<Arc<Capabilities>>,
    /// Whether the upstream answers.
    pub ready: watch::Receiver<bool>,
    /// Who serves chat completions.
    pub chats: watch::Receiver<Arc<Chats>>,
    /// Serving, draining or ending.
    pub phase: watch::Receiver<Phase>,
    /// Runs generations.
    pub generator: Arc<Generator>,
    /// Bytes of requests and replies that are held whole.
    pub budget: Budget,
    /// Routes whose uncaptured generations have been logged; held for a lookup only.
    pub uncaptured: Mutex<HashSet<&'static str>>,
}

impl Parts {
    /// The tokens around the thinking, by the settings or by the tokenizer that chats are rendered with; `None` where neither names them.
    #[must_use]
    pub fn think_tokens(&self) -> Option<ThinkTokens> {
        let sessions = &self.config.sessions;
        let named = sessions.think_start.zip(sessions.think_end);
        let by_tokenizer = || match &**self.chats.borrow() {
            Chats::Rendered(model) => model.renderer.think_tokens(),
            Chats::Forwarded(_) => None,
        };
        named.or_else(by_tokenizer).map(|(start, end)| ThinkTokens { start, end })
    }
}

/// The answer to an error.
#[must_use]
pub fn error_reply(error: &Error) -> Response<Body> {
    Response::from_parts(error.head(), Body::full(error.body()))
}

/// An answer in JSON.
#[must_use]
pub fn json_reply(status: http::StatusCode, body: Vec<u8>) -> Response<Body> {
    let mut reply = Response::new(Body::full(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}
