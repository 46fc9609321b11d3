// SPDX-License-Identifier: Apache-2.0
//! Selects the parser of a format, and its markers.

use std::sync::Arc;

use super::glm::Glm;
use super::hermes::Hermes;
use super::invoke_block::InvokeBlock;
use super::llama3::Llama3;
use super::mistral::Mistral;
use super::parameter_block::ParameterBlock;
use super::parameter_types::ParameterTypes;
use super::pythonic::Pythonic;
use super::qwen_xml::QwenXml;
use super::section::Section;
use super::step::Step;
use super::{Format, deepseek, deepseek_dsml, glm, hermes, kimi_k2, llama3, minimax_m2, mistral, pythonic};

/// The markers of the calls of a format.
#[derive(Debug)]
pub(super) struct CallMarkers {
    /// The marker before calls.
    pub(super) start: &'static str,
    /// The markers that may have tokens.
    pub(super) all: &'static [&'static str],
    /// The first visible character of an answer that may consist of calls without a marker.
    pub(super) bare_start: Option<char>,
}

impl CallMarkers {
    pub(super) fn new(format: Format) -> Self {
        let (start, all, bare_start): (_, &[_], _) = match format {
            Format::Hermes | Format::QwenXml => (hermes::START, &[hermes::START, hermes::END], None),
            Format::Glm => (hermes::START, &glm::MARKERS, None),
            Format::KimiK2 => (kimi_k2::SECTION.start, &kimi_k2::MARKERS, None),
            Format::DeepSeek => (deepseek::SECTION.start, &deepseek::MARKERS, None),
            Format::Llama3 => (llama3::TAG, &[llama3::TAG], Some('{')),
            Format::Pythonic => (pythonic::START, &pythonic::MARKERS, Some('[')),
            Format::Mistral => (mistral::START, &mistral::MARKERS, None),
            Format::MiniMaxM2 => (minimax_m2::BLOCK.start, &minimax_m2::MARKERS, None),
            Format::DeepSeekV32 => (deepseek_dsml::V32.start, &deepseek_dsml::MARKERS, None),
            Format::DeepSeekV4 => (deepseek_dsml::V4.start, &deepseek_dsml::MARKERS, None),
        };
        Self { start, all, bare_start }
    }
}

/// Parses the blocks of one format.
#[derive(Debug, Clone)]
pub(super) enum Syntax {
    Hermes(Hermes),
    QwenXml(ParameterBlock<QwenXml>),
    Glm(ParameterBlock<Glm>),
    Section(Section),
    Llama3(Llama3),
    Pythonic(Pythonic),
    Mistral(Mistral),
    Invoke(InvokeBlock),
}

impl Syntax {
    /// A parser at the start of a block. `types` are the types of parameters, if they are known.
    pub(super) fn new(format: Format, types: Option<Arc<ParameterTypes>>) -> Self {
        match format {
            Format::Hermes => Self::Hermes(Hermes::new()),
            Format::QwenXml => Self::QwenXml(ParameterBlock::new(types)),
            Format::Glm => Self::Glm(ParameterBlock::new(types)),
            Format::KimiK2 => Self::Section(Section::new(&kimi_k2::SECTION)),
            Format::DeepSeek => Self::Section(Section::new(&deepseek::SECTION)),
            Format::Llama3 => Self::Llama3(Llama3::default()),
            Format::Pythonic => Self::Pythonic(Pythonic::default()),
            Format::Mistral => Self::Mistral(Mistral::default()),
            Format::MiniMaxM2 => Self::Invoke(InvokeBlock::new(&minimax_m2::BLOCK, types)),
            Format::DeepSeekV32 => Self::Invoke(InvokeBlock::new(&deepseek_dsml::V32, types)),
            Format::DeepSeekV4 => Self::Invoke(InvokeBlock::new(&deepseek_dsml::V4, types)),
        }
    }

    /// Continues in `buffered`, which begins with the marker or the bare start and may have grown since the last call.
    pub(super) fn read(&mut self, buffered: &str) -> Step {
        match self {
            Self::Hermes(hermes) => hermes.read(buffered),
            Self::QwenXml(qwen_xml) => qwen_xml.read(buffered),
            Self::Glm(glm) => glm.read(buffered),
            Self::Section(section) => section.read(buffered),
            Self::Llama3(llama3) => llama3.read(buffered),
            Self::Pythonic(pythonic) => pythonic.read(buffered),
            Self::Mistral(mistral) => mistral.read(buffered),
            Self::Invoke(block) => block.read(buffered),
        }
    }

    /// Whether the text so far ends within a string of the arguments, where a think start is text.
    pub(super) fn in_string(&self) -> bool {
        match self {
            Self::Hermes(hermes) => hermes.in_string(),
            Self::QwenXml(qwen_xml) => qwen_xml.in_value(),
            Self::Glm(glm) => glm.in_value(),
            Self::Section(section) => section.in_string(),
            Self::Llama3(llama3) => llama3.in_string(),
            Self::Pythonic(pythonic) => pythonic.in_string(),
            Self::Mistral(mistral) => mistral.in_string(),
            Self::Invoke(block) => block.in_value(),
        }
    }

    /// Ends the call at an end marker that may be text of a string. Returns `None` if there is no such marker.
    pub(super) fn end_at_pending_marker(&mut self, buffered: &str) -> Option<Step> {
        match self {
            Self::Hermes(hermes) => hermes.end_at_pending_marker(buffered),
            Self::QwenXml(qwen_xml) => qwen_xml.end_at_pending_marker(buffered),
            Self::Glm(glm) => glm.end_at_pending_marker(buffered),
            Self::Section(section) => section.end_at_pending_marker(buffered),
            Self::Invoke(block) => block.end_at_pending_marker(buffered),
            Self::Llama3(_) | Self::Pythonic(_) | Self::Mistral(_) => None,
        }
    }

    /// Parses `buffered` at the end of the text. Never returns [`Step::More`].
    pub(super) fn end(&mut self, buffered: &str) -> Step {
        match self {
            Self::Hermes(hermes) => hermes.end(buffered),
            Self::QwenXml(qwen_xml) => qwen_xml.end(buffered),
            Self::Glm(glm) => glm.end(buffered),
            Self::Section(section) => section.end(buffered),
            Self::Llama3(llama3) => llama3.end(buffered),
            Self::Pythonic(_) => Pythonic::end(buffered),
            Self::Mistral(mistral) => mistral.end(buffered),
            Self::Invoke(block) => block.end(buffered),
        }
    }
}
