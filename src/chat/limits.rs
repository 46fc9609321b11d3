//! How far a conversation may go.
//!
//! Counted in the conversation itself, so that branches are counted apart and no state is kept. A turn that reaches a limit is served and
//! recorded; the call that would go beyond is answered with a status that clients take for final. What counts, and when, is what
//! strands-sglang's limiter counts.

use super::RequestError;
use super::message::Message;
use crate::config::ChatLimits;

/// Whether a conversation may have another turn.
///
/// # Errors
/// [`RequestError::LimitReached`], which names the limit.
pub(crate) fn check(messages: &[Message], limits: &ChatLimits) -> Result<(), RequestError> {
    let reached = |count: usize, limit: Option<usize>| limit.filter(|limit| count >= *limit);
    let said = messages.iter().filter(|message| message.is_assistant());
    let turns = said.clone().count();
    if let Some(limit) = reached(turns, limits.turns) {
        return Err(refused("turns", ("turns", turns), "turns", limit));
    }
    // only what tools answered leads to another turn of the same loop
    if messages.last().is_none_or(|last| last.role != "tool") {
        return Ok(());
    }
    let calling = said.clone().filter(|message| !message.calls.is_empty()).count();
    if let Some(limit) = reached(calling, limits.tool_turns) {
        return Err(refused("tool_turns", ("turns that call tools", calling), "tool-turns", limit));
    }
    let calls: usize = said.map(|message| message.calls.len()).sum();
    if let Some(limit) = reached(calls, limits.tool_calls) {
        return Err(refused("tool_calls", ("tool calls", calls), "tool-calls", limit));
    }
    Ok(())
}

fn refused(limit: &'static str, (what, count): (&str, usize), name: &str, most: usize) -> RequestError {
    let message =
        format!("this conversation has had {count} {what} and may have {most} (--chat-limits {name}); it is over");
    RequestError::LimitReached { limit, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::message::Call;
    use crate::config::{Command, load};

    fn verdict(flags: &[&str], conversation: &str) -> bool {
        let args = ["tokentap", "serve"].iter().chain(flags).map(std::ffi::OsString::from);
        let Command::Serve(config) = load(args).unwrap().command else { panic!("it serves") };
        let call = || Call { id: None, name: "f".to_owned(), arguments: String::new() };
        let letters = conversation.chars().map(|letter| {
            let (role, calls) = match letter {
                'u' => ("user", 0),
                't' => ("tool", 0),
                'a' => ("assistant", 0),
                'c' => ("assistant", 1),
                _ => ("assistant", 2),
            };
            Message {
                role: role.to_owned(),
                texts: Vec::new(),
                in_parts: false,
                reasoning: None,
                calls: (0..calls).map(|_| call()).collect(),
                answers: None,
                name: None,
            }
        });
        check(&letters.collect::<Vec<_>>(), &config.chat.chat_limits).is_ok()
    }

    #[test]
    fn the_turn_that_reaches_a_limit_is_the_last() {
        for (flags, conversation, may) in [
            (&[][..], "uctctct", true),
            (&["--chat-limits", "turns=2"], "ua", true),
            (&["--chat-limits", "turns=2"], "uaua", false),
            (&["--chat-limits", "tool-turns=2"], "uct", true),
            (&["--chat-limits", "tool-turns=2"], "uctct", false),
            (&["--chat-limits", "tool-turns=2"], "uctctu", true),
            (&["--chat-limits", "tool-calls=3"], "uCt", true),
            (&["--chat-limits", "tool-calls=3"], "uCtCt", false),
            (&["--chat-limits", "tool-calls=3"], "uCtCta", true),
        ] {
            assert_eq!(verdict(flags, conversation), may, "{flags:?} {conversation}");
        }
    }
}
