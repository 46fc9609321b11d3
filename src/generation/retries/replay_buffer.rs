//! The events of a reply that can still be read.

use std::collections::VecDeque;
use std::sync::Arc;

use super::buffered_bytes::BufferedBytes;
use crate::generation::event::GenerationEvent;

/// The events: all of them, or from one too many on only those that a reader still needs.
#[derive(Debug)]
pub(super) struct ReplayBuffer {
    events: VecDeque<Arc<GenerationEvent>>,
    /// Bytes of those.
    held: usize,
    /// How many events came before those.
    gone: usize,
    all: bool,
    /// More bytes than this are not kept.
    limit: usize,
    weight: BufferedBytes,
}

impl ReplayBuffer {
    pub(super) fn new(limit: usize, weight: BufferedBytes) -> Self {
        Self { events: VecDeque::new(), held: 0, gone: 0, all: true, limit, weight }
    }

    /// Whether the reply can be read from its beginning.
    pub(super) fn is_all(&self) -> bool {
        self.all
    }

    /// Whether more is held than may be, so that nothing may come before some of it has been read.
    pub(super) fn is_full(&self) -> bool {
        !self.all && self.held > self.limit
    }

    /// Events that have come.
    pub(super) fn count(&self) -> usize {
        self.gone + self.events.len()
    }

    /// An event; `None` where it has not come yet.
    ///
    /// # Errors
    /// When it is gone.
    pub(super) fn get(&self, event: usize) -> Result<Option<&Arc<GenerationEvent>>, Gone> {
        Ok(self.events.get(event.checked_sub(self.gone).ok_or(Gone)?))
    }

    pub(super) fn push(&mut self, event: Arc<GenerationEvent>) {
        self.held += event.native().len();
        if self.held > self.limit {
            self.stop();
        }
        if self.all {
            self.weight.add(event.native().len());
        }
        self.events.push_back(event);
    }

    /// Drops events when no reader needs them any more: from here on no reader can start at the first event.
    pub(super) fn stop(&mut self) {
        self.all = false;
        self.weight.clear();
    }

    /// The events before this one are no longer needed.
    pub(super) fn trim(&mut self, needed: usize) {
        while !self.all && self.gone < needed {
            let Some(event) = self.events.pop_front() else { return };
            self.held -= event.native().len();
            self.gone += 1;
        }
    }

    /// Counts the request, which is kept as well.
    pub(super) fn weigh_request(&mut self, bytes: usize) {
        self.weight.ask(bytes);
    }
}

/// An event was not kept.
#[derive(Debug)]
pub(super) struct Gone;
