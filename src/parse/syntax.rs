//! The interface between the scanner and a format.

use super::deepseek;
use super::fence::FencedBlock;
use super::llama3::Llama3;
use super::mistral::Mistral;
use super::pythonic::Pythonic;
use super::{Format, ToolCall, glm, hermes, kimi_k2, qwen_xml};

/// The maximum number of bytes before the JSON of a call. Bounds the text that is read again with each piece.
const MAX_HEAD: usize = 512;

/// The beginning of `text` in which the head of a call must end; and whether that beginning has its maximum length.
pub(super) fn head(text: &str) -> (&str, bool) {
    let length = (0..=text.len().min(MAX_HEAD)).rev().find(|length| text.is_char_boundary(*length)).unwrap_or_default();
    (&text[..length], text.len() >= MAX_HEAD)
}

/// The result of reading text that begins with a marker.
#[derive(Debug)]
pub(super) enum Step {
    /// More text is needed.
    More,
    /// The first bytes, this many and at least one, are text. The scan continues after them.
    Text(usize),
    /// The first bytes, this many and at least one, are these calls.
    Calls(usize, Vec<ToolCall>),
}

/// Parses the blocks of one format.
#[derive(Debug, Clone)]
pub(super) enum Syntax {
    Fenced(FencedBlock),
    Llama3(Llama3),
    Pythonic(Pythonic),
    Mistral(Mistral),
}

impl Syntax {
    pub(super) fn new(format: Format) -> Self {
        match format {
            Format::Hermes => Self::Fenced(FencedBlock::new("<tool_call>", "</tool_call>", hermes::read)),
            Format::QwenXml => Self::Fenced(FencedBlock::new("<tool_call>", "</tool_call>", qwen_xml::read)),
            Format::Glm => Self::Fenced(FencedBlock::new("<tool_call>", "</tool_call>", glm::read)),
            Format::KimiK2 => Self::Fenced(FencedBlock::new(kimi_k2::BEGIN, kimi_k2::END, kimi_k2::read)),
            Format::DeepSeek => Self::Fenced(FencedBlock::new(deepseek::BEGIN, deepseek::END, deepseek::read)),
            Format::Llama3 => Self::Llama3(Llama3::default()),
            Format::Pythonic => Self::Pythonic(Pythonic::default()),
            Format::Mistral => Self::Mistral(Mistral::default()),
        }
    }

    /// The marker before calls.
    pub(super) fn start(&self) -> &'static str {
        match self {
            Self::Fenced(block) => block.start,
            Self::Llama3(_) => super::llama3::TAG,
            Self::Pythonic(_) => super::pythonic::START,
            Self::Mistral(_) => super::mistral::START,
        }
    }

    /// The bare start: the first visible character of an answer that may consist of calls without a marker.
    pub(super) fn bare_start(&self) -> Option<char> {
        match self {
            Self::Llama3(_) => Some('{'),
            Self::Pythonic(_) => Some('['),
            Self::Fenced(_) | Self::Mistral(_) => None,
        }
    }

    /// Resets the state for the next block.
    pub(super) fn begin(&mut self) {
        match self {
            Self::Fenced(block) => block.begin(),
            Self::Llama3(llama3) => *llama3 = Llama3::default(),
            Self::Pythonic(pythonic) => *pythonic = Pythonic::default(),
            Self::Mistral(mistral) => *mistral = Mistral::default(),
        }
    }

    /// Continues in `buffered`, which begins with the marker or the bare start and may have grown since the last call.
    pub(super) fn read(&mut self, buffered: &str) -> Step {
        match self {
            Self::Fenced(block) => block.read(buffered),
            Self::Llama3(llama3) => llama3.read(buffered),
            Self::Pythonic(pythonic) => pythonic.read(buffered),
            Self::Mistral(mistral) => mistral.read(buffered),
        }
    }

    /// Parses `buffered` at the end of the text. [`Step::More`] means that `buffered` is text.
    pub(super) fn end(&mut self, buffered: &str) -> Step {
        match self {
            Self::Fenced(_) | Self::Mistral(_) => Step::More,
            Self::Llama3(llama3) => llama3.end(buffered),
            Self::Pythonic(_) => Pythonic::end(buffered),
        }
    }
}
