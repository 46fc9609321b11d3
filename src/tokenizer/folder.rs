// SPDX-License-Identifier: Apache-2.0
//! Loads the files of a model that define its prompts: `tokenizer.json` and the configuration files next to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::template::{ChatTemplate, ModelFacts, PromptWriter, TemplateError};
use super::{Tokenizer, TokenizerError};
use crate::json::Value;

/// Error: the files of a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file is not JSON of the expected form.
    #[error("{path}: {source}")]
    Json {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// The tokenizer does not load.
    #[error("{0}")]
    Tokenizer(#[from] TokenizerError),
    /// The template does not compile.
    #[error("{0}")]
    Template(#[from] TemplateError),
    /// The folder has no template.
    #[error(
        "{0}: no chat template, neither in tokenizer_config.json nor in chat_template.jinja or chat_template.json, and no config.json of a model that has code in its place (DeepSeek V3.2, V4)"
    )]
    NoTemplate(PathBuf),
    /// The engine does not use a template for this model.
    #[error("{path}: SGLang writes the prompts of {model} by code that tokentap does not have")]
    NoEncoder {
        /// The path of the folder.
        path: PathBuf,
        /// The model.
        model: &'static str,
    },
}

/// The tokenizer, chat templates and sampling defaults of a model.
#[derive(Debug)]
pub struct Folder {
    /// The folder; empty for an embedded model.
    pub path: PathBuf,
    /// The tokenizer: `tokenizer.json`, and the added tokens of `tokenizer_config.json`.
    pub tokenizer: Tokenizer,
    /// The chat template.
    pub template: ChatTemplate,
    /// The chat template for conversations with tools, if the model has a separate one.
    pub tool_template: Option<ChatTemplate>,
    /// The tokens that `config.json` names as those which stand for pictures.
    pub image_tokens: Vec<u32>,
    /// The defaults in `generation_config.json`; `None` without that file.
    pub defaults: Option<SamplingDefaults>,
}

/// The defaults that SGLang takes from `generation_config.json`; other members are ignored.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SamplingDefaults {
    /// Temperature.
    pub temperature: Option<f64>,
    /// The probability mass of nucleus sampling.
    pub top_p: Option<f64>,
    /// The number of likeliest tokens that are sampled from.
    pub top_k: Option<i64>,
    /// The minimum probability, relative to that of the likeliest token.
    pub min_p: Option<f64>,
    /// The penalty on tokens that occurred before.
    pub repetition_penalty: Option<f64>,
}

/// The settings of the image processor in the files of a model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct ImageSettings(pub serde_json::Map<String, serde_json::Value>);

/// `processor_config.json`, in which newer models have the settings of all processors.
#[derive(Debug, Deserialize)]
struct ProcessorConfig {
    image_processor: Option<ImageSettings>,
    processor_class: Option<serde_json::Value>,
}

