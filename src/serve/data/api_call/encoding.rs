// SPDX-License-Identifier: Apache-2.0
//! Encodes the events of a generation for the clients of an API.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header, response};

use crate::api::{Api, ApiError, EncodedReply, EventEncoder, ReplyEncoder};
use crate::engine::transport::headers;
use crate::error::{BoxError, Error};
use crate::generation::event::{EventAccess, EventKind, GenerationEvent, Output, UnparsedReason};
use crate::generation::events::{Events, GatherError, Generation, LARGEST_ERROR};
use crate::generation::update::SequenceUpdate;
use crate::long_work::{BodyLength, on_body};
use crate::serve::body::{Body, EncodedBody};
use crate::serve::data::generation;
use crate::serve::proxy::Proxy;

/// Builds the response to a request of an API. Error responses also acknowledge their events once the client has read them.
///
/// # Errors
/// [`Error::NoTokenIds`] if the engine reported no token ids, from which the reply would be encoded. [`Error::ImagesRefused`] if the engine
/// refused the request before its reply began, and `has_images`.
pub(super) async fn encode(
    proxy: &Proxy,
    api: Arc<dyn Api>,
    generation: Generation,
    encoder: Box<dyn ReplyEncoder>,
    has_images: bool,
) -> Result<Response<Body>, Error> {
    let Generation { mut head, mut events } = generation;
    head.headers.remove(header::CONTENT_LENGTH);
    Ok(match start(proxy, &api, &head, &mut events, encoder, has_images).await {
        Ok(ReplyStart::Whole(body)) => {
            head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Response::from_parts(head, Body::encoded(EncodedBody::whole(body.into(), events)))
        }
        Ok(ReplyStart::Stream { encoder, first }) => {
            let configured = Some(proxy.config.chat.sse_keepalive).filter(|pause| !pause.is_zero());
            let keepalive = configured.into_iter().chain(encoder.encoder.keepalive_interval()).min();
            let body = EncodedBody::stream(events, Box::new(encoder), keepalive).with_prefix(first);
            Response::from_parts(head, Body::encoded(body))
        }
        Err(ReplyFailure::Proxy(error @ Error::NoTokenIds)) => return Err(error),
        Err(ReplyFailure::Proxy(error)) => {
            error_response(error.head(), api.error(error.status(), error.to_string()), events)
        }
        Err(ReplyFailure::Engine(error))
            if has_images && matches!(error.status, StatusCode::BAD_REQUEST | StatusCode::INTERNAL_SERVER_ERROR) =>
        {
            // no retry waits for it
            events.acknowledge();
            return Err(Error::ImagesRefused { message: error.body });
        }
        Err(ReplyFailure::Engine(error) | ReplyFailure::Captured(error)) => error_response(head, error, events),
    })
}

/// Builds the response to a request that the engine's own endpoint serves. The client gets the engine's bytes.
pub(super) fn unencoded(api: &dyn Api, generation: Generation) -> Response<Body> {
    let Generation { head, mut events } = generation;
    let event = events.take_whole();
    if let Some(EventKind::Failed(error)) = event.as_ref().map(|event| &event.kind) {
        return error_response(head, api.error(error.status(), error.to_string()), events);
    }
    generation::raw_events(head, event, events)
}

/// Builds an error response. It keeps the engine's headers, such as `retry-after`.
fn error_response(mut head: response::Parts, error: ApiError, events: Events) -> Response<Body> {
    head.status = error.status;
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(head, Body::encoded(EncodedBody::whole(error.body.into(), events)))
}

/// The start of a successful reply.
enum ReplyStart {
    /// The body of a reply that does not stream.
    Whole(String),
    Stream {
        encoder: ApiEventEncoder,
        /// The encoded first events.
        first: Vec<u8>,
    },
}

/// Why an error is replied.
enum ReplyFailure {
    /// The engine replied an error.
    Engine(ApiError),
    /// The reply that was captured is an error of tokentap.
    Captured(ApiError),
    /// The engine's reply was cut off, is malformed or has no token ids.
    Proxy(Error),
}

impl From<Error> for ReplyFailure {
    fn from(error: Error) -> Self {
        Self::Proxy(error)
    }
}

/// The time after which a stream begins whose head was not waited for. Errors that the engine replies earlier keep their status.
const DEFERRED_TIMEOUT: Duration = Duration::from_secs(1);

