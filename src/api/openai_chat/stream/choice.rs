//! One choice of a streamed chat.

use crate::api::openai_chat::reply::ReplyContext;
use crate::chat::reply_stream::ReplyStream;
use crate::generation::update::SequenceUpdate;
use crate::parse::Event;
use crate::tokenizer::TokenizerError;

/// The state of a choice.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) id: String,
    reply: ReplyStream,
    /// The incomplete reasoning, if the client asks for it in one piece.
    reasoning: String,
    /// All sampled ids, if `sglext` is requested.
    pub(super) ids: Vec<u32>,
    /// The number of tokens so far.
    pub(super) tokens: usize,
    /// The number of tool calls so far.
    pub(super) calls: usize,
    /// A call of a custom tool that is incomplete. It is sent when it is complete, because its input is a text in the arguments.
    pub(super) custom: Option<CustomParts>,
    pub(super) ended: bool,
}

/// The parts of an incomplete call of a custom tool.
#[derive(Debug)]
pub(super) struct CustomParts {
    pub(super) id: String,
    pub(super) name: String,
    /// The arguments so far.
    pub(super) arguments: String,
}

impl Choice {
    pub(super) fn new(context: &ReplyContext, id: &str) -> Self {
        Self {
            id: id.to_owned(),
            reply: ReplyStream::new(&context.reader),
            reasoning: String::new(),
            ids: Vec::new(),
            tokens: 0,
            calls: 0,
            custom: None,
            ended: false,
        }
    }

    /// Parses the new tokens of an event.
    pub(super) fn read(
        &mut self,
        context: &ReplyContext,
        update: &SequenceUpdate<'_>,
    ) -> Result<Vec<Event>, TokenizerError> {
        self.tokens = update.tokens;
        if context.sglext.output {
            self.ids.extend_from_slice(&update.ids);
        }
        self.reply.push(&context.reader, &update.ids, update.finish)
    }

    /// Joins the pieces of each reasoning text. An incomplete one is kept until it is complete, or until the reply has `ended`.
    pub(super) fn join_reasoning(&mut self, events: Vec<Event>, ended: bool) -> Vec<Event> {
        let mut joined = Vec::new();
        let flush = |reasoning: &mut String, joined: &mut Vec<Event>| {
            joined.extend(Some(std::mem::take(reasoning)).filter(|text| !text.is_empty()).map(Event::Reasoning));
        };
        for event in events {
            match event {
                Event::Reasoning(text) => self.reasoning.push_str(&text),
                event => {
                    flush(&mut self.reasoning, &mut joined);
                    joined.push(event);
                }
            }
        }
        if ended {
            flush(&mut self.reasoning, &mut joined);
        }
        joined
    }
}
