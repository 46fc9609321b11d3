//! A stream of the engine's own chat endpoint, whose ids are taken as it passes.

use bytes::Bytes;
use memchr::memmem;

use super::{EngineIds, Remainder, Wanted};
use crate::engine::sse::{SseDecoder, SseEvent};

/// Reads a stream, however its bytes are split. Of most events it reads no JSON.
#[derive(Debug)]
pub(crate) struct Listener {
    decoder: SseDecoder,
    wanted: Wanted,
    /// How many choices there are.
    n: usize,
    engine_ids: EngineIds,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    /// The end mark has come.
    Done,
    /// Bytes pass unread from here on.
    Passthrough,
}

impl Listener {
    /// A reader at the start of a stream of `n` choices.
    #[must_use]
    pub(crate) fn new(wanted: Wanted, n: usize) -> Self {
        Self { decoder: SseDecoder::default(), wanted, n, engine_ids: EngineIds::default(), state: State::Reading }
    }

    /// Reads more; what goes on to the client is put behind `out`. Whatever becomes of it, no byte is lost.
    pub(crate) fn push(&mut self, data: &[u8], out: &mut Vec<u8>) {
        if self.state == State::Passthrough {
            out.extend_from_slice(data);
            return;
        }
        self.decoder.push(data);
        while let Some(event) = self.decoder.next() {
            let before = out.len();
            // first of all: what is out cannot be lost any more
            out.extend_from_slice(&event.raw);
            if event.is_done() {
                self.state = State::Done;
            }
            match self.read(&event) {
                Remainder::Same => {}
                Remainder::Changed(changed) => {
                    out.truncate(before);
                    out.extend_from_slice(&changed);
                }
                Remainder::Nothing => out.truncate(before),
            }
        }
    }

    /// Stops listening, and hands out what was held back.
    pub(crate) fn give_up(&mut self) -> Bytes {
        self.state = State::Passthrough;
        self.decoder.take_rest()
    }

    /// What waits for the end of its event when the stream has ended.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.decoder.take_rest()
    }

    /// How many bytes wait for the end of their event.
    #[must_use]
    pub(crate) fn pending(&self) -> usize {
        self.decoder.pending()
    }

    /// Whether ids and end mark are still to come although every choice has ended, behind which clients leave.
    #[must_use]
    pub(crate) fn is_closing(&self) -> bool {
        self.state == State::Reading && self.engine_ids.finishes.len() >= self.n && !self.has_ids()
    }

    /// Whether the ids have come.
    #[must_use]
    pub(crate) fn has_ids(&self) -> bool {
        self.engine_ids.prompt.is_some() && self.engine_ids.responses.is_some()
    }

    /// Whether the end mark has come.
    #[must_use]
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// What was engine_ids; nothing where not all was listened to.
    pub(crate) fn take(&mut self) -> Option<EngineIds> {
        (self.state != State::Passthrough).then(|| std::mem::take(&mut self.engine_ids))
    }

    fn read(&mut self, event: &SseEvent) -> Remainder {
        let Some(at) = event.data.clone().filter(|_| matters(&event.raw)) else { return Remainder::Same };
        // what cannot be read is not what was asked for
        self.engine_ids.read(&event.raw, at, self.wanted).unwrap_or(Remainder::Same)
    }
}