async fn start(
    proxy: &Proxy,
    api: &Arc<dyn Api>,
    head: &response::Parts,
    events: &mut Events,
    encoder: Box<dyn ReplyEncoder>,
    has_images: bool,
) -> Result<ReplyStart, ReplyFailure> {
    if head.status != StatusCode::OK {
        let event = events.take_whole();
        let kind = event.as_ref().map(|event| &event.kind);
        if let Some(EventKind::Failed(Error::NoTokenIds)) = kind {
            return Err(Error::NoTokenIds.into());
        }
        let is_own = matches!(kind, Some(EventKind::Failed(_)));
        let body = match event {
            Some(event) => event.raw().clone(),
            None => events.gather(LARGEST_ERROR, proxy.budget.reply()).await.unwrap_or_default(),
        };
        let error = api.engine_error(head.status, &body);
        return Err(if is_own { ReplyFailure::Captured(error) } else { ReplyFailure::Engine(error) });
    }
    if !headers::is_event_stream(&head.headers) {
        let encoded = encode_whole(proxy, &**api, events, &*encoder).await?;
        return encoded.map(ReplyStart::Whole).map_err(ReplyFailure::Engine);
    }
    let limit = proxy.config.limits.max_reply_bytes;
    let mut encoder = ApiEventEncoder { api: Arc::clone(api), encoder, text: String::new(), limit, has_failed: false };
    let keepalive = Some(proxy.config.chat.sse_keepalive).filter(|pause| !pause.is_zero());
    let timeout = match encoder.encoder.first_event_timeout() {
        _ if events.are_deferred() => Some(DEFERRED_TIMEOUT),
        // once the reply has begun, the request cannot be sent to the engine's own endpoint
        _ if has_images => keepalive.into_iter().chain(encoder.encoder.keepalive_interval()).min(),
        None if keepalive.is_some() => Some(Duration::ZERO),
        timeout => timeout,
    };
    let mut first = Vec::new();
    let mut has_begun = false;
    while !has_begun || first.is_empty() && timeout.is_none() {
        let event = match timeout {
            None => events.next().await,
            Some(timeout) if timeout.is_zero() => None,
            Some(timeout) => tokio::time::timeout(timeout, events.next()).await.unwrap_or_default(),
        };
        let event = event.transpose().map_err(|error| upstream(error.to_string()))?;
        let error = event.as_ref().and_then(|event| match event.kind {
            EventKind::Done if !encoder.encoder.has_ended() => Some(unfinished(&**api)),
            _ => engine_error(&**api, event),
        });
        if let Some(error) = error {
            let is_own = event.is_some_and(|event| matches!(event.kind, EventKind::Failed(_) | EventKind::Done));
            read_end(&**api, events).await;
            return Err(if is_own { ReplyFailure::Captured(error) } else { ReplyFailure::Engine(error) });
        }
        if !std::mem::replace(&mut has_begun, true) {
            encoder.begin(&mut first);
        }
        let Some(event) = event else { break };
        encoder.encode(&event, &mut first).map_err(|error| upstream(error.to_string()))?;
    }
    Ok(ReplyStart::Stream { encoder, first })
}

/// Reads a failed stream to its end, so that dropping it sends no abort. Stops if another of its sequences continues.
async fn read_end(api: &dyn Api, events: &mut Events) {
    while let Some(Ok(event)) = events.next().await {
        if matches!(event.kind, EventKind::Outputs(_)) && engine_error(api, &event).is_none() {
            return;
        }
    }
}

fn upstream(message: String) -> Error {
    Error::Upstream { message }
}

/// Encodes the body of a reply that does not stream.
async fn encode_whole(
    proxy: &Proxy,
    api: &dyn Api,
    events: &mut Events,
    encoder: &dyn ReplyEncoder,
) -> Result<EncodedReply, Error> {
    let event = match events.take_whole() {
        Some(event) => event,
        None => {
            let body = events.gather(proxy.config.limits.max_reply_bytes, proxy.budget.reply()).await;
            let body = body.map_err(|error| match error {
                GatherError::NoRoom => Error::Unavailable { message: error.to_string() },
                error => upstream(error.to_string()),
            })?;
            let outline =
                on_body(BodyLength::Reply(body.len()), || GenerationEvent::outline(body.clone(), EventAccess::Fields))
                    .await;
            Arc::new(outline.map_err(unreadable)?)
        }
    };
    let EventKind::Outputs(outputs) = &event.kind else {
        return Err(unreadable("neither an object nor a list of objects"));
    };
    if let Some(error) = engine_error(api, &event) {
        return Ok(Err(error));
    }
    if outputs.iter().any(|output| output.chunk.meta.is_none()) {
        return Err(unreadable("an object without `meta_info`"));
    }
    if outputs.iter().any(|output| output.chunk.finish.is_none()) {
        return Ok(Err(unfinished(api)));
    }
    on_body(BodyLength::Reply(event.raw().len()), || {
        let updates = SequenceUpdate::all(&event).map_err(unreadable)?;
        encoder.encode_whole(&updates).map_err(|error| Error::Internal { message: error.to_string() })
    })
    .await
}

