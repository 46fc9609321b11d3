// SPDX-License-Identifier: Apache-2.0
//! The reply to an attempt, shared by several readers. The most advanced reader polls the source, and events are buffered for the others.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};

use http::{StatusCode, response};
use http_body::SizeHint;
use parking_lot::Mutex;

use super::replay_buffer::ReplayBuffer;
use crate::generation::ReplyStats;
use crate::generation::event::GenerationEvent;
use crate::generation::events::{Events, Generation};

/// The future of a generation. Dropping it before it resolves aborts the generation.
pub(crate) type PendingReply = Pin<Box<dyn Future<Output = Generation> + Send>>;

pub(super) struct SharedReply {
    source: ReplySource,
    head: Option<response::Parts>,
    /// The reply does not stream.
    is_whole: bool,
    /// Length of a reply that is not parsed, in bytes, if known in advance.
    total: Option<u64>,
    buffer: ReplayBuffer,
    end: Option<Result<(), Arc<str>>>,
    /// The number of events after which clients have everything, although the stream may continue.
    complete: Option<usize>,
    /// Readers by id, in order of arrival.
    readers: BTreeMap<u64, ReaderPosition>,
    next_reader: u64,
    delivered: bool,
    observed: Option<ReplyStats>,
}

enum ReplySource {
    Head(PendingReply),
    Events(Events),
    Over,
}

#[derive(Debug, Default)]
struct ReaderPosition {
    /// It has taken the head.
    head: bool,
    /// Events that it has taken.
    taken: usize,
    /// Bytes of those.
    bytes: u64,
    /// Events that were delivered to its client.
    acknowledged: usize,
}

/// The result of taking an event.
#[derive(Debug)]
pub(super) enum NextEvent {
    Event(Arc<GenerationEvent>),
    End,
    Failed(Arc<str>),
    /// No event is buffered.
    Nothing,
}

impl SharedReply {
    pub(super) fn new(pending: PendingReply, buffer: ReplayBuffer) -> Self {
        Self {
            source: ReplySource::Head(pending),
            head: None,
            is_whole: false,
            total: None,
            buffer,
            end: None,
            complete: None,
            readers: BTreeMap::new(),
            next_reader: 0,
            delivered: false,
            observed: None,
        }
    }

    /// Adds a reader at the first event; `None` if that event was dropped, the reply broke off, or it was delivered. A reply without
    /// readers must also be replayable.
    pub(super) fn join(&mut self) -> Option<u64> {
        let broken = matches!(self.end, Some(Err(_)));
        let arrived = self.delivered || self.readers.values().any(|at| self.has_all(at));
        let idle = self.readers.is_empty() && self.next_reader > 0;
        let open = self.buffer.is_complete() && !broken && !arrived && (!idle || self.is_replayable());
        open.then(|| {
            let reader = self.next_reader;
            self.next_reader += 1;
            self.readers.insert(reader, ReaderPosition::default());
            reader
        })
    }

    /// Removes a reader and returns whether it was the last. Without readers the source is dropped, which aborts a running generation.
    pub(super) fn leave(&mut self, reader: u64) -> bool {
        let Some(at) = self.readers.remove(&reader) else { return false };
        self.delivered |= self.has_all(&at);
        self.trim();
        if !self.readers.is_empty() {
            return false;
        }
        if self.end.is_none() {
            self.close(Err("the reply has no reader left".into()));
        }
        if !self.is_replayable() {
            self.buffer.stop_buffering();
            self.buffer.trim(usize::MAX);
        }
        true
    }

    /// Records that all events the reader has taken were delivered to its client.
    pub(super) fn acknowledge(&mut self, reader: u64) {
        let at = self.readers.entry(reader).or_default();
        at.acknowledged = at.taken;
    }

    pub(super) fn head(&mut self, reader: u64) -> Option<response::Parts> {
        let head = self.head.clone()?;
        self.readers.entry(reader).or_default().head = true;
        Some(head)
    }

    /// Whether the reply does not stream and its event has arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Takes the next event of a reader.
    pub(super) fn take(&mut self, reader: u64) -> NextEvent {
        let at = self.readers.entry(reader).or_default();
        let Ok(event) = self.buffer.get(at.taken) else {
            return NextEvent::Failed("the reply is too large to buffer for a client that reads this slowly".into());
        };
        let Some(event) = event.cloned() else {
            return match &self.end {
                None => NextEvent::Nothing,
                Some(Ok(())) => NextEvent::End,
                Some(Err(error)) => NextEvent::Failed(Arc::clone(error)),
            };
        };
        at.taken += 1;
        at.bytes += event.raw().len() as u64;
        self.trim();
        NextEvent::Event(event)
    }

    /// Whether no event may be pulled before the newest reader catches up. Its client sent the latest retry, so it is still waiting.
    pub(super) fn is_stalled(&self) -> bool {
        self.buffer.is_full()
    }

