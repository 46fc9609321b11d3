// SPDX-License-Identifier: Apache-2.0
//! What the generations of all APIs share: their calls, once the body has been read, and their runs.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, header, response};
use hyper::body::Incoming;

use crate::api::client_headers;
use crate::api::native::NativeEncoder;
use crate::budget::Work;
use crate::engine::sglang::request::SessionNames;
use crate::engine::transport::client::UpstreamCall;
use crate::engine::transport::headers;
use crate::error::Error;
use crate::generation::event::{EventAccess, GenerationEvent};
use crate::generation::events::{Events, Generation};
use crate::generation::request::{ClientCall, GenerationRequest, RequestHead, Source};
use crate::serve::access_log::AccessRecord;
use crate::serve::body::{Body, EncodedBody, read_body};
use crate::serve::data::forward::{target, upstream_headers};
use crate::serve::identity::{Identity, InvalidIdentity, add_routing_key};
use crate::serve::proxy::Proxy;
use crate::session::Labels;
use crate::traces::UnsentSpan;

/// A call whose body has been read.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedCall {
    /// The request of the client.
    pub request: Request<Bytes>,
    /// The session in its path.
    pub session: Option<Arc<str>>,
    /// Counts the memory of the call.
    pub work: Work,
}

/// What a turn of a call is recorded with.
#[derive(Debug, Clone)]
pub(crate) struct CallIdentity {
    /// Its session.
    pub session: Identity,
    /// Its labels; `None` without a signal.
    pub labels: Option<Arc<Labels>>,
}

impl ReceivedCall {
    /// Reads the body of a request. `session` is the session in the path. Not an async fn, which would hold its arguments twice.
    ///
    /// # Errors
    /// When the body is too large, arrives too slowly, is cut off, or does not fit into the memory budget.
    pub(crate) fn read(
        proxy: &Proxy,
        request: Request<Incoming>,
        session: Option<Arc<str>>,
    ) -> impl Future<Output = Result<Self, Error>> + Send {
        let (head, body) = request.into_parts();
        async move {
            let limits = &proxy.config.limits;
            let work = Work::new(&proxy.budget);
            let body = read_body(body, limits, Some(work.share()), limits.max_request_bytes).await?;
            Ok(Self { request: Request::from_parts(head, body), session, work })
        }
    }

    /// Finds the session of the call. `names` are those in the body, which has the same members in every API.
    ///
    /// # Errors
    /// [`InvalidIdentity`].
    pub(crate) fn identify(&self, proxy: &Proxy, names: Option<&SessionNames>) -> Result<Identity, InvalidIdentity> {
        let Self { request, session, .. } = self;
        Identity::find(&proxy.config, session.as_ref(), request.uri().query(), request.headers(), names)
    }

    /// The call as it goes to the engine if tokentap does not read its reply.
    pub(crate) fn into_upstream(self) -> UpstreamCall {
        let (head, body) = self.request.into_parts();
        UpstreamCall::whole(head.method, target(&head.uri), upstream_headers(head.headers), body)
    }

    /// The request for its generation. Reports a session name that is ignored.
    pub(crate) fn into_generation(
        self,
        proxy: &Proxy,
        source: Source,
        identity: CallIdentity,
        reads: EventAccess,
    ) -> GenerationRequest {
        let CallIdentity { session, labels } = identity;
        session.report_ignored(proxy);
        let (head, _) = self.request.into_parts();
        let signals = client_headers::signals(&head.headers);
        let mut headers = upstream_headers(head.headers);
        // the reply is parsed, so it must not be compressed
        headers.remove(header::ACCEPT_ENCODING);
        if session.explicit && proxy.adds_routing_keys() {
            add_routing_key(&mut headers, &session.session);
        }
        let call = Box::new(ClientCall {
            head: RequestHead { method: head.method, target: target(&head.uri), headers },
            work: self.work,
            session: session.session,
            is_named: session.explicit,
            labels,
            tags: session.tags,
            signals,
            reads,
            span: UnsentSpan::default(),
        });
        GenerationRequest { source, call }
    }
}

/// Runs a generation.
///
/// # Errors
/// The error for the client, if the engine did not reply.
pub(crate) async fn run(proxy: &Proxy, request: GenerationRequest, record: &AccessRecord) -> Result<Generation, Error> {
    if request.source.streams() {
        record.set_streaming();
    }
    let generation = proxy.generator.run(request, record.rid()).await?;
    if headers::is_event_stream(&generation.head.headers) {
        record.set_streaming();
    }
    Ok(generation)
}

/// Builds the response of an API that has the engine's bytes.
pub(crate) fn raw_response(generation: Generation) -> Response<Body> {
    let Generation { head, mut events } = generation;
    let event = events.take_whole();
    raw_events(head, event, events)
}

/// Builds a response of the engine's bytes. `event` is the whole reply if it does not stream.
pub(crate) fn raw_events(head: response::Parts, event: Option<Arc<GenerationEvent>>, events: Events) -> Response<Body> {
    let body = match event {
        // nothing waits for its delivery
        Some(event) if !events.is_shared() => Body::whole(event.native().clone(), events.observed()),
        Some(event) => Body::encoded(EncodedBody::whole(event.native().clone(), events)),
        None => Body::encoded(EncodedBody::stream(events, Box::new(NativeEncoder), None)),
    };
    Response::from_parts(head, body)
}
