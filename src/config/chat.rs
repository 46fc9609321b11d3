//! Settings of chat completions.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::duration;

/// Who serves a chat completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ChatMode {
    /// From tokens, where the model's tokenizer can be read.
    Auto,
    /// SGLang's own endpoint, always.
    Passthrough,
}

/// What happens to a thought that the template would drop once a user says more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EarlierThinking {
    /// Its tokens stay in the context.
    Keep,
    /// The conversation is rendered anew, as the template would have it, and becomes a branch.
    Branch,
}

/// Settings of chat completions.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Chat")]
pub struct ChatConfig {
    /// Chat completions are served from tokens where the tokenizer can be read (auto), or by SGLang's own endpoint (passthrough)
    #[arg(long, env = "TOKENTAP_CHAT", value_name = "MODE", default_value = "auto")]
    pub chat: ChatMode,
    /// Folder of the model's tokenizer and chat template, or its tokenizer.json; without it the engine's tokenizer_path, where it can be read
    #[arg(long, env = "TOKENTAP_TOKENIZER", value_name = "PATH")]
    pub tokenizer: Option<PathBuf>,
    /// The generation_config.json that SGLang takes its sampling defaults from; without it the one beside the model
    #[arg(long, env = "TOKENTAP_GENERATION_CONFIG", value_name = "FILE")]
    pub generation_config: Option<PathBuf>,
    /// Format of tool calls: auto (the engine's, else the family's), none, hermes, qwen_xml, glm, kimi_k2, llama3, pythonic, mistral, deepseek
    #[arg(long, env = "TOKENTAP_TOOL_CALL_PARSER", value_name = "NAME", default_value = "auto")]
    pub tool_call_parser: String,
    /// Whether thinking is told apart as reasoning_content: auto (where the engine does), always, never
    #[arg(long, env = "TOKENTAP_SEPARATE_REASONING", value_name = "WHEN", default_value = "auto")]
    pub separate_reasoning: SeparateReasoning,
    /// A thought that the template drops once a user says more: keep its tokens, or branch and render the conversation anew
    #[arg(long, env = "TOKENTAP_EARLIER_THINKING", value_name = "POLICY", default_value = "keep")]
    pub earlier_thinking: EarlierThinking,
    /// So many turns of the assistant in one conversation; the next call is answered 403. 0 is no limit
    #[arg(long, env = "TOKENTAP_MAX_TURNS", value_name = "N", default_value = "0")]
    pub max_turns: usize,
    /// So many turns that call tools in one conversation; the call that brings their results is answered 403. 0 is no limit
    #[arg(long, env = "TOKENTAP_MAX_TOOL_TURNS", value_name = "N", default_value = "0")]
    pub max_tool_turns: usize,
    /// So many tool calls in one conversation, parallel ones counted each. 0 is no limit
    #[arg(long, env = "TOKENTAP_MAX_TOOL_CALLS", value_name = "N", default_value = "0")]
    pub max_tool_calls: usize,
    /// A comment is sent on streams that are silent for so long, against proxies that cut them; 0 is never
    #[arg(long, env = "TOKENTAP_SSE_KEEPALIVE", value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub sse_keepalive: Duration,
    /// How many of the chats that extend a turn are rendered anew, off their path, to count how far that differs: 0 to 1
    #[arg(long, env = "TOKENTAP_DRIFT_SAMPLE", value_name = "SHARE", default_value = "0.01", value_parser = share)]
    pub drift_sample: f64,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a number from 0 to 1".to_owned())
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