    /// Pulls the head, an event, or the end. Must not be called after the end.
    pub(super) fn pull(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.source {
            ReplySource::Head(pending) => {
                let Generation { head, mut events } = ready!(pending.as_mut().poll(cx));
                self.head = Some(head);
                self.total = events.size_hint().exact();
                let whole = events.take_whole();
                self.source = ReplySource::Events(events);
                if let Some(event) = whole {
                    self.is_whole = true;
                    self.buffer.push(event);
                }
            }
            ReplySource::Events(events) => match ready!(events.poll_next(cx)) {
                Some(Ok(event)) => {
                    let completes = event.completes;
                    self.buffer.push(event);
                    self.trim();
                    if completes && self.complete.is_none() {
                        self.complete = Some(self.buffer.count());
                    }
                }
                Some(Err(error)) => self.close(Err(error.to_string().into())),
                None => self.close(Ok(())),
            },
            ReplySource::Over => {}
        }
        if matches!(&self.source, ReplySource::Events(events) if events.is_end_stream()) {
            self.close(Ok(()));
        }
        Poll::Ready(())
    }

    /// Keeps events only until the newest reader has taken them. From now on no reader can start at the first event.
    pub(super) fn stop_buffering(&mut self) {
        self.buffer.stop_buffering();
        self.trim();
    }

    fn trim(&mut self) {
        if let Some((_, last)) = self.readers.last_key_value() {
            self.buffer.trim(last.taken);
        }
    }

    /// Drops the source and records how the reply ended.
    fn close(&mut self, end: Result<(), Arc<str>>) {
        self.observed = self.observed();
        self.source = ReplySource::Over;
        self.end = Some(end);
    }

    fn has_ended_well(&self) -> bool {
        matches!(self.end, Some(Ok(())))
    }

    /// Whether everything the client requested was delivered to it.
    fn has_all(&self, at: &ReaderPosition) -> bool {
        let all = self.complete.or_else(|| self.has_ended_well().then(|| self.buffer.count()));
        at.head && all.is_some_and(|all| at.acknowledged >= all)
    }

    fn is_replayable(&self) -> bool {
        let good = self.head.as_ref().is_some_and(|head| head.status == StatusCode::OK);
        good && self.has_ended_well() && self.buffer.is_complete() && !self.delivered
    }

    /// Whether the reply was delivered to some client.
    pub(super) fn is_delivered(&self) -> bool {
        self.delivered
    }

    /// Whether every event is kept. If not, a reader may have to wait for another reader.
    pub(super) fn is_buffering(&self) -> bool {
        self.buffer.is_complete()
    }

    /// Whether the events come at the end of a generation that runs.
    pub(super) fn is_deferred(&self) -> bool {
        matches!(&self.source, ReplySource::Events(events) if events.are_deferred())
    }

    /// Counts the bytes of the request, which is kept too.
    pub(super) fn count_request(&mut self, bytes: usize) {
        self.buffer.count_request(bytes);
    }

    pub(super) fn observed(&self) -> Option<ReplyStats> {
        match &self.source {
            ReplySource::Events(events) => events.observed(),
            ReplySource::Head(_) | ReplySource::Over => self.observed,
        }
    }

    /// Whether the reader has taken all events of a completed reply.
    pub(super) fn is_at_end(&self, reader: u64) -> bool {
        self.has_ended_well() && self.readers.get(&reader).is_some_and(|at| at.taken >= self.buffer.count())
    }

    pub(super) fn size_hint(&self, reader: u64) -> SizeHint {
        let taken = self.readers.get(&reader).map_or(0, |at| at.bytes);
        self.total.map_or_else(SizeHint::default, |total| SizeHint::with_exact(total.saturating_sub(taken)))
    }
}

/// The wakers of the readers that wait for one reply. As a [`Wake`] it wakes all of them, because the reader that polled last may be dropped
/// or stop reading.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    // held to add or to take wakers, never while waking them
    wakers: Mutex<Vec<(u64, Waker)>>,
}

impl Wakers {
    /// Registers a waiting reader.
    pub(super) fn add(&self, reader: u64, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        match wakers.iter_mut().find(|(id, _)| *id == reader) {
            Some((_, known)) => known.clone_from(waker),
            None => wakers.push((reader, waker.clone())),
        }
    }

    /// Wakes all readers except this one, which has made progress and is no longer waiting.
    pub(super) fn wake_others(&self, reader: u64) {
        self.wake_if(|id| id != reader);
    }

    /// Wakes the readers whose id fulfils a condition, and forgets all.
    fn wake_if(&self, condition: impl Fn(u64) -> bool) {
        let mut taken = std::mem::take(&mut *self.wakers.lock());
        taken.drain(..).filter(|(id, _)| condition(*id)).for_each(|(_, waker)| waker.wake());
        // the memory is used again: an event of a stream would allocate twice
        let mut wakers = self.wakers.lock();
        if wakers.capacity() == 0 {
            *wakers = taken;
        }
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_if(|_| true);
    }
}
