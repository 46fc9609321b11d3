// SPDX-License-Identifier: Apache-2.0
//! Encodes the body of a chat reply, and the members that a streamed reply has too. Members from the engine are copied as JSON text.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use serde::Serialize;

use super::request::ReplyExtras;
use crate::api::openai::tools::CustomCall;
use crate::api::openai::{LogprobWriter, TokenNames, Usage, id_list, metadata};
use crate::api::to_json;
use crate::chat::quoted;
use crate::chat::reply_reader::ReplyReader;
use crate::engine::sglang::sglext::SglextOptions;
use crate::generation::update::SequenceUpdate;
use crate::parse::ToolCall;
use crate::tokenizer::TokenizerError;

/// The properties of a request that the encoding of its reply depends on.
#[derive(Debug, Clone)]
pub(super) struct ReplyContext {
    /// Parses the sampled tokens.
    pub(super) reader: ReplyReader,
    /// `model` of the request.
    pub(super) model: String,
    /// `created`, in seconds since 1970.
    pub(super) created: u64,
    /// The ids of the prompt, if the client asks for them.
    pub(super) prompt: Option<PromptIds>,
    /// What the tokens are called in logprobs, if the client asks for those.
    pub(super) logprobs: Option<TokenNames>,
    /// Additional members that the client asks for.
    pub(super) extras: ReplyExtras,
    /// The names of the custom tools.
    pub(super) custom_tools: Arc<HashSet<String>>,
    /// The ids that the client asks for in `sglext`.
    pub(super) sglext: SglextOptions,
    /// The number of choices.
    pub(super) n: usize,
}

/// The ids of a prompt.
#[derive(Debug, Clone)]
pub(super) enum PromptIds {
    /// Those that were sent.
    Sent(Arc<[u32]>),
    /// The engine replaces the placeholders of pictures: its echo, as JSON text.
    Echoed(OnceLock<Box<str>>),
}

impl PromptIds {
    /// The list as JSON text; `None` without an echo.
    fn json(&self) -> Option<String> {
        match self {
            Self::Sent(ids) => Some(id_list(ids)),
            Self::Echoed(ids) => ids.get().map(ToString::to_string),
        }
    }
}

/// A whole call.
#[derive(Debug)]
pub(super) struct ReplyCall {
    id: String,
    name: String,
    /// The arguments, or the input of a custom tool.
    text: String,
    is_custom: bool,
}

impl ReplyCall {
    /// The member of the reply. `at` is its index among the calls.
    pub(super) fn member(&self, at: usize) -> ToolCallMember<'_> {
        let Self { id, name, text, is_custom } = self;
        match is_custom {
            true => ToolCallMember::custom(id, at, name, text),
            false => ToolCallMember::with_name(id, at, name, text),
        }
    }
}

