//! The model that chats are rendered for, or why they are not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::reading::ParserSettings;
use crate::config::{ChatConfig, ChatMode, SeparateReasoning};
use crate::engine::client::Client;
use crate::engine::probe::Capabilities;
use crate::engine::tokenize::tokenize;
use crate::parse::Format;
use crate::tokenizer::{Folder, Renderer, SamplingDefaults};

/// Who serves chat completions.
#[derive(Debug, Clone)]
pub enum Chats {
    /// tokentap, from tokens.
    Rendered(Arc<ChatModel>),
    /// SGLang's own endpoint, for this reason.
    Forwarded(String),
}

/// What is needed to serve chats from tokens.
#[derive(Debug)]
pub struct ChatModel {
    /// Renders and tokenises.
    pub renderer: Arc<Renderer>,
    /// The sampling defaults for members that the client omits.
    pub defaults: SamplingDefaults,
    /// How replies are read.
    pub parser: ParserSettings,
    /// The engine separates thinking from the text, and applies grammars after it.
    pub thinks: bool,
}

/// Text of many kinds, on which two tokenizers differ.
const SAMPLE: &str = "It's 1234.5°C — naïve façade, 日本語と한국어, \u{1f642}\n\n    fn main() { println!(\"{:?}\", a[0]); }\r\n\tüber  three   spaces";

impl Chats {
    /// The state before the first probe.
    #[must_use]
    pub fn unknown() -> Self {
        Self::Forwarded("the engine has not been probed yet".to_owned())
    }

    /// Decides by the settings and the probe. Reads files, which takes a second for a large vocabulary. `known` is a renderer that has
    /// been read already.
    #[must_use]
    pub fn find(config: &ChatConfig, upstream: &Capabilities, known: Option<Arc<Renderer>>) -> Self {
        match ChatModel::find(config, upstream, known) {
            Ok(model) => Self::Rendered(Arc::new(model)),
            Err(reason) => Self::Forwarded(reason),
        }
    }

    /// A line for the user: who serves, and how or why.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Rendered(model) => format!("from tokens: {}", model.describe()),
            Self::Forwarded(reason) => format!(
                "by the engine's own endpoint: {reason}; a session records the ids that the engine reports, with the fault forwarded, and does not train them; without ids the session is incomplete"
            ),
        }
    }
}

impl ChatModel {
    /// Whether the engine's own tokenizer gives the same ids. One that cannot be asked is believed to.
    ///
    /// # Errors
    /// An error if its ids differ.
    pub async fn agrees(&self, client: &Client) -> Result<(), String> {
        let Ok(theirs) = tokenize(client, &super::quoted(SAMPLE)).await else { return Ok(()) };
        let ours = self.renderer.tokenizer().encode(SAMPLE).map_err(|error| error.to_string())?;
        match theirs.first() {
            Some(theirs) if *theirs != ours => {
                Err("the engine's tokenizer gives other ids; is --tokenizer that of its model?".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// What there is to know about it, in a line.
    #[must_use]
    pub fn describe(&self) -> String {
        let trial = self.renderer.trial();
        let dropped =
            if self.renderer.drops_thinking() { "; the template drops thoughts once a user says more" } else { "" };
        format!(
            "family {}, tool calls {}, thinking {}; what follows a turn is rendered alone: for users {}, for tools {}{dropped}",
            self.renderer.family().name(),
            self.parser.format.as_deref().unwrap_or("not read"),
            if self.parser.separate { "told apart" } else { "part of the text" },
            trial.user.name(),
            trial.tool.name(),
        )
    }

    fn find(config: &ChatConfig, upstream: &Capabilities, known: Option<Arc<Renderer>>) -> Result<Self, String> {
        if config.chat == ChatMode::Passthrough {
            return Err("--chat passthrough".to_owned());
        }
        if upstream.omits_sampled_ids() {
            return Err(format!("{} does not report all sampled tokens", upstream.product().unwrap_or("the engine")));
        }
        let renderer = match known {
            Some(renderer) => renderer,
            None => {
                let path = tokenizer(config, upstream)?;
                Arc::new(Renderer::open(&path).map_err(|error| error.to_string())?)
            }
        };
        if !renderer.family().is_supported() {
            return Err(format!("conversations of the family {} are not rendered here", renderer.family().name()));
        }
        Ok(Self {
            defaults: defaults(upstream, renderer.folder())?,
            parser: parser_settings(config, upstream, &renderer)?,
            thinks: upstream.chat.reasoning_parser.is_some(),
            renderer,
        })
    }
}

/// Where the tokenizer is.
fn tokenizer(config: &ChatConfig, upstream: &Capabilities) -> Result<PathBuf, String> {
    if let Some(path) = &config.tokenizer {
        return Ok(path.clone());
    }
    let path = upstream.tokenizer_path.as_ref().ok_or("the engine does not name its tokenizer; give --tokenizer")?;
    let path = PathBuf::from(path);
    match path.join("tokenizer.json").is_file() {
        true => Ok(path),
        false => Err(format!("the engine's tokenizer {} cannot be read from here; give --tokenizer", path.display())),
    }
}

/// What SGLang's adapter would sample with.
fn defaults(upstream: &Capabilities, folder: &Folder) -> Result<SamplingDefaults, String> {
    if !upstream.chat.model_defaults {
        return Ok(SamplingDefaults::default());
    }
    if let Some(path) = &upstream.model_path
        && Path::new(path).is_dir()
    {
        let read = SamplingDefaults::open(&Path::new(path).join("generation_config.json"));
        return Ok(read.map_err(|error| error.to_string())?.unwrap_or_default());
    }
    folder.defaults.clone().ok_or_else(|| {
        "the engine takes its sampling defaults from a generation_config.json that cannot be read from here; put it into the folder of --tokenizer".to_owned()
    })
}

/// How replies are read: as the engine would, and where it would not read calls, by the family of the model.
fn parser_settings(
    config: &ChatConfig,
    upstream: &Capabilities,
    renderer: &Renderer,
) -> Result<ParserSettings, String> {
    let known = |name: &str| name.parse::<Format>().map(|format| Box::from(format.name()));
    let format = match config.tool_call_parser.as_str() {
        "auto" => match &upstream.chat.tool_call_parser {
            Some(name) => {
                Some(known(name).map_err(|error| format!("{error}, which the engine reads; see --tool-call-parser"))?)
            }
            None => renderer.family().tool_calls().and_then(|name| known(name).ok()),
        },
        "none" => None,
        name => Some(known(name).map_err(|error| format!("--tool-call-parser: {error}"))?),
    };
    let separate = match config.separate_reasoning {
        SeparateReasoning::Always => true,
        SeparateReasoning::Never => false,
        SeparateReasoning::Auto => upstream.chat.reasoning_parser.is_some(),
    };
    Ok(ParserSettings { format, separate })
}
