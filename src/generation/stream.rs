// SPDX-License-Identifier: Apache-2.0
//! The events of a streamed generation, parsed and measured as they arrive.
//!
//! The stream is pulled: when the client stops reading, tokentap stops reading too.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use crate::budget::Share;
use crate::engine::reason::Reason;
use crate::engine::sglang::resume::ResumeObstacle;
use crate::engine::transport::client::ReplyBody;
use crate::engine::transport::reply_body::ReplyError;
use crate::engine::transport::sse::{self, SseDecoder};
use crate::error::{BoxError, Error};
use crate::generation::ReplyStats;
use crate::generation::active::{ActiveGeneration, DurabilityWait};
use crate::generation::attempts::{Attempts, JoinedEvent};
use crate::generation::begin_limit::BeginLimit;
use crate::generation::event::{EventAccess, EventFrame, GenerationEvent, UnparsedReason};
use crate::generation::log_wait;
use crate::generation::request::RequestHead;
use crate::generation::resumption::count_passed;
use crate::long_work::{BodyLength, in_place, permit};
use crate::session::Fault;
use crate::traces::Failure;

/// An incomplete event below this size, in bytes, is not counted against the budget.
const UNCOUNTED: usize = 64 * 1024;

/// The stream. Dropping it before its end closes the upstream connection and aborts the known ids.
pub struct EventStream {
    upstream: ReplyBody,
    decoder: SseDecoder,
    active: ActiveGeneration,
    reads: EventAccess,
    state: State,
    limit: usize,
    /// The incomplete event's share of the byte budget.
    share: Share,
    /// A long event that waits for a permit to be parsed.
    waiting: Option<(Permit, sse::SseEvent)>,
    /// Events that were read and not handed out.
    held: VecDeque<Arc<GenerationEvent>>,
    /// The wait until the turns that the held events end are durable.
    durability: Option<DurabilityWait>,
    /// Why the stream broke off, after its last event.
    failed: Option<ReplyError>,
    attempts: Attempts,
    /// How long the engine may take to begin.
    begin_limit: Option<BeginLimit>,
}

/// Waits until a long event may be parsed.
type Permit = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Events are parsed.
    Reading,
    /// An event was too large: bytes are forwarded unchanged from here on.
    Passing,
    /// Nothing more will be sent.
    Ended,
}

impl Drop for EventStream {
    /// Records the tokens of an event that waits for the rest of a generation.
    fn drop(&mut self) {
        let last = self.attempts.abandon();
        last.map(|event| self.event(event));
    }
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream").field("active", &self.active).field("state", &self.state).finish_non_exhaustive()
    }
}