impl ReplyContext {
    /// Encodes the body of a reply that does not stream.
    ///
    /// # Errors
    /// [`TokenizerError`] when the sampled tokens cannot be decoded.
    pub(super) fn whole(&self, updates: &[SequenceUpdate<'_>]) -> Result<String, TokenizerError> {
        updates.iter().for_each(|update| self.read_prompt(update));
        let mut usage = Usage::default();
        let mut choices = String::new();
        for (at, update) in updates.iter().enumerate() {
            usage.add(update, self.n);
            choices.push_str(if at > 0 { "," } else { "" });
            self.choice(&mut choices, update)?;
        }
        let first = updates.first();
        let id = first.and_then(SequenceUpdate::rid).unwrap_or_default();
        let (id, model, created) = (quoted(id), quoted(&self.model), self.created);
        let metadata = first.map(metadata).unwrap_or_default();
        // as in SGLang, the first choice's, unless each choice has them in its `meta_info`
        let experts = first.filter(|_| !self.extras.meta_info).and_then(SequenceUpdate::routed_experts);
        let sglext = self.sglext(experts, updates.iter().map(|update| &*update.ids));
        Ok(format!(
            "{{\"id\":{id},\"object\":\"chat.completion\",\"created\":{created},\"model\":{model},\"choices\":[{choices}],\"usage\":{}{metadata}{}{sglext}}}",
            usage.json(),
            self.prompt_ids(),
        ))
    }

    /// Reads the ids of the prompt, if only the engine knows them and this event has them.
    pub(super) fn read_prompt(&self, update: &SequenceUpdate<'_>) {
        if let (Some(PromptIds::Echoed(ids)), Some(echo)) = (&self.prompt, update.prompt_ids()) {
            ids.get_or_init(|| echo.into());
        }
    }

    /// `logprobs` of a choice or a chunk, if the client asks for them.
    pub(super) fn logprobs(&self, update: &SequenceUpdate<'_>) -> Option<String> {
        let writer = LogprobWriter { tokenizer: self.reader.renderer.tokenizer(), names: self.logprobs? };
        Some(format!("{{\"content\":{}}}", writer.list(&update.token_logprobs())))
    }

    /// `prompt_token_ids` of the reply, where vLLM has it, with a leading comma. Empty if not requested.
    pub(super) fn prompt_ids(&self) -> String {
        let prompt = self.prompt.as_ref().filter(|_| self.extras.token_ids);
        prompt.and_then(PromptIds::json).map_or(String::new(), |ids| format!(",\"prompt_token_ids\":{ids}"))
    }

    /// `sglext` with the routed experts, which are JSON text, and with the ids that the client asks for, with a leading comma. Empty if it
    /// asks for none.
    pub(super) fn sglext<'a>(&self, experts: Option<&str>, responses: impl Iterator<Item = &'a [u32]>) -> String {
        let input = self.prompt.as_ref().filter(|_| self.sglext.input).and_then(PromptIds::json);
        let input = input.map(|ids| format!("\"input_ids\":{ids}"));
        let output = self.sglext.output.then(|| {
            let lists: Vec<String> = responses.map(id_list).collect();
            format!("\"output_ids\":[{}]", lists.join(","))
        });
        // SGLang leaves out an empty text
        let experts = experts.filter(|experts| self.extras.routed_experts && *experts != "\"\"");
        let experts = experts.map(|experts| format!("\"routed_experts\":{experts}"));
        let members: Vec<String> = experts.into_iter().chain(input).chain(output).collect();
        if members.is_empty() { String::new() } else { format!(",\"sglext\":{{{}}}", members.join(",")) }
    }

    /// `sglext` with the routed experts alone, with a leading comma. Empty without them.
    pub(super) fn experts_alone(&self, experts: Option<&str>) -> String {
        let without_ids = Self { sglext: SglextOptions::default(), ..self.clone() };
        without_ids.sglext(experts, std::iter::empty())
    }

    /// Appends a choice.
    fn choice(&self, out: &mut String, update: &SequenceUpdate<'_>) -> Result<(), TokenizerError> {
        let finish = update.finish;
        let message = self.reader.message(&update.ids, finish)?;
        let (rid, index) = update.name();
        let call = |(at, call): (usize, ToolCall)| {
            let id = self.reader.call_id(call.id.as_deref(), at, rid, index);
            self.call(id, call.name, call.arguments)
        };
        let calls: Vec<ReplyCall> = message.calls.into_iter().enumerate().map(call).collect();
        let member = MessageMember {
            role: "assistant",
            content: &message.content,
            reasoning_content: message.reasoning.as_deref(),
            tool_calls: calls.iter().enumerate().map(|(at, call)| call.member(at)).collect(),
        };
        let ends_with_calls = !calls.is_empty() && finish == Some("stop");
        let finish = if ends_with_calls { "tool_calls" } else { finish.unwrap_or("stop") };
        let matched = update.matched.filter(|_| !ends_with_calls).unwrap_or("null");
        let logprobs = self.logprobs(update).unwrap_or_else(|| "null".to_owned());
        out.push_str(&format!(
            "{{\"index\":{},\"message\":{},\"logprobs\":{logprobs},\"finish_reason\":{},\"matched_stop\":{matched}{}{}{}}}",
            update.index,
            to_json(&member),
            quoted(finish),
            self.choice_prompt_ids(),
            self.choice_ids(update),
            self.meta_info(update),
        ));
        Ok(())
    }

