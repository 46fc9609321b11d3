//! `Generate`: POST /generate in another encoding.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::task::yield_now;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, async_trait};

use super::pb::generate_server::Generate;
use super::services::Port;
use super::{Answers, pb, status};
use crate::http::body::{Body, BoxError};
use crate::http::generate::Origin;
use crate::http::served::Served;
use crate::http::v1::Problem;
use crate::http::{Parts, data, error_reply, generate, headers, identity};
use crate::sglang::routes;
use crate::sglang::sse::Decoder;
use crate::trajectory::is_name;

/// The service.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) parts: Arc<Parts>,
    pub(super) port: Port,
}

impl Generation {
    /// The headers that HTTP would have had.
    fn headers(&self, metadata: MetadataMap) -> HeaderMap {
        let mut headers = metadata.into_headers();
        let names: Vec<_> = headers.keys().cloned().collect();
        for name in names.iter().filter(|name| name.as_str().starts_with("grpc-") || name.as_str().ends_with("-bin")) {
            headers.remove(name);
        }
        headers.remove(header::TE);
        headers.remove(header::CONTENT_LENGTH);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.port == Port::Control && self.parts.config.keys.control_token.is_some() {
            // the token opens this port and is nobody else's to know
            self.parts.client.sign_generation(&mut headers);
        }
        headers
    }
}

/// The clock and the permit of a call, which it has before its message is read.
#[derive(Clone)]
pub(super) struct Admitted(Arc<Mutex<Option<Box<Served>>>>);

impl Admitted {
    /// # Errors
    /// The answer, where there are too many.
    pub(super) fn try_new(parts: &Arc<Parts>) -> Result<Self, Status> {
        let (mut served, admitted) = data::admit(parts, routes::GENERATE, &Method::POST);
        match admitted {
            Ok(()) => Ok(Self(Arc::new(Mutex::new(Some(served))))),
            Err(error) => {
                served.status = Some(error.status());
                Err(status::error(&error))
            }
        }
    }

    fn take(&self) -> Option<Box<Served>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The call has been answered; where its message did not come whole, this is what its sender was told.
    pub(super) fn answered<B>(&self, reply: &http::Response<B>) {
        if let Some(mut served) = self.take() {
            served.status = Some(status::of(reply).unwrap_or(StatusCode::BAD_REQUEST));
        }
    }
}

#[async_trait]
impl Generate for Generation {
    type GenerateStream = Answers<pb::GenerateReply>;

    async fn generate(&self, request: Request<pb::GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        let (metadata, extensions, pb::GenerateRequest { json, session }) = request.into_parts();
        let mut served = extensions.get::<Admitted>().and_then(Admitted::take).expect("no call comes in without");
        if !session.is_empty() && !is_name(&session) {
            let message = identity::InvalidName::new(&session, "the field session").to_string();
            served.status = Some(StatusCode::BAD_REQUEST);
            return Err(status::problem(&Problem::bad(message)));
        }
        let mut request = http::Request::new(self.parts.budget.hold(json));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static(routes::GENERATE.endpoint);
        *request.headers_mut() = self.headers(metadata);
        let session = (!session.is_empty()).then(|| Arc::from(session));
        let reply = generate::answer(&self.parts, request, Origin { session, chat: None }, &mut served).await;
        let reply = reply.unwrap_or_else(|error| error_reply(&error));
        served.status = Some(reply.status());
        if reply.status() != StatusCode::OK {
            return Err(status::answer(reply.map(|body| body.with(served))).await);
        }
        let (mut head, body) = reply.into_parts();
        let is_stream = head
            .headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        headers::end_hop(&mut head.headers);
        for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::CONTENT_ENCODING, header::DATE] {
            head.headers.remove(name);
        }
        let answers = if is_stream {
            Objects::new(body.with(served)).answers()
        } else {
            whole(&self.parts, body, served).await?
        };
        Ok(Response::from_parts(MetadataMap::from_headers(head.headers), answers, tonic::Extensions::new()))
    }
}

/// A reply that is one object, which the client has once it has been taken: not when all of it is here.
async fn whole(parts: &Parts, mut body: Body, mut served: Box<Served>) -> Result<Answers<pb::GenerateReply>, Status> {
    body.hold(true);
    let limit = parts.config.limits.max_reply_bytes;
    let json = match Limited::new(&mut body, usize::try_from(limit).unwrap_or(usize::MAX)).collect().await {
        Ok(json) => json.to_bytes(),
        Err(error) => {
            let (status, told) = if error.is::<LengthLimitError>() {
                let message = format!("the reply is larger than {limit} bytes; see --max-reply-bytes");
                (StatusCode::PAYLOAD_TOO_LARGE, Status::resource_exhausted(message))
            } else {
                (StatusCode::BAD_GATEWAY, Status::unavailable(error.to_string()))
            };
            served.status = Some(status);
            drop(body.with(served));
            return Err(told);
        }
    };
    let body = body.with(served);
    let answers = stream::unfold((Some(json), body), |(json, body)| async move {
        let Some(json) = json else {
            taken().await;
            body.hold(false);
            return None;
        };
        Some((Ok(pb::GenerateReply { json }), (None, body)))
    });
    Ok(answers.boxed())
}

/// Waits until what was given out has found room on its way to the caller. What encodes it asks for more before it hands anything on,
/// unless there is nothing for the moment; it asks again when the connection does.
async fn taken() {
    yield_now().await;
}

/// The objects of an event stream. The client has one when what comes behind it is asked for.
struct Objects {
    body: Body,
    decoder: Decoder,
    /// Something was given out that may not have been taken.
    given: bool,
    /// The end mark has come.
    done: bool,
}

impl Objects {
    fn new(body: Body) -> Self {
        body.hold(true);
        Self { body, decoder: Decoder::default(), given: false, done: false }
    }

    /// The next object; `None` at the end of a stream that has come to its end mark.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            for event in self.decoder.by_ref() {
                if event.is_done() {
                    self.done = true;
                } else if let Some(data) = event.data.clone() {
                    self.given = true;
                    return Ok(Some(event.raw.slice(data)));
                } else if !event.raw.starts_with(b":") && !event.raw.trim_ascii().is_empty() {
                    // SGLang writes one line; to leave any out would be a lie
                    return Err(Status::internal("the engine sent an event that is not one line of data"));
                }
            }
            if std::mem::take(&mut self.given) {
                taken().await;
            }
            match poll_fn(|cx| self.poll_body(cx)).await {
                Some(Ok(frame)) => frame.into_data().iter().for_each(|data| self.decoder.push(data)),
                Some(Err(error)) => return Err(Status::unavailable(error.to_string())),
                None if self.done => return Ok(None),
                None => return Err(Status::unavailable("the engine's stream ended before its end mark")),
            }
        }
    }

    /// What comes next. While that is nothing, the client has all that came: only what is being gathered is yet to be given to it.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.body.hold(true);
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.body.hold(matches!(polled, Poll::Ready(Some(_))));
        polled
    }

    fn answers(self) -> Answers<pb::GenerateReply> {
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
