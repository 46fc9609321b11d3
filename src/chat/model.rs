// SPDX-License-Identifier: Apache-2.0
//! Decides whether tokentap serves chats from tokens, and with which tokenizer, template and parser.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::image_support::ImageSupport;
use super::reply_reader::ParserSettings;
use crate::config::{ChatConfig, ChatMode, SeparateReasoning};
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::tokenize::tokenize;
use crate::engine::transport::client::Client;
use crate::images::ImagePlaceholder;
use crate::parse::Format;
use crate::tokenizer::{Folder, Renderer, SamplingDefaults};

/// Why chats are not rendered if the operator chose so.
pub(crate) const PASSTHROUGH: &str = "--chat passthrough";

/// Which side serves chats.
#[derive(Debug, Clone)]
pub enum Chats {
    /// tokentap serves them from tokens.
    Rendered(Arc<ChatModel>),
    /// SGLang's own endpoint serves them, for this reason.
    Forwarded(String),
}

/// The tokenizer, template and settings with which tokentap serves chats from tokens.
#[derive(Debug)]
pub struct ChatModel {
    /// Renders and encodes conversations.
    pub renderer: Arc<Renderer>,
    /// The sampling defaults for members that the client omits.
    pub defaults: SamplingDefaults,
    /// How replies are parsed.
    pub parser: ParserSettings,
    /// The engine has a reasoning parser: it separates thinking from the text, and applies grammars after the thinking.
    pub has_reasoning_parser: bool,
    /// Whether prompts with pictures are built from tokens.
    pub images: ImageSupport,
    /// The length of the context in tokens, if the engine refuses longer prompts.
    pub context: Option<u64>,
}

/// A text with many kinds of characters, for which different tokenizers return different ids.
const SAMPLE: &str = "It's 1234.5°C — naïve façade, 日本語と한국어, \u{1f642}\n\n    fn main() { println!(\"{:?}\", a[0]); }\r\n\tüber  three   spaces";

impl Chats {
    /// The state before the first probe.
    #[must_use]
    pub fn unknown() -> Self {
        Self::Forwarded("the engine has not been probed yet".to_owned())
    }

    /// Decides by the configuration and the probe. Uses `renderer` if given. Otherwise it reads the model's files, which takes a second for
    /// a large vocabulary.
    #[must_use]
    pub fn find(config: &ChatConfig, upstream: &Capabilities, renderer: Option<Arc<Renderer>>) -> Self {
        match ChatModel::find(config, upstream, renderer) {
            Ok(model) => Self::Rendered(Arc::new(model)),
            Err(reason) => Self::Forwarded(reason),
        }
    }

    /// A line for the operator: which side serves chats, and how or why.
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
    /// Checks that the engine's tokenizer returns the same ids for a sample text. If the engine cannot tokenize, the check passes.
    ///
    /// # Errors
    /// The reason, if the ids differ or the text cannot be encoded.
    pub async fn check_tokenizer(&self, client: &Client) -> Result<(), String> {
        let Ok(engine_ids) = tokenize(client, &super::quoted(SAMPLE)).await else { return Ok(()) };
        let ids = self.renderer.tokenizer().encode(SAMPLE).map_err(|error| error.to_string())?;
        match engine_ids.first() {
            Some(engine_ids) if *engine_ids != ids => {
                Err("the engine's tokenizer returns other ids; check that --tokenizer names the tokenizer of its model"
                    .to_owned())
            }
            _ => Ok(()),
        }
    }

    /// The token that stands for a picture in prompts.
    ///
    /// # Errors
    /// Why prompts with pictures are for the engine's own endpoint.
    pub fn image_placeholder(&self) -> Result<ImagePlaceholder, String> {
        let placeholder = self.renderer.image_placeholder().map_err(|reason| reason.to_string())?;
        self.images.answer().map(|_| placeholder)
    }

    /// A line for the operator: the family, the parsers, and how conversations are continued.
    #[must_use]
    pub fn describe(&self) -> String {
        let features = self.renderer.features();
        let drops_thinking = match (features.drops_thinking, features.drops_thinking_with_tools) {
            (true, true) => "; the template drops earlier reasoning",
            (true, false) => "; the template drops earlier reasoning in conversations without tools",
            (false, true) => "; the template drops earlier reasoning in conversations with tools",
            (false, false) => "",
        };
        format!(
            "family {}, tool calls {}, thinking {}; suffix rendering: {}{drops_thinking}",
            self.renderer.family().name(),
            self.parser.format.as_deref().unwrap_or("not parsed"),
            match self.parser.separate {
                Some(true) => "separate from the text",
                Some(false) => "part of the text",
                None => "part of the text, separate in Messages and Responses",
            },
            self.renderer.check_continuation(),
        )
    }

    fn find(config: &ChatConfig, upstream: &Capabilities, renderer: Option<Arc<Renderer>>) -> Result<Self, String> {
        if config.chat == ChatMode::Passthrough {
            return Err(PASSTHROUGH.to_owned());
        }
        if upstream.traits().omits_sampled_ids {
            return Err(format!("{} does not report all sampled tokens", upstream.traits().name));
        }
        let renderer = match renderer {
            Some(renderer) => renderer,
            None => {
                let path = tokenizer_path(config, upstream)?;
                let parser = upstream.chat.tool_call_parser.as_deref();
                Arc::new(Renderer::open_for_parser(&path, parser).map_err(|error| error.to_string())?)
            }
        };
        if !renderer.family().is_supported() {
            return Err(format!("tokentap does not render conversations of the family {}", renderer.family().name()));
        }
        Ok(Self {
            defaults: sampling_defaults(upstream, renderer.folder())?,
            parser: parser_settings(config, upstream, &renderer)?,
            has_reasoning_parser: upstream.chat.reasoning_parser.is_some(),
            context: upstream.longest_prompt(),
            images: ImageSupport::default(),
            renderer,
        })
    }
}

/// The folder of the tokenizer.
fn tokenizer_path(config: &ChatConfig, upstream: &Capabilities) -> Result<PathBuf, String> {
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

/// The sampling defaults that SGLang's own chat endpoint would use.
fn sampling_defaults(upstream: &Capabilities, folder: &Folder) -> Result<SamplingDefaults, String> {
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

/// How replies are parsed: as the engine would parse them. If the engine parses no tool calls, the family of the model decides their
/// format.
fn parser_settings(
    config: &ChatConfig,
    upstream: &Capabilities,
    renderer: &Renderer,
) -> Result<ParserSettings, String> {
    let parse = |name: &str| name.parse::<Format>().map(|format| Box::from(format.name()));
    let format = match config.tool_call_parser.as_str() {
        "auto" => match &upstream.chat.tool_call_parser {
            Some(name) => {
                Some(parse(name).map_err(|error| format!("{error}, which the engine parses; see --tool-call-parser"))?)
            }
            None => renderer.family().tool_calls().and_then(|name| parse(name).ok()),
        },
        "none" => None,
        name => Some(parse(name).map_err(|error| format!("--tool-call-parser: {error}"))?),
    };
    let separate = match config.separate_reasoning {
        SeparateReasoning::Always => Some(true),
        SeparateReasoning::Never => Some(false),
        SeparateReasoning::Auto => upstream.chat.reasoning_parser.as_ref().map(|_| true),
    };
    Ok(ParserSettings { format, separate })
}
