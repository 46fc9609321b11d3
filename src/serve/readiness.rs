//! Readiness of the ports, for `/readyz` and the gRPC health service.

use std::sync::Arc;

use http::{Response, StatusCode};
use tokio::sync::watch;

use crate::chat::model::Chats;
use crate::engine::capabilities::Capabilities;
use crate::serve::body::Body;
use crate::serve::connection::Phase;
use crate::serve::reply::text;
use crate::session::Sessions;

/// The inputs of readiness.
#[derive(Debug)]
pub struct Readiness {
    /// The address of the upstream.
    pub address: String,
    /// Whether the upstream answers.
    pub is_up: watch::Receiver<bool>,
    /// The capabilities that the probe found.
    pub upstream: watch::Receiver<Arc<Capabilities>>,
    /// Whether chats are rendered here or forwarded.
    pub chats: watch::Receiver<Arc<Chats>>,
    /// The sessions, which may still be restoring.
    pub sessions: Arc<Sessions>,
    /// Serving, draining or ending.
    pub phase: watch::Receiver<Phase>,
}

impl Readiness {
    /// Builds the reply to `/readyz`.
    #[must_use]
    pub fn reply(&self) -> Response<Body> {
        if *self.phase.borrow() != Phase::Serving {
            return text(StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
        }
        if let Some(progress) = self.sessions.restore_progress() {
            let (sessions, _) = self.sessions.size();
            let body = format!("restoring: {} of {} bytes, {sessions} sessions\n", progress.read, progress.total);
            return text(StatusCode::SERVICE_UNAVAILABLE, body);
        }
        if self.upstream.borrow().generates == Some(false) {
            let reason = format!("the engine at {} serves an embedding model and does not generate\n", self.address);
            return text(StatusCode::SERVICE_UNAVAILABLE, reason);
        }
        if *self.is_up.borrow() {
            let chat = self.chats.borrow().describe();
            text(StatusCode::OK, format!("ok\nchat completions {chat}\n"))
        } else {
            text(StatusCode::SERVICE_UNAVAILABLE, format!("waiting for the SGLang server at {}\n", self.address))
        }
    }
}
