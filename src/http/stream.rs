//! An event stream on its way to the client, each event enriched as it passes.
//!
//! It is pulled: when the client stops reading, so does tokentap.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame};
use tokio::sync::OwnedSemaphorePermit;

use crate::generation::Observed;
use crate::generation::reason::Reason;
use crate::http::body::{BoxError, Failed};
use crate::http::budget::Share;
use crate::http::long_work::{in_place, is_long, permit};
use crate::http::running::{Outcome, Recording, Running};
use crate::sglang::client::ReplyBody;
use crate::sglang::sse::{Decoder, Event};
use crate::trajectory::Fault;

/// Bytes of an event that are not counted.
const UNCOUNTED: usize = 64 * 1024;

/// The stream. Dropped before its end, it drops the upstream connection and aborts the ids seen.
pub struct Enriched {
    upstream: ReplyBody,
    decoder: Decoder,
    running: Running,
    state: State,
    limit: usize,
    /// What an event that is not whole yet takes of the budget.
    share: Share,
    /// Bytes that wait for their turn to be read: with them events are long.
    waiting: Option<(Turn, Bytes)>,
    /// Bytes that wait until the turn they end is on disk.
    held: Option<(Recording, Bytes)>,
    failed: Failed,
}

/// Waits until long events may be read.
type Turn = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Events are read.
    Reading,
    /// An event was too large: from here on bytes pass as they come.
    Passing,
    /// Nothing more will be sent.
    Ended,
}

impl std::fmt::Debug for Enriched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enriched").field("running", &self.running).field("state", &self.state).finish_non_exhaustive()
    }
}

impl Enriched {
    /// A stream whose events must not be larger than `limit` bytes to be read.
    #[must_use]
    pub fn new(upstream: ReplyBody, running: Running, limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let share = running.parts().budget.reply();
        Self {
            upstream,
            decoder: Decoder::default(),
            running,
            state: State::Reading,
            limit,
            share,
            waiting: None,
            held: None,
            failed: Failed::default(),
        }
    }

    /// What has been seen so far.
    #[must_use]
    pub fn observed(&self) -> &Observed {
        self.running.capture().observed()
    }

    /// Whether what has been handed out so far says all: the end mark, or the finish reason of every sequence, has come. Clients
    /// leave at either, without waiting for the end of the body.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.running.is_ended() || self.running.capture().is_complete()
    }

    /// The next bytes for the client.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Some(error) = ready!(self.failed.poll(cx)) {
                return Poll::Ready(Some(Err(error)));
            }
            if let Some((recorded, _)) = &mut self.held {
                ready!(recorded.as_mut().poll(cx));
                if let Some((_, out)) = self.held.take() {
                    return Poll::Ready(Some(Ok(Frame::data(out))));
                }
            }
            if self.state == State::Ended {
                return Poll::Ready(None);
            }
            if let Some((turn, _)) = &mut self.waiting {
                let permit = ready!(turn.as_mut().poll(cx));
                let Some((_, data)) = self.waiting.take() else { continue };
                let out = self.chunk(data);
                drop(permit);
                if let Some(frame) = self.hand_out(out) {
                    return Poll::Ready(Some(Ok(frame)));
                }
                continue;
            }
            let frame = ready!(Pin::new(&mut self.upstream).poll_frame(cx));
            let out = match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let length = self.decoder.pending() + data.len();
                        // a piece that ends no event is only stored
                        if is_long(length) && self.state == State::Reading && self.decoder.completes(&data) {
                            self.waiting = Some((Box::pin(permit(length)), data));
                            continue;
                        }
                        self.chunk(data)
                    }
                    Err(_) => continue,
                },
                Some(Err(error)) => {
                    self.running.parts().metrics.upstream_errors.with_label_values(&["reset"]).inc();
                    self.end();
                    self.failed.set(error);
                    continue;
                }
                None => {
                    let rest = self.decoder.take_rest();
                    self.end();
                    rest
                }
            };
            if let Some(frame) = self.hand_out(out) {
                return Poll::Ready(Some(Ok(frame)));
            }
        }
    }

    /// The frame of these bytes; `None` where there are none, or where they wait for the disk.
    fn hand_out(&mut self, out: Bytes) -> Option<Frame<Bytes>> {
        if let Some(recorded) = self.running.recording() {
            self.held = Some((recorded, out));
            return None;
        }
        (!out.is_empty()).then(|| Frame::data(out))
    }

    fn end(&mut self) {
        self.state = State::Ended;
        self.running.end();
        self.running.capture_mut().cut(Fault::Broken);
    }

    fn chunk(&mut self, data: Bytes) -> Bytes {
        if self.state == State::Passing {
            return data;
        }
        self.decoder.push(&data);
        let mut out = Vec::with_capacity(data.len() + 256);
        while let Some(event) = self.decoder.next() {
            self.event(event, &mut out);
            if self.state == State::Ended {
                return out.into();
            }
        }
        if let Some(reason) = self.outgrown() {
            self.running.parts().metrics.skipped.with_label_values(&[reason.name()]).inc();
            if self.must_measure() {
                self.refuse(reason, &mut out);
                return out.into();
            }
            self.state = State::Passing;
            // what is there goes on, and nothing is held any more
            let _ = self.share.resize(0);
            self.running.capture_mut().incomplete();
            out.extend_from_slice(&self.decoder.take_rest());
        }
        out.into()
    }

    /// Why what is there of an event cannot be held until the rest of it comes.
    fn outgrown(&mut self) -> Option<Reason> {
        let pending = self.decoder.pending();
        if pending > self.limit {
            return Some(Reason::TooLarge);
        }
        // those of the usual size are not worth the counting
        let counted = if pending < UNCOUNTED { 0 } else { pending };
        self.share.resize(counted).err().map(|_| Reason::NoRoom)
    }

    fn event(&mut self, event: Event, out: &mut Vec<u8>) {
        if event.is_done() {
            // the engine is done, whatever becomes of the connection
            self.running.end();
        }
        let is_object = event.data().is_some_and(|data| data.first() == Some(&b'{'));
        let (Some(data), true) = (event.data.clone(), is_object) else {
            out.extend_from_slice(&event.raw);
            return;
        };
        let running = &mut self.running;
        let outcome = in_place(data.len(), || running.guarded(|capture| capture.event(&event.raw, data)));
        if outcome == Outcome::Unreadable {
            self.running.capture_mut().incomplete();
        }
        if let Some(reason) = self.lack(&outcome) {
            self.refuse(reason, out);
            return;
        }
        match outcome {
            Outcome::Changed(changed) => out.extend_from_slice(&changed),
            Outcome::Unchanged | Outcome::Unreadable => out.extend_from_slice(&event.raw),
        }
    }

    /// Ends the stream with an error event; dropping the rest aborts the generation.
    fn refuse(&mut self, reason: Reason, out: &mut Vec<u8>) {
        let error = crate::error::Error::Strict { reason: reason.name().to_owned() };
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&error.body());
        out.extend_from_slice(b"\n\n");
        self.state = State::Ended;
        self.running.capture_mut().cut(Fault::Aborted);
    }

    /// Whether `--strict` holds for this request.
    fn must_measure(&self) -> bool {
        self.running.parts().config.entropy.strict && self.running.capture().plan().wish.wanted
    }

    /// With `--strict`, why the stream must not go on.
    fn lack(&self, outcome: &Outcome<Vec<u8>>) -> Option<Reason> {
        let capture = self.running.capture();
        if !self.must_measure() {
            return None;
        }
        if *outcome == Outcome::Unreadable { Some(Reason::Unreadable) } else { capture.observed().missing }
    }
}
