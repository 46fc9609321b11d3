//! Renders conversations to tokens: whole conversations, and new messages that follow existing tokens.
//!
//! A template renders a conversation, never a part of one. To find what it writes after a turn of the assistant, a short conversation
//! that ends with such a turn and the new messages is rendered: everything after the turn's text is the end of the turn, the separator
//! and the new messages, as the template writes them. They are encoded together, and the sampled tokens are not changed.

mod behind;
mod trial;

use std::path::Path;

use super::template::{Conversation, RenderError};
use super::{Family, Folder, Tokenizer, TokenizerError};
use crate::json::Value;
use behind::behind_turn;

pub use trial::{Fit, Trial};

/// Stands for the text of a turn; no template says it, and no tokenizer joins it with anything that matters here.
const TURN: &str = "\u{fdd1}turn\u{fdd1}";

/// Why a conversation has no tokens.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The template refused it, or failed.
    #[error("{0}")]
    Render(#[from] RenderError),
    /// The text has no ids.
    #[error("{0}")]
    Encode(#[from] TokenizerError),
    /// The text that the template writes after an earlier turn cannot be separated from the turn.
    #[error("the chat template writes earlier turns so that what follows them cannot be told apart")]
    NoBoundary,
}

/// How a conversation is rendered, the same for all of its turns.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    /// The tools that the context shows.
    pub tools: Option<&'a [Value]>,
    /// The turn of the assistant is opened.
    pub generation_prompt: bool,
    /// `chat_template_kwargs`.
    pub extra: &'a [(String, Value)],
}

/// A piece of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// The generation prompt has opened a thought that is not closed.
    pub opened: bool,
    /// Bytes that were rendered.
    pub rendered: usize,
}

/// Renders conversations of one model.
#[derive(Debug)]
pub struct Renderer {
    folder: Folder,
    family: Family,
    /// The token that ends a turn of the assistant; `None` where no dedicated token does.
    end: Option<(String, u32)>,
    /// Lists of parts are rendered as their text.
    parts: bool,
    /// The template drops the thought of an earlier turn once a newer user message follows.
    drops_thinking: bool,
}

impl Renderer {
    /// Reads a folder; `path` names it or the `tokenizer.json` in it.
    ///
    /// # Errors
    /// [`super::FolderError`], which names the file.
    pub fn open(path: &Path) -> Result<Self, super::FolderError> {
        Ok(Self::new(Folder::open(path)?))
    }

    /// A renderer for these files.
    #[must_use]
    pub fn new(folder: Folder) -> Self {
        let family = Family::of(&folder);
        let mut renderer = Self { folder, family, end: None, parts: false, drops_thinking: false };
        renderer.end = renderer.find_end();
        renderer.parts = renderer.takes_parts();
        renderer.drops_thinking = renderer.finds_thinking_dropped();
        renderer
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.folder.tokenizer
    }

    /// The ids of the tokens that open and close its thinking; `None` where the tokenizer has none.
    #[must_use]
    pub fn think_tokens(&self) -> Option<(u32, u32)> {
        let (start, end) = self.family.think()?;
        Some((self.tokenizer().token_to_id(start)?, self.tokenizer().token_to_id(end)?))
    }

    /// The files.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// What the model is like.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The token that ends a turn of the assistant; `None` where no dedicated token does.
    #[must_use]
    pub fn end_of_turn(&self) -> Option<u32> {
        self.end.as_ref().map(|(_, id)| *id)
    }

    /// Whether the template takes content in parts.
    #[must_use]
    pub fn takes_parts_of_content(&self) -> bool {
        self.parts
    }

    /// Whether the template drops earlier thoughts once a newer user message follows.
    #[must_use]
    pub fn drops_thinking(&self) -> bool {
        self.drops_thinking
    }

    /// The tokens of a whole conversation.
    ///
    /// # Errors
    /// [`PromptError`].
    pub fn whole(&self, messages: &[Value], setting: Setting<'_>) -> Result<Prompt, PromptError> {
        let text = self.text(messages, setting)?;
        self.prompt(&text, setting)
    }

