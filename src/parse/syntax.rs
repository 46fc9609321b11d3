//! The interface between the scanner and a format.

use super::deepseek;
use super::fence::Fence;
use super::llama3::Llama3;
use super::mistral::Mistral;
use super::pythonic::Pythonic;
use super::{Format, ToolCall, glm, hermes, kimi_k2, qwen_xml};

/// The maximum number of bytes before the JSON of a call. It bounds the text that is read again with each piece.
const MAX_HEAD: usize = 512;

/// The beginning of `text` in which the head of a call must end, and whether it is complete.
pub(super) fn head(text: &str) -> (&str, bool) {
    let length = (0..=text.len().min(MAX_HEAD)).rev().find(|length| text.is_char_boundary(*length)).unwrap_or_default();
    (&text[..length], text.len() >= MAX_HEAD)
}

/// The result of reading text that begins with a marker.
#[derive(Debug)]
pub(super) enum Step {
    /// More text is needed.
    More,
    /// This many bytes, at least one, are text, and the scan goes on after them.
    Text(usize),
    /// This many bytes, at least one, are these calls.
    Calls(usize, Vec<ToolCall>),
}

/// Reads the blocks of one format.
#[derive(Debug, Clone)]
pub(super) enum Syntax {
    Fence(Fence),
    Llama3(Llama3),
    Pythonic(Pythonic),
    Mistral(Mistral),
}

impl Syntax {
    pub(super) fn new(format: Format) -> Self {
        match format {
            Format::Hermes => Self::Fence(Fence::new("<tool_call>", "</tool_call>", hermes::read)),
            Format::QwenXml => Self::Fence(Fence::new("<tool_call>", "</tool_call>", qwen_xml::read)),
            Format::Glm => Self::Fence(Fence::new("<tool_call>", "</tool_call>", glm::read)),
            Format::KimiK2 => Self::Fence(Fence::new(kimi_k2::BEGIN, kimi_k2::END, kimi_k2::read)),
            Format::DeepSeek => Self::Fence(Fence::new(deepseek::BEGIN, deepseek::END, deepseek::read)),
            Format::Llama3 => Self::Llama3(Llama3::default()),
            Format::Pythonic => Self::Pythonic(Pythonic::default()),
            Format::Mistral => Self::Mistral(Mistral::default()),
        }
    }

    /// The marker in front of calls.
    pub(super) fn start(&self) -> &'static str {
        match self {
            Self::Fence(fence) => fence.start,
            Self::Llama3(_) => super::llama3::TAG,
            Self::Pythonic(_) => super::pythonic::START,
            Self::Mistral(_) => super::mistral::START,
        }
    }

    /// The first visible character of an answer that may consist of calls without a marker.
    pub(super) fn opener(&self) -> Option<char> {
        match self {
            Self::Llama3(_) => Some('{'),
            Self::Pythonic(_) => Some('['),
            Self::Fence(_) | Self::Mistral(_) => None,
        }
    }

    /// Resets the state for the next block.
    pub(super) fn begin(&mut self) {
        match self {
            Self::Fence(fence) => fence.begin(),
            Self::Llama3(llama3) => *llama3 = Llama3::default(),
            Self::Pythonic(pythonic) => *pythonic = Pythonic::default(),
            Self::Mistral(mistral) => *mistral = Mistral::default(),
        }
    }

    /// Continues in `held`, which begins with the marker or the opener and may have grown since the last call.
    pub(super) fn read(&mut self, held: &str) -> Step {
        match self {
            Self::Fence(fence) => fence.read(held),
            Self::Llama3(llama3) => llama3.read(held),
            Self::Pythonic(pythonic) => pythonic.read(held),
            Self::Mistral(mistral) => mistral.read(held),
        }
    }

    /// Reads `held` at the end of the text. [`Step::More`] means that the rest is text.
    pub(super) fn end(&mut self, held: &str) -> Step {
        match self {
            Self::Fence(_) | Self::Mistral(_) => Step::More,
            Self::Llama3(llama3) => llama3.end(held),
            Self::Pythonic(_) => Pythonic::end(held),
        }
    }
}
