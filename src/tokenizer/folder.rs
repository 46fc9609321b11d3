//! The files of a model that define its prompts: `tokenizer.json` and the files next to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::added::{self, Added};
use super::template::{ChatTemplate, TemplateError};
use super::{Tokenizer, TokenizerError};

/// Why a folder is of no use.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file could not be read.
    #[error("{path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file does not have the content that its name promises.
    #[error("{path}: {source}")]
    Json {
        /// Which.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The tokenizer does not load.
    #[error("{0}")]
    Tokenizer(#[from] TokenizerError),
    /// The template does not compile.
    #[error("{0}")]
    Template(#[from] TemplateError),
    /// The folder has no template.
    #[error("{0}: no chat template, neither in tokenizer_config.json nor in chat_template.jinja or chat_template.json")]
    NoTemplate(PathBuf),
}

/// The settings in a model's files.
#[derive(Debug)]
pub struct Folder {
    /// Where they are.
    pub path: PathBuf,
    /// `tokenizer.json`.
    pub tokenizer: Tokenizer,
    /// The chat template.
    pub template: ChatTemplate,
    /// The one for conversations with tools, where the model has two.
    pub tool_template: Option<ChatTemplate>,
    /// `generation_config.json`; `None` without that file.
    pub defaults: Option<SamplingDefaults>,
}

/// The defaults that SGLang takes from `generation_config.json`; other members are ignored.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SamplingDefaults {
    /// Temperature.
    pub temperature: Option<f64>,
    /// Nucleus.
    pub top_p: Option<f64>,
    /// So many of the likeliest.
    pub top_k: Option<i64>,
    /// Relative to the likeliest.
    pub min_p: Option<f64>,
    /// Of tokens that were there.
    pub repetition_penalty: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    added_tokens_decoder: BTreeMap<String, Added>,
    #[serde(flatten)]
    rest: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Many(Vec<Named>),
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// The special tokens that templates know by name.
const SPECIALS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl Folder {
    /// Reads a folder; `path` names it or the `tokenizer.json` in it.
    ///
    /// # Errors
    /// [`FolderError`], which names the file.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let (file, folder) = match path.is_dir() {
            true => (path.join("tokenizer.json"), path),
            false => (path.to_owned(), path.parent().unwrap_or(Path::new("."))),
        };
        let tokenizer = Tokenizer::from_bytes(&read(&file)?)?;
        let config: TokenizerConfig = json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let mut specials: BTreeMap<String, String> = BTreeMap::new();
        let map: BTreeMap<String, serde_json::Value> =
            json(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
        let named = map.iter().chain(&config.rest).filter(|(name, _)| SPECIALS.contains(&name.as_str()));
        for (name, value) in named.chain(config.extra().filter_map(|(name, value)| Some((name?, value)))) {
            if let Some(text) = text_of(value) {
                specials.insert(name.clone(), text.to_owned());
            }
        }
        let extra: Vec<String> = config.extra().filter_map(|(_, value)| text_of(value)).map(str::to_owned).collect();
        let special = specials.values().cloned().chain(extra);
        let added = added::tokens(config.added_tokens_decoder, special, |token| tokenizer.is_added(token));
        let tokenizer = tokenizer.with_added(&added)?;
        let (source, tools) = templates(folder, config.chat_template)?;
        let source = source.ok_or_else(|| FolderError::NoTemplate(folder.to_owned()))?;
        Ok(Self {
            template: ChatTemplate::try_new(&source, specials.clone())?,
            tool_template: tools.map(|tools| ChatTemplate::try_new(&tools, specials.clone())).transpose()?,
            defaults: SamplingDefaults::open(&folder.join("generation_config.json"))?,
            tokenizer,
            path: folder.to_owned(),
        })
    }
}

impl Folder {
    /// What a program carries in itself.
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
            defaults: None,
        })
    }
}

impl TokenizerConfig {
    /// Special tokens beyond those of [`SPECIALS`]; models with images name theirs.
    fn extra(&self) -> impl Iterator<Item = (Option<&String>, &serde_json::Value)> {
        let listed =
            ["extra_special_tokens", "additional_special_tokens"].into_iter().find_map(|name| self.rest.get(name));
        let named =
            listed.and_then(|value| value.as_object()).into_iter().flatten().map(|(name, value)| (Some(name), value));
        named.chain(listed.and_then(|value| value.as_array()).into_iter().flatten().map(|value| (None, value)))
    }
}

impl SamplingDefaults {
    /// Reads a `generation_config.json`; `None` where the file does not exist.
    ///
    /// # Errors
    /// [`FolderError`] where the file exists and cannot be read.
    pub fn open(path: &Path) -> Result<Option<Self>, FolderError> {
        json(path)
    }
}

/// The template and, where one exists, the template for tools. A separate file overrides the configuration.
fn templates(folder: &Path, configured: Option<Templates>) -> Result<(Option<String>, Option<String>), FolderError> {
    #[derive(Deserialize)]
    struct InJson {
        chat_template: Templates,
    }
    let file = folder.join("chat_template.jinja");
    let own = if file.is_file() {
        Some(Templates::One(String::from_utf8_lossy(&read(&file)?).into_owned()))
    } else {
        json(&folder.join("chat_template.json"))?.map(|own: InJson| own.chat_template)
    };
    Ok(match own.or(configured) {
        None => (None, None),
        Some(Templates::One(source)) => (Some(source), None),
        Some(Templates::Many(all)) => {
            let take = |name: &str| all.iter().find(|one| one.name == name).map(|one| one.template.clone());
            (take("default"), take("tool_use"))
        }
    })
}

/// The text of a token: a string, or an object that says more of it.
fn text_of(token: &serde_json::Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

fn read(path: &Path) -> Result<Vec<u8>, FolderError> {
    std::fs::read(path).map_err(|source| FolderError::Read { path: path.to_owned(), source })
}

/// Reads a JSON file; `None` where it does not exist.
fn json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, FolderError> {
    if !path.exists() {
        return Ok(None);
    }
    let read = serde_json::from_slice(&read(path)?);
    read.map(Some).map_err(|source| FolderError::Json { path: path.to_owned(), source })
}
