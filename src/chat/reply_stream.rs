//! Parses the message of one sequence while its tokens arrive.

use super::reply_reader::{self, ReplyReader};
use super::sampled_text::SampledText;
use crate::parse::{Event, StreamingParser, ToolCall};
use crate::tokenizer::TokenizerError;

/// The parser of a streamed reply.
#[derive(Debug)]
pub(crate) struct ReplyStream {
    /// The text that is not parsed. It may be the start of a stop string.
    text: SampledText,
    /// `None` after the end of the sequence.
    parser: Option<StreamingParser>,
    /// Content that may be a JSON list of forced calls. It is parsed at the end.
    content: Vec<Event>,
}

impl ReplyStream {
    /// A parser at the start of a sequence.
    #[must_use]
    pub(crate) fn new(reader: &ReplyReader) -> Self {
        let grammar = reply_reader::grammar(&reader.renderer, &reader.options);
        Self {
            text: SampledText::new(reader.renderer.tokenizer(), &grammar, reader.options.skip_special),
            parser: Some(grammar.stream()),
            content: Vec::new(),
        }
    }

    /// Parses new tokens. `finish` is the finish reason, if they are the last ones. Tokens after the end are ignored.
    ///
    /// # Errors
    /// If the tokenizer cannot decode a token.
    pub(crate) fn push(
        &mut self,
        reader: &ReplyReader,
        ids: &[u32],
        finish: Option<&str>,
    ) -> Result<Vec<Event>, TokenizerError> {
        let (tokenizer, end) = (reader.renderer.tokenizer(), reader.end(finish));
        let is_last = finish.is_some() && !end.is_aborted();
        let ids = reply_reader::without_stop_token(&reader.renderer, ids, &reader.options, end);
        self.text.push(tokenizer, ids)?;
        let mut events = Vec::new();
        let Some(parser) = &mut self.parser else { return Ok(events) };
        let is_list = reply_reader::is_call_list(&reader.options);
        if !is_last {
            let length =
                reply_reader::length_without_stop(self.text.text(), &reader.stops.strings, reader.options.keep_stop);
            self.text.parse(self.text.before_cut_marker(length), parser, &mut events);
            if is_list {
                self.content.extend(events.extract_if(.., |event| matches!(event, Event::Content(_))));
            }
            return Ok(events);
        }
        self.text.finish(tokenizer)?;
        let length = reply_reader::without_stop_string(self.text.text(), &reader.options, end).len();
        self.text.parse(length, parser, &mut events);
        if let Some(parser) = self.parser.take() {
            parser.finish(&mut events);
        }
        if is_list {
            self.content.extend(events.extract_if(.., |event| matches!(event, Event::Content(_))));
            let message = reply_reader::parse_call_list(std::mem::take(&mut self.content).into_iter().collect());
            events.extend(Some(message.content).filter(|content| !content.is_empty()).map(Event::Content));
            events.extend(message.calls.into_iter().flat_map(ToolCall::into_events));
        }
        Ok(events)
    }
}
