// SPDX-License-Identifier: Apache-2.0
//! Marks the names of control tokens in the texts of messages, so that they are encoded as text and not as control tokens.
//!
//! A tool that prints `<|im_end|>` must not end the turn. Before a conversation is rendered, a mark is inserted into each name of a control
//! token in the text of a message. After rendering, the tokenizer finds the control tokens, removes the marks and encodes the rest as plain
//! text. The text of the template itself has no marks.

use std::borrow::Cow;

use crate::json::Value;

/// The origin of a text. It decides which added tokens are control tokens, whose names in the text must be encoded as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextOrigin {
    /// A tool, which does not know the template: all added tokens are control tokens.
    Tool,
    /// A user or the developer of the agent, who may quote tags such as `<think>` or `<tool_call>`: only special tokens, and added tokens
    /// that do not look like an XML tag, are control tokens.
    Person,
}

/// Finds and marks the control tokens of a vocabulary in texts.
#[derive(Debug, Clone, Default)]
pub struct Content {
    /// A trie of the tokens' bytes. The first node is the root.
    nodes: Vec<TrieNode>,
}

/// A prefix of one or more tokens.
#[derive(Debug, Clone, Default)]
struct TrieNode {
    /// The children: the next byte, and the index of its node.
    children: Vec<(u8, usize)>,
    /// The prefix is a control token, in texts of tools and in texts of persons.
    is_token: [bool; 2],
    /// The prefix is a control token or the beginning of one, in texts of tools and in texts of persons.
    is_prefix: [bool; 2],
}

impl Content {
    /// The mark: a noncharacter, which Unicode reserves for use inside programs.
    pub(super) const MARK: char = '\u{fdd0}';

    /// Builds the trie from the added tokens and their `special` flags. Tokens of white space only are not control tokens, because some
    /// vocabularies have one for each number of newlines. Tokens of one character are not control tokens either.
    pub(super) fn new<'a>(added: impl Iterator<Item = (&'a str, bool)>) -> Self {
        let mut content = Self { nodes: vec![TrieNode::default()] };
        for (text, special) in added {
            let is_space = text.chars().all(|c| c.is_whitespace() || c == '\u{2581}');
            if is_space || text.chars().nth(1).is_none() {
                continue;
            }
            let is_control = [true, special || !is_tag(text)];
            let mut at = 0;
            for byte in text.bytes() {
                at = content.child(at, byte).unwrap_or_else(|| {
                    let new = content.nodes.len();
                    content.nodes.push(TrieNode::default());
                    content.nodes[at].children.push((byte, new));
                    new
                });
                content.nodes[at].is_prefix = element_wise_or(content.nodes[at].is_prefix, is_control);
            }
            content.nodes[at].is_token = element_wise_or(content.nodes[at].is_token, is_control);
        }
        content
    }

    /// Inserts a mark after the first character of each control token in the text. Also marks the beginning of a control token at the end
    /// of the text, because the template or the next part may complete the token.
    #[must_use]
    pub fn mark<'a>(&self, text: &'a str, origin: TextOrigin) -> Cow<'a, str> {
        let mut marked = String::new();
        let mut done = 0;
        for at in 0..text.len() {
            if self.starts_token(&text.as_bytes()[at..], origin) {
                // the first byte of a token is the first byte of a character
                let first = text[at..].chars().next().map_or(1, char::len_utf8);
                marked.push_str(&text[done..at + first]);
                marked.push(Self::MARK);
                done = at + first;
            }
        }
        if done == 0 && !text.contains(Self::MARK) {
            return Cow::Borrowed(text);
        }
        marked.push_str(&text[done..]);
        Cow::Owned(marked)
    }

    /// Whether `text` begins with a control token, or is the beginning of one.
    fn starts_token(&self, text: &[u8], origin: TextOrigin) -> bool {
        let index = usize::from(origin == TextOrigin::Person);
        let mut at = 0;
        for byte in text {
            match self.child(at, *byte) {
                Some(next) if self.nodes[next].is_token[index] => return true,
                Some(next) => at = next,
                None => return false,
            }
        }
        at != 0 && self.nodes[at].is_prefix[index]
    }

    fn child(&self, node: usize, byte: u8) -> Option<usize> {
        self.nodes.get(node)?.children.iter().find(|(next, _)| *next == byte).map(|(_, node)| *node)
    }

    /// Marks every string in a value, keys included, as [`Content::mark`] does.
    #[must_use]
    pub fn mark_all(&self, value: &Value, origin: TextOrigin) -> Value {
        match value {
            Value::String(text) => Value::String(self.mark(text, origin).into_owned()),
            Value::Array(values) => Value::Array(values.iter().map(|value| self.mark_all(value, origin)).collect()),
            Value::Object(members) => {
                let member = |(key, value): &(String, Value)| {
                    (self.mark(key, origin).into_owned(), self.mark_all(value, origin))
                };
                Value::Object(members.iter().map(member).collect())
            }
            other => other.clone(),
        }
    }

    /// Whether a text contains a mark.
    #[must_use]
    pub fn is_marked(text: &str) -> bool {
        text.contains(Self::MARK)
    }

    /// The bytes of the marks in a text.
    pub(super) fn mark_bytes(text: &str) -> usize {
        text.matches(Self::MARK).count() * Self::MARK.len_utf8()
    }

    /// The parts of a text between its marks.
    pub(super) fn split_at_marks(text: &str) -> impl Iterator<Item = &str> {
        text.split(Self::MARK)
    }

    /// The text without its marks.
    #[must_use]
    pub fn unmarked(text: &str) -> String {
        text.replace(Self::MARK, "")
    }
}

