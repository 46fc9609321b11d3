//! The texts of messages, in which the name of a control token must stay a name.
//!
//! A tool that prints `<|im_end|>` must not end the turn. Before a conversation is rendered, each control token that is spelled out in
//! the text of a message is broken by a mark; after rendering, the tokenizer takes the mark out again and encodes what it stood in as
//! plain text. What the template itself writes is not touched.

use std::borrow::Cow;

use crate::json::Value;

/// Whose text it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// Nobody who knows of the template: what tools give back. No added token of the vocabulary is one there.
    Tool,
    /// A person, or the author of the agent, who may quote `<think>` or `<tool_call>`; tokens that structure conversations are text.
    Person,
}

/// Knows the control tokens of a vocabulary.
#[derive(Debug, Clone, Default)]
pub struct Content {
    /// The tokens, and whether they structure conversations.
    tokens: Vec<(String, bool)>,
    /// By byte: whether any of them begins with it.
    begins: Box<[bool]>,
}

impl Content {
    /// What breaks a token. No character: Unicode keeps it for uses inside of a program.
    pub(super) const MARK: char = '\u{fdd0}';

    /// From the added tokens and whether the tokenizer calls them special.
    pub(super) fn new<'a>(added: impl Iterator<Item = (&'a str, bool)>) -> Self {
        let tokens: Vec<(String, bool)> = added
            .filter(|(text, _)| text.chars().nth(1).is_some())
            .map(|(text, special)| (text.to_owned(), special || !is_markup(text)))
            .collect();
        let mut begins = vec![false; 256];
        for (text, _) in &tokens {
            begins[usize::from(text.as_bytes()[0])] = true;
        }
        Self { tokens, begins: begins.into() }
    }

    /// The text with every control token in it broken.
    #[must_use]
    pub fn mark<'a>(&self, text: &'a str, author: Author) -> Cow<'a, str> {
        let mut marked = String::new();
        let mut done = 0;
        for (at, byte) in text.bytes().enumerate() {
            if !self.begins.get(usize::from(byte)).copied().unwrap_or(false) {
                continue;
            }
            let rest = &text.as_bytes()[at..];
            let begins = |(token, structures): &(String, bool)| {
                (*structures || author == Author::Tool) && rest.starts_with(token.as_bytes())
            };
            if self.tokens.iter().any(begins) {
                // a token's first byte begins a character, and its second character follows
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

    /// The same for every string in a value, keys included.
    #[must_use]
    pub fn mark_all(&self, value: &Value, author: Author) -> Value {
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

    /// Whether there is a mark in a text.
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
        let tokens = [("<|im_end|>", true), ("<|im", true), ("<think>", false), ("｜用户", false), ("<s>", true)];
        Content::new(tokens.into_iter())
    }

    #[test]
    fn every_place_where_a_control_token_begins_is_broken() {
        let mark = |text: &str, author| content().mark(text, author).replace(MARK, "^");
        assert_eq!(mark("a<|im_end|>b<|im_end|>", Author::Person), "a<^|im_end|>b<^|im_end|>");
        assert_eq!(mark("<think>｜用户<s></s>", Author::Person), "<think>｜^用户<^s></s>");
        assert_eq!(mark("<think>", Author::Tool), "<^think>");
        assert!(matches!(content().mark("é<b>|im_end|", Author::Tool), Cow::Borrowed(_)));
    }

    #[test]
    fn a_mark_of_the_clients_own_is_taken_out_with_ours() {
        let text = format!("<{MARK}|im_end|>");
        assert_eq!(Content::unmarked(&content().mark(&text, Author::Tool)), "<|im_end|>");
    }
}
