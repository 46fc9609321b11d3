//! Which turn of a session a conversation continues.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::message::{Call, Message, canonical};
use super::reading;
use super::request::ChatRequest;
use crate::json::Value;
use crate::tokenizer::Renderer;
use crate::trajectory::{Digest, Fault, Session, Turn};

/// Members of `chat_template_kwargs` that say how the next turn begins, and nothing of those before.
const OF_THE_NEXT_TURN: [&str; 2] = ["enable_thinking", "thinking"];

/// A conversation by what was said before each of its messages.
pub(super) struct History<'a> {
    request: &'a ChatRequest,
    digests: Vec<Digest>,
}

/// The turn that a conversation continues, and which message it is.
pub(super) struct Continued {
    pub(super) turn: Arc<Turn>,
    pub(super) at: usize,
    /// It thought.
    pub(super) thought: bool,
}

impl<'a> History<'a> {
    pub(super) fn of(request: &'a ChatRequest) -> Self {
        Self { request, digests: digests(request) }
    }

    /// All that was said.
    pub(super) fn conversation(&self) -> Digest {
        *self.digests.last().expect("there is one before the first message")
    }

    /// The latest turn whose conversation and reply this request repeats.
    pub(super) fn find(&self, session: &Session, renderer: &Renderer) -> Option<Continued> {
        let Self { request, digests } = self;
        for (at, message) in request.messages.iter().enumerate().rev().filter(|(_, message)| message.is_assistant()) {
            let mut turns = session.answers(digests[at]);
            // of equals a trained one, and then the latest
            turns.sort_by_key(|turn| (turn.is_trainable(), turn.id));
            for turn in turns.into_iter().rev().filter(|turn| is_whole(turn)) {
                let shows_tools = turn.about.chat.as_ref().is_some_and(|chat| chat.tools);
                if request.reads_calls() && !shows_tools {
                    continue;
                }
                let Some(said) = reading::said(renderer, &turn) else { continue };
                let same = said.digest(digests[at], &[]) == digests[at + 1];
                if same && is_same_thought(message, &said) {
                    return Some(Continued { turn, at, thought: !said.thought().is_empty() });
                }
            }
        }
        None
    }
}

/// Whether all that is known of a turn is what was sampled, to where it was cut.
fn is_whole(turn: &Turn) -> bool {
    matches!(turn.about.fault, None | Some(Fault::Aborted | Fault::Disconnected | Fault::Broken))
}

/// Whether a client that has kept the reasoning has kept it as it was.
fn is_same_thought(message: &Message, said: &Message) -> bool {
    let own = message.thought();
    own.is_empty() || own == said.thought()
}

/// What was said before each message, and at last before the reply.
fn digests(request: &ChatRequest) -> Vec<Digest> {
    let mut hash = Sha256::new();
    hash.update(b"a conversation\n");
    let tools = Value::Array(request.tools.clone().unwrap_or_default());
    hash.update(canonical(&tools).as_bytes());
    let lasting = request.extra.iter().filter(|(name, _)| !OF_THE_NEXT_TURN.contains(&name.as_str()));
    hash.update(canonical(&Value::Object(lasting.cloned().collect())).as_bytes());
    let mut digests = Vec::with_capacity(request.messages.len() + 1);
    let mut asked: &[Call] = &[];
    digests.push(Digest::of(hash.finalize().as_slice()));
    for message in &request.messages {
        let before = *digests.last().expect("one was put there");
        digests.push(message.digest(before, asked));
        if message.is_assistant() {
            asked = &message.calls;
        }
    }
    digests
}
