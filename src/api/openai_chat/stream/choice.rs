//! One choice of a chat that streams.

use crate::api::openai_chat::reply::ReplyContext;
use crate::api::sample::Sample;
use crate::chat::reading;
use crate::parse::{Event, StreamingParser};
use crate::tokenizer::{Detokenizer, TokenizerError};

/// A choice of a stream, and its text that is not sent yet.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) id: String,
    text: Detokenizer,
    parser: Option<StreamingParser>,
    /// The text of a reply that should be a list of calls.
    list: Vec<Event>,
    /// A thought that is sent when it is complete.
    thought: String,
    /// Text that may still be the beginning of a stop string.
    held: String,
    /// All sampled ids, if `sglext` is requested.
    pub(super) ids: Vec<u32>,
    pub(super) tokens: usize,
    pub(super) calls: usize,
    pub(super) ended: bool,
}

impl Choice {
    pub(super) fn new(context: &ReplyContext, id: &str) -> Self {
        Self {
            id: id.to_owned(),
            text: Detokenizer::new(context.reading.skip_special),
            parser: Some(reading::grammar(&context.renderer, &context.reading).stream()),
            list: Vec::new(),
            thought: String::new(),
            held: String::new(),
            ids: Vec::new(),
            tokens: 0,
            calls: 0,
            ended: false,
        }
    }

    /// What an event adds to the message.
    pub(super) fn read(&mut self, context: &ReplyContext, sample: &Sample<'_>) -> Result<Vec<Event>, TokenizerError> {
        self.tokens = sample.tokens;
        if context.sglext.output {
            self.ids.extend_from_slice(&sample.ids);
        }
        let tokenizer = context.renderer.tokenizer();
        let ending = context.ending(sample.finish.as_deref());
        let shown = match sample.finish {
            Some(_) => reading::shown(&context.renderer, &sample.ids, &context.reading, ending),
            None => &sample.ids,
        };
        self.held.push_str(&self.text.push(tokenizer, shown)?);
        let mut events = Vec::new();
        let Some(parser) = &mut self.parser else { return Ok(events) };
        if sample.finish.is_none() {
            let certain = certain(&self.held, &context.stops.strings, context.reading.keep_stop);
            parser.push(&self.held[..certain], &mut events);
            self.held.drain(..certain);
            if reading::is_list(&context.reading) {
                // until it is complete it may be a list of calls, or not
                self.list.extend(events.extract_if(.., |event| matches!(event, Event::Content(_))));
            }
            return Ok(events);
        }
        self.held.push_str(&self.text.finish(tokenizer)?);
        parser.push(reading::cut(&self.held, &context.reading, ending), &mut events);
        if let Some(parser) = self.parser.take() {
            parser.finish(&mut events);
        }
        if reading::is_list(&context.reading) {
            self.list.extend(events.extract_if(.., |event| matches!(event, Event::Content(_))));
            let message = reading::listed(std::mem::take(&mut self.list).into_iter().collect());
            events.extend(Some(message.content).filter(|content| !content.is_empty()).map(Event::Content));
            events.extend(message.calls.into_iter().map(Event::Call));
        }
        Ok(events)
    }

    /// The events with each thought in one piece: what of it has come waits for the rest, or for the end of the reply.
    pub(super) fn hold(&mut self, events: Vec<Event>, ended: bool) -> Vec<Event> {
        let mut told = Vec::new();
        let over = |thought: &mut String, told: &mut Vec<Event>| {
            told.extend(Some(std::mem::take(thought)).filter(|thought| !thought.is_empty()).map(Event::Reasoning));
        };
        for event in events {
            match event {
                Event::Reasoning(text) => self.thought.push_str(&text),
                event => {
                    over(&mut self.thought, &mut told);
                    told.push(event);
                }
            }
        }
        if ended {
            over(&mut self.thought, &mut told);
        }
        told
    }
}

/// How much of a text is neither a stop string nor the beginning of one.
fn certain(text: &str, stops: &[String], keep: bool) -> usize {
    if keep {
        return text.len();
    }
    let held = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| {
        if let Some(at) = text.find(stop.as_str()) {
            return at;
        }
        let most = text.len().min(stop.len());
        let begun = (1..=most).rev().find(|length| {
            text.is_char_boundary(text.len() - length)
                && stop.as_bytes().starts_with(&text.as_bytes()[text.len() - length..])
        });
        text.len() - begun.unwrap_or(0)
    });
    held.min().unwrap_or(text.len())
}
