// SPDX-License-Identifier: Apache-2.0
//! Chat templates: render messages to the text that a model was trained to continue.
//!
//! Templates are written for Python's Jinja as Hugging Face transformers configures it. The submodules add to minijinja the filters,
//! methods and syntax that it lacks or that it implements differently.

mod choice;
mod data;
mod deepseek;
mod dump;
mod environment;
mod filters;
mod fuel;
mod methods;
mod python;
mod source;

use std::collections::BTreeMap;

use minijinja::{Environment, Value as Jinja};

pub(super) use choice::{ModelFacts, PromptWriter};
pub use deepseek::Encoding;

use crate::json::Value;

/// Error: a template does not compile.
#[derive(Debug, thiserror::Error)]
#[error("the chat template does not compile: {0}")]
pub struct TemplateError(String);

/// Error: a conversation was not rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template called `raise_exception` with this message.
    #[error("the chat template refuses these messages: {0}")]
    Refused(String),
    /// Rendering failed with this error.
    #[error("the chat template fails on these messages: {0}")]
    Failed(String),
    /// Rendering was stopped after this number of instructions.
    #[error("the chat template has not ended after {0} instructions on these messages, as if it looped for ever")]
    Endless(u64),
}

/// The variables of a template besides `messages`, the same for all turns of a conversation.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    /// The tools that the prompt describes; `None` without tools.
    pub tools: Option<&'a [Value]>,
    /// `add_generation_prompt`: the text ends with the start of an assistant turn.
    pub generation_prompt: bool,
    /// `chat_template_kwargs`: more variables, by name.
    pub extra: &'a [(String, Value)],
}

/// A chat template. Equal variables give equal text, except that `strftime_now` reads the clock.
#[derive(Debug)]
pub struct ChatTemplate(Kind);

#[derive(Debug)]
enum Kind {
    Jinja(Box<JinjaTemplate>),
    /// The model has code in place of a template.
    Code(Encoding),
}

/// A compiled template.
#[derive(Debug)]
struct JinjaTemplate {
    environment: Environment<'static>,
    source: String,
    /// The special tokens as variables, such as `bos_token`.
    specials: BTreeMap<String, String>,
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// Compiles a template. `specials` maps the variable of each special token, such as `bos_token`, to the text of the token.
    ///
    /// # Errors
    /// When it does not compile.
    pub fn try_new(source: &str, specials: BTreeMap<String, String>) -> Result<Self, TemplateError> {
        Ok(Self(Kind::Jinja(Box::new(JinjaTemplate::try_new(source, specials)?))))
    }

    /// The encoding of a model that has no template.
    #[must_use]
    pub fn from_encoding(encoding: Encoding) -> Self {
        Self(Kind::Code(encoding))
    }

    /// Whether the source of the template contains `text`. Without a source: whether the text that it writes, or a variable, does.
    #[must_use]
    pub fn mentions(&self, text: &str) -> bool {
        match &self.0 {
            Kind::Jinja(template) => template.source.contains(text),
            Kind::Code(encoding) => encoding.mentions(text),
        }
    }

    /// Whether the reasoning of an assistant message that the reply continues is part of the prompt, before its text. Otherwise the text follows
    /// the start of the reply, as SGLang has it for all other models.
    #[must_use]
    pub fn places_continued_reasoning(&self) -> bool {
        matches!(self.0, Kind::Code(Encoding::V4))
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// [`RenderError`] when the template rejects the conversation or fails.
    pub fn render(&self, messages: &[Value], setting: Setting<'_>) -> Result<String, RenderError> {
        match &self.0 {
            Kind::Jinja(template) => template.render_within(fuel::limit(messages, setting), messages, setting),
            Kind::Code(encoding) => encoding.render(messages, setting),
        }
    }
}

impl JinjaTemplate {
    fn try_new(source: &str, specials: BTreeMap<String, String>) -> Result<Self, TemplateError> {
        let mut environment = environment::new();
        let compiled = environment.add_template_owned(NAME, source::adapt_to_minijinja(source));
        compiled.map_err(|error| TemplateError(format!("{error:#}")))?;
        Ok(Self { environment, source: source.to_owned(), specials })
    }

    /// Renders a conversation in at most `fuel` instructions.
    fn render_within(&self, fuel: u64, messages: &[Value], setting: Setting<'_>) -> Result<String, RenderError> {
        // a copy shares the compiled template and the filters
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let template = environment.get_template(NAME).expect("it was compiled under this name");
        let mut variables: BTreeMap<&str, Jinja> =
            self.specials.iter().map(|(name, text)| (name.as_str(), Jinja::from(text.as_str()))).collect();
        // as in transformers, missing tools and documents have the value `none` and are not undefined
        variables.insert("tools", setting.tools.map_or(Jinja::from(()), data::from_json_list));
        variables.insert("documents", Jinja::from(()));
        variables.insert("messages", data::from_json_list(messages));
        variables.insert("add_generation_prompt", Jinja::from(setting.generation_prompt));
        variables.extend(setting.extra.iter().map(|(name, value)| (name.as_str(), data::from_json(value))));
        template.render(variables).map_err(|error| environment::render_error(&error, fuel))
    }
}
