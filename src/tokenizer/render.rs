// SPDX-License-Identifier: Apache-2.0
//! Renders conversations to tokens: whole conversations, and new messages after the tokens of a turn.
//!
//! A template renders only whole conversations. To get the text after an assistant turn, the renderer renders a short conversation: a
//! placeholder turn and the new messages. The text after the placeholder is the end of the turn, the separator and the new messages, as the
//! template writes them. This text is encoded as a whole. The sampled tokens of the turn are not changed.

mod after_turn;
mod checks;
mod generation_prompt;
mod history_variables;
mod images;
mod thoughts;

use std::collections::HashMap;
use std::path::Path;

use parking_lot::RwLock;

use super::template::{RenderError, Setting};
use super::{EncodeLimits, Family, Folder, Tokenizer, TokenizerError};
use crate::images::ImagePlaceholder;
use crate::json::Value;
use after_turn::{placeholder_turn_with_calls, text_after_placeholder};
use checks::turn_with_call;
use generation_prompt::KnownPrompts;

pub use checks::{ContinuationCheck, FinalAssistantMessage, Fit, ToolDisplay};
pub use images::NoPlaceholder;

/// The placeholder for the text of a turn. No template contains it, and it is cut off before the text after it is encoded.
const PLACEHOLDER: &str = "\u{fdd1}turn\u{fdd1}";

/// Error: a conversation could not be rendered or encoded.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The template rejected the conversation, or failed.
    #[error("{0}")]
    Render(#[from] RenderError),
    /// The tokenizer could not encode the text.
    #[error("{0}")]
    Encode(#[from] TokenizerError),
    /// The text that the template writes after an earlier turn cannot be separated from the turn.
    #[error("the chat template writes earlier turns so that what follows them cannot be told apart")]
    NoBoundary,
}

/// A whole prompt, or the part of one after a turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The token ids.
    pub ids: Vec<u32>,
    /// The generation prompt opens a thought and does not close it.
    pub opened: bool,
    /// The length of the rendered text in bytes.
    pub rendered: usize,
}

/// Renders conversations for one model.
#[derive(Debug)]
pub struct Renderer {
    folder: Folder,
    family: Family,
    /// The text and id of the token that ends an assistant turn; `None` if no dedicated token does.
    end_token: Option<(String, u32)>,
    features: TemplateFeatures,
    image_placeholder: Result<ImagePlaceholder, NoPlaceholder>,
    /// Generation prompts by what they depend on. The lock is held for one lookup or insertion.
    generation_prompts: RwLock<KnownPrompts>,
    /// Digests of the text of a history by those of the variables of the template. The lock is held for one lookup or insertion.
    history_digests: RwLock<HashMap<history_variables::Hash, history_variables::Hash>>,
}

/// What the template does with messages, as short conversations show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TemplateFeatures {
    /// It renders a list of content parts as their text.
    pub accepts_content_parts: bool,
    /// In a conversation without tools, it drops the thought of an earlier turn once a user message follows.
    pub drops_thinking: bool,
    /// It does so in a conversation with tools.
    pub drops_thinking_with_tools: bool,
    /// It shows a system message between other messages, where it is.
    pub shows_system_messages: bool,
    /// It has the role `developer` and shows its messages where they are.
    pub has_developer_role: bool,
    /// It shows the name of an assistant message.
    pub shows_assistant_names: bool,
}

/// Variables of a template by name.
type TemplateVariables = Vec<(String, Value)>;

impl Renderer {
    /// Reads a folder. `path` is the folder or the `tokenizer.json` in it.
    ///
    /// # Errors
    /// [`super::FolderError`], which names the file.
    pub fn open(path: &Path) -> Result<Self, super::FolderError> {
        Ok(Self::new(Folder::open(path)?))
    }

    /// Reads a folder for an engine with this `--tool-call-parser`, which may replace the template.
    ///
    /// # Errors
    /// [`super::FolderError`], which names the file.
    pub fn open_for_parser(path: &Path, parser: Option<&str>) -> Result<Self, super::FolderError> {
        Ok(Self::new(Folder::open_for_parser(path, parser)?))
    }

    /// A renderer for these files.
    #[must_use]
    pub fn new(folder: Folder) -> Self {
        let family = Family::detect(&folder);
        let mut renderer = Self {
            folder,
            family,
            end_token: None,
            features: TemplateFeatures::default(),
            image_placeholder: Err(NoPlaceholder::NotNamed),
            generation_prompts: RwLock::default(),
            history_digests: RwLock::default(),
        };
        renderer.end_token = renderer.detect_end_token();
        let [drops_thinking, drops_thinking_with_tools] = renderer.detect_dropped_thinking();
        renderer.features = TemplateFeatures {
            accepts_content_parts: renderer.detect_content_parts(),
            drops_thinking,
            drops_thinking_with_tools,
            shows_system_messages: renderer.shows_in_place(&[
                "user",
                "system",
                "assistant",
                "system",
                "user",
                "system",
            ]),
            // many templates accept any role; only those that name it were trained with it
            has_developer_role: renderer.folder.template.mentions("developer")
                && renderer.shows_in_place(&[
                    "system",
                    "developer",
                    "user",
                    "developer",
                    "assistant",
                    "developer",
                    "user",
                ]),
            shows_assistant_names: renderer.detect_assistant_names(),
        };
        renderer.image_placeholder = renderer.detect_image_placeholder();
        renderer
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.folder.tokenizer
    }

    /// The ids of the start and end tokens of thinking; `None` if one of them is not a token.
    #[must_use]
    pub fn think_tokens(&self) -> Option<(u32, u32)> {
        let (start, end) = self.family.think()?;
        Some((self.tokenizer().token_to_id(start)?, self.tokenizer().token_to_id(end)?))
    }

