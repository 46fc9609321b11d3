// SPDX-License-Identifier: Apache-2.0
//! The formats of tool calls, and their names.

use std::fmt;
use std::str::FromStr;

/// The format of the tool calls of a family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// In `<tool_call>` tags: a JSON object with `name` and `arguments`.
    Hermes,
    /// In `<tool_call>` tags: `<function=…>`, which contains `<parameter=…>`.
    QwenXml,
    /// In `<tool_call>` tags: a name, then pairs of `<arg_key>` and `<arg_value>`.
    Glm,
    /// A section of calls between special tokens. The id of each call contains the name.
    KimiK2,
    /// JSON objects with `name` and `parameters`, after `<|python_tag|>` or as the whole answer.
    Llama3,
    /// A Python list of calls as the whole answer.
    Pythonic,
    /// `[TOOL_CALLS]`, then a JSON array, or a name, `[ARGS]` and a JSON object.
    Mistral,
    /// A section of calls between special tokens, with a fenced JSON object (V3, R1) or a plain one (V3.1).
    DeepSeek,
    /// In `<minimax:tool_call>` tags: any number of `<invoke name="…">`, which contain `<parameter name="…">`.
    MiniMaxM2,
    /// In `<｜DSML｜function_calls>` tags: any number of `<｜DSML｜invoke name="…">`, which contain `<｜DSML｜parameter name="…" string="…">`.
    DeepSeekV32,
    /// As V3.2, in `<｜DSML｜tool_calls>` tags.
    DeepSeekV4,
}

/// Error: no format has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no format of tool calls is called {0:?}")]
pub struct UnknownFormat(pub String);

impl Format {
    /// All formats.
    pub const ALL: [Self; 11] = [
        Self::Hermes,
        Self::QwenXml,
        Self::Glm,
        Self::KimiK2,
        Self::Llama3,
        Self::Pythonic,
        Self::Mistral,
        Self::DeepSeek,
        Self::MiniMaxM2,
        Self::DeepSeekV32,
        Self::DeepSeekV4,
    ];

    /// The name of the format, then the other names of it in SGLang's `--tool-call-parser`.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &["hermes", "qwen", "qwen25"],
            Self::QwenXml => &["qwen_xml", "qwen3_coder"],
            Self::Glm => &["glm", "glm45", "glm47"],
            Self::KimiK2 => &["kimi_k2"],
            Self::Llama3 => &["llama3"],
            Self::Pythonic => &["pythonic"],
            Self::Mistral => &["mistral"],
            Self::DeepSeek => &["deepseek", "deepseekv3", "deepseekv31"],
            Self::MiniMaxM2 => &["minimax_m2", "minimax-m2"],
            Self::DeepSeekV32 => &["deepseek_v32", "deepseekv32"],
            // not deepseekv41: its tags differ
            Self::DeepSeekV4 => &["deepseek_v4", "deepseekv4"],
        }
    }

    /// The name of the format.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.names()[0]
    }

    /// Whether the values of parameters are texts, which are read by the types of the parameters.
    #[must_use]
    pub fn has_text_values(self) -> bool {
        matches!(self, Self::QwenXml | Self::Glm | Self::MiniMaxM2)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        Self::ALL
            .into_iter()
            .find(|format| format.names().contains(&name))
            .ok_or_else(|| UnknownFormat(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_belongs_to_one_format() {
        let mut names: Vec<&str> = Vec::new();
        for format in Format::ALL {
            names.extend(format.names());
        }
        for name in &names {
            let format: Format = name.parse().unwrap();
            assert!(format.names().contains(name), "{name} is {format}");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name belongs to two formats");
        assert!("deepseekv41".parse::<Format>().is_err());
        assert!("Hermes".parse::<Format>().is_err());
    }
}
