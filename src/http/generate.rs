//! POST and PUT /generate: captured.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use hyper::body::Incoming;

use crate::error::{BoxError, Error};
use crate::generation::event::{GenerationEvent, Reads};
use crate::generation::events::Generation;
use crate::generation::request::{GenerationRequest, Head, Retry};
use crate::generation::retries::Digest;
use crate::http::Parts;
use crate::http::body::{Body, EncodedBody, Encoder, Upload};
use crate::http::forward::{Unseen, target, upstream_headers};
use crate::http::identity::Identity;
use crate::http::served::Served;
use crate::long_work::on_body;
use crate::sglang::request::{GenerateRequest, PerItem};
use crate::sglang::upstream::send;
use crate::sglang::{headers, routes};
use crate::trajectory::Chat;

/// With `SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES` the engine takes its request id from here, so none may be given in the body.
const OVERRIDE_RID: &str = "x-override-rid";

/// How often the client has sent this call before, in the words of the SDKs that most agents use.
const RETRY_COUNT: &str = "x-stainless-retry-count";

/// Where a generation comes from.
#[derive(Debug)]
pub struct Origin {
    /// The session that the path or the call names.
    pub session: Option<Arc<str>>,
    /// What its turn is to remember, where it is a turn of a chat.
    pub chat: Option<Box<Chat>>,
    /// What is read of its events.
    pub reads: Reads,
}

/// Serves a generation; `session` is the one that the path names.
///
/// # Errors
/// What the client is told when the engine's own answer cannot be given.
pub async fn generate(
    parts: &Arc<Parts>,
    request: Request<Incoming>,
    session: Option<Arc<str>>,
    served: &mut Served,
) -> Result<Response<Body>, Error> {
    let (head, body) = request.into_parts();
    let limits = &parts.config.limits;
    let upload = Upload::new(body, limits.client_body_timeout).counted(Some(parts.budget.request()));
    let body = upload.read(limits.max_request_bytes).await?;
    let origin = Origin { session, chat: None, reads: Reads::Bytes };
    Ok(native(answer(parts, Request::from_parts(head, body), origin, served).await?))
}

/// The same for a request that has been read.
///
/// # Errors
/// What the client is told when the engine's own answer cannot be given.
pub async fn answer(
    parts: &Arc<Parts>,
    request: Request<Bytes>,
    origin: Origin,
    served: &mut Served,
) -> Result<Generation, Error> {
    let (head, body) = request.into_parts();
    let read = || {
        let request = parse(parts, &body)?;
        let (session, config) = (origin.session.as_ref(), &parts.config);
        let names = request.as_ref().map(|request: &GenerateRequest| &request.sessions);
        let identity = Identity::of(config, session, &head.uri, &head.headers, names)?;
        let digest = (config.sessions.record && identity.explicit).then(|| Digest::of(&body));
        Ok::<_, Error>((request, identity, digest))
    };
    let (request, identity, digest) = on_body(body.len(), read).await?;
    identity.report_ignored(parts);
    let authorization = head.headers.get(header::AUTHORIZATION).cloned();
    let header_rid = head.headers.get(OVERRIDE_RID).cloned();
    let (is_last, is_retry) = (is_last(&head.headers), is_retry(&head.headers));
    let mut head = Head { target: target(&head.uri), headers: upstream_headers(head.headers), method: head.method };
    // replies that are read must come as they are
    head.headers.remove(header::ACCEPT_ENCODING);
    let Some(request) = request else {
        served.unnamed = Some(parts.tools.flights.unnamed());
        let unseen = Unseen::new(parts, routes::GENERATE, &identity);
        let reply = send(&parts.client, &parts.metrics, routes::GENERATE, head.call(body)).await?;
        unseen.answered(reply.status());
        let (mut head, body) = reply.into_parts();
        headers::end_hop(&mut head.headers);
        return Ok(Generation::unparsed(head, &parts.metrics, Bytes::new(), body));
    };
    drop(body);
    served.streaming = request.stream == Some(true);
    let is_marked = is_retry || header_rid.is_some() || has_rid(&request);
    let Origin { chat, reads, .. } = origin;
    let request = GenerationRequest {
        head,
        request,
        session: identity.session,
        chat,
        is_last,
        authorization,
        header_rid,
        reads,
        retry: digest.map(|digest| Retry { digest, is_marked }),
    };
    parts.generator.run(request, &mut served.rid).await
}

/// The reply of the native API.
#[must_use]
pub fn native(generation: Generation) -> Response<Body> {
    let Generation { head, mut events } = generation;
    let body = match events.take_whole() {
        Some(event) => EncodedBody::whole(event.native().clone(), events),
        None => EncodedBody::stream(events, Box::new(NativeEncoder), None),
    };
    Response::from_parts(head, Body::encoded(body))
}

/// The engine's own format.
#[derive(Debug, Clone, Copy)]
struct NativeEncoder;

impl Encoder for NativeEncoder {
    fn encode(&mut self, event: &GenerationEvent, out: &mut Vec<u8>) -> Result<(), BoxError> {
        out.extend_from_slice(event.native());
        Ok(())
    }

    fn keeps_length(&self) -> bool {
        true
    }
}

/// Whether the client says that nothing follows in this session.
#[must_use]
pub fn is_last(headers: &HeaderMap) -> bool {
    let said = headers.get("x-session-done").and_then(|value| value.to_str().ok());
    said.is_some_and(|said| !matches!(said.trim().to_ascii_lowercase().as_str(), "" | "0" | "false" | "no"))
}

/// Whether the client says that it has sent this call before.
fn is_retry(headers: &HeaderMap) -> bool {
    let count = headers.get(RETRY_COUNT).and_then(|value| value.to_str().ok()?.trim().parse::<u32>().ok());
    count.is_some_and(|count| count > 0)
}

/// Whether the client names the request: the same call under the same name is the same call.
fn has_rid(request: &GenerateRequest) -> bool {
    match &request.rid {
        PerItem::One(_) => true,
        PerItem::Many(rids) => rids.iter().any(Option::is_some),
        PerItem::Absent | PerItem::Unreadable => false,
    }
}

/// The request of a body; `None` for one that is not a JSON object, which is the engine's to refuse.
fn parse(parts: &Parts, body: &Bytes) -> Result<Option<GenerateRequest>, Error> {
    match GenerateRequest::parse(body.clone()) {
        Ok(request) => Ok(Some(request)),
        Err(error) if error.too_deep && !parts.config.entropy.no_guard => {
            parts.metrics.refused.with_label_values(&["nesting"]).inc();
            Err(Error::bad_request(format!("the body nests deeper than 128 levels at byte {}", error.at)))
        }
        Err(_) => Ok(None),
    }
}
