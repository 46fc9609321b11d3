// SPDX-License-Identifier: Apache-2.0
//! `tokentap.v1.Generate`: POST /generate over gRPC.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use tokio::task::yield_now;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, async_trait};

use super::pb::generate_server::Generate;
use super::{ReplyStream, pb, status};
use crate::budget::{Share, Work};
use crate::engine::sglang::routes;
use crate::engine::transport::headers;
use crate::error::BoxError;
use crate::generation::event::{EventAccess, EventKind, GenerationEvent, UnparsedReason};
use crate::generation::events::{Events, GatherError, Generation, LARGEST_ERROR};
use crate::serve::access_log::AccessRecord;
use crate::serve::data::generate::generate;
use crate::serve::data::generation::ReceivedCall;
use crate::serve::identity::InvalidName;
use crate::serve::problem::Problem;
use crate::serve::proxy::Proxy;
use crate::serve::request_info::Port;
use crate::session::is_name;

#[derive(Debug)]
pub(super) struct GenerateService {
    pub(super) proxy: Arc<Proxy>,
    pub(super) port: Port,
}

impl GenerateService {
    /// Converts the metadata to the headers of an HTTP request.
    fn headers(&self, metadata: MetadataMap) -> HeaderMap {
        let mut headers = metadata.into_headers();
        let names: Vec<_> = headers.keys().cloned().collect();
        for name in names.iter().filter(|name| name.as_str().starts_with("grpc-") || name.as_str().ends_with("-bin")) {
            headers.remove(name);
        }
        headers.remove(header::TE);
        headers.remove(header::CONTENT_LENGTH);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.port == Port::Control && self.proxy.config.keys.control_token().is_some() {
            // the token of this port must not reach the engine
            self.proxy.client.sign_generation(&mut headers);
        }
        headers
    }
}

#[async_trait]
impl Generate for GenerateService {
    type GenerateStream = ReplyStream<pb::GenerateReply>;

    async fn generate(&self, request: Request<pb::GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        let (metadata, extensions, pb::GenerateRequest { json, session }) = request.into_parts();
        let record = AccessRecord::of(&extensions);
        if !session.is_empty() && !is_name(&session) {
            let message = InvalidName::new(&session, "the field session").to_string();
            return Err(Problem::bad_request(message).into());
        }
        let session = (!session.is_empty()).then(|| Arc::from(session));
        let work = Work::new(&self.proxy.budget);
        let mut share = work.share();
        share.insist(json.len());
        let mut request = http::Request::new(share.hold(json));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static(routes::GENERATE.endpoint);
        *request.headers_mut() = self.headers(metadata);
        let call = ReceivedCall { request, session, work };
        let generation = generate(&self.proxy, call, EventAccess::Bytes, &record).await;
        let generation = generation.unwrap_or_else(|error| Generation::failed(error, None));
        let Generation { mut head, events } = generation;
        let is_stream = headers::is_event_stream(&head.headers);
        for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::CONTENT_ENCODING, header::DATE] {
            head.headers.remove(name);
        }
        let mut reply = RecordedEvents { events, record };
        if head.status != StatusCode::OK {
            // without a readable body, the status of the reply is enough
            let body = reply.events.gather(LARGEST_ERROR, self.proxy.budget.reply()).await.unwrap_or_default();
            reply.events.acknowledge();
            return Err(status::engine_error(head.status, &body));
        }
        let limit = self.proxy.config.limits.max_reply_bytes;
        let replies = if is_stream {
            ObjectStream::new(reply, limit).into_replies()
        } else {
            single_reply(reply, limit, self.proxy.budget.reply()).await?
        };
        Ok(Response::from_parts(MetadataMap::from_headers(head.headers), replies, tonic::Extensions::new()))
    }
}

/// The events of a reply, with the access record of its request.
struct RecordedEvents {
    events: Events,
    record: AccessRecord,
}

impl Drop for RecordedEvents {
    fn drop(&mut self) {
        self.record.observe(self.events.observed());
    }
}