/// Whether an event may have ids or the end of a choice. In texts quotes are escaped, so that they are not taken for keys.
fn matters(event: &[u8]) -> bool {
    const REASON: &[u8] = b"\"finish_reason\":";
    let ended = |at: usize| !event[at + REASON.len()..].trim_ascii_start().starts_with(b"null");
    memmem::find(event, b"\"sglext\"").is_some() || memmem::find_iter(event, REASON).any(ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_all<'a>(chunks: impl IntoIterator<Item = &'a [u8]>, wanted: Wanted) -> (Vec<u8>, Option<EngineIds>) {
        let mut listener = Listener::new(wanted, 1);
        let mut out = Vec::new();
        chunks.into_iter().for_each(|chunk| listener.push(chunk, &mut out));
        out.extend_from_slice(&listener.rest());
        (out, listener.take())
    }

    fn event() -> impl Strategy<Value = (bool, &'static str)> {
        prop::sample::select(vec![
            (false, "data: {\"id\":\"r\",\"choices\":[{\"index\":0,\"finish_reason\":null}]}\n\n"),
            (false, "data: {\"choices\":[{\"index\":0,\"finish_reason\": \"stop\"}]}\r\n\r\n"),
            (false, "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"sglext\\\":\\\"finish_reason\\\":\"}}]}\n\n"),
            (false, "data: {\"choices\":[],\"usage\":{\"total_tokens\":3}}\n\n"),
            (false, ": ping\n\n"),
            (false, "event: other\ndata: \"finish_reason\":1\n\n"),
            (false, "data: a\ndata: b\n\n"),
            (false, "data: [DONE]\n\n"),
            (false, "dat"),
            (
                true,
                "event: sglext_ids\ndata: {\"choices\":[],\"usage\":null,\"sglext\":{\"input_ids\":[1],\"output_ids\":[[2]]}}\n\n",
            ),
            (
                true,
                "data: {\"choices\":[],\"sglext\":{\"routed_experts\":\"x\",\"input_ids\":[1],\"output_ids\":[[2]]}}\n\n",
            ),
        ])
    }

    proptest! {
        #[test]
        fn every_split_gives_the_same_ids_and_text(
            events in prop::collection::vec(event(), 0..10),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
            wanted in any::<(bool, bool)>(),
        ) {
            let wanted = Wanted { input: wanted.0, output: wanted.1, framed: false };
            let text: String = events.iter().map(|(_, text)| *text).collect();
            let bytes = text.as_bytes();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
            at.sort_unstable();
            let whole = read_all([bytes], wanted);
            prop_assert_eq!(&read_all(at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]), wanted), &whole);
            prop_assert_eq!(&read_all(bytes.chunks(1), wanted), &whole);
            let both = Wanted { input: true, output: true, framed: false };
            if wanted == both || events.iter().all(|(ids, _)| !ids) {
                prop_assert_eq!(&whole.0, bytes);
            }
        }
    }

    #[test]
    fn an_event_of_its_own_is_heard_and_goes_no_further() {
        let finish = "data: {\"id\":\"r\",\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\n";
        let ids = "event: sglext_ids\ndata: {\"id\":\"r\",\"choices\":[],\"usage\":null,\"sglext\":{\"input_ids\":[1],\"output_ids\":[[2]]}}\n\n";
        let (out, engine_ids) = read_all([finish.as_bytes(), ids.as_bytes(), b"data: [DONE]\n\n"], Wanted::default());
        assert_eq!(String::from_utf8(out).unwrap(), format!("{finish}data: [DONE]\n\n"));
        let engine_ids = engine_ids.unwrap();
        assert_eq!((engine_ids.prompt, engine_ids.responses), (Some(vec![1]), Some(vec![vec![2]])));
    }

    #[test]
    fn the_end_is_near_when_every_choice_has_ended() {
        let mut listener = Listener::new(Wanted::default(), 2);
        let mut out = Vec::new();
        let finish =
            |index: usize| format!("data: {{\"choices\":[{{\"index\":{index},\"finish_reason\":\"stop\"}}]}}\n\n");
        for (said, closing) in
            [(finish(1), false), (finish(1), false), (finish(0), true), ("data: [DONE]\n\n".into(), false)]
        {
            listener.push(said.as_bytes(), &mut out);
            assert_eq!(listener.is_closing(), closing, "{said}");
        }
        assert!(listener.is_done());
    }

    #[test]
    fn listener_that_gives_up_returns_all_bytes_and_no_ids() {
        let mut listener = Listener::new(Wanted::default(), 1);
        let mut out = Vec::new();
        listener.push(b"data: {\"te", &mut out);
        assert_eq!((out.len(), listener.pending()), (0, 10));
        out.extend_from_slice(&listener.give_up());
        listener.push(b"xt\":1", &mut out);
        assert_eq!((&out[..], listener.take()), (&b"data: {\"text\":1"[..], None));
    }
}