    /// The tokens after those of a turn: its end, where `ended` says that it was not sampled, the separator, and the `new` messages.
    /// `turn` is the message of the assistant as the client has it.
    ///
    /// # Errors
    /// [`PromptError`].
    pub fn behind(
        &self,
        turn: &Value,
        new: &[Value],
        ended: bool,
        setting: Setting<'_>,
    ) -> Result<Prompt, PromptError> {
        let text = self.text_behind(turn, new, setting)?;
        let text = match (&self.end, ended) {
            (Some((end, _)), true) => text.split_once(end.as_str()).map_or(&*text, |(_, behind)| behind),
            _ => &text,
        };
        self.prompt(text, setting)
    }

    fn prompt(&self, text: &str, setting: Setting<'_>) -> Result<Prompt, PromptError> {
        let opened = setting.generation_prompt && self.opens_thought(text, setting);
        Ok(Prompt { ids: self.folder.tokenizer.encode_rendered(text)?, opened, rendered: text.len() })
    }

    fn text(&self, messages: &[Value], setting: Setting<'_>) -> Result<String, RenderError> {
        let template = self.folder.tool_template.as_ref().filter(|_| setting.tools.is_some());
        template.unwrap_or(&self.folder.template).render(&Conversation {
            messages,
            tools: setting.tools,
            generation_prompt: setting.generation_prompt,
            extra: setting.extra,
        })
    }

    /// Whether a prompt ends within a thought that the generation prompt began.
    fn opens_thought(&self, text: &str, setting: Setting<'_>) -> bool {
        let Some((start, _)) = self.family.think() else { return false };
        let probe = [message("user", "U")];
        let setting = Setting { tools: None, ..setting };
        let begun = self.text(&probe, setting);
        let bare = self.text(&probe, Setting { generation_prompt: false, ..setting });
        let (Ok(begun), Ok(bare)) = (begun, bare) else { return false };
        let Some(prompt) = begun.strip_prefix(bare.as_str()).filter(|prompt| text.ends_with(prompt)) else {
            return text.trim_end().ends_with(start);
        };
        self.family.ends_in_thought(prompt).unwrap_or(false)
    }

    /// The token that the template writes first after the text of a turn, if it is an added one.
    fn find_end(&self) -> Option<(String, u32)> {
        let setting = Setting { tools: None, generation_prompt: false, extra: &[] };
        let messages = [message("user", "U"), message("assistant", TURN), message("user", "V")];
        let alone = self.text(&messages[..2], setting).ok()?;
        let both = self.text(&messages, setting).ok()?;
        let first = |text: &str| {
            // some templates put a line end before it
            self.folder.tokenizer.added_at_start(behind_turn(text)?.trim_start())
        };
        // where the role of the next turn ends a turn, no dedicated token does
        first(&alone).filter(|end| first(&both).as_ref() == Some(end))
    }

    fn finds_thinking_dropped(&self) -> bool {
        const THOUGHT: &str = "\u{fdd1}thought\u{fdd1}";
        let Some((start, end)) = self.family.think() else { return false };
        let setting = Setting { tools: None, generation_prompt: false, extra: &[] };
        let mut apart = message("assistant", "A");
        if let Value::Object(members) = &mut apart {
            members.push(("reasoning_content".into(), THOUGHT.into()));
        }
        let within = message("assistant", &format!("{start}\n{THOUGHT}\n{end}\n\nA"));
        let [user, more] = [message("user", "U"), message("user", "V")];
        let shows = |messages: &[Value]| self.text(messages, setting).is_ok_and(|text| text.contains(THOUGHT));
        [apart, within]
            .into_iter()
            .any(|turn| shows(&[user.clone(), turn.clone()]) && !shows(&[user.clone(), turn, more.clone()]))
    }

    fn takes_parts(&self) -> bool {
        let part = |text: &str| Value::Object(vec![("type".into(), "text".into()), ("text".into(), text.into())]);
        let content = Value::Array(vec![part("one"), part("two")]);
        let parted = Value::Object(vec![("role".into(), "user".into()), ("content".into(), content)]);
        let setting = Setting { tools: None, generation_prompt: false, extra: &[] };
        let texts = self.text(&[parted], setting).ok().zip(self.text(&[message("user", "onetwo")], setting).ok());
        texts.is_some_and(|(parted, plain)| parted == plain)
    }
}

fn message(role: &str, content: &str) -> Value {
    Value::Object(vec![("role".into(), role.into()), ("content".into(), content.into())])
}
