// SPDX-License-Identifier: Apache-2.0
//! System messages between other messages, for templates that do not show them there.

use super::message::Message;

/// Moves the text of each system message after the first other message into a user message next to it. The result for the messages so far
/// does not change when messages are appended, so that later calls of the conversation continue it.
#[must_use]
pub(crate) fn fold_system_messages(messages: Vec<Message>) -> Vec<Message> {
    let mut folded: Vec<Message> = Vec::with_capacity(messages.len());
    // the text of system messages after an assistant message or a tool result
    let mut pending: Vec<String> = Vec::new();
    let mut is_leading = true;
    for message in messages {
        if message.role != "system" {
            is_leading = false;
            flush(&mut pending, &mut folded, Some(&message));
            let mut message = message;
            if message.role == "user" && !pending.is_empty() {
                message.media.iter_mut().for_each(|media| media.at += pending.len());
                message.texts.splice(0..0, pending.drain(..));
                message.in_parts = message.texts.len() > 1;
            }
            folded.push(message);
        } else if is_leading {
            folded.push(message);
        } else {
            let text = framed(&message.texts.join("\n"));
            match folded.last_mut().filter(|last| last.role == "user" && pending.is_empty()) {
                Some(user) => {
                    user.texts.push(text);
                    user.in_parts = true;
                }
                None => pending.push(text),
            }
        }
    }
    flush(&mut pending, &mut folded, None);
    folded
}

/// Appends the pending texts as a user message, unless the next message is one.
fn flush(pending: &mut Vec<String>, folded: &mut Vec<Message>, next: Option<&Message>) {
    if !pending.is_empty() && next.is_none_or(|next| next.role != "user") {
        folded.push(Message::from_parts("user", std::mem::take(pending)));
    }
}

fn framed(text: &str) -> String {
    format!("\n<system-reminder>\n{text}\n</system-reminder>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(conversation: &[(&str, &str)]) -> Vec<(String, String)> {
        let messages = conversation.iter().map(|(role, text)| Message::new(role, (*text).to_owned())).collect();
        let messages = fold_system_messages(messages);
        messages.iter().map(|message| (message.role.clone(), message.text().replace('\n', "|"))).collect()
    }

    #[test]
    fn system_messages_join_a_user_message_next_to_them() {
        let reminder = "|<system-reminder>|r|</system-reminder>|";
        for (conversation, expected) in [
            (&[("system", "s"), ("user", "u")][..], vec![("system", "s".to_owned()), ("user", "u".to_owned())]),
            (&[("user", "u"), ("system", "r")], vec![("user", format!("u{reminder}"))]),
            (
                &[("user", "u"), ("assistant", "a"), ("system", "r"), ("user", "v")],
                vec![("user", "u".to_owned()), ("assistant", "a".to_owned()), ("user", format!("{reminder}v"))],
            ),
            (
                &[("user", "u"), ("tool", "t"), ("system", "r"), ("assistant", "a")],
                vec![
                    ("user", "u".to_owned()),
                    ("tool", "t".to_owned()),
                    ("user", reminder.to_owned()),
                    ("assistant", "a".to_owned()),
                ],
            ),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|(role, text)| (role.to_owned(), text)).collect();
            assert_eq!(folded(conversation), expected, "{conversation:?}");
        }
    }

    #[test]
    fn folding_does_not_change_when_a_reply_and_messages_are_appended() {
        let roles = ["user", "system", "tool"];
        for first in 0..81 {
            let pick = |at: u32| roles[first / 3_usize.pow(at) % 3];
            let begin: Vec<_> = [("user", "0")].into_iter().chain((0..4).map(|at| (pick(at), "x"))).collect();
            let all: Vec<_> =
                begin.iter().copied().chain([("assistant", "a"), ("system", "s"), ("user", "u")]).collect();
            assert!(folded(&all).starts_with(&folded(&begin)), "{begin:?}");
        }
    }
}