    /// The files of the model.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The family of the model.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The token that ends an assistant turn; `None` if no dedicated token does.
    #[must_use]
    pub fn end_of_turn(&self) -> Option<u32> {
        self.end_token.as_ref().map(|(_, id)| *id)
    }

    /// What the template does with messages.
    #[must_use]
    pub fn features(&self) -> TemplateFeatures {
        self.features
    }

    /// Renders a whole conversation.
    ///
    /// # Errors
    /// [`PromptError`].
    pub fn render_conversation(
        &self,
        messages: &[Value],
        setting: Setting<'_>,
        limits: &EncodeLimits<'_>,
    ) -> Result<Prompt, PromptError> {
        let text = self.render_text(messages, setting)?;
        self.encode_prompt(&text, setting, limits)
    }

    /// Renders what follows an assistant turn: its end token unless the sampled tokens have `ended` with it, the separator, and the `new`
    /// messages. `turn` is the assistant message as the client sent it.
    ///
    /// # Errors
    /// [`PromptError`].
    pub fn render_after_turn(
        &self,
        turn: &Value,
        new: &[Value],
        ended: bool,
        setting: Setting<'_>,
        limits: &EncodeLimits<'_>,
    ) -> Result<Prompt, PromptError> {
        let text = self.text_after_turn(turn, new, setting)?;
        let text = match (&self.end_token, ended) {
            (Some((end, _)), true) => text.split_once(end.as_str()).map_or(&*text, |(_, after)| after),
            _ => &text,
        };
        self.encode_prompt(text, setting, limits)
    }

    fn encode_prompt(
        &self,
        text: &str,
        setting: Setting<'_>,
        limits: &EncodeLimits<'_>,
    ) -> Result<Prompt, PromptError> {
        let opened = setting.generation_prompt && self.opens_thought(text, setting);
        Ok(Prompt { ids: self.folder.tokenizer.encode_within(text, limits)?, opened, rendered: text.len() })
    }

    /// Renders messages with the template, or with the template for tools if the options have tools.
    fn render_text(&self, messages: &[Value], setting: Setting<'_>) -> Result<String, RenderError> {
        let template = self.folder.tool_template.as_ref().filter(|_| setting.tools.is_some());
        template.unwrap_or(&self.folder.template).render(messages, setting)
    }

    /// A text without white space and markers of thoughts.
    fn without_thoughts(&self, text: &str) -> String {
        let (start, end) = self.family.think().unwrap_or_default();
        let mut text = text.replace(start, "").replace(end, "");
        text.retain(|c| !c.is_whitespace());
        text
    }

    /// The added token that the template writes directly after the text of an assistant turn, both at the end of the conversation and
    /// before another turn.
    fn detect_end_token(&self) -> Option<(String, u32)> {
        let setting = Setting { tools: None, generation_prompt: false, extra: &[] };
        let messages = [message("user", "U"), message("assistant", PLACEHOLDER), message("user", "V")];
        let last_turn = self.render_text(&messages[..2], setting).ok()?;
        let with_next_turn = self.render_text(&messages, setting).ok()?;
        let first = |text: &str| {
            // some templates write a line feed before the token
            self.folder.tokenizer.added_at_start(text_after_placeholder(text)?.trim_start())
        };
        // the tokens differ if the role token of the next turn ends a turn
        first(&last_turn).filter(|end| first(&with_next_turn).as_ref() == Some(end))
    }

    /// Whether the text of a conversation depends on the names of its assistant messages.
    fn detect_assistant_names(&self) -> bool {
        let setting = Setting { tools: None, generation_prompt: false, extra: &[] };
        let with_name = |mut turn: Value| {
            if let Value::Object(members) = &mut turn {
                members.push(("name".into(), "N".into()));
            }
            turn
        };
        let turns = [Some(message("assistant", "A")), placeholder_turn_with_calls(&turn_with_call())];
        turns.into_iter().flatten().any(|turn| {
            let render = |turn| self.render_text(&[message("user", "U"), turn, message("user", "V")], setting);
            render(turn.clone()) != render(with_name(turn))
        })
    }

    /// Whether the template shows each message of a conversation with these roles once and in its place.
    fn shows_in_place(&self, roles: &[&str]) -> bool {
        let setting = Setting { tools: None, generation_prompt: true, extra: &[] };
        let name = |at: usize| format!("\u{fdd1}{at}\u{fdd1}");
        let messages: Vec<Value> = roles.iter().enumerate().map(|(at, role)| message(role, &name(at))).collect();
        let Ok(text) = self.render_text(&messages, setting) else { return false };
        let places: Vec<usize> = (0..roles.len()).filter_map(|at| text.find(&name(at))).collect();
        let shown_once = (0..roles.len()).all(|at| text.matches(&name(at)).count() == 1);
        shown_once && places.is_sorted()
    }

    /// Whether the template renders two text parts as their text, with nothing or an empty line between them.
    fn detect_content_parts(&self) -> bool {
        let part = |text: &str| Value::object([("type", "text".into()), ("text", text.into())]);
        let content = vec![part("one"), part("two")].into();
        let in_parts = Value::object([("role", "user".into()), ("content", content)]);
        let setting = Setting { tools: None, generation_prompt: false, extra: &[] };
        let Ok(in_parts) = self.render_text(&[in_parts], setting) else { return false };
        let is_text = |text: &str| self.render_text(&[message("user", text)], setting).as_ref() == Ok(&in_parts);
        is_text("onetwo") || is_text("one\n\ntwo")
    }
}

fn message(role: &str, content: &str) -> Value {
    Value::object([("role", role.into()), ("content", content.into())])
}
