//! Serves POST and PUT /generate, and runs the generations of all APIs.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, Response, header, response};
use hyper::body::Incoming;

use crate::api::client_headers::{self, OVERRIDE_RID};
use crate::api::native::{self, NativeEncoder};
use crate::budget::Work;
use crate::engine::sglang::request::GenerateRequest;
use crate::engine::sglang::routes;
use crate::engine::transport::headers;
use crate::error::Error;
use crate::generation::event::{EventAccess, GenerationEvent};
use crate::generation::events::{Events, Generation};
use crate::generation::request::{BodyDigest, GenerationRequest, RequestHead, Retry, Source};
use crate::long_work::{BodyLength, on_body};
use crate::serve::access_log::AccessRecord;
use crate::serve::body::{Body, EncodedBody, read_body};
use crate::serve::data::forward::{send_uncaptured, target, upstream_headers};
use crate::serve::identity::Identity;
use crate::serve::proxy::Proxy;
use crate::session::{Dialect, Labels};

/// The number of earlier attempts of this call. Most agents' SDKs send this header.
const RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");

/// The client marks the last call of its session with this header.
const SESSION_DONE: HeaderName = HeaderName::from_static("x-session-done");

/// A generation, decoded from the body of an API's request.
#[derive(Debug)]
pub(crate) struct DecodedGeneration {
    /// Counts the memory of the request.
    pub work: Work,
    /// The source of its events, with the request for it.
    pub source: Source,
    /// Its session.
    pub identity: Identity,
    /// The digest of the body, if the call may be retried.
    pub digest: Option<BodyDigest>,
    /// The labels of its turns; `None` without a signal.
    pub labels: Option<Arc<Labels>>,
    /// The parts of its events that are decoded.
    pub reads: EventAccess,
}

/// A call of `/generate` whose body has been read.
#[derive(Debug)]
pub(crate) struct GenerateCall {
    /// The method, path and headers of the client.
    pub head: RequestHead,
    /// The body.
    pub body: Bytes,
    /// Counts the memory of the body.
    pub work: Work,
    /// The session in the path.
    pub session: Option<Arc<str>>,
}

/// Serves a generation over HTTP. `session` is the session in the path.
///
/// # Errors
/// The error for the client, if the engine did not reply.
pub(crate) async fn handle(
    proxy: &Arc<Proxy>,
    request: Request<Incoming>,
    session: Option<Arc<str>>,
    record: &AccessRecord,
) -> Result<Response<Body>, Error> {
    let (head, body) = request.into_parts();
    let limits = &proxy.config.limits;
    let work = Work::new(&proxy.budget);
    let body = read_body(body, limits, Some(work.share()), limits.max_request_bytes).await?;
    let head = RequestHead { target: target(&head.uri), method: head.method, headers: head.headers };
    let generation = GenerateCall { head, body, work, session }.run(proxy, record).await?;
    Ok(native_response(generation))
}

/// Builds the HTTP response of the native API.
pub(crate) fn native_response(generation: Generation) -> Response<Body> {
    let Generation { head, mut events } = generation;
    let event = events.take_whole();
    raw_response(head, event, events)
}

/// Builds a response of the engine's bytes. `event` is the whole reply if it does not stream.
pub(crate) fn raw_response(
    head: response::Parts,
    event: Option<Arc<GenerationEvent>>,
    events: Events,
) -> Response<Body> {
    let body = match event {
        Some(event) => EncodedBody::whole(event.native().clone(), events),
        None => EncodedBody::stream(events, Box::new(NativeEncoder), None),
    };
    Response::from_parts(head, Body::encoded(body))
}

