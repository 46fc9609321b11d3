// SPDX-License-Identifier: Apache-2.0
//! The steps by which the parser of a format reads a block of calls.

use super::{Event, ToolCall};

/// The maximum number of bytes before the JSON of a call. Bounds the text that is read again with each piece.
const MAX_HEAD: usize = 512;

/// The beginning of `text` in which the head of a call must end; and whether that beginning has its maximum length.
pub(super) fn head(text: &str) -> (&str, bool) {
    let length = (0..=text.len().min(MAX_HEAD)).rev().find(|length| text.is_char_boundary(*length)).unwrap_or_default();
    (&text[..length], text.len() >= MAX_HEAD)
}

/// The result of reading text that begins with a marker, or with text of a block that is partly emitted.
#[derive(Debug)]
pub(super) enum Step {
    /// More text is needed.
    More,
    /// The first bytes, this many, are text. The scan continues after them.
    Text(usize),
    /// The first bytes, this many, have these events. The block continues after them. At least one of the two is not empty.
    Part(usize, Vec<Event>),
    /// The first bytes, this many, have these events. The block ends after them.
    End(usize, Vec<Event>),
}

impl Step {
    /// The first `length` bytes are a block with these calls. They are text if the block has no call.
    pub(super) fn calls(length: usize, calls: Vec<ToolCall>) -> Self {
        match calls.is_empty() {
            true => Self::Text(length),
            false => Self::End(length, calls.into_iter().flat_map(ToolCall::into_events).collect()),
        }
    }

    /// The first `length` bytes are a block with this call.
    pub(super) fn call(length: usize, call: ToolCall) -> Self {
        Self::calls(length, vec![call])
    }
}
