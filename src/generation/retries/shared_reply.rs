//! The reply to an attempt, shared by several readers: the reader that is furthest polls the source, and events are kept for later readers.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{StatusCode, response};
use http_body::SizeHint;

use super::replay_buffer::ReplayBuffer;
use crate::generation::Observed;
use crate::generation::event::GenerationEvent;
use crate::generation::events::{Events, Generation};

/// A generation that will be answered; dropped before, it is aborted.
pub type Pending = Pin<Box<dyn Future<Output = Generation> + Send>>;

/// The reply.
pub(super) struct Reply {
    source: Source,
    head: Option<response::Parts>,
    /// The reply does not stream.
    is_whole: bool,
    /// Bytes that are not parsed, where they are known beforehand.
    total: Option<u64>,
    kept: ReplayBuffer,
    end: Option<Result<(), Arc<str>>>,
    /// So many events are all that clients want, although the stream may not have ended.
    complete: Option<usize>,
    /// By the order in which they came.
    readers: BTreeMap<u64, At>,
    came: u64,
    delivered: bool,
    observed: Option<Observed>,
}

enum Source {
    Head(Pending),
    Events(Events),
    Over,
}

/// How far a reader is.
#[derive(Debug, Default)]
struct At {
    /// It has the head.
    head: bool,
    /// Events that it has.
    taken: usize,
    /// Bytes of those.
    bytes: u64,
    /// Events that its client was given.
    acknowledged: usize,
    /// It was polled once after the reply failed, so that it can write what it has before the error.
    warned: bool,
}

/// What a reader gets.
#[derive(Debug)]
pub(super) enum Next {
    Event(Arc<GenerationEvent>),
    End,
    Failed(Arc<str>),
    /// Once before a failure.
    Warning,
    /// Nothing has come yet.
    Nothing,
}

impl Reply {
    pub(super) fn new(pending: Pending, kept: ReplayBuffer) -> Self {
        Self {
            source: Source::Head(pending),
            head: None,
            is_whole: false,
            total: None,
            kept,
            end: None,
            complete: None,
            readers: BTreeMap::new(),
            came: 0,
            delivered: false,
            observed: None,
        }
    }

    /// A reader at the beginning; `None` where that is no longer to be had, the reply broke off, or it has arrived. One that nobody
    /// reads must also be whole and good.
    pub(super) fn join(&mut self) -> Option<u64> {
        let broken = matches!(self.end, Some(Err(_)));
        let arrived = self.delivered || self.readers.values().any(|at| self.has_all(at));
        let idle = self.readers.is_empty() && self.came > 0;
        let open = self.kept.is_all() && !broken && !arrived && (!idle || self.is_replayable());
        open.then(|| {
            let reader = self.came;
            self.came += 1;
            self.readers.insert(reader, At::default());
            reader
        })
    }

    /// The reader goes; says whether it was the last. The source goes with it, which aborts what has not ended.
    pub(super) fn leave(&mut self, reader: u64) -> bool {
        let Some(at) = self.readers.remove(&reader) else { return false };
        self.delivered |= self.has_all(&at);
        self.trim();
        if !self.readers.is_empty() {
            return false;
        }
        if self.end.is_none() {
            self.close(Err("nobody reads the reply any more".into()));
        }
        if !self.is_replayable() {
            self.kept.stop();
            self.kept.trim(usize::MAX);
        }
        true
    }

    /// The reader's client was given all events that the reader has.
    pub(super) fn acknowledge(&mut self, reader: u64) {
        let at = self.readers.entry(reader).or_default();
        at.acknowledged = at.taken;
    }

    pub(super) fn head(&mut self, reader: u64) -> Option<response::Parts> {
        let head = self.head.clone()?;
        self.readers.entry(reader).or_default().head = true;
        Some(head)
    }