/// The settings of an added token. Texts are split at its occurrences.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct AddedTokenConfig {
    /// The text of the token.
    pub(super) content: String,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) normalized: bool,
    #[serde(default)]
    pub(super) special: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    added_tokens_decoder: BTreeMap<String, AddedTokenConfig>,
    #[serde(flatten)]
    rest: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Many(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// The special tokens that are variables of a template.
const SPECIAL_VARIABLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl Folder {
    /// Reads a folder. `path` is the folder or the `tokenizer.json` in it.
    ///
    /// # Errors
    /// [`FolderError`], which names the file.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        Self::open_for_parser(path, None)
    }

    /// Reads a folder for an engine with this `--tool-call-parser`, which may replace the template.
    ///
    /// # Errors
    /// [`FolderError`], which names the file.
    pub fn open_for_parser(path: &Path, parser: Option<&str>) -> Result<Self, FolderError> {
        let (file, folder) = match path.is_dir() {
            true => (path.join("tokenizer.json"), path),
            false => (path.to_owned(), path.parent().unwrap_or(Path::new("."))),
        };
        let tokenizer = Tokenizer::from_bytes(&read(&file)?)?;
        let config: TokenizerConfig = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let mut specials: BTreeMap<String, String> = BTreeMap::new();
        let map: BTreeMap<String, serde_json::Value> =
            read_json(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
        let variables = map.iter().chain(&config.rest).filter(|(name, _)| SPECIAL_VARIABLES.contains(&name.as_str()));
        for (name, value) in
            variables.chain(config.extra_special_tokens().filter_map(|(name, value)| Some((name?, value))))
        {
            if let Some(text) = token_text(value) {
                specials.insert(name.clone(), text.to_owned());
            }
        }
        let extra: Vec<String> =
            config.extra_special_tokens().filter_map(|(_, value)| token_text(value)).map(str::to_owned).collect();
        let special = specials.values().cloned().chain(extra);
        let added = added_tokens(config.added_tokens_decoder, special, |token| tokenizer.is_added(token));
        let tokenizer = tokenizer.with_added_tokens(&added)?;
        let (source, tools) = templates(folder, config.chat_template)?;
        let compile = |source: String| ChatTemplate::try_new(&source, specials.clone());
        // Python writes NaN and Infinity, which serde_json does not read. A file that is not JSON says nothing
        let config = std::fs::read(folder.join("config.json")).ok().and_then(|bytes| Value::parse(&bytes).ok());
        let (template, tool_template) = match (prompt_writer(config.as_ref(), parser, source.is_some()), source) {
            (PromptWriter::Encoding(encoding), _) => (ChatTemplate::from_encoding(encoding), None),
            (PromptWriter::Template, Some(source)) => (compile(source)?, tools.map(compile).transpose()?),
            (PromptWriter::Template, None) => return Err(FolderError::NoTemplate(folder.to_owned())),
            (PromptWriter::Unsupported(model), _) => {
                return Err(FolderError::NoEncoder { path: folder.to_owned(), model });
            }
        };
        Ok(Self {
            template,
            tool_template,
            image_tokens: config.as_ref().map(image_tokens).unwrap_or_default(),
            defaults: SamplingDefaults::open(&folder.join("generation_config.json"))?,
            tokenizer,
            path: folder.to_owned(),
        })
    }

    /// Files that are embedded in the program.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn embedded(tokenizer: &[u8], template: &str, eos_token: &str) -> Result<Self, FolderError> {
        let specials = BTreeMap::from([("eos_token".to_owned(), eos_token.to_owned())]);
        Ok(Self {
            path: PathBuf::new(),
            tokenizer: Tokenizer::from_bytes(tokenizer)?,
            template: ChatTemplate::try_new(template, specials)?,
            tool_template: None,
            image_tokens: Vec::new(),
            defaults: None,
        })
    }
}

impl TokenizerConfig {
    /// The special tokens that are not in [`SPECIAL_VARIABLES`]. A token with a name is a variable of the template, for example in models
    /// with images.
    fn extra_special_tokens(&self) -> impl Iterator<Item = (Option<&String>, &serde_json::Value)> {
        let configured =
            ["extra_special_tokens", "additional_special_tokens"].into_iter().find_map(|name| self.rest.get(name));
        let with_name = configured
            .and_then(|value| value.as_object())
            .into_iter()
            .flatten()
            .map(|(name, value)| (Some(name), value));
        with_name.chain(configured.and_then(|value| value.as_array()).into_iter().flatten().map(|value| (None, value)))
    }
}

impl SamplingDefaults {
    /// Reads a `generation_config.json`; `None` if the file does not exist.
    ///
    /// # Errors
    /// [`FolderError`] if the file exists and cannot be read.
    pub fn open(path: &Path) -> Result<Option<Self>, FolderError> {
        read_json(path)
    }
}

