// SPDX-License-Identifier: Apache-2.0
//! The recorded results of transformers for each template and conversation, and the files they come from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokentap::json::Value;
use tokentap::tokenizer::template::{ChatTemplate, RenderError, Setting};

/// The record of one template.
#[derive(Debug, Deserialize)]
pub struct Record {
    pub template: String,
    /// `model`, `named`, `edition` or `synthetic`.
    pub kind: String,
    /// The tokenizer of the ids.
    tokenizer: String,
    /// Of the template.
    sha256: String,
    special_tokens: BTreeMap<String, String>,
    conversations: BTreeMap<String, Line>,
}

/// The result for one conversation.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Line {
    Raised { error: String, message: String },
    Rendered { chars: usize, sha256: String, ids: Option<Vec<u32>>, ids_sha256: Option<String> },
}

/// A conversation of `conversations.json`.
#[derive(Debug, Clone)]
pub struct RecordedConversation {
    pub name: String,
    pub messages: Vec<Value>,
    pub tools: Option<Vec<Value>>,
    pub generation_prompt: bool,
    pub extra: Vec<(String, Value)>,
}

impl RecordedConversation {
    pub fn render(&self, template: &ChatTemplate) -> Result<String, RenderError> {
        let Self { generation_prompt, extra, .. } = self;
        let setting = Setting { tools: self.tools.as_deref(), generation_prompt: *generation_prompt, extra };
        template.render(&self.messages, setting)
    }
}

impl Record {
    pub fn is_ours(&self) -> bool {
        self.kind == "synthetic"
    }

    /// The name of the tokenizer of the ids.
    pub fn tokenizer(&self) -> &str {
        self.tokenizer.split(' ').next().unwrap()
    }

    /// Whether the tokenizer is of the same model.
    pub fn has_own_tokenizer(&self) -> bool {
        !self.tokenizer.contains(' ')
    }

    pub fn line(&self, conversation: &str) -> &Line {
        &self.conversations[conversation]
    }

    /// The source of the template.
    pub fn source(&self) -> String {
        let source = match self.template.as_str() {
            "demo" => text(&demo().join("chat_template.jinja")),
            name if self.is_ours() => text(&here().join("synthetic").join(name).with_extension("jinja")),
            name => text(&fetched().join(name).join("chat_template.jinja")),
        };
        // Python converts all line ends
        let recorded = source.replace("\r\n", "\n");
        assert_eq!(sha256(&recorded), self.sha256, "{}: the record is of another text", self.template);
        source
    }

    pub fn compiled(&self) -> ChatTemplate {
        let compiled = ChatTemplate::try_new(&self.source(), self.special_tokens.clone());
        compiled.unwrap_or_else(|error| panic!("{}: {error}", self.template))
    }

    /// The folder of the tokenizer.
    pub fn folder(&self) -> PathBuf {
        match self.tokenizer() {
            "demo" => demo(),
            name => fetched().join("tokenizers").join(name),
        }
    }

    /// The text that transformers rendered, if `record.py --texts` kept it.
    pub fn text(&self, conversation: &str) -> Option<String> {
        let folder = fetched().join("rendered").join(&self.template);
        std::fs::read_to_string(folder.join(conversation).with_extension("txt")).ok()
    }
}

/// All records, or those of the synthetic templates.
pub fn records(ours: bool) -> Vec<Record> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(here().join("expected")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let all = paths.iter().map(|path| serde_json::from_slice::<Record>(&read(path)).unwrap());
    all.filter(|record| record.is_ours() == ours).collect()
}

/// Names of the templates that are in a directory with their tokenizer and its configuration.
pub fn in_folders() -> Vec<String> {
    let sources = Value::parse(&read(&here().join("sources.json"))).unwrap();
    let whole = |one: &&Value| one.get("own") == Some(&Value::Bool(true));
    let listed = sources.get("templates").unwrap().as_array().unwrap().iter().filter(whole);
    listed.map(|one| one.get("name").unwrap().as_str().unwrap().to_owned()).collect()
}

/// Names of the tokenizers that are fetched.
pub fn tokenizers() -> Vec<String> {
    let sources = Value::parse(&read(&here().join("sources.json"))).unwrap();
    let listed = sources.get("tokenizers").unwrap().as_array().unwrap();
    listed.iter().map(|one| one.get("name").unwrap().as_str().unwrap().to_owned()).collect()
}

/// The bytes of `conversations.json`.
pub fn conversations_json() -> Vec<u8> {
    read(&here().join("conversations.json"))
}

/// The conversations in order.
pub fn conversations() -> Vec<RecordedConversation> {
    let file = Value::parse(&conversations_json()).unwrap();
    let list = |value: Option<&Value>| value.map(|value| value.as_array().unwrap().to_vec());
    let conversation = |value: &Value| RecordedConversation {
        name: value.get("name").unwrap().as_str().unwrap().to_owned(),
        messages: list(value.get("messages")).unwrap(),
        tools: list(value.get("tools")),
        generation_prompt: value.get("add_generation_prompt") == Some(&Value::Bool(true)),
        extra: match value.get("kwargs") {
            Some(Value::Object(members)) => members.clone(),
            _ => Vec::new(),
        },
    };
    file.get("conversations").unwrap().as_array().unwrap().iter().map(conversation).collect()
}

/// The directory of `fetch.py` for third-party files.
pub fn fetched() -> PathBuf {
    let folder = std::env::var_os("TEMPLATES").map_or_else(|| root().join("target/templates"), PathBuf::from);
    if folder.is_relative() { root().join(folder) } else { folder }
}

pub fn demo() -> PathBuf {
    root().join("src/demo/assets")
}

fn here() -> PathBuf {
    root().join("tests/templates")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}; run tests/templates/run.sh", path.display()))
}

fn text(path: &Path) -> String {
    String::from_utf8(read(path)).unwrap()
}

pub fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs a test in a process whose clock shows the recorded time, by the variable that operators use. Setting it in this process would
/// affect other tests.
pub fn at_the_recorded_time(test: &str, run: impl FnOnce()) {
    const VARIABLE: (&str, &str) = ("SOURCE_DATE_EPOCH", "1735787045");
    if std::env::var(VARIABLE.0).as_deref() == Ok(VARIABLE.1) {
        return run();
    }
    let mut same = std::process::Command::new(std::env::current_exe().unwrap());
    let ran =
        same.args([test, "--exact", "--include-ignored", "--nocapture"]).env(VARIABLE.0, VARIABLE.1).output().unwrap();
    println!("{}", String::from_utf8_lossy(&ran.stdout));
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
