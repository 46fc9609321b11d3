//! Encodes the events of a generation for clients of OpenAI's API.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::refused;
use crate::api::openai::problem::{LARGEST, Problem};
use crate::api::sample::Sample;
use crate::api::voice::Voice;
use crate::error::{BoxError, Error};
use crate::generation::event::{EventKind, GenerationEvent, Output, Reads, Unparsed};
use crate::generation::events::{Events, Generation};
use crate::http::Parts;
use crate::http::body::{Body, EncodedBody, Encoder};
use crate::long_work::on_body;
use crate::sglang::headers;

/// The reply to a call of OpenAI's API.
///
/// # Errors
/// When the engine's reply breaks off before the client has anything of it, or is not what SGLang writes.
pub(super) async fn reply(parts: &Parts, generation: Generation, voice: Voice) -> Result<Response<Body>, Error> {
    let Generation { mut head, mut events } = generation;
    let limit = usize::try_from(parts.config.limits.max_reply_bytes).unwrap_or(usize::MAX);
    head.headers.remove(header::CONTENT_LENGTH);
    if head.status != StatusCode::OK {
        let body = gather(&mut events, LARGEST).await.unwrap_or_default();
        let problem = Problem::from_engine(head.status, &body);
        return Ok(refused(head, &problem));
    }
    if !headers::is_event_stream(&head.headers) {
        let body = whole(&mut events, &voice, limit).await?;
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        return Ok(Response::from_parts(head, Body::encoded(EncodedBody::whole(body.into(), events))));
    }
    let keepalive = parts.config.chat.sse_keepalive;
    let mut encoder = ChatEncoder { voice, text: String::new(), limit };
    let mut begun = Vec::new();
    // clients that want comments while nothing comes want the head at once
    while begun.is_empty() && keepalive.is_zero() {
        let Some(event) = events.next().await else { break };
        let event = event.map_err(|error| upstream(error.to_string()))?;
        if let Some(problem) = first_problem(&event) {
            return Ok(refused(head, &problem));
        }
        encoder.encode(&event, &mut begun).map_err(|error| upstream(error.to_string()))?;
    }
    let keepalive = (!keepalive.is_zero()).then_some(keepalive);
    let body = EncodedBody::stream(events, Box::new(encoder), keepalive).begun(begun);
    Ok(Response::from_parts(head, Body::encoded(body)))
}

fn upstream(message: String) -> Error {
    Error::Upstream { status: StatusCode::BAD_GATEWAY, message }
}

/// The body of a reply that does not stream.
async fn whole(events: &mut Events, voice: &Voice, limit: usize) -> Result<String, Error> {
    let event = match events.take_whole() {
        Some(event) => event,
        None => {
            let body = gather(events, limit).await.map_err(|error| upstream(error.to_string()))?;
            Arc::new(
                on_body(body.len(), || GenerationEvent::outline(body.clone(), Reads::Fields))
                    .await
                    .map_err(unreadable)?,
            )
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

/// The bytes of a reply that is not parsed.
async fn gather(events: &mut Events, limit: usize) -> Result<Bytes, BoxError> {
    let mut body = Vec::new();
    while let Some(event) = events.next().await {
        body.extend_from_slice(event?.native());
        if body.len() > limit {
            return Err(format!("the reply is larger than {limit} bytes; see --max-reply-bytes").into());
        }
    }
    Ok(body.into())
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
    limit: usize,
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
