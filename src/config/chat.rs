// SPDX-License-Identifier: Apache-2.0
//! Settings of chat completions.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{MAIN, duration};

/// How chat completions are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ChatMode {
    /// From tokens, where the model's tokenizer can be read; else by SGLang's own endpoint.
    Auto,
    /// SGLang's own endpoint, always.
    Passthrough,
}

/// What happens to thinking that the template drops from earlier turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EarlierThinking {
    /// Its tokens stay in the context.
    Keep,
    /// The conversation is rendered again, and becomes a branch.
    Branch,
}

/// Settings of chat completions.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Chat")]
pub struct ChatConfig {
    /// How chats are served: auto (token-exact, where the tokenizer can be read), passthrough (by SGLang's own endpoint)
    #[arg(long, env = "TOKENTAP_CHAT", value_name = "MODE", default_value = "auto")]
    pub chat: ChatMode,
    /// Folder of the model's tokenizer and chat template, or its tokenizer.json; without it the engine's tokenizer_path
    #[arg(long, env = "TOKENTAP_TOKENIZER", help_heading = MAIN, value_name = "PATH")]
    pub tokenizer: Option<PathBuf>,
    /// Format of tool calls: auto (the engine's, else the family's), none, hermes, qwen_xml, glm, kimi_k2, llama3, pythonic, mistral, deepseek, minimax_m2, deepseek_v32, deepseek_v4
    #[arg(long, env = "TOKENTAP_TOOL_CALL_PARSER", value_name = "NAME", default_value = "auto")]
    pub tool_call_parser: String,
    /// Whether thinking becomes reasoning_content: auto (where the engine does so), always, never
    #[arg(long, env = "TOKENTAP_SEPARATE_REASONING", value_name = "WHEN", default_value = "auto")]
    pub separate_reasoning: SeparateReasoning,
    /// Thinking that the template drops from earlier turns: keep its tokens, or branch and render the conversation again
    #[arg(long, env = "TOKENTAP_EARLIER_THINKING", value_name = "POLICY", default_value = "keep")]
    pub earlier_thinking: EarlierThinking,
    /// Limits of a conversation: turns=N,tool-turns=N,tool-calls=N, any of them; calls above one get 403
    #[arg(long, env = "TOKENTAP_CHAT_LIMITS", value_name = "LIMITS", default_value = "")]
    pub chat_limits: ChatLimits,
    /// Send a comment on streams that are silent for this time, for proxies that close silent connections; 0 is never
    #[arg(long, env = "TOKENTAP_SSE_KEEPALIVE", value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub sse_keepalive: Duration,
    /// The share of chats that extend a turn which are rendered again, to count how far that differs: 0 to 1.
    #[arg(skip = 0.01_f64)]
    pub drift_sample: f64,
}

impl ChatConfig {
    /// A tokenizer that is named must be readable: chats would go to the engine's own endpoint and not be trained.
    pub(super) fn check(&self) -> Result<(), String> {
        let Some(path) = self.tokenizer.as_ref().filter(|_| self.chat != ChatMode::Passthrough) else { return Ok(()) };
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.clone() };
        let opened = std::fs::File::open(&file);
        opened.map(drop).map_err(|error| format!("--tokenizer {}: cannot be read: {error}", file.display()))
    }
}

/// Limits of one conversation; `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChatLimits {
    /// Turns of the assistant.
    pub turns: Option<usize>,
    /// Turns of the assistant that call tools.
    pub tool_turns: Option<usize>,
    /// Tool calls; parallel calls are counted each.
    pub tool_calls: Option<usize>,
}

impl FromStr for ChatLimits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut limits = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, number) = part.split_once('=').unwrap_or((part, ""));
            let limit = match name {
                "turns" => &mut limits.turns,
                "tool-turns" => &mut limits.tool_turns,
                "tool-calls" => &mut limits.tool_calls,
                other => return Err(format!("{other:?} is not one of turns, tool-turns and tool-calls")),
            };
            let number = number.parse().ok().filter(|number| *number > 0);
            *limit = Some(number.ok_or_else(|| format!("{name} is a number from 1 on"))?);
        }
        Ok(limits)
    }
}

/// When thinking is separated from the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SeparateReasoning {
    /// Where the engine has a reasoning parser.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}
