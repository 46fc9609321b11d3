//! Encodes the events of a generation for clients of OpenAI's API.

use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, header, response};

use crate::api::openai::problem::{LARGEST, Problem};
use crate::api::sample::Sample;
use crate::api::voice::Voice;
use crate::error::{BoxError, Error};
use crate::generation::event::{EventKind, GenerationEvent, Output, Reads, Unparsed};
use crate::generation::events::{Events, GatherError, Generation};
use crate::http::Parts;
use crate::http::body::{Body, EncodedBody, Encoder};
use crate::long_work::on_body;
use crate::sglang::headers;

/// The reply to a call of OpenAI's API. Also an error is encoded from the events: with its last byte the client has the reply.
pub(super) async fn reply(parts: &Parts, generation: Generation, voice: Voice) -> Response<Body> {
    let Generation { mut head, mut events } = generation;
    head.headers.remove(header::CONTENT_LENGTH);
    match begin(parts, &head, &mut events, voice).await {
        Ok(Begun::Whole(body)) => {
            head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Response::from_parts(head, Body::encoded(EncodedBody::whole(body.into(), events)))
        }
        Ok(Begun::Stream { encoder, first }) => {
            let keepalive = Some(parts.config.chat.sse_keepalive).filter(|pause| !pause.is_zero());
            let body = EncodedBody::stream(events, Box::new(encoder), keepalive).begun(first);
            Response::from_parts(head, Body::encoded(body))
        }
        Err(Refusal::Engine(problem)) => refused(head, &problem, events),
        Err(Refusal::Own(error)) => refused(error.head(), &Problem::new(error.status(), error.to_string()), events),
    }
}

/// An error in place of the reply. The engine's headers say when to come back.
fn refused(mut head: response::Parts, problem: &Problem, events: Events) -> Response<Body> {
    head.status = problem.status;
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(head, Body::encoded(EncodedBody::whole(problem.body().into(), events)))
}

/// A reply of which the client may get the first bytes.
enum Begun {
    /// The body of a reply that does not stream.
    Whole(String),
    Stream {
        encoder: ChatEncoder,
        /// The chunks of the first events.
        first: Vec<u8>,
    },
}

/// Why a reply becomes an error.
enum Refusal {
    /// The engine answered with one.
    Engine(Problem),
    /// The reply broke off, or is not what SGLang writes.
    Own(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Own(error)
    }
}

async fn begin(parts: &Parts, head: &response::Parts, events: &mut Events, voice: Voice) -> Result<Begun, Refusal> {
    if head.status != StatusCode::OK {
        let body = events.gather(LARGEST, parts.budget.reply()).await.unwrap_or_default();
        return Err(Refusal::Engine(Problem::from_engine(head.status, &body)));
    }
    if !headers::is_event_stream(&head.headers) {
        return Ok(Begun::Whole(whole(parts, events, &voice).await?));
    }
    let mut encoder = ChatEncoder { voice, text: String::new(), limit: parts.config.limits.max_reply_bytes };
    let mut first = Vec::new();
    // clients that want comments while nothing comes want the head at once
    while first.is_empty() && parts.config.chat.sse_keepalive.is_zero() {
        let Some(event) = events.next().await else { break };
        let event = event.map_err(|error| upstream(error.to_string()))?;
        if let Some(problem) = first_problem(&event) {
            read_end(events).await;
            return Err(Refusal::Engine(problem));
        }
        encoder.encode(&event, &mut first).map_err(|error| upstream(error.to_string()))?;
    }
    Ok(Begun::Stream { encoder, first })
}

/// Reads the end of a stream that has failed, after which the engine has nothing to abort; not where another of its sequences goes on.
async fn read_end(events: &mut Events) {
    while let Some(Ok(event)) = events.next().await {
        if matches!(event.kind, EventKind::Outputs(_)) && first_problem(&event).is_none() {
            return;
        }
    }
}

fn upstream(message: String) -> Error {
    Error::Upstream { status: StatusCode::BAD_GATEWAY, message }
}

/// The body of a reply that does not stream.
async fn whole(parts: &Parts, events: &mut Events, voice: &Voice) -> Result<String, Error> {
    let event = match events.take_whole() {
        Some(event) => event,
        None => {
            let body = events.gather(parts.config.limits.max_reply_bytes, parts.budget.reply()).await;
            let body = body.map_err(|error| match error {
                GatherError::NoRoom => Error::Unavailable { message: error.to_string() },
                error => upstream(error.to_string()),
            })?;
            let outline = on_body(body.len(), || GenerationEvent::outline(body.clone(), Reads::Fields)).await;
            Arc::new(outline.map_err(unreadable)?)
        }
    };
    if !matches!(event.kind, EventKind::Outputs(_)) {
        return Err(unreadable("neither an object nor a list of objects"));
    }
    on_body(event.raw().len(), || {
        let samples = Sample::all(&event).map_err(unreadable)?;
        voice.whole(&samples).map_err(|error| Error::Internal { message: error.to_string() })
    })
    .await
}

fn unreadable(what: impl std::fmt::Display) -> Error {
    upstream(format!("the engine's reply is {what}"))
}

/// The error that a stream begins with.
fn first_problem(event: &GenerationEvent) -> Option<Problem> {
    match &event.kind {
        EventKind::Outputs(outputs) => outputs.iter().find_map(|output| output.error(event)).map(Problem::from_event),
        EventKind::Failed(error) => Some(failed(error)),
        EventKind::Done | EventKind::Unparsed(_) | EventKind::Trailers(_) => None,
    }
}

fn failed(error: &Error) -> Problem {
    Problem::from_event(&serde_json::json!({ "message": error.to_string() }).to_string())
}

/// Encodes a stream, chunk by chunk.
#[derive(Debug)]
struct ChatEncoder {
    voice: Voice,
    /// The chunks of the event at hand.
    text: String,
    /// `--max-reply-bytes`.
    limit: u64,
}

impl Encoder for ChatEncoder {
    fn encode(&mut self, event: &GenerationEvent, out: &mut Vec<u8>) -> Result<(), BoxError> {
        match &event.kind {
            EventKind::Outputs(outputs) => {
                for output in outputs {
                    self.output(event, output)?;
                }
            }
            EventKind::Done => {
                self.voice.finish(&mut self.text);
                self.text.push_str("data: [DONE]\n\n");
            }
            EventKind::Failed(error) => {
                self.voice.fail();
                self.text.push_str(&failed(error).event());
            }
            // a comment of the engine's keeps connections alive
            EventKind::Unparsed(Unparsed::NoData) if event.raw().starts_with(b":") => {
                out.extend_from_slice(event.raw());
            }
            EventKind::Unparsed(Unparsed::NoData) | EventKind::Trailers(_) => {}
            EventKind::Unparsed(Unparsed::Unreadable) => {
                return Err("an event of the engine's is not what SGLang writes".into());
            }
            EventKind::Unparsed(Unparsed::Piece) => {
                return Err(format!("an event is larger than {} bytes; see --max-reply-bytes", self.limit).into());
            }
        }
        out.extend_from_slice(self.text.as_bytes());
        self.text.clear();
        Ok(())
    }
}

impl ChatEncoder {
    fn output(&mut self, event: &GenerationEvent, output: &Output) -> Result<(), BoxError> {
        if let Some(error) = output.error(event) {
            self.voice.fail();
            self.text.push_str(&Problem::from_event(error).event());
            return Ok(());
        }
        let sample = Sample::of(event, output, self.voice.known(output.index));
        let sample = sample.map_err(|error| format!("an event of the engine's is {error}"))?;
        Ok(self.voice.event(&sample, &mut self.text)?)
    }
}
