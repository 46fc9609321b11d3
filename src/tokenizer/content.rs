//! The texts of messages, in which the name of a control token must stay a name.
//!
//! A tool that prints `<|im_end|>` must not end the turn. Before a conversation is rendered, each control token that is spelled out in
//! the text of a message is broken by a mark; after rendering, the tokenizer finds its tokens, takes the marks out again and encodes the
//! rest as plain text. What the template itself writes is not touched.

use std::borrow::Cow;

use crate::json::Value;

/// Whose text it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextOrigin {
    /// A tool, which does not know the template. No added token of the vocabulary is a token in its output.
    Tool,
    /// A person, or the author of the agent, who may quote `<think>` or `<tool_call>`; tokens that structure conversations are text.
    Person,
}

/// Knows the control tokens of a vocabulary.
#[derive(Debug, Clone, Default)]
pub struct Content {
    /// The tokens, byte by byte; the first node is where each begins.
    nodes: Vec<Node>,
}

/// A beginning that tokens share.
#[derive(Debug, Clone, Default)]
struct Node {
    /// The next byte and its node.
    next: Vec<(u8, usize)>,
    /// Whether a token ends here, and whether one that structures conversations does.
    ends: [bool; 2],
    /// The same for tokens that end here or later.
    leads: [bool; 2],
}

impl Content {
    /// What breaks a token. No character: Unicode keeps it for uses inside of a program.
    pub(super) const MARK: char = '\u{fdd0}';

    /// From the added tokens and whether the tokenizer calls them special. Those that are only space are no control tokens: some
    /// vocabularies have one for each number of newlines.
    pub(super) fn new<'a>(added: impl Iterator<Item = (&'a str, bool)>) -> Self {
        let mut content = Self { nodes: vec![Node::default()] };
        for (text, special) in added {
            let is_space = text.chars().all(|c| c.is_whitespace() || c == '\u{2581}');
            if is_space || text.chars().nth(1).is_none() {
                continue;
            }
            let kinds = [true, special || !is_markup(text)];
            let mut at = 0;
            for byte in text.bytes() {
                at = content.step(at, byte).unwrap_or_else(|| {
                    let new = content.nodes.len();
                    content.nodes.push(Node::default());
                    content.nodes[at].next.push((byte, new));
                    new
                });
                content.nodes[at].leads = either(content.nodes[at].leads, kinds);
            }
            content.nodes[at].ends = either(content.nodes[at].ends, kinds);
        }
        content
    }

    /// The text with every control token in it broken, and the beginning of one at its end: the template, or the next part, may go on.
    #[must_use]
    pub fn mark<'a>(&self, text: &'a str, author: TextOrigin) -> Cow<'a, str> {
        let mut marked = String::new();
        let mut done = 0;
        for at in 0..text.len() {
            if self.begins(&text.as_bytes()[at..], author) {
                // a token's first byte begins a character
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

    /// Whether a control token begins here, as far as the text goes.
    fn begins(&self, text: &[u8], author: TextOrigin) -> bool {
        let kind = usize::from(author == TextOrigin::Person);
        let mut at = 0;
        for byte in text {
            match self.step(at, *byte) {
                Some(next) if self.nodes[next].ends[kind] => return true,
                Some(next) => at = next,
                None => return false,
            }
        }
        at != 0 && self.nodes[at].leads[kind]
    }

    fn step(&self, node: usize, byte: u8) -> Option<usize> {
        self.nodes.get(node)?.next.iter().find(|(next, _)| *next == byte).map(|(_, node)| *node)
    }

    /// The same for every string in a value, keys included.
    #[must_use]
    pub fn mark_all(&self, value: &Value, author: TextOrigin) -> Value {
        match value {
            Value::String(text) => Value::String(self.mark(text, author).into_owned()),
            Value::Array(values) => Value::Array(values.iter().map(|value| self.mark_all(value, author)).collect()),
            Value::Object(members) => {
                let member = |(key, value): &(String, Value)| {
                    (self.mark(key, author).into_owned(), self.mark_all(value, author))
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

    /// The parts of a text, which marks divide.
    pub(super) fn between_marks(text: &str) -> impl Iterator<Item = &str> {
        text.split(Self::MARK)
    }

    /// The text without marks.
    #[must_use]
    pub fn unmarked(text: &str) -> String {
        text.replace(Self::MARK, "")
    }
}

fn either(a: [bool; 2], b: [bool; 2]) -> [bool; 2] {
    [a[0] || b[0], a[1] || b[1]]
}

/// Whether a token looks like a tag of XML: such tokens mark spans within a message, and people quote them.
fn is_markup(text: &str) -> bool {
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
    fn every_place_where_a_control_token_begins_is_broken() {
        let mark = |text: &str, author| content().mark(text, author).replace(MARK, "^");
        assert_eq!(mark("a<|im_end|>b<|im_end|>", TextOrigin::Person), "a<^|im_end|>b<^|im_end|>");
        assert_eq!(mark("<think>｜用户<s></s>", TextOrigin::Person), "<think>｜^用户<^s></s>");
        assert_eq!(mark("<think>", TextOrigin::Tool), "<^think>");
        assert!(matches!(content().mark("é<b>|im_end|", TextOrigin::Tool), Cow::Borrowed(_)));
        assert!(matches!(content().mark("a\n\nb", TextOrigin::Tool), Cow::Borrowed(_)), "space is no control token");
    }

    #[test]
    fn a_token_that_may_go_on_behind_the_text_is_broken() {
        let mark = |text: &str, author| content().mark(text, author).replace(MARK, "^");
        assert_eq!(mark("a<|im_en", TextOrigin::Person), "a<^|im_en");
        assert_eq!(mark("<th", TextOrigin::Tool), "<^th");
        assert_eq!(mark("<th", TextOrigin::Person), "<th");
        assert_eq!(mark("b<", TextOrigin::Person), "b<^");
        assert_eq!(mark("b｜", TextOrigin::Person), "b｜^");
    }

    #[test]
    fn a_mark_in_the_clients_text_is_removed_too() {
        let text = format!("<{MARK}|im_end|>");
        assert_eq!(Content::unmarked(&content().mark(&text, TextOrigin::Tool)), "<|im_end|>");
    }
}