impl GenerateCall {
    /// Decodes the body and runs the generation.
    ///
    /// # Errors
    /// The error for the client, if the engine did not reply.
    pub(crate) async fn run(self, proxy: &Arc<Proxy>, record: &AccessRecord) -> Result<Generation, Error> {
        let Self { head, body, work, session } = self;
        let read = || {
            let request = decode(proxy, &body)?;
            let names = request.as_deref().map(|request: &GenerateRequest| &request.sessions);
            let query = head.target.split_once('?').map(|(_, query)| query);
            let identity = Identity::find(&proxy.config, session.as_ref(), query, &head.headers, names)?;
            let digest = request.as_ref().and_then(|request| digest(proxy, Some(&identity), &request.bytes));
            Ok::<_, Error>((request, identity, digest))
        };
        let (request, identity, digest) = on_body(BodyLength::Request(body.len()), read).await?;
        if let Some(request) = request {
            drop(body);
            let labels = labels(proxy, &head.headers);
            let (source, reads) = (Source::Generate { request, chat: None }, EventAccess::Bytes);
            let decoded = DecodedGeneration { work, source, identity, digest, labels, reads };
            return run(proxy, head, decoded, record).await;
        }
        let mut head = RequestHead { headers: upstream_headers(head.headers), ..head };
        head.headers.remove(header::ACCEPT_ENCODING);
        send_uncaptured(proxy, routes::GENERATE, &identity, head.call(body)).await
    }
}

/// The labels of the turns of a call of `/generate`. `None` unless its headers are an agent's, so that other calls store nothing.
fn labels(proxy: &Proxy, headers: &HeaderMap) -> Option<Arc<Labels>> {
    let labels = proxy.config.sessions.record.then(|| client_headers::labels(headers)).flatten()?;
    Some(Arc::new(Labels { dialect: Some(Dialect::Generate), ..labels }))
}

/// The digest of the body of a request that may be retried. Only requests of a named session may be retried.
pub(crate) fn digest(proxy: &Proxy, identity: Option<&Identity>, body: &[u8]) -> Option<BodyDigest> {
    let is_named = identity.is_some_and(|identity| identity.explicit);
    (proxy.config.sessions.record && is_named).then(|| BodyDigest::new(body))
}

/// Runs a generation. `head` has the client's headers.
///
/// # Errors
/// The error for the client, if the engine did not reply.
pub(crate) async fn run(
    proxy: &Arc<Proxy>,
    head: RequestHead,
    decoded: DecodedGeneration,
    record: &AccessRecord,
) -> Result<Generation, Error> {
    let DecodedGeneration { work, source, identity, digest, labels, reads } = decoded;
    identity.report_ignored(proxy);
    let authorization = head.headers.get(header::AUTHORIZATION).cloned();
    let header_rid = head.headers.get(OVERRIDE_RID).cloned();
    let is_marked = is_retry(&head.headers) || header_rid.is_some() || source.has_rid();
    let is_last = is_last(&head.headers);
    let mut head = RequestHead { headers: upstream_headers(head.headers), ..head };
    // the reply is parsed, so it must not be compressed
    head.headers.remove(header::ACCEPT_ENCODING);
    if source.streams() {
        record.set_streaming();
    }
    let retry = digest.map(|digest| Retry { digest, is_marked });
    let session = identity.session;
    let request = GenerationRequest { head, work, session, labels, is_last, authorization, header_rid, reads, retry };
    let generation = proxy.generator.run(request, source, record.rid()).await?;
    if headers::is_event_stream(&generation.head.headers) {
        record.set_streaming();
    }
    Ok(generation)
}

/// Whether the client marks this call as the last one of its session.
fn is_last(headers: &HeaderMap) -> bool {
    let value = headers.get(SESSION_DONE).and_then(|value| value.to_str().ok());
    value.is_some_and(|value| !matches!(value.trim().to_ascii_lowercase().as_str(), "" | "0" | "false" | "no"))
}

/// Whether the client marks this call as a retry.
fn is_retry(headers: &HeaderMap) -> bool {
    let count = headers.get(RETRY_COUNT).and_then(|value| value.to_str().ok()?.trim().parse::<u32>().ok());
    count.is_some_and(|count| count > 0)
}

/// Decodes a body, and counts a refusal.
fn decode(proxy: &Proxy, body: &Bytes) -> Result<Option<Box<GenerateRequest>>, Error> {
    native::decode(body, !proxy.config.entropy.no_guard)
        .inspect_err(|_| proxy.metrics.refused.with_label_values(&["nesting"]).inc())
}
