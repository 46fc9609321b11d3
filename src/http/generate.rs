//! POST and PUT /generate: captured.

mod fresh;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, Response, header};
use hyper::body::Incoming;

use crate::error::Error;
use crate::generation::event::Reads;
use crate::http::attempt::{Digest, Key};
use crate::http::body::{Body, Forwarded, Upload};
use crate::http::events::{Events, Generation};
use crate::http::forward::{Unseen, send, target, upstream_headers};
use crate::http::identity::Identity;
use crate::http::long_work::on_body;
use crate::http::served::Served;
use crate::http::{Parts, headers};
use crate::sglang::request::{GenerateRequest, PerItem};
use crate::sglang::routes;
use crate::trajectory::Chat;
use fresh::{Fresh, Head};

/// With `SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES` the engine takes its request id from here, so none may be given in the body.
const OVERRIDE_RID: &str = "x-override-rid";

/// How often the client has sent this call before, in the words of the SDKs that most agents use.
const RETRY_COUNT: &str = "x-stainless-retry-count";

/// Names the session of a reply.
pub const SESSION: HeaderName = HeaderName::from_static("x-tokentap-session");

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
    Ok(answer(parts, Request::from_parts(head, body), origin, served).await?.native())
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
    let rid = head.headers.get(OVERRIDE_RID).cloned();
    let (is_last, is_retry) = (is_last(&head.headers), is_retry(&head.headers));
    let mut head = Head { target: target(&head.uri), headers: upstream_headers(head.headers), method: head.method };
    // replies that are read must come as they are
    head.headers.remove(header::ACCEPT_ENCODING);
    let Some(request) = request else {
        served.unnamed = Some(parts.tools.flights.unnamed());
        let unseen = Unseen::new(parts, routes::GENERATE, &identity);
        let reply = send(parts, routes::GENERATE, head.call(body)).await?;
        unseen.answered(reply.status());
        let (mut head, body) = reply.into_parts();
        headers::end_hop(&mut head.headers);
        let body = Forwarded::patient(parts, Bytes::new(), body);
        return Ok(Generation { head, events: Events::Unparsed(Box::new(body)) });
    };
    served.streaming = request.stream == Some(true);
    let marked = is_retry || rid.is_some() || has_rid(&request);
    let session = identity.session;
    let Origin { chat, reads, .. } = origin;
    let fresh = Fresh { head, request, session, chat, is_last, authorization, assign_rid: rid.is_none(), reads };
    let Some(digest) = digest else {
        drop(body);
        return fresh.perform(parts, None, |rid| served.rid = rid).await;
    };
    let key = Key {
        session: Arc::clone(&fresh.session),
        method: fresh.head.method.clone(),
        target: fresh.head.target.clone(),
        authorization: [fresh.authorization.clone(), fresh.head.headers.get("x-api-key").cloned()],
        rid,
        body,
        digest,
        reads,
    };
    let (mut reader, entered) = parts.attempts.enter(key, marked, parts.config.sessions.session_idle, |ties| {
        let parts = Arc::clone(parts);
        Box::pin(async move {
            let known = Arc::clone(&ties.rid);
            // set once, by the one plan of the attempt
            let told = |rid: Option<String>| rid.into_iter().for_each(|rid| drop(known.set(rid)));
            fresh.perform(&parts, Some(ties), told).await.unwrap_or_else(|error| Generation::failed(error, None))
        })
    });
    served.attempt = Some(Arc::clone(reader.rid()));
    if let Some(outcome) = entered.name() {
        parts.metrics.retries.with_label_values(&[outcome]).inc();
    }
    let head = reader.head().await;
    Ok(Generation { head, events: Events::Shared(reader) })
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
