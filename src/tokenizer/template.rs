//! A chat template: messages become the text that a model was trained to continue.
//!
//! Templates are written for Python's Jinja as Hugging Face sets it up; what that has and minijinja has not is below.

mod data;
mod dialect;
mod dump;
mod filters;
mod methods;
mod python;
mod source;

use std::collections::BTreeMap;

use minijinja::{Environment, Value as Jinja};

use crate::json::Value;

/// Why a template does not compile.
#[derive(Debug, thiserror::Error)]
#[error("the chat template does not compile: {0}")]
pub struct TemplateError(String);

/// Why a conversation was not rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template itself refused it, with this message.
    #[error("the chat template refuses these messages: {0}")]
    Refused(String),
    /// The template failed on it.
    #[error("the chat template fails on these messages: {0}")]
    Failed(String),
}

/// What a template is given.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// The messages, each an object.
    pub messages: &'a [Value],
    /// The tools; `None` without tools.
    pub tools: Option<&'a [Value]>,
    /// The turn of the assistant is opened.
    pub generation_prompt: bool,
    /// `chat_template_kwargs`: names that the template may know.
    pub extra: &'a [(String, Value)],
}

/// A compiled chat template. Rendering is pure but for `strftime_now`.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// `bos_token` and its like.
    specials: BTreeMap<String, String>,
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// Compiles a template; `specials` are the names of special tokens and their texts.
    ///
    /// # Errors
    /// When it does not compile.
    pub fn try_new(source: &str, specials: BTreeMap<String, String>) -> Result<Self, TemplateError> {
        let mut environment = dialect::environment();
        let compiled = environment.add_template_owned(NAME, source::adapted(source));
        compiled.map_err(|error| TemplateError(format!("{error:#}")))?;
        Ok(Self { environment, source: source.to_owned(), specials })
    }

    /// Whether the template writes this, or looks for it.
    #[must_use]
    pub fn mentions(&self, text: &str) -> bool {
        self.source.contains(text)
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// [`RenderError`].
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, RenderError> {
        let template = self.environment.get_template(NAME).expect("it was compiled under this name");
        let mut names: BTreeMap<&str, Jinja> =
            self.specials.iter().map(|(name, text)| (name.as_str(), Jinja::from(text.as_str()))).collect();
        // as transformers does, absent ones are none and not undefined
        names.insert("tools", conversation.tools.map_or(Jinja::from(()), data::list));
        names.insert("documents", Jinja::from(()));
        names.insert("messages", data::list(conversation.messages));
        names.insert("add_generation_prompt", Jinja::from(conversation.generation_prompt));
        names.extend(conversation.extra.iter().map(|(name, value)| (name.as_str(), data::value(value))));
        template.render(names).map_err(|error| dialect::told(&error))
    }
}