impl EventStream {
    /// A stream whose events must not be larger than `limit` bytes to be parsed. `head` is that of its request.
    #[must_use]
    pub fn new(
        upstream: ReplyBody,
        mut active: ActiveGeneration,
        reads: EventAccess,
        limit: u64,
        head: RequestHead,
    ) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let share = active.context().budget.reply();
        let attempts = Attempts::new(head, &mut active);
        Self {
            upstream,
            decoder: SseDecoder::default(),
            active,
            reads,
            state: State::Reading,
            limit,
            share,
            waiting: None,
            held: VecDeque::new(),
            durability: None,
            failed: None,
            attempts,
            begin_limit: None,
        }
    }

    /// Limits how long the engine may take to begin. Then the stream ends with an error, and its end aborts the request.
    pub(super) fn set_begin_limit(&mut self, limit: BeginLimit) {
        self.begin_limit = Some(limit);
    }

    /// Statistics of the reply so far.
    #[must_use]
    pub fn observed(&self) -> ReplyStats {
        self.active.capture().observed()
    }

    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Arc<GenerationEvent>, BoxError>>> {
        loop {
            if let Some(wait) = &mut self.durability {
                let is_confirmed = ready!(wait.as_mut().poll(cx));
                self.durability = None;
                if !is_confirmed {
                    self.held.clear();
                    return Poll::Ready(Some(Ok(self.refuse_with(log_wait::unconfirmed()))));
                }
            }
            if !self.holds_events()
                && let Some(event) = self.held.pop_front()
            {
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(error) = self.failed.take() {
                return Poll::Ready(Some(Err(error.into())));
            }
            if self.attempts.is_waiting() {
                let event = ready!(self.poll_replacement(cx));
                self.held.extend(event);
                self.durability = self.active.durability_wait();
                continue;
            }
            let event = match self.state {
                State::Ended => return Poll::Ready(None),
                State::Reading => match ready!(self.poll_decoded(cx)).or_else(|| self.check_size()) {
                    Some(event) => Some(event),
                    // what follows the abort or the refusal is its end mark
                    None if self.attempts.is_waiting() => continue,
                    None => ready!(self.poll_upstream(cx)),
                },
                State::Passing => ready!(self.poll_upstream(cx)),
            };
            self.held.extend(event);
            self.durability = self.active.durability_wait();
        }
    }

    /// Whether events wait for later ones. A client may disconnect when all choices of a chat have ended, but the ids come later.
    fn holds_events(&self) -> bool {
        self.state == State::Reading && !self.active.is_ended() && self.active.capture().holds_events()
    }

    /// The next complete event; `None` if more bytes are needed.
    fn poll_decoded(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arc<GenerationEvent>>> {
        if let Some((permit, _)) = &mut self.waiting {
            let permit = ready!(permit.as_mut().poll(cx));
            let event = self.waiting.take().and_then(|(_, event)| self.joined_event(event));
            drop(permit);
            return Poll::Ready(event);
        }
        let Some(event) = self.decoder.next() else { return Poll::Ready(None) };
        if event.raw.len() > self.limit {
            return Poll::Ready(Some(self.pass(Reason::TooLarge, &event.raw)));
        }
        let length = BodyLength::Reply(event.raw.len());
        if length.is_long() {
            self.waiting = Some((Box::pin(permit(length)), event));
            return self.poll_decoded(cx);
        }
        Poll::Ready(self.joined_event(event))
    }

    /// Joins an event to those of earlier attempts, and parses and measures it. `None` if another reply comes first.
    fn joined_event(&mut self, event: sse::SseEvent) -> Option<Arc<GenerationEvent>> {
        match self.attempts.join(event, &mut self.active) {
            JoinedEvent::Unjoinable => Some(self.refuse_unjoined()),
            JoinedEvent::Ended(last) => Some(self.end_with(last)),
            JoinedEvent::Events { before, event, aborted_tokens } => {
                let before = before.map(|event| self.event(event));
                if self.state != State::Reading {
                    return before;
                }
                self.held.extend(before);
                if let Some(tokens) = aborted_tokens {
                    self.active.capture_mut().mark_epoch(tokens);
                }
                event.map(|event| self.event(event))
            }
        }
    }

    /// Ends the stream with an error: what follows belongs after tokens that the client has, but cannot be joined to them.
    fn refuse_unjoined(&mut self) -> Arc<GenerationEvent> {
        let message = "the rest of a generation that the trainer aborted cannot be read".to_owned();
        self.refuse_with(Error::Upstream { message })
    }

    /// Switches to the reply that replaces the current one, once its head arrives. Without such a reply, returns the event that was held back.
    fn poll_replacement(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arc<GenerationEvent>>> {
        Poll::Ready(match ready!(self.attempts.poll(cx, &mut self.active)) {
            Ok(body) => {
                (self.upstream, self.decoder) = (body, SseDecoder::default());
                None
            }
            Err(last) => last.map(|event| self.event(event)),
        })
    }

    /// The event that was held back, if the reply that replaces an earlier one breaks off before its first event.
    fn broken_replacement(&mut self) -> Option<Arc<GenerationEvent>> {
        let last = self.attempts.end(ResumeObstacle::Broken, &self.active)?;
        self.active.mark_ended();
        Some(self.end_with(last))
    }

    /// Ends the stream with an event that was held back, and with the end mark, which was not read. Dropping the stream then aborts a
    /// generation that still runs.
    fn end_with(&mut self, last: sse::SseEvent) -> Arc<GenerationEvent> {
        let event = self.event(last);
        if self.state == State::Ended {
            return event;
        }
        self.held.push_back(event);
        self.state = State::Ended;
        self.active.capture_mut().cut(Fault::Broken);
        self.completed(GenerationEvent::done(Bytes::from_static(b"data: [DONE]\n\n")))
    }

    /// Reads more of the stream. Returns an event for bytes that are forwarded without parsing.
    fn poll_upstream(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arc<GenerationEvent>>> {
        let unparsed = |bytes: Bytes, why| (!bytes.is_empty()).then(|| Arc::new(GenerationEvent::unparsed(bytes, why)));
        let read = self.upstream.poll_read(cx, self.decoder.buffer());
        if let Some(limit) = &mut self.begin_limit {
            let expired = if read.is_pending() { Some(ready!(limit.poll_expired(cx))) } else { None };
            self.begin_limit = None;
            if let Some(error) = expired {
                return Poll::Ready(Some(self.refuse_with(error)));
            }
        }
        let event = match ready!(read) {
            Some(Ok(())) if self.state == State::Passing => unparsed(self.decoder.take_rest(), UnparsedReason::Piece),
            Some(Ok(())) => None,
            Some(Err(error)) => {
                self.active.context().metrics.upstream_errors.with_label_values(&["reset"]).inc();
                if let Some(last) = self.broken_replacement() {
                    return Poll::Ready(Some(last));
                }
                self.active.capture().fail_span(Failure::Broken);
                let rest = if self.active.capture().is_chat() { self.decoder.take_rest() } else { Bytes::new() };
                self.end();
                self.failed = Some(error);
                unparsed(rest, UnparsedReason::NoData)
            }
            None => {
                if let Some(last) = self.broken_replacement() {
                    return Poll::Ready(Some(last));
                }
                let rest = self.decoder.take_rest();
                if !sse::is_empty(&rest) {
                    self.active.capture_mut().incomplete();
                }
                let has_end_mark = self.active.is_ended();
                let capture = self.active.capture();
                if self.state == State::Reading && !has_end_mark && !capture.is_complete() {
                    capture.fail_span(Failure::Broken);
                }
                self.end();
                match self.reads {
                    // an API needs the end mark for its last events, also where the engine omits it
                    EventAccess::Fields if !has_end_mark => Some(self.completed(GenerationEvent::done(Bytes::new()))),
                    _ => unparsed(rest, UnparsedReason::NoData),
                }
            }
        };
        Poll::Ready(event)
    }

    fn end(&mut self) {
        self.state = State::Ended;
        self.active.mark_ended();
        self.active.capture_mut().cut(Fault::Broken);
    }

    /// Stops parsing if an incomplete event is too large to buffer.
    fn check_size(&mut self) -> Option<Arc<GenerationEvent>> {
        let reason = self.oversize_reason()?;
        Some(self.pass(reason, &[]))
    }

    /// Stops parsing. `event` is an event that is too large, if it is complete.
    fn pass(&mut self, reason: Reason, event: &[u8]) -> Arc<GenerationEvent> {
        self.active.capture_mut().skip(reason);
        if self.must_measure() {
            return self.refuse(reason);
        }
        let aborted = self.attempts.abandon();
        if let Some(aborted) = aborted {
            count_passed(&self.active.context().metrics, ResumeObstacle::Unreadable);
            return self.end_with(aborted);
        }
        if self.attempts.has_continued() {
            return self.refuse_unjoined();
        }
        self.state = State::Passing;
        self.active.capture_mut().plan_mut().drop_bodies();
        let _ = self.share.resize(0);
        self.active.capture_mut().incomplete();
        let rest = [event, &self.decoder.take_rest()].concat();
        Arc::new(GenerationEvent::unparsed(rest.into(), UnparsedReason::Piece))
    }

    /// Why an incomplete event, with the events that wait for it, is too large to buffer.
    fn oversize_reason(&mut self) -> Option<Reason> {
        let held: usize = self.held.iter().map(|event| event.raw().len()).sum();
        let pending = self.decoder.pending() + held;
        if pending > self.limit {
            return Some(Reason::TooLarge);
        }
        // counting events of the usual size would cost more than it protects
        let counted = if pending < UNCOUNTED { 0 } else { pending };
        self.share.resize(counted).err().map(|_| Reason::NoRoom)
    }

    /// Parses and measures an event.
    fn event(&mut self, event: sse::SseEvent) -> Arc<GenerationEvent> {
        if event.is_done() {
            // the engine has finished, even if the connection breaks later
            self.active.mark_ended();
            return self.completed(GenerationEvent::done(event.raw));
        }
        let sse::SseEvent { raw, data, has_several } = event;
        let Some(json) = data.filter(|json| !raw[json.clone()].trim_ascii().is_empty()) else {
            if has_several {
                self.active.capture_mut().incomplete();
            }
            return self.completed(GenerationEvent::unparsed(raw, UnparsedReason::NoData));
        };
        let framed = EventFrame { raw, json };
        if framed.raw.get(framed.json.start) != Some(&b'{') {
            self.active.capture_mut().incomplete();
            return self.completed(GenerationEvent::unreadable(framed));
        }
        let reads = self.reads;
        let (event, is_readable) = in_place(BodyLength::Reply(framed.raw.len()), || {
            let event = |parsed| GenerationEvent::streamed(framed.clone(), parsed, reads);
            match self.active.guarded(|capture| capture.decode_event(&framed, reads).map(event)) {
                Some(event) => (event, true),
                // a failure of tokentap loses entropies, not text
                None => match framed.outline(reads) {
                    Ok(parsed) => (event(parsed), false),
                    Err(_) => (GenerationEvent::unreadable(framed), false),
                },
            }
        });
        if !is_readable {
            self.active.capture_mut().incomplete();
        }
        if let Some(reason) = self.strict_failure(is_readable) {
            return self.refuse(reason);
        }
        if let Some(error) = self.active.interruption() {
            if self.active.capture().is_complete() {
                self.active.mark_ended();
            }
            return self.refuse_with(error);
        }
        self.completed(event)
    }

    /// Marks the event after which the client has everything: `[DONE]` or the last finish reason. Clients disconnect at either, before the
    /// body ends.
    fn completed(&self, mut event: GenerationEvent) -> Arc<GenerationEvent> {
        event.completes = self.active.is_ended() || self.active.capture().is_complete();
        Arc::new(event)
    }

    /// Ends the stream with an error event. Dropping the stream then aborts the generation.
    fn refuse(&mut self, reason: Reason) -> Arc<GenerationEvent> {
        self.refuse_with(Error::Strict { reason: reason.name().to_owned() })
    }

    /// The same, with any error.
    fn refuse_with(&mut self, error: Error) -> Arc<GenerationEvent> {
        self.state = State::Ended;
        self.active.capture().fail_span(Failure::Status(error.status()));
        self.active.capture_mut().cut(Fault::Aborted);
        Arc::new(GenerationEvent::failed(error))
    }

    /// Whether `--strict` applies to this request.
    fn must_measure(&self) -> bool {
        self.active.context().settings.is_strict && self.active.capture().plan().entropy_request.wanted
    }

    /// Why the stream must end under `--strict`; `None` if it may continue.
    fn strict_failure(&self, is_readable: bool) -> Option<Reason> {
        if !self.must_measure() {
            return None;
        }
        if is_readable { self.active.capture().observed().missing } else { Some(Reason::Unreadable) }
    }
}
