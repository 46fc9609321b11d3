// SPDX-License-Identifier: Apache-2.0
//! Settings of `tokentap export`.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};
use serde::Deserialize;

use super::{ControlPortArgs, LogConfig, ThinkIds};

/// Bytes of the largest export file, for formats whose size is known before it is written: a long row pads all others.
pub(super) const MAX_EXPORT_BYTES: u64 = 8 << 30;

/// A format of an export. `export::format` has the code of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Format {
    /// Safetensors with the keys of verl's `DataProto`
    Verl,
    /// Safetensors in the layout of the reply of miles' session server
    Miles,
    /// Safetensors with the keys of AReaL's tensor dictionaries
    Areal,
    /// JSON with a dictionary for slime's `Sample.from_dict` for each sample
    Slime,
    /// JSON with tunix' token-mode trajectories and one `RolloutOutput`
    Tunix,
    /// JSON with the arrays and segments of a strands-sglang rollout
    Strands,
    /// JSON with a `TraceRecord` of rLLM's model gateway for each trained call
    Rllm,
    /// JSON with one `GeneratorOutput` of SkyRL
    Skyrl,
    /// JSON with a message log of NeMo-RL for each row
    NemoRl,
    /// JSON with a `TrainingSample` of prime-rl for each row
    PrimeRl,
    /// JSON with the dictionary that a `rollout_func` of TRL returns
    Trl,
    /// JSON with a `Datum` of Tinker for each row
    Tinker,
    /// JSON Lines in tokentap's own schema: one trajectory per line
    Jsonl,
    /// The columns of `jsonl` as an Arrow IPC stream
    Arrow,
    /// The columns of `jsonl` as a Parquet file
    Parquet,
    /// The pictures of the rows as a Parquet file: a row for each picture
    Images,
}

/// What an export has of the pictures of its rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExportImages {
    /// References to the pictures
    #[default]
    Refs,
    /// References, and the bytes of the pictures
    Embed,
}

impl ExportImages {
    /// The value with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::from_str(name, false).ok()
    }
}

impl std::fmt::Display for ExportImages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.to_possible_value().expect("no value is hidden").get_name())
    }
}

impl Format {
    /// All formats.
    #[must_use]
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// The format with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::from_str(name, false).ok()
    }

    /// The names of the formats that meet a condition, for a message.
    pub fn names(condition: impl Fn(Self) -> bool) -> String {
        let formats = Self::all().iter().filter(|format| condition(**format));
        formats.map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.to_possible_value().expect("no format is hidden").get_name())
    }
}

