//! Captures a chat of the engine's own endpoint. The engine reports the token ids of the whole reply at its end.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;

use super::{Capture, UnreadableReply};
use crate::engine::chat_reply::{ChatIds, ChatReader};
use crate::generation::event::{EventAccess, EventFrame, Output, ParsedOutputs};
use crate::generation::recorder::ForwardedSequence;
use crate::generation::request::{ChatOfPrompt, EngineChat};
use crate::generation::uncaptured::UncapturedGeneration;
use crate::session::ReportedVersions;

/// What the capture of a chat has besides that of /generate.
#[derive(Debug)]
pub struct ChatCapture {
    reader: ChatReader,
    /// The conversation that its turns continue.
    chat: Option<ChatOfPrompt>,
    /// `None` once its turns are recorded, or no more of the reply will arrive.
    uncaptured: Option<UncapturedGeneration>,
    /// The time of the first event of a stream.
    first_ms: Option<u64>,
}

impl ChatCapture {
    /// Begins the capture of the reply to `chat`, which counts as uncaptured until its ids arrive.
    #[must_use]
    pub(crate) fn new(chat: EngineChat, uncaptured: UncapturedGeneration) -> Self {
        let reader = ChatReader::new(chat.sglext, chat.n);
        Self { reader, chat: chat.chat, uncaptured: Some(uncaptured), first_ms: None }
    }

    /// Whether the events since the last choice ended must wait for the ids.
    pub(super) fn awaits_ids(&self) -> bool {
        self.uncaptured.is_some() && self.reader.awaits_ids()
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
}

impl Capture {
    /// Reads an event of a stream.
    pub(super) fn chat_event(
        &mut self,
        EventFrame { raw, json }: &EventFrame,
    ) -> Result<ParsedOutputs, UnreadableReply> {
        let Self { chat: Some(chat), recorder: Some(recorder), flight, .. } = self else {
            return Ok(ParsedOutputs::default());
        };
        chat.first_ms.get_or_insert_with(|| recorder.elapsed_ms());
        let is_named = chat.reader.rid().is_some();
        let changes = chat.reader.event(raw, json.clone())?;
        if let (false, Some(rid), Some(flight)) = (is_named, chat.reader.rid(), flight) {
            flight.add(rid.into());
        }
        self.record_chat();
        Ok(ParsedOutputs { outputs: Vec::new(), changes })
    }

    /// Reads a reply that does not stream. Without ids, a consumer of fields gets no outputs.
    pub(super) fn chat_reply(&mut self, body: &Bytes, reads: EventAccess) -> Result<ParsedOutputs, UnreadableReply> {
        let Some(chat) = &mut self.chat else { return Ok(ParsedOutputs::default()) };
        let changes = chat.reader.reply(body)?;
        let outputs = match reads {
            EventAccess::Bytes => None,
            EventAccess::Fields => chat.reader.first_choice(body),
        };
        let outputs = outputs.into_iter().map(|chunk| Output { index: 0, chunk }).collect();
        self.record_chat();
        Ok(ParsedOutputs { outputs, changes })
    }

    /// Records a turn for each choice, once the ids of all choices have arrived.
    fn record_chat(&mut self) {
        let Self { chat: Some(chat), recorder: Some(recorder), observed, .. } = self else { return };
        let Some(ids) = chat.reader.take_ids() else { return };
        let Some(uncaptured) = chat.uncaptured.take() else { return };
        let ChatIds { rid, prompt, responses, finishes, cached_tokens, label, spans } = ids;
        let prompt: Arc<[u32]> = prompt.unwrap_or_default().into();
        recorder.set_chat(chat.chat.take().map(|chat| chat.describe(&prompt)));
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
            recorder.record_forwarded(sequence, chat.first_ms);
        }
        uncaptured.captured();
    }
}