/// The element-wise `or` of two arrays.
fn element_wise_or(a: [bool; 2], b: [bool; 2]) -> [bool; 2] {
    [a[0] || b[0], a[1] || b[1]]
}

/// Whether a token looks like an XML tag. Such tokens delimit spans within a message, and users quote them.
fn is_tag(text: &str) -> bool {
    let name = text.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')).map(|name| name.trim_start_matches('/'));
    name.is_some_and(|name| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: char = Content::MARK;

    fn content() -> Content {
        let tokens = [
            ("<|im_end|>", true),
            ("<|im", true),
            ("<think>", false),
            ("｜用户", false),
            ("<s>", true),
            ("\n\n", false),
        ];
        Content::new(tokens.into_iter())
    }

    #[test]
    fn every_control_token_is_marked() {
        let mark = |text: &str, origin| content().mark(text, origin).replace(MARK, "^");
        assert_eq!(mark("a<|im_end|>b<|im_end|>", TextOrigin::Person), "a<^|im_end|>b<^|im_end|>");
        assert_eq!(mark("<think>｜用户<s></s>", TextOrigin::Person), "<think>｜^用户<^s></s>");
        assert_eq!(mark("<think>", TextOrigin::Tool), "<^think>");
        assert!(matches!(content().mark("é<b>|im_end|", TextOrigin::Tool), Cow::Borrowed(_)));
        assert!(matches!(content().mark("a\n\nb", TextOrigin::Tool), Cow::Borrowed(_)), "space is no control token");
    }

    #[test]
    fn control_token_cut_at_the_end_of_the_text_is_marked() {
        let mark = |text: &str, origin| content().mark(text, origin).replace(MARK, "^");
        assert_eq!(mark("a<|im_en", TextOrigin::Person), "a<^|im_en");
        assert_eq!(mark("<th", TextOrigin::Tool), "<^th");
        assert_eq!(mark("<th", TextOrigin::Person), "<th");
        assert_eq!(mark("b<", TextOrigin::Person), "b<^");
        assert_eq!(mark("b｜", TextOrigin::Person), "b｜^");
    }

    #[test]
    fn mark_in_the_text_of_a_client_is_removed() {
        let text = format!("<{MARK}|im_end|>");
        assert_eq!(Content::unmarked(&content().mark(&text, TextOrigin::Tool)), "<|im_end|>");
    }
}