/// Replies one object. The events are acknowledged when the object is sent, not when it is complete here.
async fn single_reply(
    mut reply: RecordedEvents,
    limit: u64,
    share: Share,
) -> Result<ReplyStream<pb::GenerateReply>, Status> {
    let json = match reply.events.take_whole() {
        Some(event) => event.native().clone(),
        None => match reply.events.gather(limit, share).await {
            Ok(json) => json,
            Err(error) => {
                let message = error.to_string();
                let (http_status, status) = match error {
                    GatherError::Broken(_) => (StatusCode::BAD_GATEWAY, Status::unavailable(message)),
                    GatherError::TooLarge { .. } => {
                        (StatusCode::PAYLOAD_TOO_LARGE, Status::resource_exhausted(message))
                    }
                    GatherError::NoRoom => (StatusCode::SERVICE_UNAVAILABLE, Status::unavailable(message)),
                };
                reply.record.set_status(http_status);
                return Err(status);
            }
        },
    };
    let replies = stream::unfold((Some(json), reply), |(json, mut reply)| async move {
        let Some(json) = json else {
            wait_sent().await;
            reply.events.acknowledge();
            return None;
        };
        Some((Ok(pb::GenerateReply { json }), (None, reply)))
    });
    Ok(replies.boxed())
}

/// Waits until the last message is sent. tonic's encoder polls for more messages before it passes a buffer on, unless the stream is
/// pending. It polls again only when the connection does.
async fn wait_sent() {
    yield_now().await;
}

/// The objects of an event stream. Those that are ready leave together: tonic joins messages until the stream is pending. The client has
/// them once the connection polls for the data after them.
struct ObjectStream {
    reply: RecordedEvents,
    /// Objects were returned that may not be sent yet.
    unsent: bool,
    /// The stream was pending since then, so they are sent when it is polled again.
    passed_on: bool,
    /// The last object has everything that the caller requested.
    is_complete: bool,
    /// The end mark was received.
    done: bool,
    /// The maximum bytes of an event.
    limit: u64,
}

impl ObjectStream {
    fn new(reply: RecordedEvents, limit: u64) -> Self {
        Self { reply, unsent: false, passed_on: false, is_complete: false, done: false, limit }
    }

    /// Returns the next object; `None` after the end mark.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if std::mem::take(&mut self.is_complete) {
                // a reply whose last object was not sent has not ended, so that a retry of it generates again
                wait_sent().await;
                self.unsent = false;
                self.reply.events.acknowledge();
            }
            let polled = poll_fn(|cx| self.poll_event(cx)).await;
            if !matches!(polled, Some(Ok(_))) {
                if self.unsent {
                    wait_sent().await;
                }
                self.reply.events.acknowledge();
            }
            let event = match polled {
                Some(Ok(event)) => event,
                Some(Err(error)) => return Err(Status::unavailable(error.to_string())),
                None if self.done => return Ok(None),
                None => return Err(Status::unavailable("the engine's stream ended before its end mark")),
            };
            match &event.kind {
                EventKind::Outputs(_)
                | EventKind::Failed(_)
                | EventKind::Refused(_)
                | EventKind::Unparsed(UnparsedReason::Unreadable) => {
                    // an error is the last event
                    self.done |= matches!(event.kind, EventKind::Failed(_) | EventKind::Refused(_));
                    (self.unsent, self.is_complete) = (true, event.completes);
                    return Ok(Some(event.native_json()));
                }
                EventKind::Done => self.done = true,
                EventKind::Trailers(_) => {}
                EventKind::Unparsed(UnparsedReason::Piece) => {
                    let limit = self.limit;
                    let message = format!("an event is larger than {limit} bytes; see --max-bytes-in-flight");
                    return Err(Status::resource_exhausted(message));
                }
                EventKind::Unparsed(UnparsedReason::NoData) => {
                    let raw = event.raw();
                    if !raw.starts_with(b":") && !raw.trim_ascii().is_empty() {
                        // SGLang writes one line per event; dropping a line would falsify the reply
                        return Err(Status::internal("the engine sent an event that is not one line of JSON"));
                    }
                }
            }
        }
    }

    /// Polls for the next event.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Arc<GenerationEvent>, BoxError>>> {
        if std::mem::take(&mut self.passed_on) {
            self.unsent = false;
            self.reply.events.acknowledge();
        }
        let polled = self.reply.events.poll_next(cx);
        self.passed_on = polled.is_pending();
        polled
    }

    fn into_replies(self) -> ReplyStream<pb::GenerateReply> {
        let objects = stream::unfold(Some(self), |objects| async move {
            let mut objects = objects?;
            match objects.next().await {
                Ok(Some(json)) => Some((Ok(pb::GenerateReply { json }), Some(objects))),
                Ok(None) => None,
                Err(status) => Some((Err(status), None)),
            }
        });
        objects.boxed()
    }
}