    /// A whole call of a tool with this name.
    pub(super) fn call(&self, id: String, name: String, arguments: String) -> ReplyCall {
        if !self.custom_tools.contains(&name) {
            return ReplyCall { id, name, text: arguments, is_custom: false };
        }
        let CustomCall { id, input, .. } = CustomCall::new(id, arguments);
        ReplyCall { id, name, text: input, is_custom: true }
    }

    /// `prompt_token_ids` of a choice, with a leading comma. Empty if not requested.
    pub(super) fn choice_prompt_ids(&self) -> String {
        let prompt = self.prompt.as_ref().filter(|_| self.extras.includes_prompt_ids());
        prompt.and_then(PromptIds::json).map_or(String::new(), |ids| format!(",\"prompt_token_ids\":{ids}"))
    }

    /// The sampled ids of a choice under SGLang's name and vLLM's name, each with a leading comma. Empty if not requested.
    pub(super) fn choice_ids(&self, update: &SequenceUpdate<'_>) -> String {
        if !self.extras.token_ids {
            return String::new();
        }
        let ids = id_list(&update.ids);
        format!(",\"response_token_ids\":{ids},\"token_ids\":{ids}")
    }

    /// `meta_info` of a choice, with a leading comma. Empty if not requested.
    pub(super) fn meta_info(&self, update: &SequenceUpdate<'_>) -> String {
        if !self.extras.meta_info && !self.extras.entropy {
            return String::new();
        }
        format!(",\"meta_info\":{}", update.meta_info().unwrap_or_else(|| "null".to_owned()))
    }
}

/// `message` of a reply that does not stream.
#[derive(Debug, Serialize)]
pub(super) struct MessageMember<'a> {
    pub(super) role: &'static str,
    pub(super) content: &'a str,
    pub(super) reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<ToolCallMember<'a>>,
}

/// `delta` of a chunk.
#[derive(Debug, Default, Serialize)]
pub(super) struct Delta<'a> {
    pub(super) reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) tool_calls: &'a [ToolCallMember<'a>],
}

/// A tool call, or the part of a tool call in a chunk.
#[derive(Debug, Serialize)]
pub(super) struct ToolCallMember<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<&'a str>,
    pub(super) index: usize,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) function: Option<FunctionMember<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) custom: Option<CustomMember<'a>>,
}

/// `function` of a tool call.
#[derive(Debug, Serialize)]
pub(super) struct FunctionMember<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'a str>,
    pub(super) arguments: &'a str,
}

/// `custom` of a tool call.
#[derive(Debug, Serialize)]
pub(super) struct CustomMember<'a> {
    pub(super) name: &'a str,
    pub(super) input: &'a str,
}

impl<'a> ToolCallMember<'a> {
    /// A call, or the first part of one: with its id and name.
    pub(super) fn with_name(id: &'a str, index: usize, name: &'a str, arguments: &'a str) -> Self {
        let function = FunctionMember { name: Some(name), arguments };
        Self { id: Some(id), index, kind: Some("function"), function: Some(function), custom: None }
    }

    /// A call of a custom tool.
    pub(super) fn custom(id: &'a str, index: usize, name: &'a str, input: &'a str) -> Self {
        let custom = CustomMember { name, input };
        Self { id: Some(id), index, kind: Some("custom"), function: None, custom: Some(custom) }
    }

    /// A later part of a call: only arguments.
    pub(super) fn arguments(index: usize, arguments: &'a str) -> Self {
        let function = FunctionMember { name: None, arguments };
        Self { id: None, index, kind: None, function: Some(function), custom: None }
    }
}
