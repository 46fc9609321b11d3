//! Readiness of the ports, for `/readyz` and the gRPC health service.

use http::{Response, StatusCode};

use crate::serve::body::Body;
use crate::serve::connection::Phase;
use crate::serve::proxy::Proxy;
use crate::serve::reply::text;

impl Proxy {
    /// Builds the reply to `/readyz`.
    #[must_use]
    pub(crate) fn readiness(&self) -> Response<Body> {
        if *self.phase.borrow() != Phase::Serving {
            return text(StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
        }
        if let Some(progress) = self.sessions.restore_progress() {
            let (sessions, _) = self.sessions.size();
            let body = format!("restoring: {} of {} bytes, {sessions} sessions\n", progress.read, progress.total);
            return text(StatusCode::SERVICE_UNAVAILABLE, body);
        }
        if self.upstream.borrow().generates == Some(false) {
            let reason =
                format!("the engine at {} serves an embedding model and does not generate\n", self.client.upstream());
            return text(StatusCode::SERVICE_UNAVAILABLE, reason);
        }
        if *self.ready.borrow() {
            let chat = self.chats.borrow().describe();
            text(StatusCode::OK, format!("ok\nchat completions {chat}\n"))
        } else {
            text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("waiting for the SGLang server at {}\n", self.client.upstream()),
            )
        }
    }
}