impl ImageSettings {
    /// Reads the image processor of `processor_config.json`, else `preprocessor_config.json`, in the order of transformers; `None` without both.
    /// `path` is the folder or a file in it.
    ///
    /// # Errors
    /// [`FolderError`] if a file exists and cannot be read.
    pub fn open(path: &Path) -> Result<Option<Self>, FolderError> {
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        let read: Option<ProcessorConfig> = read_json(&folder.join("processor_config.json"))?;
        let nested = read.and_then(|ProcessorConfig { image_processor, processor_class }| {
            let mut settings = image_processor?;
            settings.0.extend(processor_class.map(|class| ("processor_class".to_owned(), class)));
            Some(settings)
        });
        match nested {
            Some(nested) => Ok(Some(nested)),
            None => read_json(&folder.join("preprocessor_config.json")),
        }
    }
}

/// The tokens that transformers adds: those of `added_tokens_decoder` in the order of their ids, then the special tokens that are neither
/// among them nor known to `is_known`. The latter get new ids.
fn added_tokens(
    decoder: BTreeMap<String, AddedTokenConfig>,
    specials: impl Iterator<Item = String>,
    is_known: impl Fn(&str) -> bool,
) -> Vec<AddedTokenConfig> {
    let mut by_id: Vec<(u64, AddedTokenConfig)> =
        decoder.into_iter().map(|(id, token)| (id.parse().unwrap_or(u64::MAX), token)).collect();
    by_id.sort_by_key(|(id, _)| *id);
    let mut tokens: Vec<AddedTokenConfig> = by_id.into_iter().map(|(_, token)| token).collect();
    for content in specials {
        match tokens.iter_mut().find(|token| token.content == content) {
            Some(token) => token.special |= !is_known(&content),
            None if !is_known(&content) => tokens.push(AddedTokenConfig {
                content,
                single_word: false,
                lstrip: false,
                rstrip: false,
                normalized: false,
                special: true,
            }),
            None => {}
        }
    }
    tokens
}

/// The tokens that stand for pictures, by the names that SGLang's processors read.
fn image_tokens(config: &Value) -> Vec<u32> {
    const NAMES: [&str; 4] =
        ["image_token_id", "image_token_index", "media_placeholder_token_id", "img_context_token_id"];
    let id = |name: &&str| match config.get(name)? {
        Value::Number(text) => text.parse().ok(),
        _ => None,
    };
    NAMES.iter().filter_map(id).collect()
}

/// What writes the prompts of the model with this `config.json`.
fn prompt_writer(config: Option<&Value>, parser: Option<&str>, has_template: bool) -> PromptWriter {
    let architectures = config.and_then(|config| config.get("architectures")?.as_array());
    PromptWriter::choose(ModelFacts {
        parser,
        architecture: architectures.and_then(|names| names.first()?.as_str()).unwrap_or_default(),
        model_type: config.and_then(|config| config.get_str("model_type")).unwrap_or_default(),
        has_template,
    })
}

/// The source of the template, and of the template for tools if one exists. A separate file overrides `tokenizer_config.json`.
fn templates(folder: &Path, configured: Option<Templates>) -> Result<(Option<String>, Option<String>), FolderError> {
    #[derive(Deserialize)]
    struct ChatTemplateFile {
        chat_template: Templates,
    }
    let file = folder.join("chat_template.jinja");
    let separate = if file.is_file() {
        Some(Templates::One(String::from_utf8_lossy(&read(&file)?).into_owned()))
    } else {
        read_json(&folder.join("chat_template.json"))?.map(|file: ChatTemplateFile| file.chat_template)
    };
    Ok(match separate.or(configured) {
        None => (None, None),
        Some(Templates::One(source)) => (Some(source), None),
        Some(Templates::Many(all)) => {
            let find = |name: &str| all.iter().find(|named| named.name == name).map(|named| named.template.clone());
            (find("default"), find("tool_use"))
        }
    })
}

/// The text of a token, which is a string or an object with `content`.
fn token_text(token: &serde_json::Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

fn read(path: &Path) -> Result<Vec<u8>, FolderError> {
    std::fs::read(path).map_err(|source| FolderError::Read { path: path.to_owned(), source })
}

/// Reads a JSON file; `None` if it does not exist.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, FolderError> {
    if !path.exists() {
        return Ok(None);
    }
    let read = serde_json::from_slice(&read(path)?);
    read.map(Some).map_err(|source| FolderError::Json { path: path.to_owned(), source })
}
