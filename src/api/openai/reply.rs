// SPDX-License-Identifier: Apache-2.0
//! Parts of a reply that the APIs share: `usage`, `metadata`, logprobs and lists of ids.

use std::borrow::Cow;

use serde::Serialize;

use crate::api::to_json;
use crate::chat::quoted;
use crate::generation::update::{SequenceUpdate, TokenLogprob};
use crate::json::write_ids;
use crate::tokenizer::Tokenizer;

/// The numbers of tokens of a reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Tokens of the prompts.
    pub(crate) prompt: u64,
    /// Sampled tokens.
    pub(crate) completion: u64,
    /// Cached tokens of the prompt; `None` if the engine does not report them.
    pub(crate) cached: Option<u64>,
    /// Sampled tokens of thinking, as the engine counts them.
    pub(crate) reasoning: u64,
}

/// The `usage` member.
#[derive(Serialize)]
struct UsageMember {
    prompt_tokens: u64,
    total_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Option<PromptDetails>,
    reasoning_tokens: u64,
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Serialize)]
struct PromptDetails {
    cached_tokens: u64,
}

#[derive(Serialize)]
struct CompletionDetails {
    reasoning_tokens: u64,
}

impl Usage {
    /// `usage`, as JSON text.
    pub(crate) fn json(&self) -> String {
        to_json(&UsageMember {
            prompt_tokens: self.prompt,
            total_tokens: self.prompt.saturating_add(self.completion),
            completion_tokens: self.completion,
            prompt_tokens_details: self.cached.map(|cached_tokens| PromptDetails { cached_tokens }),
            reasoning_tokens: self.reasoning,
            completion_tokens_details: (self.reasoning > 0)
                .then_some(CompletionDetails { reasoning_tokens: self.reasoning }),
        })
    }

    /// The numbers of a sequence that has not ended.
    pub(crate) fn so_far(update: &SequenceUpdate<'_>) -> Self {
        Self { prompt: update.prompt_tokens(), completion: update.tokens as u64, ..Self::default() }
    }

    /// The numbers of the only sequence of a reply, which has ended.
    pub(crate) fn total(update: &SequenceUpdate<'_>) -> Self {
        let mut usage = Self::default();
        usage.add(update, 1);
        usage
    }

    /// Adds a sequence that has ended. A prompt is counted once, with the first of its `n` sequences.
    pub(crate) fn add(&mut self, update: &SequenceUpdate<'_>, n: usize) {
        // the engine's counts are not validated
        let add = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count);
        add(&mut self.completion, update.completion_tokens().unwrap_or(update.tokens as u64));
        add(&mut self.reasoning, update.reasoning_tokens().unwrap_or(0));
        if update.index.is_multiple_of(n.max(1)) {
            add(&mut self.prompt, update.prompt_tokens());
            self.cached = update.cached_tokens().map(|cached| cached.saturating_add(self.cached.unwrap_or(0)));
        }
    }
}

/// A list of token ids, as JSON text.
pub(crate) fn id_list(ids: &[u32]) -> String {
    let mut out = Vec::with_capacity(7 * ids.len() + 2);
    out.push(b'[');
    write_ids(&mut out, ids);
    out.push(b']');
    String::from_utf8(out).expect("a list of digits, commas and brackets is UTF-8")
}

/// `metadata` with a leading comma: the weight versions that sampled the reply. Empty if the engine does not report them.
pub(crate) fn metadata(update: &SequenceUpdate<'_>) -> String {
    let [Some(version), spans] = update.weight_versions() else { return String::new() };
    let spans = spans.map(|spans| format!(",\"weight_versions\":{spans}"));
    format!(",\"metadata\":{{\"weight_version\":{version}{}}}", spans.unwrap_or_default())
}

/// What `token` is in logprobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum TokenNames {
    /// The text of the token.
    #[default]
    Texts,
    /// `token_id:` and the id: `return_tokens_as_token_ids` of vLLM.
    Ids,
}

impl TokenNames {
    /// Reads the field of the request.
    pub(crate) fn of(return_tokens_as_token_ids: bool) -> Self {
        if return_tokens_as_token_ids { Self::Ids } else { Self::Texts }
    }

    /// The name of a token with this text.
    pub(crate) fn name(self, id: u32, text: &str) -> Cow<'_, str> {
        match self {
            Self::Texts => text.into(),
            Self::Ids => format!("token_id:{id}").into(),
        }
    }
}

/// Writes the logprobs of tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogprobWriter<'a> {
    /// Decodes the tokens.
    pub(crate) tokenizer: &'a Tokenizer,
    /// What `token` is.
    pub(crate) names: TokenNames,
}

impl LogprobWriter<'_> {
    /// A JSON list: the name and the bytes of each token, its logprob, and the likeliest tokens.
    pub(crate) fn list(self, tokens: &[TokenLogprob]) -> String {
        let mut out = String::from("[");
        for (at, token) in tokens.iter().enumerate() {
            out.push_str(if at > 0 { "," } else { "" });
            self.start_entry(&mut out, token.id, &token.logprob);
            out.push_str(",\"top_logprobs\":[");
            for (at, (id, logprob, _)) in token.top.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                self.start_entry(&mut out, *id, logprob);
                out.push('}');
            }
            out.push_str("]}");
        }
        out.push(']');
        out
    }

    /// Writes the members that all entries have, without the closing brace.
    fn start_entry(self, out: &mut String, id: u32, logprob: &str) {
        let text = self.tokenizer.decode(&[id], false).unwrap_or_default();
        out.push_str("{\"token\":");
        out.push_str(&quoted(&self.names.name(id, &text)));
        out.push_str(",\"bytes\":[");
        for (at, byte) in self.tokenizer.bytes(id).unwrap_or_else(|| text.into_bytes()).into_iter().enumerate() {
            out.push_str(if at > 0 { "," } else { "" });
            out.push_str(itoa::Buffer::new().format(byte));
        }
        out.push_str("],\"logprob\":");
        out.push_str(logprob);
    }
}
