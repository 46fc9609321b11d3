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
pub(crate) fn check(messages: &[Message], limits: &ChatLimits) -> Result<(), RequestError> {
    let reached = |count: usize, limit: Option<usize>| limit.filter(|limit| count >= *limit);
    let replies = messages.iter().filter(|message| message.is_assistant());
    let turns = replies.clone().count();
    if let Some(limit) = reached(turns, limits.turns) {
        return Err(limit_reached("turns", ("turns", turns), "turns", limit));
    }
    // only a tool result continues the loop of tool calls
    if messages.last().is_none_or(|last| last.role != "tool") {
        return Ok(());
    }
    let tool_turns = replies.clone().filter(|message| !message.calls.is_empty()).count();
    if let Some(limit) = reached(tool_turns, limits.tool_turns) {
        return Err(limit_reached("tool_turns", ("turns that call tools", tool_turns), "tool-turns", limit));
    }
    let calls: usize = replies.map(|message| message.calls.len()).sum();
    if let Some(limit) = reached(calls, limits.tool_calls) {
        return Err(limit_reached("tool_calls", ("tool calls", calls), "tool-calls", limit));
    }
    Ok(())
}

/// The error for a conversation with this `count`. `name` is the name of the limit in `--chat-limits`.
fn limit_reached(limit: &'static str, (what, count): (&str, usize), name: &str, most: usize) -> RequestError {
    let message =
        format!("the conversation has {count} {what} and may have {most} (--chat-limits {name}); it cannot continue");
    RequestError::LimitReached { limit, message }
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
            Message { calls: (0..calls).map(|_| call()).collect(), ..Message::of_parts(role, Vec::new()) }
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
