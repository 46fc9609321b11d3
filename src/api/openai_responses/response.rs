// SPDX-License-Identifier: Apache-2.0
//! The response object, and what whole and streamed replies share.

use std::sync::Arc;

use bytes::Bytes;

use super::error;
use super::items::{CallNames, Item, ItemKind, Status};
use super::tools::{ToolName, Tools};
use crate::api::ApiError;
use crate::api::openai::{Usage, seconds_since_1970};
use crate::chat::quoted;
use crate::chat::reply_reader::ReplyReader;
use crate::generation::update::SequenceUpdate;
use crate::session::TurnKey;

/// The properties of a request that the encoding of its reply depends on.
#[derive(Debug)]
pub(super) struct ResponseContext {
    /// Parses the sampled tokens.
    pub(super) reader: ReplyReader,
    /// The tools of the request.
    pub(super) tools: Arc<Tools>,
    /// The key of the turn, which is in the id of the response.
    pub(super) key: TurnKey,
    /// The key is not a random one, but that of the turn.
    pub(super) has_turn_key: bool,
    /// The session stores the request.
    pub(super) stores: bool,
    /// `model` of the request.
    pub(super) model: String,
    /// The time of the request in seconds since 1970.
    pub(super) created: u64,
    /// The end of the response in seconds since 1970; `None` if it ends now.
    pub(super) completed: Option<u64>,
    /// The members of the request that the response repeats, as JSON text with a leading comma. They count against the memory budget.
    pub(super) echo: Bytes,
    /// Tokens of the prompt.
    pub(super) prompt_tokens: u64,
    /// Reasoning items have `encrypted_content`: the key of the turn.
    pub(super) includes_encrypted_reasoning: bool,
    /// Messages of whole replies have logprobs.
    pub(super) includes_logprobs: bool,
    /// A reply that ended by length is `completed`. Codex retries an incomplete response and then gives up.
    pub(super) completes_at_length: bool,
}

/// The members of a response that change during its generation.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResponseState<'a> {
    pub(super) status: Status,
    /// The items, as JSON texts.
    pub(super) output: &'a [String],
    /// `error`, as JSON text.
    pub(super) error: Option<&'a str>,
    /// Set at the end.
    pub(super) usage: Option<Usage>,
}

impl ResponseContext {
    /// The response, as JSON text.
    pub(super) fn json(&self, state: ResponseState<'_>) -> String {
        let Self { created, model, .. } = self;
        let echo = std::str::from_utf8(&self.echo).unwrap_or_default();
        let (id, stores) = (self.key.response_id(), self.stores && self.has_turn_key);
        let ResponseState { status, output, error, usage } = state;
        let completed_at = || self.completed.unwrap_or_else(seconds_since_1970).to_string();
        let completed_at = (status == Status::Completed).then(completed_at);
        format!(
            "{{\"id\":\"{id}\",\"object\":\"response\",\"created_at\":{created},\"completed_at\":{},\"status\":\"{}\",\"error\":{},\"incomplete_details\":{},\"model\":{}{echo},\"store\":{stores},\"output\":[{}],\"usage\":{}}}",
            completed_at.as_deref().unwrap_or("null"),
            status.name(),
            error.unwrap_or("null"),
            if status == Status::Incomplete { r#"{"reason":"max_output_tokens"}"# } else { "null" },
            quoted(model),
            output.join(","),
            usage.as_ref().map_or_else(|| "null".to_owned(), self::usage),
        )
    }

    /// How a sequence ended.
    ///
    /// # Errors
    /// The error that replaces the reply, if the engine aborted it.
    pub(super) fn status(&self, update: &SequenceUpdate<'_>) -> Result<Status, ApiError> {
        match update.finish {
            Some("abort") => Err(error::aborted()),
            Some("length") if !self.completes_at_length => Ok(Status::Incomplete),
            _ => Ok(Status::Completed),
        }
    }

    /// The key of the turn of a sequence. The ids of its items contain it, so that clients return it.
    pub(super) fn turn_key(&self, update: &SequenceUpdate<'_>) -> TurnKey {
        // an engine without request ids: the key of the response makes the ids of the items unique
        update.rid().map_or(self.key, |rid| TurnKey::of(rid, update.index))
    }

    /// An item without text. `at` is its index in the output.
    pub(super) fn item(&self, kind: ItemKind, at: usize, key: TurnKey) -> Item {
        Item { id: key.item_id(kind.prefix(), at), kind, text: String::new() }
    }

    /// The kind of reasoning items.
    pub(super) fn reasoning(&self, key: TurnKey) -> ItemKind {
        ItemKind::Reasoning(self.includes_encrypted_reasoning.then(|| key.to_string()))
    }

    /// The names of a call that the model wrote with this `name` and `id`, and whether its tool is a custom tool. `at` is its index among the
    /// calls of the reply.
    pub(super) fn call(
        &self,
        name: &str,
        id: Option<&str>,
        at: usize,
        update: &SequenceUpdate<'_>,
    ) -> (CallNames, bool) {
        let (rid, index) = update.name();
        let call_id = self.reader.call_id(id, at, rid, index);
        let tool = self.tools.named(name);
        // the model may call a tool that does not exist
        let unknown = || ToolName { namespace: None, name: name.to_owned() };
        let is_custom = tool.is_some_and(|tool| tool.is_custom);
        (CallNames { call_id, tool: tool.map_or_else(unknown, |tool| tool.name.clone()) }, is_custom)
    }
}

/// `usage`, as JSON text.
fn usage(usage: &Usage) -> String {
    let cached = usage.cached.unwrap_or(0).min(usage.prompt);
    format!(
        "{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{cached},\"cache_write_tokens\":0}},\"output_tokens\":{},\"output_tokens_details\":{{\"reasoning_tokens\":{}}},\"total_tokens\":{}}}",
        usage.prompt,
        usage.completion,
        usage.reasoning,
        usage.prompt.saturating_add(usage.completion)
    )
}
