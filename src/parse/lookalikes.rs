// SPDX-License-Identifier: Apache-2.0
//! Marks text that looks like a marker but was not sampled as its token.
//!
//! In a vocabulary that has a token for a marker, a model that calls a tool samples this token. The same text in other tokens is text, for
//! example of a file that the model writes. A mark inside such a text hides it from the parsers. Marks are removed from everything that is
//! emitted.

use std::borrow::Cow;
use std::sync::Arc;

use memchr::memmem;

use super::Event;
use super::buffer::overlap;

/// The first character of a mark: a noncharacter, which Unicode reserves for use inside programs. A model may sample it nevertheless.
const ESCAPE: char = '\u{fdd0}';

/// The second character of a mark. Another [`ESCAPE`] in its place is one that the model sampled.
const MARK_END: char = '\u{fdd1}';

/// Inserts marks into a text that arrives in pieces.
#[derive(Debug, Clone)]
pub(super) struct Lookalikes {
    /// The markers that have a token.
    tokens: Arc<[Box<str>]>,
    /// Text that may be the beginning of a marker.
    pending: String,
}

impl Lookalikes {
    pub(super) fn new(tokens: Arc<[Box<str>]>) -> Self {
        Self { tokens, pending: String::new() }
    }

    /// Adds a piece. Returns the text so far that is not the beginning of a marker, with marks.
    pub(super) fn push<'a>(&mut self, piece: &'a str) -> Cow<'a, str> {
        let may_begin = |token: &str| token.bytes().next().is_some_and(|first| piece.as_bytes().contains(&first));
        if self.pending.is_empty() && !self.tokens.iter().any(|token| may_begin(token)) {
            return escaped(piece);
        }
        let mut text = std::mem::take(&mut self.pending);
        text.push_str(piece);
        let tokens = self.tokens.iter().flat_map(|token| memmem::find_iter(text.as_bytes(), token.as_bytes()));
        let mut found: Vec<usize> = tokens.collect();
        found.sort_unstable();
        let pending = self.tokens.iter().map(|token| overlap(&text, token)).max().unwrap_or(0);
        let mut marked = String::with_capacity(text.len() + 2 * ESCAPE.len_utf8() * found.len());
        let mut done = 0;
        for at in found {
            let first = at + text[at..].chars().next().map_or(0, char::len_utf8);
            marked.push_str(&escaped(&text[done..first]));
            marked.extend([ESCAPE, MARK_END]);
            done = first;
        }
        let end = done.max(text.len() - pending);
        marked.push_str(&escaped(&text[done..end]));
        text.drain(..end);
        self.pending = text;
        Cow::Owned(marked)
    }

    /// The text that has not become a marker, because a token follows or the text ends.
    pub(super) fn take_pending(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }
}

/// The text, in which an [`ESCAPE`] is doubled.
fn escaped(text: &str) -> Cow<'_, str> {
    if text.contains(ESCAPE) { text.replace(ESCAPE, "\u{fdd0}\u{fdd0}").into() } else { text.into() }
}

/// The sampled text, without marks. A mark must not be cut.
pub(super) fn without_marks(text: &str) -> Cow<'_, str> {
    if !text.contains(ESCAPE) {
        return text.into();
    }
    let mut sampled = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        // an escape without another character was written by a JSON escape
        let is_mark = c == ESCAPE && characters.next_if(|next| matches!(*next, ESCAPE | MARK_END)) == Some(MARK_END);
        if !is_mark {
            sampled.push(c);
        }
    }
    sampled.into()
}

/// Removes the marks from events.
pub(super) fn remove_marks(events: &mut Vec<Event>) {
    let clean = |text: &mut String| {
        if let Cow::Owned(sampled) = without_marks(text) {
            *text = sampled;
        }
    };
    events.retain_mut(|event| match event {
        Event::Reasoning(text) | Event::Content(text) | Event::Arguments(text) => {
            clean(text);
            !text.is_empty()
        }
        Event::CallStart { name, id } => {
            clean(name);
            id.iter_mut().for_each(clean);
            true
        }
        Event::CallEnd { .. } => true,
    });
}
