// SPDX-License-Identifier: Apache-2.0
//! Captures a chat of the engine's own endpoint. The engine reports the token ids of the whole reply at its end.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;

use super::UnreadableReply;
use crate::engine::sglang::chat_reply::{ChatIds, ChatReader};
use crate::generation::ReplyStats;
use crate::generation::event::{EventAccess, EventFrame, ParsedOutputs};
use crate::generation::in_flight::InFlight;
use crate::generation::recorder::{ForwardedSequence, Recorder};
use crate::generation::request::{ChatOfPrompt, EngineChat};
use crate::generation::uncaptured::UncapturedGeneration;
use crate::session::ReportedVersions;

/// The state of a capture that only a chat of the engine's own endpoint needs.
#[derive(Debug)]
pub struct ChatCapture {
    reader: ChatReader,
    /// Why tokentap did not build its prompt.
    reason: Box<str>,
    /// The conversation that its turns continue.
    chat: Option<ChatOfPrompt>,
    /// `None` once its turns are recorded, or no more of the reply will arrive.
    uncaptured: Option<UncapturedGeneration>,
    /// The time of the first event of a stream.
    first_ms: Option<u64>,
    /// The finish reasons of the recorded turns, until they are taken; `None` if they are not needed.
    finishes: Option<Vec<Box<str>>>,
}

impl ChatCapture {
    /// Begins the capture of the reply to `chat`, which counts as uncaptured until its ids arrive.
    #[must_use]
    pub(crate) fn new(chat: EngineChat, uncaptured: UncapturedGeneration) -> Self {
        let reader = ChatReader::new(chat.sglext, chat.n);
        Self {
            reader,
            reason: chat.reason,
            chat: chat.chat,
            uncaptured: Some(uncaptured),
            first_ms: None,
            finishes: None,
        }
    }

    /// Whether the events since the last choice ended must wait for the ids.
    pub(super) fn awaits_ids(&self) -> bool {
        self.uncaptured.is_some() && self.reader.awaits_ids()
    }

    /// Whether the finish reasons of recorded turns are kept.
    pub(super) fn keep_finishes(&mut self, keep: bool) {
        self.finishes = keep.then(Vec::new);
    }

    /// Takes the finish reasons of the turns that were recorded since the last call.
    pub(super) fn take_finishes(&mut self) -> Vec<Box<str>> {
        self.finishes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The request id, once it is known.
    pub(super) fn rid(&self) -> Option<&str> {
        self.reader.rid()
    }

    /// Counts the generation if its turns are not recorded: no more of the reply will arrive.
    pub(super) fn end(&mut self) {
        self.uncaptured = None;
    }

    /// Records that the engine refused the chat.
    pub(super) fn refused(&mut self, status: StatusCode) {
        if let Some(uncaptured) = self.uncaptured.take() {
            uncaptured.answered(status);
        }
    }

    /// Reads an event of a stream.
    pub(super) fn decode_event(
        &mut self,
        EventFrame { raw, json }: &EventFrame,
        recorder: &mut Recorder,
        observed: &mut ReplyStats,
        flight: Option<&mut InFlight>,
    ) -> Result<ParsedOutputs, UnreadableReply> {
        self.first_ms.get_or_insert_with(|| recorder.elapsed_ms());
        let is_named = self.reader.rid().is_some();
        let changes = self.reader.decode_event(raw, json.clone())?;
        if let (false, Some(rid), Some(flight)) = (is_named, self.reader.rid(), flight) {
            flight.add(rid.into());
        }
        self.record(recorder, observed);
        Ok(ParsedOutputs { outputs: Vec::new(), changes })
    }

    /// Reads a reply that does not stream. Without ids, a consumer of fields gets no outputs.
    pub(super) fn decode_whole(
        &mut self,
        body: &Bytes,
        reads: EventAccess,
        recorder: &mut Recorder,
        observed: &mut ReplyStats,
    ) -> Result<ParsedOutputs, UnreadableReply> {
        let changes = self.reader.decode_whole(body)?;
        let mut parsed = ParsedOutputs { outputs: Vec::new(), changes };
        if let Some(chunk) = self.reader.first_choice(body) {
            parsed.add(reads, Some(0), chunk);
        }
        self.record(recorder, observed);
        Ok(parsed)
    }

    /// Records a turn for each choice, once the ids of all choices have arrived.
    fn record(&mut self, recorder: &mut Recorder, observed: &mut ReplyStats) {
        if let Some(ids) = self.reader.take_ids()
            && let Some(uncaptured) = self.uncaptured.take()
        {
            self.commit(ids, recorder, observed);
            uncaptured.captured();
        }
    }

    fn commit(&mut self, ids: ChatIds, recorder: &mut Recorder, observed: &mut ReplyStats) {
        let ChatIds { rid, prompt, responses, finishes, cached_tokens, label, spans } = ids;
        let prompt: Arc<[u32]> = prompt.unwrap_or_default().into();
        recorder.set_chat(self.chat.take().map(|chat| chat.describe(&prompt)));
        let mut spans = Some(spans);
        for (index, ids) in responses.unwrap_or_default().into_iter().enumerate() {
            observed.finished += 1;
            observed.tokens += ids.len() as u64;
            observed.prompt_tokens += prompt.len() as u64;
            let sequence = ForwardedSequence {
                index,
                prompt: Arc::clone(&prompt),
                ids,
                rid: rid.clone(),
                finish: finishes.get(&index).cloned(),
                // the prompt is counted once
                cached_tokens: cached_tokens.filter(|_| index == 0),
                // the spans belong to the first choice
                reported: ReportedVersions { label: label.clone(), spans: spans.take().unwrap_or_default() },
            };
            if let Some(finishes) = &mut self.finishes {
                finishes.extend(sequence.finish.clone());
            }
            recorder.record_forwarded(sequence, self.first_ms, &self.reason);
        }
    }
}
