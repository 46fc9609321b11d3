//! A conversation as the tokens that the engine is asked to continue.
//!
//! What a session holds of it stays as it is, token by token; only what follows it is rendered and encoded. What does not continue
//! anything that is held is rendered from its text, which makes it a branch.

use super::Conversation;
use super::RequestError;
use super::departure::AssistantText;
use super::history::{Continued, History};
use super::message::Message;
use super::model::ChatModel;
use super::reading::ParserSettings;
use crate::config::EarlierThinking;
use crate::json::Value;
use crate::session::{Chat, Session, Turn};
use crate::tokenizer::template::RenderError;
use crate::tokenizer::{Prompt, PromptError, Renderer, Setting, TextOrigin, TokenizerError};

/// A prompt, and what its turn is to remember.
#[derive(Debug)]
pub struct Prepared {
    /// All of its tokens.
    pub ids: Vec<u32>,
    /// What the turn remembers.
    pub chat: Chat,
    /// The turn that it continues.
    pub continues: Option<u32>,
    /// How many of the tokens were there already.
    pub known: usize,
    /// Bytes that were rendered for the rest.
    pub rendered: usize,
}

impl Prepared {
    /// What of the prompt was there already; a label of metrics.
    #[must_use]
    pub fn how(&self) -> &'static str {
        match &self.chat {
            chat if chat.retokenised => "retokenised",
            chat if chat.foreign_text => "foreign",
            _ if self.known > 0 => "extended",
            _ => "whole",
        }
    }
}

/// What a prompt is made of.
#[derive(Debug)]
pub struct Preparation<'a> {
    /// Renders for the model.
    pub renderer: &'a Renderer,
    /// What is known of the conversation; `None` for a call that names no session.
    pub session: Option<&'a Session>,
    /// What to do where the template drops what was thought before.
    pub earlier_thinking: EarlierThinking,
    /// How the reply will be read.
    pub parser: ParserSettings,
}

/// A prompt, and how it came about.
#[derive(Default)]
struct Built {
    prompt: Prompt,
    /// How many of its tokens were there.
    known: usize,
    /// Tokens of it that end the turn before.
    inserted: u32,
}

impl<'a> Preparation<'a> {
    /// A preparation without a session.
    #[must_use]
    pub fn anew(model: &'a ChatModel) -> Self {
        let (renderer, parser) = (&*model.renderer, model.parser.clone());
        Self { renderer, session: None, earlier_thinking: EarlierThinking::Keep, parser }
    }

