//! `Generate`: POST /generate in another encoding.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, async_trait};

use super::pb::generate_server::Generate;
use super::services::Port;
use super::{Answers, pb, status};
use crate::http::body::Body;
use crate::http::served::Served;
use crate::http::v1::Problem;
use crate::http::{Parts, data, error_reply, generate, headers, identity};
use crate::sglang::routes;
use crate::sglang::sse::Decoder;

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
        // of a message that does not come whole
        served.status = StatusCode::BAD_REQUEST;
        match admitted {
            Ok(()) => Ok(Self(Arc::new(Mutex::new(Some(served))))),
            Err(error) => {
                served.status = error.status();
                Err(status::error(&error))
            }
        }
    }

    fn take(&self) -> Option<Box<Served>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[async_trait]
impl Generate for Generation {
    type GenerateStream = Answers<pb::GenerateReply>;

    async fn generate(&self, request: Request<pb::GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        let (metadata, extensions, pb::GenerateRequest { json, session }) = request.into_parts();
        let mut served = extensions.get::<Admitted>().and_then(Admitted::take).expect("no call comes in without");
        if !session.is_empty() && !identity::is_name(&session) {
            let message = format!("{session:?} cannot be a session: 1 to 128 of A-Z a-z 0-9 . _ ~ -");
            return Err(status::problem(&Problem::bad(message)));
        }
        let mut request = http::Request::new(json);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static(routes::GENERATE.endpoint);
        *request.headers_mut() = self.headers(metadata);
        let session = (!session.is_empty()).then(|| Arc::from(session));
        let reply = generate::answer(&self.parts, request, session, &mut served).await;
        let reply = reply.unwrap_or_else(|error| error_reply(&error));
        served.status = reply.status();
        let reply = reply.map(|body| body.with(served));
        if reply.status() != StatusCode::OK {
            return Err(status::answer(reply).await);
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
        let answers = if is_stream { Objects::new(body).answers() } else { whole(&self.parts, body).await? };
        Ok(Response::from_parts(MetadataMap::from_headers(head.headers), answers, tonic::Extensions::new()))
    }
}

/// A reply that is one object, which the client has once it has been taken: not when all of it is here.
async fn whole(parts: &Parts, mut body: Body) -> Result<Answers<pb::GenerateReply>, Status> {
    body.hold(true);
    let limit = parts.config.limits.max_reply_bytes;
    let json = Limited::new(&mut body, usize::try_from(limit).unwrap_or(usize::MAX)).collect().await;
    let json = json.map(http_body_util::Collected::to_bytes).map_err(|error| {
        if error.is::<LengthLimitError>() {
            return Status::resource_exhausted(format!(
                "the reply is larger than {limit} bytes; see --max-reply-bytes"
            ));
        }
        Status::unavailable(error.to_string())
    })?;
    let answers = stream::unfold((Some(json), body), |(json, body)| async move {
        let Some(json) = json else {
            body.hold(false);
            return None;
        };
        Some((Ok(pb::GenerateReply { json }), (None, body)))
    });
    Ok(answers.boxed())
}

/// The objects of an event stream.
struct Objects {
    body: Body,
    decoder: Decoder,
    /// The end mark has come.
    done: bool,
}

impl Objects {
    fn new(body: Body) -> Self {
        Self { body, decoder: Decoder::default(), done: false }
    }

    /// The next object; `None` at the end of a stream that has come to its end mark.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            for event in self.decoder.by_ref() {
                if event.is_done() {
                    self.done = true;
                } else if let Some(data) = event.data.clone() {
                    return Ok(Some(event.raw.slice(data)));
                } else if !event.raw.starts_with(b":") && !event.raw.trim_ascii().is_empty() {
                    // SGLang writes one line; to leave any out would be a lie
                    return Err(Status::internal("the engine sent an event that is not one line of data"));
                }
            }
            match self.body.frame().await {
                Some(Ok(frame)) => frame.into_data().iter().for_each(|data| self.decoder.push(data)),
                Some(Err(error)) => return Err(Status::unavailable(error.to_string())),
                None if self.done => return Ok(None),
                None => return Err(Status::unavailable("the engine's stream ended before its end mark")),
            }
        }
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