fn unreadable(what: impl std::fmt::Display) -> Error {
    upstream(format!("the engine's reply is {what}"))
}

/// The error of an event in place of a result.
fn engine_error(api: &dyn Api, event: &GenerationEvent) -> Option<ApiError> {
    match &event.kind {
        EventKind::Outputs(outputs) => {
            outputs.iter().find_map(|output| output.error(event)).map(|error| api.event_error(&error))
        }
        EventKind::Failed(error) => Some(failed(api, error)),
        EventKind::Refused(status) => Some(api.engine_error(*status, event.raw())),
        EventKind::Done | EventKind::Unparsed(_) | EventKind::Trailers(_) => None,
    }
}

/// The error of a reply that ends before its sequences have ended.
fn unfinished(api: &dyn Api) -> ApiError {
    api.error(StatusCode::BAD_GATEWAY, "the engine ended the reply without a finish reason".to_owned())
}

fn failed(api: &dyn Api, error: &Error) -> ApiError {
    api.event_error(&serde_json::json!({ "message": error.to_string() }).to_string())
}

/// Encodes the events of a stream.
#[derive(Debug)]
struct ApiEventEncoder {
    api: Arc<dyn Api>,
    encoder: Box<dyn ReplyEncoder>,
    /// The encoding of the current event.
    text: String,
    /// The maximum bytes of an event.
    limit: u64,
    /// The stream has an error event.
    has_failed: bool,
}

impl EventEncoder for ApiEventEncoder {
    fn encode(&mut self, event: &GenerationEvent, out: &mut Vec<u8>) -> Result<(), BoxError> {
        match &event.kind {
            EventKind::Outputs(outputs) => {
                for output in outputs {
                    self.output(event, output)?;
                }
            }
            EventKind::Done => {
                if !self.has_failed && !self.encoder.has_ended() {
                    self.fail(&unfinished(&*self.api));
                }
                self.encoder.finish(&mut self.text);
            }
            EventKind::Failed(error) => self.fail(&failed(&*self.api, error)),
            EventKind::Refused(status) => self.fail(&self.api.engine_error(*status, event.raw())),
            // the engine's comments keep connections alive
            EventKind::Unparsed(UnparsedReason::NoData) if event.raw().starts_with(b":") => {
                out.extend_from_slice(event.raw());
            }
            EventKind::Unparsed(UnparsedReason::NoData) | EventKind::Trailers(_) => {}
            EventKind::Unparsed(UnparsedReason::Unreadable) => {
                return Err("the engine sent a malformed event".into());
            }
            EventKind::Unparsed(UnparsedReason::Piece) => {
                return Err(format!("an event is larger than {} bytes; see --max-bytes-in-flight", self.limit).into());
            }
        }
        out.extend_from_slice(self.text.as_bytes());
        self.text.clear();
        Ok(())
    }

    fn keepalive(&mut self, out: &mut Vec<u8>) {
        self.encoder.keepalive(&mut self.text);
        out.extend_from_slice(self.text.as_bytes());
        self.text.clear();
    }
}

impl ApiEventEncoder {
    fn begin(&mut self, out: &mut Vec<u8>) {
        self.encoder.begin(&mut self.text);
        out.extend_from_slice(self.text.as_bytes());
        self.text.clear();
    }

    fn fail(&mut self, error: &ApiError) {
        self.has_failed = true;
        self.encoder.fail(error, &mut self.text);
    }

    fn output(&mut self, event: &GenerationEvent, output: &Output) -> Result<(), BoxError> {
        if let Some(error) = output.error(event) {
            self.fail(&self.api.event_error(&error));
            return Ok(());
        }
        let update = SequenceUpdate::new(event, output, self.encoder.encoded_tokens(output.index));
        let update = update.map_err(|error| format!("an event of the engine is {error}"))?;
        self.encoder.encode_update(&update, &mut self.text)
    }
}
