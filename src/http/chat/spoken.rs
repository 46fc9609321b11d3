//! A native reply on its way to the client, said as a chat's.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, Limited};

use crate::error::Error;
use crate::generation::Observed;
use crate::http::body::{Body, BoxError};
use crate::json::Cursor;
use crate::openai::reply::Making;
use crate::openai::sample::Sample;
use crate::openai::speaker::Speaker;
use crate::sglang::sse::Decoder;

/// The reply. Dropped before its end, it drops the native one, which aborts the generation.
#[derive(Debug)]
pub struct Spoken {
    native: Body,
    state: State,
}

#[derive(Debug)]
enum State {
    /// All of it, made when the native reply was whole.
    Whole(Bytes),
    /// Made as it comes.
    Stream(Box<(Decoder, Speaker)>),
    Ended,
}

impl Spoken {
    /// A stream, chunk by chunk.
    #[must_use]
    pub fn stream(native: Body, speaker: Speaker) -> Self {
        Self { native, state: State::Stream(Box::new((Decoder::default(), speaker))) }
    }

    /// A reply that is read to its end first, which must not be larger than `limit` bytes.
    ///
    /// # Errors
    /// When it breaks off, is too large, or is not what SGLang writes.
    pub async fn whole(mut native: Body, making: &Making, limit: usize) -> Result<Self, Error> {
        // the client has nothing of it yet
        native.hold(true);
        let upstream = |message: String| Error::Upstream { status: StatusCode::BAD_GATEWAY, message };
        let read = Limited::new(&mut native, limit).collect().await;
        let bytes = read.map_err(|error| upstream(error.to_string()))?.to_bytes();
        let samples = Sample::all(&bytes).map_err(|error| upstream(format!("the engine's reply is {error}")))?;
        let said = making.whole(&samples).map_err(|error| Error::Internal { message: error.to_string() })?;
        Ok(Self { native, state: State::Whole(said.into()) })
    }

    /// What has been seen of the reply.
    #[must_use]
    pub fn observed(&self) -> Option<Observed> {
        self.native.observed()
    }

    /// How much is still to come.
    #[must_use]
    pub fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            State::Stream(_) => SizeHint::default(),
            State::Ended => SizeHint::with_exact(0),
        }
    }

    /// The next bytes for the client.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            match &mut self.state {
                State::Ended => return Poll::Ready(None),
                State::Whole(bytes) => {
                    let bytes = std::mem::take(bytes);
                    self.state = State::Ended;
                    self.native.hold(false);
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                State::Stream(stream) => {
                    let (decoder, speaker) = &mut **stream;
                    let mut out = String::new();
                    let frame = ready!(Pin::new(&mut self.native).poll_frame(cx));
                    match frame {
                        Some(Ok(frame)) => {
                            let Ok(data) = frame.into_data() else { continue };
                            decoder.push(&data);
                            let said = say(decoder, speaker, &mut out);
                            if let Err(error) = said {
                                self.state = State::Ended;
                                return Poll::Ready(Some(Err(error.into())));
                            }
                        }
                        Some(Err(error)) => {
                            self.state = State::Ended;
                            return Poll::Ready(Some(Err(error)));
                        }
                        None => self.state = State::Ended,
                    }
                    if !out.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(out.into()))));
                    }
                }
            }
        }
    }
}

/// Says the events that are whole.
fn say(decoder: &mut Decoder, speaker: &mut Speaker, out: &mut String) -> Result<(), String> {
    for event in decoder.by_ref() {
        if event.is_done() {
            speaker.finish(out);
            out.push_str("data: [DONE]\n\n");
            continue;
        }
        let Some(data) = event.data.clone() else {
            // a comment of the engine's, which keeps connections alive
            if event.raw.starts_with(b":") {
                out.push_str(&String::from_utf8_lossy(&event.raw));
            }
            continue;
        };
        let raw = event.raw.slice(data);
        let mut cursor = Cursor::new(&raw);
        let sample = Sample::read(&raw, &mut cursor, |index| speaker.known(index));
        let sample = sample.map_err(|error| format!("an event of the engine's is {error}"))?;
        speaker.event(&sample, out).map_err(|error| error.to_string())?;
    }
    Ok(())
}
