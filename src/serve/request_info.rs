// SPDX-License-Identifier: Apache-2.0
//! A request with its classification, which the layers use.

use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;

use crate::api::Api;
use crate::engine::sglang::routes::{self, Route, RouteKind};
use crate::serve::access_log::AccessRecord;
use crate::serve::discovery::Need;
use crate::serve::identity::InvalidName;

/// One of the two ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    /// Where agents send generations.
    Data,
    /// Where trainers and operators read and control.
    Control,
}

/// The protocol of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP, whose errors are JSON.
    Http,
    /// gRPC over HTTP/2, whose errors are gRPC statuses.
    Grpc,
}

/// Who may send a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Any client: probes.
    Open,
    /// Clients with `--metrics-token`, if it is set.
    Metrics,
    /// Clients whose `Host` is a name of the port, except pages of other sites.
    Page,
    /// As [`Self::Page`], also with `--control-token` if it is set.
    Control,
    /// Clients with `--agent-token`, if it is set.
    Agent,
}

/// A request to a port. Its classification and record are not extensions of the request, which would take an allocation each.
#[derive(Debug)]
pub(crate) struct PortRequest {
    pub info: RequestInfo,
    /// Its metrics and its line in the access log.
    pub record: AccessRecord,
    /// The request, without the session in its path.
    pub request: Request<Incoming>,
}

/// The properties of a request that the layers use.
#[derive(Debug, Clone)]
pub(crate) struct RequestInfo {
    /// The port that received it.
    pub port: Port,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its name in metrics, and its kind of route.
    pub route: Route,
    /// The API that decodes it.
    pub api: Option<Arc<dyn Api>>,
    /// The session that was removed from its path.
    pub session: Option<Result<Arc<str>, InvalidName>>,
    /// Who may send it.
    pub access: Access,
    /// Whether it counts against `--max-requests`.
    pub needs_permit: bool,
    /// Whether it is refused until sessions are restored.
    pub needs_sessions: bool,
    /// Whether it is logged at debug level and not counted as active.
    pub is_probe: bool,
}

impl RequestInfo {
    /// A request that any client may send and that needs neither a permit nor sessions.
    pub(crate) fn open(port: Port, protocol: Protocol, endpoint: &'static str) -> Self {
        Self {
            port,
            protocol,
            route: Route { endpoint, kind: RouteKind::Other },
            api: None,
            session: None,
            access: Access::Open,
            needs_permit: false,
            needs_sessions: false,
            is_probe: false,
        }
    }

    /// The discovery that the request waits for: a generation of an agents' API needs the decision about chats, any other generation the
    /// engine's answer.
    pub(super) fn need(&self) -> Option<Need> {
        let generates = matches!(self.route.kind, RouteKind::Generate | RouteKind::Generating);
        // a gRPC call has another kind
        let generates = generates || self.route.endpoint == routes::GENERATE.endpoint;
        match &self.api {
            Some(api) => api.generates().then_some(Need::Chats),
            None => generates.then_some(Need::Engine),
        }
    }
}