    /// The tokens that the template makes of the whole conversation.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn rendering(&self, request: &Conversation) -> Result<Vec<u32>, RequestError> {
        self.whole(request).map(|prompt| prompt.ids)
    }

    /// The prompt of a request.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn prepare(&self, request: &Conversation) -> Result<Prepared, RequestError> {
        let history = History::of(request);
        let conversation = history.conversation();
        let given = request.prompt_ids.clone();
        let session = self.session.filter(|_| given.is_none());
        let continued = session.and_then(|session| history.find(session, self.renderer));
        let built = match &continued {
            Some(continued) if !self.must_branch(request, continued) => self.extended(request, continued)?,
            _ => None,
        };
        // the messages that are rendered as text; a client that has rendered them itself knows what of it was sampled
        let rendered = match (&built, &given, &continued) {
            (Some(_), _, Some(continued)) => &request.messages[continued.at + 1..],
            (None, Some(_), _) => &[],
            _ => &request.messages[..],
        };
        let texts = AssistantText::of(rendered, session, self.renderer);
        let Built { prompt, known, inserted } = match (built, given) {
            (Some(built), _) => built,
            (None, Some(ids)) => Built { prompt: self.given(ids)?, ..Built::default() },
            (None, None) => Built { prompt: self.whole(request)?, ..Built::default() },
        };
        let outline = history.outline();
        let departure = session
            .filter(|_| known == 0 || texts != AssistantText::default())
            .and_then(|session| outline.departure(&request.messages, texts, session, self.renderer));
        let continues = continued.as_ref().map(|continued| continued.turn.id);
        let tools = if known > 0 {
            continued.is_some_and(|continued| continued.turn.about.chat.as_ref().is_some_and(|chat| chat.tools))
        } else {
            request.reads_calls()
        };
        let reading = self.parser.reading(request, prompt.opened);
        let Prompt { ids, rendered, .. } = prompt;
        let chat = Chat {
            conversation,
            tools,
            reading,
            retokenised: texts.sampled.is_some(),
            foreign_text: texts.foreign,
            inserted_end_of_turn: inserted,
            fingerprint: Some(outline.fingerprint),
            departure,
        };
        Ok(Prepared { ids, chat, continues: continues.filter(|_| known > 0), known, rendered })
    }

    /// Whether the template would drop a thought that the tokens hold, and tokens are not to be kept then.
    fn must_branch(&self, request: &Conversation, continued: &Continued) -> bool {
        self.earlier_thinking == EarlierThinking::Branch
            && continued.thought
            && self.renderer.drops_thinking()
            && request.messages[continued.at + 1..].iter().any(|message| message.role == "user")
    }

    /// The tokens of a turn and what follows it; `None` where the template leaves that open.
    fn extended(&self, request: &Conversation, continued: &Continued) -> Result<Option<Built>, RequestError> {
        let Some(session) = self.session else { return Ok(None) };
        let Continued { turn, at, .. } = continued;
        let mut ids = session.tokens(turn.id);
        let mut new: &[Message] = &request.messages[at + 1..];
        let end = self.renderer.end_of_turn();
        let stopped = turn.about.finish.as_deref() == Some("stop");
        let last = turn.response.last().copied();
        let stop = last.filter(|last| stopped && self.renderer.tokenizer().is_special(*last));
        // a model may stop for another reason than the template knows; two ends it would never see
        let ended = end.is_some() && (last == end || stop.is_some());
        if new.is_empty() && request.continues_last {
            // it goes on where it was cut, or where it was ended
            if ended || stop.is_some() {
                ids.pop();
            }
            let (known, opened) = (ids.len(), self.is_within_thought(turn));
            return Ok(Some(Built { prompt: Prompt { ids, opened, rendered: 0 }, known, ..Built::default() }));
        }
        let mut begun = None;
        if request.continues_last
            && let Some((last, before)) = new.split_last().filter(|(last, _)| last.is_assistant())
        {
            (begun, new) = (Some(last.texts.concat()), before);
        }
        let shown: Vec<Value> = new.iter().map(|message| self.shown(message)).collect();
        let extra = self.extra(request);
        let setting = Setting { tools: None, generation_prompt: true, extra: &extra };
        let reply = self.shown(&request.messages[*at]);
        let mut suffix = match self.renderer.behind(&reply, &shown, ended, setting) {
            Ok(suffix) => suffix,
            Err(PromptError::NoBoundary) => return Ok(None),
            Err(error) => return Err(unrendered(error)),
        };
        if end.is_none() && stop.is_some() {
            // the turn was ended by the role of the next one: by this one, or else by one that does not come
            if suffix.ids.first() == stop.as_ref() {
                suffix.ids.remove(0);
            } else {
                ids.pop();
            }
        }
        let known = ids.len();
        ids.append(&mut suffix.ids);
        let mut prompt = Prompt { ids, ..suffix };
        if let Some(begun) = begun {
            self.begin(&mut prompt, &begun)?;
        }
        Ok(Some(Built { prompt, known, inserted: u32::from(end.is_some() && !ended) }))
    }

    /// Whether the text of a turn ends within a thought.
    fn is_within_thought(&self, turn: &Turn) -> bool {
        let opened = turn.about.chat.as_ref().is_some_and(|chat| chat.reading.opened);
        let text = self.renderer.tokenizer().decode(&turn.response, false).unwrap_or_default();
        self.renderer.family().ends_in_thought(&text).unwrap_or(opened)
    }

    /// A prompt of the client's own.
    fn given(&self, ids: Vec<u32>) -> Result<Prompt, RequestError> {
        let opened = is_opened(self.renderer, &ids).map_err(|error| RequestError::Invalid(error.to_string()))?;
        Ok(Prompt { ids, opened, rendered: 0 })
    }

    /// The whole conversation from its text.
    fn whole(&self, request: &Conversation) -> Result<Prompt, RequestError> {
        let mut messages: &[Message] = &request.messages;
        let mut begun = None;
        if request.continues_last
            && let Some((last, before)) = messages.split_last().filter(|(last, _)| last.is_assistant())
        {
            (begun, messages) = (Some(last.texts.concat()), before);
        }
        let shown: Vec<Value> = messages.iter().map(|message| self.shown(message)).collect();
        let marks = self.renderer.tokenizer().content();
        let tools = request.tools.as_ref().filter(|_| request.reads_calls());
        let tools: Option<Vec<Value>> =
            tools.map(|tools| tools.iter().map(|tool| marks.mark_all(tool, TextOrigin::Person)).collect());
        let extra = self.extra(request);
        let setting = Setting { tools: tools.as_deref(), generation_prompt: true, extra: &extra };
        let mut prompt = self.renderer.whole(&shown, setting).map_err(unrendered)?;
        if let Some(begun) = begun {
            self.begin(&mut prompt, &begun)?;
        }
        Ok(prompt)
    }

    /// Adds the beginning of the reply, which the client has written.
    fn begin(&self, prompt: &mut Prompt, text: &str) -> Result<(), RequestError> {
        let tokenizer = self.renderer.tokenizer();
        let marked = tokenizer.content().mark(text, TextOrigin::Person);
        let ids = tokenizer.encode_rendered(&marked).map_err(|error| RequestError::Invalid(error.to_string()))?;
        prompt.ids.extend(ids);
        prompt.opened = self.renderer.family().ends_in_thought(text).unwrap_or(prompt.opened);
        Ok(())
    }

    /// `chat_template_kwargs` as the template is given them: a client's texts, too.
    fn extra(&self, request: &Conversation) -> Vec<(String, Value)> {
        let marks = self.renderer.tokenizer().content();
        request
            .template_variables
            .iter()
            .map(|(name, value)| (name.clone(), marks.mark_all(value, TextOrigin::Person)))
            .collect()
    }

    /// The message as the template is given it.
    fn shown(&self, message: &Message) -> Value {
        message.shown(self.renderer.tokenizer().content(), self.renderer.takes_parts_of_content())
    }
}

/// Whether a prompt that somebody else has rendered ends by opening a thought.
pub(super) fn is_opened(renderer: &Renderer, ids: &[u32]) -> Result<bool, TokenizerError> {
    let tail = renderer.tokenizer().decode(&ids[ids.len().saturating_sub(4)..], false)?;
    Ok(renderer.family().think().is_some_and(|(start, _)| tail.trim_end().ends_with(start)))
}

/// A template that says no is right. One that fails here may not fail in the engine's own hands.
fn unrendered(error: PromptError) -> RequestError {
    match error {
        PromptError::Render(RenderError::Refused(_)) => RequestError::Invalid(error.to_string()),
        error => RequestError::Unsupported(error.to_string()),
    }
}
