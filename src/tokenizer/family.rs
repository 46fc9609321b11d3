//! Families of models: the facts about their turns that templates do not have.

use super::Folder;

/// A family, by the tokens that only its models have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Qwen 2.5, 3 and 3.5, Nemotron, and what else speaks ChatML.
    ChatMl,
    /// Those of them that write calls as XML.
    QwenXml,
    /// GLM 4.5 and later: a turn ends with the role of the next one.
    Glm,
    /// Llama 3.
    Llama3,
    /// Kimi K2.
    KimiK2,
    /// DeepSeek V3 and R1.
    DeepSeek,
    /// MiniMax M2.
    MiniMax,
    /// Mistral.
    Mistral,
    /// gpt-oss: messages in channels, which a template alone does not describe.
    Harmony,
    /// Another one: what can be found out of the template is all that is known.
    Other,
}

/// Tokens that only the models of a family have, the most telling first.
const TELLING: [(&str, Family); 8] = [
    ("<|channel|>", Family::Harmony),
    ("<|tool_calls_section_begin|>", Family::KimiK2),
    ("<|observation|>", Family::Glm),
    ("<|eot_id|>", Family::Llama3),
    ("<｜Assistant｜>", Family::DeepSeek),
    ("[e~[", Family::MiniMax),
    ("[TOOL_CALLS]", Family::Mistral),
    ("<|im_end|>", Family::ChatMl),
];

impl Family {
    /// The family of a model with these files.
    #[must_use]
    pub fn of(folder: &Folder) -> Self {
        let telling = TELLING.iter().find(|(token, _)| folder.tokenizer.is_added(token));
        match telling.map_or(Self::Other, |(_, family)| *family) {
            Self::ChatMl if folder.template.mentions("<function=") => Self::QwenXml,
            family => family,
        }
    }

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatMl => "chatml",
            Self::QwenXml => "qwen_xml",
            Self::Glm => "glm",
            Self::Llama3 => "llama3",
            Self::KimiK2 => "kimi_k2",
            Self::DeepSeek => "deepseek",
            Self::MiniMax => "minimax",
            Self::Mistral => "mistral",
            Self::Harmony => "harmony",
            Self::Other => "other",
        }
    }

    /// The format of its tool calls, by the name that `parse` knows; `None` where there is no reader for it.
    #[must_use]
    pub fn tool_calls(self) -> Option<&'static str> {
        match self {
            Self::ChatMl => Some("hermes"),
            Self::QwenXml => Some("qwen_xml"),
            Self::Glm => Some("glm"),
            Self::Llama3 => Some("llama3"),
            Self::KimiK2 => Some("kimi_k2"),
            Self::DeepSeek => Some("deepseek"),
            Self::Mistral => Some("mistral"),
            Self::MiniMax | Self::Harmony | Self::Other => None,
        }
    }

    /// What opens and closes its thinking.
    #[must_use]
    pub fn think(self) -> Option<(&'static str, &'static str)> {
        (self != Self::Harmony).then_some(("<think>", "</think>"))
    }

    /// Whether a text ends within a thought; `None` where it has no mark of one.
    #[must_use]
    pub fn ends_in_thought(self, text: &str) -> Option<bool> {
        let (start, end) = self.think()?;
        match (text.rfind(start), text.rfind(end)) {
            (None, None) => None,
            // none is before any place
            (start, end) => Some(start > end),
        }
    }

    /// Whether its conversations can be rendered by a template and read back.
    #[must_use]
    pub fn is_supported(self) -> bool {
        self != Self::Harmony
    }
}
