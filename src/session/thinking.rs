// SPDX-License-Identifier: Apache-2.0
//! Which sampled tokens of a path are thinking.

/// The ids of the think tokens, which differ between models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinkTokens {
    /// `<think>`.
    pub start: u32,
    /// `</think>`.
    pub end: u32,
}

/// What a sampled token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkToken {
    /// A start token.
    Start,
    /// An end token.
    End,
    /// A token of a span.
    Thinking,
    /// A token outside of spans.
    Answer,
}

/// Finds the spans of thinking in the sampled tokens of a path, turn by turn.
///
/// A span has the sampled tokens between a start token and the next end token, without both. It begins after a sampled start token, or at
/// the beginning of the response if the last think token of the new prompt tokens is a start token. It ends at an end token. Without an
/// end token it ends, unclosed, with the response; but if the next turn has no new prompt tokens, it continues in that turn. A second start
/// token within a span does not begin another span.
#[derive(Debug, Clone, Copy)]
pub struct ThinkSpans {
    tokens: ThinkTokens,
    position: Position,
}

/// The position of the next token relative to the spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    Outside,
    /// The prompt ends in a span, and no token was sampled yet. The span counts once a token is sampled.
    OpenedByPrompt,
    Inside,
}

impl ThinkSpans {
    /// The spans of a path that has no turns yet.
    #[must_use]
    pub fn new(tokens: ThinkTokens) -> Self {
        Self { tokens, position: Position::Outside }
    }

    /// Begins a turn with these new prompt tokens. Without any, the policy continues in the context of the previous turn.
    pub fn begin(&mut self, prompt: &[u32]) {
        if !prompt.is_empty() {
            let ThinkTokens { start, end } = self.tokens;
            let last = prompt.iter().rev().find(|id| **id == start || **id == end);
            self.position = if last == Some(&start) { Position::OpenedByPrompt } else { Position::Outside };
        }
    }

    /// Whether the prompt ends in a span, and no token was sampled yet.
    #[must_use]
    pub fn is_opened_by_prompt(&self) -> bool {
        self.position == Position::OpenedByPrompt
    }

    /// Whether a sampled token is in a span that no end token has closed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.position == Position::Inside
    }

    /// Whether the next token is in a span, unless a turn with new prompt tokens begins.
    pub(super) fn is_in_span(&self) -> bool {
        self.position != Position::Outside
    }

    /// The next sampled token.
    pub fn token(&mut self, id: u32) -> ThinkToken {
        if self.position == Position::OpenedByPrompt {
            self.position = Position::Inside;
        }
        if id == self.tokens.start {
            self.position = Position::Inside;
            ThinkToken::Start
        } else if id == self.tokens.end {
            self.position = Position::Outside;
            ThinkToken::End
        } else if self.position == Position::Inside {
            ThinkToken::Thinking
        } else {
            ThinkToken::Answer
        }
    }
}
