// SPDX-License-Identifier: Apache-2.0
//! Model families: facts that a chat template does not contain, such as the format of tool calls.

use super::Folder;
use crate::named_enum::named_enum;

named_enum! {
    /// A model family, recognised by tokens that only its models have.
    pub enum Family {
        /// Qwen 2.5, 3 and 3.5, Nemotron, and other models with ChatML turns.
        ChatMl = "chatml",
        /// ChatML models that write tool calls as XML.
        QwenXml = "qwen_xml",
        /// GLM 4.5 and later: the role token of the next turn ends a turn.
        Glm = "glm",
        /// Llama 3.
        Llama3 = "llama3",
        /// Kimi K2.
        KimiK2 = "kimi_k2",
        /// DeepSeek V3 and R1.
        DeepSeek = "deepseek",
        /// DeepSeek V3.2.
        DeepSeekV32 = "deepseek_v32",
        /// DeepSeek V4.
        DeepSeekV4 = "deepseek_v4",
        /// MiniMax M2.
        MiniMax = "minimax",
        /// Mistral.
        Mistral = "mistral",
        /// gpt-oss: messages in channels, which a template alone does not describe.
        Harmony = "harmony",
        /// An unknown family. All facts come from the template.
        Other = "other",
    }
}

/// Tokens that identify a family, in order of precedence.
const FAMILY_TOKENS: [(&str, Family); 8] = [
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
    pub fn detect(folder: &Folder) -> Self {
        let found = FAMILY_TOKENS.iter().find(|(token, _)| folder.tokenizer.is_added(token));
        match found.map_or(Self::Other, |(_, family)| *family) {
            Self::ChatMl if folder.template.mentions("<function=") => Self::QwenXml,
            Self::DeepSeek if folder.template.mentions("｜DSML｜") => {
                if folder.template.mentions("function_calls>") {
                    Self::DeepSeekV32
                } else {
                    Self::DeepSeekV4
                }
            }
            // M1 and M3 write calls and thinking in other ways
            Self::MiniMax if !folder.template.mentions("<minimax:tool_call>") => Self::Other,
            family => family,
        }
    }

    /// The name of the [`Format`](crate::parse::Format) of its tool calls; `None` if no parser exists.
    #[must_use]
    pub fn tool_calls(self) -> Option<&'static str> {
        match self {
            Self::ChatMl => Some("hermes"),
            Self::QwenXml => Some("qwen_xml"),
            Self::Glm => Some("glm"),
            Self::Llama3 => Some("llama3"),
            Self::KimiK2 => Some("kimi_k2"),
            Self::DeepSeek => Some("deepseek"),
            Self::DeepSeekV32 => Some("deepseek_v32"),
            Self::DeepSeekV4 => Some("deepseek_v4"),
            Self::Mistral => Some("mistral"),
            Self::MiniMax => Some("minimax_m2"),
            Self::Harmony | Self::Other => None,
        }
    }

    /// The start and end markers of its thinking; `None` if thinking has no such markers.
    #[must_use]
    pub fn think(self) -> Option<(&'static str, &'static str)> {
        (self != Self::Harmony).then_some(("<think>", "</think>"))
    }

    /// Whether a text ends within a thought; `None` if the text has no marker of thinking.
    #[must_use]
    pub fn ends_in_thought(self, text: &str) -> Option<bool> {
        let (start, end) = self.think()?;
        match (text.rfind(start), text.rfind(end)) {
            (None, None) => None,
            // `None` is less than any position
            (start, end) => Some(start > end),
        }
    }

    /// Whether a template can render its conversations, and its replies can be parsed.
    #[must_use]
    pub fn is_supported(self) -> bool {
        self != Self::Harmony
    }
}
