//! Parses the token ids in a stream of the engine's own chat endpoint while the stream is forwarded.

use bytes::Bytes;
use memchr::memmem;

use super::{EngineIds, Remainder, SglextOptions};
use crate::engine::transport::sse::{SseDecoder, SseEvent};

/// Filters a stream: parses `sglext`, and removes the ids that the client did not request. The bytes of the stream may be split anywhere.
/// The JSON of most events is not parsed.
#[derive(Debug)]
pub(crate) struct SglextFilter {
    decoder: SseDecoder,
    options: SglextOptions,
    /// The number of choices.
    n: usize,
    engine_ids: EngineIds,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Parsing,
    /// `[DONE]` has arrived.
    Done,
    /// The rest of the stream is not parsed.
    Passthrough,
}

impl SglextFilter {
    /// A filter at the start of a stream of `n` choices.
    #[must_use]
    pub(crate) fn new(options: SglextOptions, n: usize) -> Self {
        Self { decoder: SseDecoder::default(), options, n, engine_ids: EngineIds::default(), state: State::Parsing }
    }

    /// Parses more bytes, and appends the bytes for the client to `out`. If parsing panics, no byte is lost: each event is in `out` or
    /// still pending.
    pub(crate) fn push(&mut self, data: &[u8], out: &mut Vec<u8>) {
        if self.state == State::Passthrough {
            out.extend_from_slice(data);
            return;
        }
        self.decoder.push(data);
        while let Some(event) = self.decoder.next() {
            let before = out.len();
            // appended first, so that a panic in the parser does not lose the event
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

    /// Stops parsing and returns the pending bytes. The rest of the stream passes unchanged.
    pub(crate) fn stop_parsing(&mut self) -> Bytes {
        self.state = State::Passthrough;
        self.decoder.take_rest()
    }

    /// Returns the bytes of an incomplete event, after the end of the stream.
    pub(crate) fn take_pending(&mut self) -> Bytes {
        self.decoder.take_rest()
    }

    /// The number of bytes of the incomplete event.
    #[must_use]
    pub(crate) fn pending_bytes(&self) -> usize {
        self.decoder.pending()
    }

    /// Whether all choices have ended, but neither the ids nor `[DONE]` has arrived. Clients may disconnect after the last choice.
    #[must_use]
    pub(crate) fn awaits_ids(&self) -> bool {
        self.state == State::Parsing && self.engine_ids.finishes.len() >= self.n && !self.has_ids()
    }

    /// Whether the ids of the prompt and of all choices have arrived.
    #[must_use]
    pub(crate) fn has_ids(&self) -> bool {
        self.engine_ids.prompt.is_some() && self.engine_ids.responses.is_some()
    }

    /// Whether `[DONE]` has arrived.
    #[must_use]
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes the parsed ids; `None` if a part of the stream was not parsed.
    pub(crate) fn take_ids(&mut self) -> Option<EngineIds> {
        (self.state != State::Passthrough).then(|| std::mem::take(&mut self.engine_ids))
    }

    /// Parses an event, and returns the part of it that is forwarded.
    fn read(&mut self, event: &SseEvent) -> Remainder {
        let Some(at) = event.data.clone().filter(|_| is_relevant(&event.raw)) else { return Remainder::Same };
        // an event that cannot be parsed has no ids and passes unchanged
        self.engine_ids.read(&event.raw, at, self.options).unwrap_or(Remainder::Same)
    }
}

/// Whether an event may have ids or a finish reason. Quotes in JSON strings are escaped, so that a text does not match as a key.
fn is_relevant(event: &[u8]) -> bool {
    const REASON: &[u8] = b"\"finish_reason\":";
    let ended = |at: usize| !event[at + REASON.len()..].trim_ascii_start().starts_with(b"null");
    memmem::find(event, b"\"sglext\"").is_some() || memmem::find_iter(event, REASON).any(ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_all<'a>(
        chunks: impl IntoIterator<Item = &'a [u8]>,
        options: SglextOptions,
    ) -> (Vec<u8>, Option<EngineIds>) {
        let mut filter = SglextFilter::new(options, 1);
        let mut out = Vec::new();
        chunks.into_iter().for_each(|chunk| filter.push(chunk, &mut out));
        out.extend_from_slice(&filter.take_pending());
        (out, filter.take_ids())
    }

    /// An event, and whether it has ids.
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
        fn splits_of_the_bytes_do_not_change_the_ids_or_the_text(
            events in prop::collection::vec(event(), 0..10),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
            requested in any::<(bool, bool)>(),
        ) {
            let options = SglextOptions { input: requested.0, output: requested.1, framed: false };
            let text: String = events.iter().map(|(_, text)| *text).collect();
            let bytes = text.as_bytes();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
            at.sort_unstable();
            let whole = read_all([bytes], options);
            prop_assert_eq!(&read_all(at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]), options), &whole);
            prop_assert_eq!(&read_all(bytes.chunks(1), options), &whole);
            let both = SglextOptions { input: true, output: true, framed: false };
            if options == both || events.iter().all(|(ids, _)| !ids) {
                prop_assert_eq!(&whole.0, bytes);
            }
        }
    }

    #[test]
    fn separate_event_with_ids_is_parsed_and_not_forwarded() {
        let finish = "data: {\"id\":\"r\",\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\n";
        let ids = "event: sglext_ids\ndata: {\"id\":\"r\",\"choices\":[],\"usage\":null,\"sglext\":{\"input_ids\":[1],\"output_ids\":[[2]]}}\n\n";
        let (out, engine_ids) =
            read_all([finish.as_bytes(), ids.as_bytes(), b"data: [DONE]\n\n"], SglextOptions::default());
        assert_eq!(String::from_utf8(out).unwrap(), format!("{finish}data: [DONE]\n\n"));
        let engine_ids = engine_ids.unwrap();
        assert_eq!((engine_ids.prompt, engine_ids.responses), (Some(vec![1]), Some(vec![vec![2]])));
    }

    #[test]
    fn filter_awaits_ids_after_all_choices_have_ended_until_done() {
        let mut filter = SglextFilter::new(SglextOptions::default(), 2);
        let mut out = Vec::new();
        let finish =
            |index: usize| format!("data: {{\"choices\":[{{\"index\":{index},\"finish_reason\":\"stop\"}}]}}\n\n");
        for (event, awaits_ids) in
            [(finish(1), false), (finish(1), false), (finish(0), true), ("data: [DONE]\n\n".into(), false)]
        {
            filter.push(event.as_bytes(), &mut out);
            assert_eq!(filter.awaits_ids(), awaits_ids, "{event}");
        }
        assert!(filter.is_done());
    }

    #[test]
    fn filter_that_stops_parsing_returns_all_bytes_and_no_ids() {
        let mut filter = SglextFilter::new(SglextOptions::default(), 1);
        let mut out = Vec::new();
        filter.push(b"data: {\"te", &mut out);
        assert_eq!((out.len(), filter.pending_bytes()), (0, 10));
        out.extend_from_slice(&filter.stop_parsing());
        filter.push(b"xt\":1", &mut out);
        assert_eq!((&out[..], filter.take_ids()), (&b"data: {\"text\":1"[..], None));
    }
}
