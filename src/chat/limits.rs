// SPDX-License-Identifier: Apache-2.0
//! Limits of the turns and tool calls of a conversation.
//!
//! The messages of the conversation are counted, so that branches are counted separately and no state is stored. The turn that reaches a
//! limit is served and recorded. The next call is refused with a status that clients treat as final. The counts are those of
//! strands-sglang's limiter.

use super::RequestError;
use super::message::Message;
use crate::config::ChatLimits;

/// Checks that a conversation may have another turn.
///
/// # Errors
/// [`RequestError::LimitReached`] with the limit.
pub(super) fn check(messages: &[Message], limits: &ChatLimits) -> Result<(), RequestError> {
    let replies = || messages.iter().filter(|message| message.is_assistant());
    check_count("turns", "turns", replies().count(), limits.turns)?;
    // only a tool result continues the loop of tool calls
    if messages.last().is_none_or(|last| last.role != "tool") {
        return Ok(());
    }
    check_count(
        "tool_turns",
        "turns that call tools",
        replies().filter(|message| !message.calls.is_empty()).count(),
        limits.tool_turns,
    )?;
    check_count("tool_calls", "tool calls", replies().map(|message| message.calls.len()).sum(), limits.tool_calls)
}

/// Checks that a count is below its limit. `counted` is the text for what is counted.
fn check_count(limit: &'static str, counted: &str, count: usize, most: Option<usize>) -> Result<(), RequestError> {
    let Some(most) = most.filter(|most| count >= *most) else { return Ok(()) };
    let name = limit.replace('_', "-");
    let message = format!(
        "the conversation has {count} {counted} and may have {most} (--chat-limits {name}); it cannot continue"
    );
    Err(RequestError::LimitReached { limit, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::message::MessageToolCall;
    use crate::config::{Command, load};

    /// Whether another turn is allowed. Each letter is a message: of a user (u), of a tool (t), or of an assistant without tool calls (a),
    /// with one (c) or with two (C).
    fn is_allowed(flags: &[&str], conversation: &str) -> bool {
        let args = ["tokentap", "serve"].iter().chain(flags).map(std::ffi::OsString::from);
        let Command::Serve(config) = load(args).unwrap().command else { panic!("the command is serve") };
        let call = || MessageToolCall { id: None, name: "f".to_owned(), arguments: String::new() };
        let messages = conversation.chars().map(|letter| {
            let (role, calls) = match letter {
                'u' => ("user", 0),
                't' => ("tool", 0),
                'a' => ("assistant", 0),
                'c' => ("assistant", 1),
                _ => ("assistant", 2),
            };
            Message { calls: (0..calls).map(|_| call()).collect(), ..Message::from_parts(role, Vec::new()) }
        });
        check(&messages.collect::<Vec<_>>(), &config.chat.chat_limits).is_ok()
    }

    #[test]
    fn call_after_the_turn_that_reaches_a_limit_is_refused() {
        for (flags, conversation, expected) in [
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
            assert_eq!(is_allowed(flags, conversation), expected, "{flags:?} {conversation}");
        }
    }
}
