//! What a port knows of a request before it is handled.

use std::sync::Arc;

use http::Request;

use crate::api::Api;
use crate::engine::routes::{Kind, Route};
use crate::serve::data::identity::InvalidName;

/// One of the two ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Where agents send generations.
    Data,
    /// Where trainers and operators read and control.
    Control,
}

/// How a request is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP, in which errors are JSON.
    Http,
    /// gRPC over HTTP/2, in which errors are statuses.
    Grpc,
}

/// Who may send a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everyone: probes.
    Open,
    /// Who has `--metrics-token`, if it is set.
    Metrics,
    /// Everyone whose `Host` is a name of the port, and no page of another site.
    Page,
    /// The same, with `--control-token` if it is set.
    Control,
    /// Who has `--agent-token`, if it is set.
    Agent,
}

/// How the layers of a port treat a request. The outermost of them puts it among the request's extensions.
#[derive(Debug, Clone)]
pub struct RequestInfo {
    /// Where the request came in.
    pub port: Port,
    /// How it is encoded.
    pub protocol: Protocol,
    /// Its name in metrics, and what SGLang does with it.
    pub route: Route,
    /// The API that decodes it.
    pub api: Option<Arc<dyn Api>>,
    /// The session that its path names, which was taken off the path.
    pub session: Option<Result<Arc<str>, InvalidName>>,
    /// Who may send it.
    pub access: Access,
    /// It counts against `--max-requests`.
    pub needs_permit: bool,
    /// It is refused until sessions have been restored.
    pub needs_sessions: bool,
    /// It is logged at debug, and not counted as active.
    pub is_probe: bool,
}

impl RequestInfo {
    /// A request of this name that everyone may send and that needs nothing.
    #[must_use]
    pub fn open(port: Port, protocol: Protocol, endpoint: &'static str) -> Self {
        Self {
            port,
            protocol,
            route: Route { endpoint, kind: Kind::Other },
            api: None,
            session: None,
            access: Access::Open,
            needs_permit: false,
            needs_sessions: false,
            is_probe: false,
        }
    }

    /// What the outermost layer found.
    #[must_use]
    pub fn of<B>(request: &Request<B>) -> &Self {
        request.extensions().get().expect("the outermost layer of a port classifies every request")
    }
}
