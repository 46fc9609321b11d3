// SPDX-License-Identifier: Apache-2.0
//! Buffers the events of a reply for its readers and for retries.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::generation::event::GenerationEvent;

/// Events are compacted once the buffer holds this fraction of its limit: one part in 8.
const COMPACT_FROM: usize = 8;

/// Holds all events until the limit is exceeded; from then on only those that a reader still needs.
#[derive(Debug)]
pub(super) struct ReplayBuffer {
    events: VecDeque<Arc<GenerationEvent>>,
    /// Bytes of the buffered events.
    held: usize,
    /// The number of events that were dropped before those.
    dropped: usize,
    complete: bool,
    /// The limit, in bytes.
    limit: usize,
    accounting: BufferedBytes,
}

impl ReplayBuffer {
    pub(super) fn new(limit: usize, accounting: BufferedBytes) -> Self {
        Self { events: VecDeque::new(), held: 0, dropped: 0, complete: true, limit, accounting }
    }

    /// Whether the reply can be read from its beginning.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether the limit is exceeded, so that no event may be pushed before a reader has taken some.
    pub(super) fn is_full(&self) -> bool {
        !self.complete && self.held > self.limit
    }

    /// The number of events that were pushed.
    pub(super) fn count(&self) -> usize {
        self.dropped + self.events.len()
    }

    /// Returns an event; `None` if it was not pushed yet.
    ///
    /// # Errors
    /// When the event was dropped.
    pub(super) fn get(&self, event: usize) -> Result<Option<&Arc<GenerationEvent>>, EventDropped> {
        Ok(self.events.get(event.checked_sub(self.dropped).ok_or(EventDropped)?))
    }

    pub(super) fn push(&mut self, event: Arc<GenerationEvent>) {
        // in a long cumulative stream the repeated rows of forced logprobs are most of the bytes
        let long = self.complete && self.held > self.limit / COMPACT_FROM;
        let event = if long { event.compacted().map_or(event, Arc::new) } else { event };
        self.held += event.size();
        if self.held > self.limit {
            self.stop_buffering();
        }
        if self.complete {
            self.accounting.add(event.size());
        }
        self.events.push_back(event);
    }

    /// Stops keeping events for later readers: an event is dropped once no current reader needs it.
    pub(super) fn stop_buffering(&mut self) {
        self.complete = false;
        self.accounting.clear();
    }

    /// Drops the events before `needed`, unless all events are kept.
    pub(super) fn trim(&mut self, needed: usize) {
        while !self.complete && self.dropped < needed {
            let Some(event) = self.events.pop_front() else { return };
            self.held -= event.size();
            self.dropped += 1;
        }
    }

    /// Counts the bytes of the request, which is kept too.
    pub(super) fn count_request(&mut self, bytes: usize) {
        self.accounting.set_request(bytes);
    }
}

/// The event was dropped from the buffer.
#[derive(Debug)]
pub(super) struct EventDropped;

/// The buffered bytes of one attempt, subtracted from the total when it is dropped.
#[derive(Debug)]
pub(super) struct BufferedBytes {
    all: Arc<AtomicUsize>,
    request: usize,
    reply: usize,
}

impl BufferedBytes {
    /// Starts at zero; `all` is the total.
    pub(super) fn new(all: Arc<AtomicUsize>) -> Self {
        Self { all, request: 0, reply: 0 }
    }

    /// Adds bytes of the reply.
    pub(super) fn add(&mut self, bytes: usize) {
        self.reply += bytes;
        self.all.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Removes the bytes of the reply.
    pub(super) fn clear(&mut self) {
        self.all.fetch_sub(std::mem::take(&mut self.reply), Ordering::Relaxed);
    }

    pub(super) fn set_request(&mut self, bytes: usize) {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        self.all.fetch_sub(std::mem::replace(&mut self.request, bytes), Ordering::Relaxed);
    }
}

impl Drop for BufferedBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.request + self.reply, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::generation::event::{EventAccess, EventFrame, UnparsedReason};
    use crate::json::Edit;

    /// An event whose `rows` are removed: most of its bytes.
    fn event() -> Arc<GenerationEvent> {
        let rows = "1,".repeat(5000);
        let raw = Bytes::from(format!("data: {{\"meta_info\":{{\"rows\":[{rows}1],\"id\":\"r\"}}}}\n\n"));
        let framed = EventFrame { json: 6..raw.len() - 2, raw };
        let mut parsed = framed.outline(EventAccess::Fields).unwrap();
        let meta = parsed.outputs[0].chunk.meta.clone().unwrap();
        let mut edit = Edit::new(&framed.raw, &meta);
        edit.remove(|key| key.is("rows"));
        edit.finish(&mut parsed.changes);
        Arc::new(GenerationEvent::streamed(framed, parsed, EventAccess::Fields))
    }

    #[test]
    fn memory_of_single_bytes_is_limited() {
        const LIMIT: usize = 100_000;
        let mut buffer = ReplayBuffer::new(LIMIT, BufferedBytes::new(Arc::default()));
        let pieces = std::iter::repeat_with(|| {
            let piece = GenerationEvent::unparsed(Bytes::from_static(b"x"), UnparsedReason::Piece);
            buffer.push(Arc::new(piece));
            buffer.is_complete()
        });
        let buffered = pieces.take(LIMIT).take_while(|is_complete| *is_complete).count();
        assert!(buffered * size_of::<GenerationEvent>() <= LIMIT, "{buffered} events");
        buffer.trim(buffer.count());
        assert_eq!((buffer.events.len(), buffer.held), (0, 0), "what a reader has taken is dropped");
    }

    #[test]
    fn long_reply_is_buffered_without_forced_rows() {
        let all = Arc::default();
        let mut buffer = ReplayBuffer::new(200_000, BufferedBytes::new(Arc::clone(&all)));
        for _ in 0..100 {
            buffer.push(event());
        }
        assert!(buffer.is_complete(), "{} bytes", buffer.held);
        assert_eq!(buffer.get(99).unwrap().unwrap().raw(), "data: {\"meta_info\":{\"id\":\"r\"}}\n\n");
        assert_eq!(all.load(Ordering::Relaxed), buffer.held, "the buffered bytes are counted");
    }
}