/// Settings of `tokentap export`.
#[derive(Debug, Clone, Args)]
pub struct ExportArgs {
    /// Format of the file, such as verl or parquet
    #[arg(long, env = "TOKENTAP_FORMAT", value_name = "FORMAT")]
    pub format: Format,
    /// File to write; - is standard output
    #[arg(long, env = "TOKENTAP_OUT", value_name = "PATH")]
    pub out: PathBuf,
    /// The running tokentap.
    #[command(flatten)]
    pub port: ControlPortArgs,
    /// Folder of a log to read instead, also while a tokentap writes to it
    #[arg(long, env = "TOKENTAP_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Sessions to export; without it all
    #[arg(long, env = "TOKENTAP_SESSION", value_name = "ID", value_delimiter = ',')]
    pub session: Vec<String>,
    /// Conditions that exported sessions meet, such as step=17,turns>3: tags and members of GET /v1/sessions
    #[arg(long, env = "TOKENTAP_WHERE", value_name = "LIST", conflicts_with = "session")]
    pub r#where: Option<String>,
    /// Version of the sessions; without it the last frozen one, else the open one
    // without an environment variable: too many images have a TOKENTAP_VERSION that means something else
    #[arg(long, value_name = "N")]
    pub version: Option<u32>,
    /// Export only the path of each session with the most trained tokens
    #[arg(long, env = "TOKENTAP_NO_BRANCHES", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub no_branches: bool,
    /// jsonl, arrow, parquet, slime, miles and rllm: fill the texts with the tokenizer of the running tokentap
    #[arg(long, env = "TOKENTAP_TEXT", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub text: bool,
    /// Pictures of the rows: references, or their bytes as well; without it references
    #[arg(long, env = "TOKENTAP_IMAGES", value_name = "WHICH")]
    pub images: Option<ExportImages>,
    /// Classes of turns to train: main, subagent, compaction, auxiliary, unlabelled, all; without it main, subagent and unlabelled
    #[arg(long, env = "TOKENTAP_CLASSES", value_name = "LIST", value_delimiter = ',')]
    pub classes: Vec<String>,
    /// Flags whose rows are not exported, such as column_missing, and names of what a row lacks, such as missing_routed_experts
    #[arg(long, env = "TOKENTAP_EXCLUDE", value_name = "LIST", value_delimiter = ',')]
    pub exclude: Vec<String>,
    /// Also train turns that were cut off, if a trained turn resumes them without a token in between
    #[arg(long, env = "TOKENTAP_TRAIN_RESUMED", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub train_resumed: bool,
    /// Adds advantages to the rows: the options as a JSON object, such as {} or {"estimator": "egpo", "entropy_over": "response"}
    #[arg(long, env = "TOKENTAP_ADVANTAGES", value_name = "JSON")]
    pub advantages: Option<String>,
    /// Teacher whose scores the rows have, by the name under which it scored them
    #[arg(long, env = "TOKENTAP_SCORES", value_name = "NAME")]
    pub scores: Option<String>,
    /// Token id that pads tensors; without it 0
    #[arg(long, env = "TOKENTAP_PAD_TOKEN_ID", value_name = "ID")]
    pub pad_token_id: Option<u32>,
    /// Tokens of the prompt side of tensors; without it those of the longest prompt
    #[arg(long, env = "TOKENTAP_MAX_PROMPT_LENGTH", value_name = "N", value_parser = length)]
    pub max_prompt_length: Option<usize>,
    /// Tokens of the response side of tensors; without it those of the longest response
    #[arg(long, env = "TOKENTAP_MAX_RESPONSE_LENGTH", value_name = "N", value_parser = length)]
    pub max_response_length: Option<usize>,
    /// Bytes of the largest file that is made from a log; a running tokentap has its own limit.
    #[arg(skip = MAX_EXPORT_BYTES)]
    pub max_export_bytes: u64,
    /// Ids of the tokens that open and close thinking, as OPEN,CLOSE, for jsonl and advantages from a log, which has no tokenizer
    #[arg(long, env = "TOKENTAP_THINK_TOKENS", value_name = "IDS")]
    pub think_tokens: Option<ThinkIds>,
    /// What is logged.
    #[command(flatten)]
    pub logging: LogConfig,
}

/// Tokens of a side of a row, within the bounds of the control port.
fn length(text: &str) -> Result<usize, String> {
    let length = text.parse().ok().filter(|length| (1..=1 << 24).contains(length));
    length.ok_or_else(|| format!("a length is 1 to {}", 1 << 24))
}

impl ExportArgs {
    /// Text needs a tokenizer: no setting may be ignored in silence.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.text && self.data_dir.is_some() {
            return Err("--text needs --control, a running tokentap: a log has no tokenizer".to_owned());
        }
        // a folder is the source
        if self.data_dir.is_some() { Ok(()) } else { self.port.check() }
    }

    /// There is one source. The environment of a tokentap names its folder for all its commands, so a control port that the command
    /// line names goes before it.
    pub(super) fn choose(&mut self, matches: &ArgMatches) -> Result<(), String> {
        let named = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        match (named("control"), named("data_dir")) {
            (true, true) => Err("--control and --data-dir exclude each other: one of them is the source".to_owned()),
            (true, false) => {
                self.data_dir = None;
                Ok(())
            }
            (false, _) => Ok(()),
        }
    }
}
