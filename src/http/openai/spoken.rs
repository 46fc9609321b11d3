//! A native reply on its way to the client, said as a chat's.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use tokio::time::{Instant, Sleep};

use crate::error::Error;
use crate::generation::Observed;
use crate::http::body::{Body, BoxError};
use crate::http::long_work::on_body;
use crate::json::Cursor;
use crate::openai::problem::Problem;
use crate::openai::sample::Sample;
use crate::openai::voice::Voice;
use crate::sglang::sse::Decoder;

/// The reply. Dropped before its end, it drops the native one, which aborts the generation.
#[derive(Debug)]
pub struct Spoken {
    native: Body,
    state: State,
    keepalive: Keepalive,
}

#[derive(Debug)]
enum State {
    /// All of it, made when the native reply was whole.
    Whole(Bytes),
    /// Made as it comes.
    Stream(Box<Telling>),
    Ended,
}

impl Spoken {
    /// A stream, chunk by chunk, from its first event on: where that is an error, the status and body to answer with.
    ///
    /// # Errors
    /// When the native stream breaks off before, or is not what SGLang writes.
    pub async fn stream(
        mut native: Body,
        voice: Voice,
        limit: usize,
        keepalive: Duration,
    ) -> Result<Result<Self, Problem>, Error> {
        let upstream = |message: String| Error::Upstream { status: StatusCode::BAD_GATEWAY, message };
        let mut telling = Telling { decoder: Decoder::default(), voice, said: String::new(), limit };
        // of what is read ahead the client has nothing yet
        native.hold(true);
        // who wants comments while nothing comes wants the head at once
        while telling.said.is_empty() && keepalive.is_zero() {
            let Some(frame) = native.frame().await else { break };
            let Ok(data) = frame.map_err(|error| upstream(error.to_string()))?.into_data() else { continue };
            if let Some(problem) = telling.say(&data, true).map_err(upstream)? {
                return Ok(Err(problem));
            }
        }
        native.hold(false);
        Ok(Ok(Self { native, state: State::Stream(Box::new(telling)), keepalive: Keepalive::new(keepalive) }))
    }

    /// A reply that is read to its end first, which must not be larger than `limit` bytes.
    ///
    /// # Errors
    /// When it breaks off, is too large, or is not what SGLang writes.
    pub async fn whole(mut native: Body, voice: &Voice, limit: usize) -> Result<Self, Error> {
        // the client has nothing of it yet
        native.hold(true);
        let upstream = |message: String| Error::Upstream { status: StatusCode::BAD_GATEWAY, message };
        let read = Limited::new(&mut native, limit).collect().await;
        let bytes = read.map_err(|error| upstream(error.to_string()))?.to_bytes();
        let said = on_body(bytes.len(), || {
            let samples = Sample::all(&bytes).map_err(|error| upstream(format!("the engine's reply is {error}")))?;
            voice.whole(&samples).map_err(|error| Error::Internal { message: error.to_string() })
        })
        .await?;
        Ok(Self { native, state: State::Whole(said.into()), keepalive: Keepalive::new(Duration::ZERO) })
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
                State::Stream(telling) => {
                    if !telling.said.is_empty() {
                        let said = std::mem::take(&mut telling.said);
                        return Poll::Ready(Some(Ok(Frame::data(said.into()))));
                    }
                    let polled = match Pin::new(&mut self.native).poll_frame(cx) {
                        Poll::Ready(polled) => polled,
                        Poll::Pending => {
                            ready!(self.keepalive.poll(cx));
                            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b": keep-alive\n\n")))));
                        }
                    };
                    self.keepalive.reset();
                    let failed = match polled {
                        Some(Ok(frame)) => match frame.into_data().map(|data| telling.say(&data, false)) {
                            Ok(Err(error)) => Some(error.into()),
                            Ok(Ok(_)) | Err(_) => None,
                        },
                        Some(Err(error)) => Some(error),
                        None => {
                            self.state = State::Ended;
                            None
                        }
                    };
                    if let Some(error) = failed {
                        self.state = State::Ended;
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
        }
    }
}

/// When a stream has been silent for too long.
#[derive(Debug)]
struct Keepalive {
    /// `None`: never.
    sleep: Option<Pin<Box<Sleep>>>,
    pause: Duration,
}

impl Keepalive {
    fn new(pause: Duration) -> Self {
        Self { sleep: (!pause.is_zero()).then(|| Box::pin(tokio::time::sleep(pause))), pause }
    }

    fn reset(&mut self) {
        if let Some(sleep) = &mut self.sleep {
            sleep.as_mut().reset(Instant::now() + self.pause);
        }
    }

    /// Ready once for each pause.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(sleep) = &mut self.sleep else { return Poll::Pending };
        ready!(sleep.as_mut().poll(cx));
        sleep.as_mut().reset(Instant::now() + self.pause);
        Poll::Ready(())
    }
}

/// A stream that is being said.
#[derive(Debug)]
struct Telling {
    decoder: Decoder,
    voice: Voice,
    /// What the client has not been given yet.
    said: String,
    /// Bytes of an event that are held until it is whole.
    limit: usize,
}

impl Telling {
    /// Reads more of the native stream, and says the events that are whole now. An error comes back where it is the `first` to be said.
    fn say(&mut self, data: &Bytes, first: bool) -> Result<Option<Problem>, String> {
        self.decoder.push(data);
        for event in self.decoder.by_ref() {
            if event.is_done() {
                self.voice.finish(&mut self.said);
                self.said.push_str("data: [DONE]\n\n");
                continue;
            }
            let Some(data) = event.data.clone() else {
                // a comment of the engine's, which keeps connections alive
                if event.raw.starts_with(b":") {
                    self.said.push_str(&String::from_utf8_lossy(&event.raw));
                }
                continue;
            };
            let raw = event.raw.slice(data);
            let mut cursor = Cursor::new(&raw);
            let sample = Sample::read(&raw, &mut cursor, |index| self.voice.known(index));
            let sample = sample.map_err(|error| format!("an event of the engine's is {error}"))?;
            match sample.error() {
                Some(error) if first && self.said.is_empty() => return Ok(Some(Problem::from_event(error))),
                Some(error) => {
                    self.voice.fail();
                    self.said.push_str(&Problem::from_event(error).event());
                }
                None => self.voice.event(&sample, &mut self.said).map_err(|error| error.to_string())?,
            }
        }
        if self.decoder.pending() > self.limit {
            return Err(format!("an event is larger than {} bytes; see --max-reply-bytes", self.limit));
        }
        Ok(None)
    }
}
