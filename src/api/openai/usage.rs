//! Parts of a reply that OpenAI's APIs have in common.

use serde::Serialize;

use crate::api::sample::Sample;
use crate::json::write_ids;

/// Tokens of a reply, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Tokens of the prompts.
    pub(crate) prompt: u64,
    /// Sampled.
    pub(crate) completion: u64,
    /// Cached tokens of the prompt; `None` if the engine does not report them.
    pub(crate) cached: Option<u64>,
    /// Sampled while thinking, by the engine's count.
    pub(crate) reasoning: u64,
}

/// `usage`.
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

/// A value as JSON text.
#[must_use]
pub(crate) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("structs of strings and numbers")
}

impl Usage {
    /// The text of `usage`.
    #[must_use]
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

    /// Adds a sequence that has ended; a prompt counts with the first of its `n` samples.
    pub(crate) fn add(&mut self, sample: &Sample<'_>, n: usize) {
        // counts are the engine's, whatever they are
        let add = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count);
        add(&mut self.completion, sample.count("completion_tokens").unwrap_or(sample.tokens as u64));
        add(&mut self.reasoning, sample.count("reasoning_tokens").unwrap_or(0));
        if sample.index.is_multiple_of(n.max(1)) {
            add(&mut self.prompt, sample.prompt_tokens());
            self.cached = sample.count("cached_tokens").map(|cached| cached.saturating_add(self.cached.unwrap_or(0)));
        }
    }
}

/// The numbers of a list, as JSON text.
#[must_use]
pub(crate) fn list(ids: &[u32]) -> String {
    let mut out = Vec::with_capacity(7 * ids.len() + 2);
    out.push(b'[');
    write_ids(&mut out, ids);
    out.push(b']');
    String::from_utf8(out).expect("digits and commas")
}

/// `metadata`, behind a comma: which weights answered.
#[must_use]
pub(crate) fn metadata(sample: &Sample<'_>) -> String {
    let Some(version) = sample.member("weight_version") else { return String::new() };
    let spans = sample.member("weight_versions").map(|spans| format!(",\"weight_versions\":{spans}"));
    format!(",\"metadata\":{{\"weight_version\":{version}{}}}", spans.unwrap_or_default())
}
