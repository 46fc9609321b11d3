//! The HTTP edge: bytes to types and back, on the data port and on the control port.

pub mod aborts;
pub mod access;
pub mod attempt;
pub mod body;
pub mod budget;
pub mod control;
pub mod data;
pub mod events;
pub mod forward;
pub mod gate;
pub mod gathered;
pub mod generate;
pub mod headers;
pub mod identity;
mod long_work;
mod misdirected;
pub mod offload;
pub mod openai;
pub mod page;
pub mod policy;
pub mod prompts;
pub mod redact;
pub mod relief;
pub mod room;
pub mod running;
pub mod served;
pub mod sound;
pub mod stream;
pub mod v1;
pub mod whole;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderValue, Response, header};
use tokio::sync::{Semaphore, watch};

use crate::config::Config;
use crate::entropy::slices::Slices;
use crate::error::Error;
use crate::generation::Tools;
use crate::generation::forcing::Since;
use crate::generation::plan::Shape;
use crate::metrics::Metrics;
use crate::openai::model::Chats;
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
    pub config: Config,
    /// The upstream.
    pub client: Client,
    /// The engines that run what is sent there.
    pub engines: Engines,
    /// It has been logged that the upstream takes no aborts.
    pub abort_unsupported: AtomicBool,
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
    /// The server cuts what has not ended: its drain time is over.
    pub cutting: Arc<AtomicBool>,
    /// Generations that are being aborted.
    pub aborting: watch::Sender<usize>,
    /// Bytes of requests and replies that are held whole.
    pub budget: budget::Budget,
    /// Permits of requests; each lives in its reply's body.
    pub permits: Arc<Semaphore>,
    /// Shapes of requests that the engine refused when forced, until the next probe; held for a lookup only.
    pub refused: Arc<Mutex<HashSet<Shape>>>,
    /// Calls of named sessions that are running, or whose replies did not reach their clients.
    pub attempts: attempt::Attempts,
    /// How long replies wait for the log.
    pub relief: relief::Relief,
    /// Which chats are rendered anew to be compared.
    pub drift: openai::Sampling,
    /// A conversation without a session has been logged.
    pub retokenised: AtomicBool,
    /// Routes whose uncaptured generations have been logged; held for a lookup only.
    pub uncaptured: Mutex<HashSet<&'static str>>,
}

impl Parts {
    /// What happened since the last probe, to requests of this shape or to all.
    #[must_use]
    pub fn since(&self, shape: Shape) -> Since {
        Since {
            refused: self.refused.lock().unwrap_or_else(PoisonError::into_inner).contains(&shape),
            plugin_failed: self.tools.plugin_failed.load(Ordering::Relaxed),
        }
    }

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

    /// Notes that the engine fails on this shape when it is forced.
    pub fn refuse(&self, shape: Shape) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).insert(shape);
    }
}

/// The answer to an error.
#[must_use]
pub fn error_reply(error: &Error) -> Response<Body> {
    let mut reply = json_reply(error.status(), error.body());
    if matches!(error, Error::Unavailable { .. }) {
        reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    reply
}

/// An answer in JSON.
#[must_use]
pub fn json_reply(status: http::StatusCode, body: Vec<u8>) -> Response<Body> {
    let mut reply = Response::new(Body::full(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}
