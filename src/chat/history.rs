//! Which turn of a session a conversation continues.

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::Conversation;
use super::canonical::canonical;
use super::departure::Outline;
use super::message::Message;
use super::reading;
use crate::json::Value;
use crate::session::{Digest, Fault, Session, Turn};
use crate::tokenizer::Renderer;

/// Replies to one conversation that are read again to find the one that a client repeats: the latest.
const COMPARED: usize = 64;

/// Members of `chat_template_kwargs` that say how the next turn begins, and nothing of those before.
const OF_THE_NEXT_TURN: [&str; 2] = ["enable_thinking", "thinking"];

/// A conversation, with a digest of the messages before each message.
pub(super) struct History<'a> {
    request: &'a Conversation,
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
    pub(super) fn of(request: &'a Conversation) -> Self {
        Self { request, digests: digests(request) }
    }

    /// The digest of all messages.
    pub(super) fn conversation(&self) -> Digest {
        *self.digests.last().expect("there is one before the first message")
    }

    /// What a later call is compared with.
    pub(super) fn outline(&self) -> Outline {
        Outline::of(self.request, &self.digests)
    }

    /// The turn whose conversation and reply this request repeats, the deepest: of several the one that gave its calls the ids that
    /// the client has, then a trained one, then the latest.
    pub(super) fn find(&self, session: &Session, renderer: &Renderer) -> Option<Continued> {
        let Self { request, digests } = self;
        for (at, message) in request.messages.iter().enumerate().rev().filter(|(_, message)| message.is_assistant()) {
            let mut turns = session.answers(digests[at]);
            turns.sort_by_key(|turn| (turn.is_trainable(), turn.id));
            let mut alike = None;
            for turn in turns.into_iter().rev().filter(|turn| is_whole(turn)).take(COMPARED) {
                let shows_tools = turn.about.chat.as_ref().is_some_and(|chat| chat.tools);
                if request.reads_calls() && !shows_tools {
                    continue;
                }
                let Some(said) = reading::said(renderer, &turn) else { continue };
                let same = said.digest(digests[at], &HashMap::new()) == digests[at + 1];
                if !same || !is_same_thought(message, &said) {
                    continue;
                }
                let own = said.calls.iter().map(|call| &call.id).eq(message.calls.iter().map(|call| &call.id));
                let found = Continued { turn, at, thought: said.thoughts().iter().any(|thought| !thought.is_empty()) };
                if own {
                    return Some(found);
                }
                alike.get_or_insert(found);
            }
            if alike.is_some() {
                return alike;
            }
        }
        None
    }
}

/// Whether all that is known of a turn is what was sampled, to where it was cut; by us or by the engine's own word.
fn is_whole(turn: &Turn) -> bool {
    matches!(turn.about.fault, None | Some(Fault::Aborted | Fault::Disconnected | Fault::Broken | Fault::Forwarded))
}

/// Whether a client that has kept the reasoning has kept it as it was.
fn is_same_thought(message: &Message, said: &Message) -> bool {
    let kept = |thought: &str| said.thoughts().iter().any(|own| own == thought);
    // what a client has dropped in one place may still be in the other, where a lone mark makes it look like one
    message.thoughts().iter().all(|thought| thought.is_empty() || kept(thought))
}

/// The digests of the messages before each message, and before the reply.
fn digests(request: &Conversation) -> Vec<Digest> {
    let mut hash = Sha256::new();
    hash.update(b"a conversation\n");
    for tool in request.tools.iter().flatten() {
        hash.update(canonical(tool).as_bytes());
        hash.update(b"\n");
    }
    let lasting = request.template_variables.iter().filter(|(name, _)| !OF_THE_NEXT_TURN.contains(&name.as_str()));
    hash.update(canonical(&Value::Object(lasting.cloned().collect())).as_bytes());
    let mut digests = Vec::with_capacity(request.messages.len() + 1);
    let mut asked = HashMap::new();
    digests.push(Digest::of(hash.finalize().as_slice()));
    for message in &request.messages {
        let before = *digests.last().expect("one was put there");
        digests.push(message.digest(before, &asked));
        if message.is_assistant() {
            asked = message.places();
        }
    }
    digests
}
