//! The events of a reply that can still be read.

use std::collections::VecDeque;
use std::sync::Arc;

use super::buffered_bytes::BufferedBytes;
use crate::generation::event::GenerationEvent;

/// Events are compacted when this part of the limit is held.
const COMPACT_FROM: usize = 8;

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
        // a long stream of a cumulative engine repeats the rows of logprobs that were forced: most of its bytes
        let long = self.all && self.held > self.limit / COMPACT_FROM;
        let event = if long { event.compacted().map_or(event, Arc::new) } else { event };
        self.held += event.size();
        if self.held > self.limit {
            self.stop();
        }
        if self.all {
            self.weight.add(event.size());
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
            self.held -= event.size();
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::generation::event::{Framed, Reads};
    use crate::json::Edit;

    /// An event whose `rows` are removed: most of its bytes.
    fn event() -> Arc<GenerationEvent> {
        let rows = "1,".repeat(5000);
        let raw = Bytes::from(format!("data: {{\"meta_info\":{{\"rows\":[{rows}1],\"id\":\"r\"}}}}\n\n"));
        let framed = Framed { json: 6..raw.len() - 2, raw };
        let mut parsed = framed.outline(Reads::Fields).unwrap();
        let meta = parsed.outputs[0].chunk.meta.clone().unwrap();
        let mut edit = Edit::new(&framed.raw, &meta);
        edit.remove(|key| key.is("rows"));
        edit.finish(&mut parsed.changes);
        Arc::new(GenerationEvent::streamed(framed, parsed, Reads::Fields))
    }

    #[test]
    fn long_reply_is_kept_without_the_rows_that_were_forced() {
        let all = Arc::default();
        let mut kept = ReplayBuffer::new(200_000, BufferedBytes::new(Arc::clone(&all)));
        for _ in 0..100 {
            kept.push(event());
        }
        assert!(kept.is_all(), "{} bytes", kept.held);
        assert_eq!(kept.get(99).unwrap().unwrap().raw(), "data: {\"meta_info\":{\"id\":\"r\"}}\n\n");
        assert_eq!(all.load(std::sync::atomic::Ordering::Relaxed), kept.held, "what is held is counted");
    }
}