    /// Whether the reply is one event that has come.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// What comes next for this reader.
    pub(super) fn take(&mut self, reader: u64) -> Next {
        let at = self.readers.entry(reader).or_default();
        let Ok(event) = self.kept.get(at.taken) else {
            return Next::Failed("the reply was too large to be kept for a client so far behind".into());
        };
        let Some(event) = event.cloned() else {
            return match &self.end {
                None => Next::Nothing,
                Some(Ok(())) => Next::End,
                Some(Err(_)) if !std::mem::replace(&mut at.warned, true) => Next::Warning,
                Some(Err(error)) => Next::Failed(Arc::clone(error)),
            };
        };
        at.taken += 1;
        at.bytes += event.raw().len() as u64;
        self.trim();
        Next::Event(event)
    }

    /// Whether nothing may be pulled before the reader that came last has caught up: it is the one whose client has not given up.
    pub(super) fn is_stalled(&self) -> bool {
        self.kept.is_full()
    }

    /// Takes a step: the head, an event, or the end. Not to be called after the end.
    pub(super) fn pull(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.source {
            Source::Head(pending) => {
                let Generation { head, mut events } = ready!(pending.as_mut().poll(cx));
                self.head = Some(head);
                self.total = events.size_hint().exact();
                let whole = events.take_whole();
                self.source = Source::Events(events);
                if let Some(event) = whole {
                    self.is_whole = true;
                    self.kept.push(event);
                }
            }
            Source::Events(events) => match ready!(events.poll_next(cx)) {
                Some(Ok(event)) => {
                    let completes = event.completes;
                    self.kept.push(event);
                    self.trim();
                    if completes && self.complete.is_none() {
                        self.complete = Some(self.kept.count());
                    }
                }
                Some(Err(error)) => self.close(Err(error.to_string().into())),
                None => self.close(Ok(())),
            },
            Source::Over => {}
        }
        if matches!(&self.source, Source::Events(events) if events.is_end_stream()) {
            self.close(Ok(()));
        }
        Poll::Ready(())
    }

    /// Keeps events only until the newest reader has taken them: from here on no reader can start at the first event.
    pub(super) fn stop_keeping(&mut self) {
        self.kept.stop();
        self.trim();
    }

    fn trim(&mut self) {
        if let Some((_, last)) = self.readers.last_key_value() {
            self.kept.trim(last.taken);
        }
    }

    /// Lets go of the source.
    fn close(&mut self, end: Result<(), Arc<str>>) {
        self.observed = self.observed();
        self.source = Source::Over;
        self.end = Some(end);
    }

    fn has_ended_well(&self) -> bool {
        matches!(self.end, Some(Ok(())))
    }

    /// Whether the reader's client was given everything it asked for.
    fn has_all(&self, at: &At) -> bool {
        let all = self.complete.or_else(|| self.has_ended_well().then(|| self.kept.count()));
        at.head && all.is_some_and(|all| at.acknowledged >= all)
    }

    fn is_replayable(&self) -> bool {
        let good = self.head.as_ref().is_some_and(|head| head.status == StatusCode::OK);
        good && self.has_ended_well() && self.kept.is_all() && !self.delivered
    }

    /// Whether some reader's client was given all of it.
    pub(super) fn is_delivered(&self) -> bool {
        self.delivered
    }

    /// Whether every event is kept; where not, some readers may wait for another one.
    pub(super) fn keeps(&self) -> bool {
        self.kept.is_all()
    }

    /// Counts the request, which is kept as well.
    pub(super) fn weigh_request(&mut self, bytes: usize) {
        self.kept.weigh_request(bytes);
    }

    pub(super) fn observed(&self) -> Option<Observed> {
        match &self.source {
            Source::Events(events) => events.observed(),
            Source::Head(_) | Source::Over => self.observed,
        }
    }

    /// Whether the reader has taken everything.
    pub(super) fn is_at_end(&self, reader: u64) -> bool {
        self.has_ended_well() && self.readers.get(&reader).is_some_and(|at| at.taken >= self.kept.count())
    }

    pub(super) fn size_hint(&self, reader: u64) -> SizeHint {
        let taken = self.readers.get(&reader).map_or(0, |at| at.bytes);
        self.total.map_or_else(SizeHint::default, |total| SizeHint::with_exact(total.saturating_sub(taken)))
    }
}
