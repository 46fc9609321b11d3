// SPDX-License-Identifier: Apache-2.0
//! The plan of a request: what the client requested, what is requested from the engine, and what is removed from the reply. `generation`
//! fills [`PlanInputs`]; the engine's product makes the [`Plan`].

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::columns::{COLUMNS, ColumnFault, ExpertShape};
use crate::engine::capabilities::Product;
use crate::engine::reason::Reason;
use crate::engine::rid::InlineRid;
use crate::entropy::Estimator;

/// The entropies that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntropyRequest {
    /// Entropies are requested.
    pub wanted: bool,
    /// The client set `return_entropy: true`.
    pub explicit: bool,
    /// The estimator of the published entropies.
    pub estimator: Estimator,
    /// k, before any cap.
    pub top_k: u32,
    /// The client set a k, or an estimator that needs a top-k.
    pub by_top_k: bool,
    /// Add the certified interval.
    pub bounds: bool,
    /// Add the statistics of each token.
    pub stats: bool,
}

impl EntropyRequest {
    /// Nothing is requested.
    pub const NONE: Self = Self {
        wanted: false,
        explicit: false,
        estimator: Estimator::Estimate,
        top_k: 0,
        by_top_k: false,
        bounds: false,
        stats: false,
    };
}

/// Limits of what is requested from the engine.
#[derive(Debug, Clone, Copy)]
pub struct PlanLimits {
    /// The largest k.
    pub max_top_logprobs: u32,
    /// The largest number of tokens of a cumulative stream for which a top-k is requested.
    pub cumulative_stream_tokens: u64,
    /// The largest expected reply of a request that limits its length, in bytes.
    pub reply_bytes: u64,
    /// The largest reply that is parsed, in bytes.
    pub max_reply_bytes: u64,
}

/// The token columns that tokentap requests with a generation that it records.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ColumnInputs {
    /// Those of the table, by their positions in it.
    pub wanted: [bool; COLUMNS.len()],
    /// The likeliest tokens are recorded.
    pub keeps_top: bool,
    /// The number of leading tokens that columns of processed tokens may leave out: the first number with which the expected reply fits its
    /// bound is requested. Earlier turns have the values of these tokens.
    pub starts: [usize; 2],
    /// The routing of the model, if it is known.
    pub experts: Option<ExpertShape>,
}

/// What becomes of a token column of the table in one sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ColumnPlan {
    /// It is not wanted.
    #[default]
    Unwanted,
    /// The client requested it, so it stays in the reply.
    Requested,
    /// tokentap requests it, and removes it from the reply.
    Forced,
    /// tokentap wants it and does not request it.
    Missing(ColumnFault),
}

/// What becomes of each column of the table.
pub type ColumnPlans = [ColumnPlan; COLUMNS.len()];

/// The inputs of a plan besides the request and the capabilities of the engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanInputs {
    /// The entropies that the request asks for.
    pub entropy_request: EntropyRequest,
    /// Entropies are requested also where they are expensive for the engine.
    pub is_always_wanted: bool,
    /// The limits.
    pub limits: PlanLimits,
    /// Whether an id may be assigned to a request that has none.
    pub assigns_rid: bool,
    /// Whether turns are recorded.
    pub records: bool,
    /// The kind of the request.
    pub shape: RequestShape,
    /// The failures since the last probe.
    pub failures: FailuresSinceProbe,
    /// The token columns that are requested.
    pub columns: ColumnInputs,
}

/// Failures since the last probe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FailuresSinceProbe {
    /// The engine refused this shape when it was forced.
    pub refused: bool,
    /// The plugin returned no answer or a wrong one.
    pub plugin_failed: bool,
}

/// The kind of a request, for remembering engine failures: a forced top-k can break grammars and greedy sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestShape {
    /// A grammar constrains the tokens.
    pub grammar: bool,
    /// The sampling is greedy.
    pub greedy: bool,
}

impl RequestShape {
    /// Whether a forced top-k may have caused a failure of this kind. Plain sampling is too common to be given up after one failure.
    #[must_use]
    pub fn is_delicate(self) -> bool {
        self.grammar || self.greedy
    }
}

/// The source of the engine's exact entropies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExactSource {
    /// The plugin: the entropy of the full distribution.
    Plugin,
    /// The sampling mask: the entropy of the sampled distribution.
    Support,
}

/// What the client requested for one prompt, and what is requested upstream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItemPlan {
    /// The client requested logprobs.
    pub asked: bool,
    /// The client's own k; 0 without logprobs.
    pub asked_k: u32,
    /// Whether logprobs are requested upstream.
    pub logprob: bool,
    /// k upstream.
    pub k: u32,
    /// The source of exact entropies, if the engine reports them.
    pub exact: Option<ExactSource>,
    /// The client requested the plugin's values, so they stay in the reply.
    pub own_plugin: bool,
    /// The client requested sampling masks.
    pub own_support: bool,
    /// The temperature of the logprobs, or why it is unknown.
    pub temperature: Result<f64, Reason>,
    /// Temperature 1 is sent instead: sampling is greedy at any temperature.
    pub at_one: bool,
    /// The client requested only the chosen logprobs. sglang-jax then sends no placeholder for the prompt, but with a k it does.
    pub placeholder: bool,
    /// Why there is no top-k although entropy was requested.
    pub reason: Option<Reason>,
    /// The desired k, if a smaller one is requested so that the reply fits its limit.
    pub lowered_from: Option<u32>,
    /// The token columns.
    pub columns: ColumnPlans,
}

impl ItemPlan {
    /// The item without anything forced.
    #[must_use]
    pub fn unforced(self) -> Self {
        let columns = self.columns.map(|column| match column {
            ColumnPlan::Forced => ColumnPlan::Missing(ColumnFault::Refused),
            other => other,
        });
        Self { logprob: self.asked, k: self.asked_k, at_one: false, exact: None, columns, ..self }
    }

    /// Whether a token column is requested that the client did not request.
    #[must_use]
    pub fn forces_columns(&self) -> bool {
        self.columns.contains(&ColumnPlan::Forced)
    }

    /// Whether the reply may have token columns.
    #[must_use]
    pub fn has_columns(&self) -> bool {
        self.columns.iter().any(|column| matches!(column, ColumnPlan::Requested | ColumnPlan::Forced))
    }

    /// Whether exact values are requested that the client did not request.
    #[must_use]
    pub fn forces_exact(&self) -> bool {
        match self.exact {
            Some(ExactSource::Plugin) => !self.own_plugin,
            Some(ExactSource::Support) => !self.own_support,
            None => false,
        }
    }
}

/// How one request is served.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The product that serves it.
    pub product: Product,
    /// The client's entropy request.
    pub entropy_request: EntropyRequest,
    /// One per prompt.
    pub items: SmallVec<[ItemPlan; 1]>,
    /// Samples per prompt; result `i` belongs to prompt `i / n`.
    pub n: usize,
    /// The reply is a stream.
    pub stream: bool,
    /// The body that goes upstream.
    pub body: Bytes,
    /// The engine is asked to echo the prompt's ids, which the client did not request.
    pub echo: bool,
    /// The request without anything forced. `None` if nothing is forced, or only a larger k on logprobs that the client requested.
    pub unforced: Option<UnforcedRequest>,
    /// Request ids that are known before the engine answers, with the index of their sequence.
    pub rids: SmallVec<[(Arc<str>, usize); 1]>,
    /// The client's own `rid` string, under which all sequences can be read.
    pub rid: Option<Arc<str>>,
    /// The kind of the request.
    pub shape: RequestShape,
    /// The engine has a plugin, whose member may appear in a reply that did not request it.
    pub plugin: bool,
    /// The number of leading tokens that forced columns of processed tokens leave out.
    pub column_start: usize,
    /// The likeliest tokens of each sampled one are recorded.
    pub keeps_top: bool,
}

/// The client's request without anything forced. Its body is built when it is needed.
#[derive(Debug, Clone)]
pub struct UnforcedRequest {
    /// The client's body.
    pub(crate) original: Bytes,
    /// Another assigned id, because an engine may keep the id of a request that it has refused (SGLang 0.5.12).
    pub(crate) rid: Option<InlineRid>,
}

impl Plan {
    /// The plan of a chat for the engine's own endpoint, with `n` replies: nothing is measured.
    #[must_use]
    pub fn for_engine_chat(product: Product, body: Bytes, n: usize, rid: Option<Arc<str>>) -> Self {
        Self {
            product,
            entropy_request: EntropyRequest::NONE,
            items: SmallVec::new(),
            n,
            stream: false,
            body,
            echo: false,
            unforced: None,
            rids: rid.into_iter().map(|rid| (rid, 0)).collect(),
            rid: None,
            shape: RequestShape { grammar: false, greedy: false },
            plugin: false,
            column_start: 0,
            keeps_top: false,
        }
    }

    /// Whether the reply must be parsed, because members are added or removed.
    #[must_use]
    pub fn reads_reply(&self) -> bool {
        self.entropy_request.wanted
            || self.echo
            || self.plugin
            || self
                .items
                .iter()
                .any(|item| item.logprob != item.asked || item.k != item.asked_k || item.forces_columns())
    }

    /// Whether the ids of all sequences are known before the reply.
    #[must_use]
    pub fn knows_rids(&self) -> bool {
        self.rids.len() >= self.items.len() * self.n
    }

    /// The plan of the sequence with this index.
    #[must_use]
    pub fn item(&self, index: usize) -> Option<&ItemPlan> {
        self.items.get(index / self.n.max(1))
    }

    /// The reason why no sequence will have entropies, if that is known before sending.
    #[must_use]
    pub fn unavailable_reason(&self) -> Option<Reason> {
        let first = self.items.first()?.reason;
        self.items.iter().all(|item| item.reason.is_some()).then_some(first).flatten()
    }

    /// Drops the body that was sent.
    pub fn drop_body(&mut self) {
        self.body = Bytes::new();
    }

    /// Drops the bodies once the engine has accepted the request: it will not be sent again.
    pub fn drop_bodies(&mut self) {
        self.body = Bytes::new();
        self.unforced = None;
    }

    /// Continues without anything forced, for `reason`. Returns whether the sequences have other ids now.
    pub fn give_up(&mut self, reason: Reason) -> bool {
        for item in &mut self.items {
            *item = item.unforced();
            item.reason = self.entropy_request.wanted.then_some(reason);
        }
        let Some(UnforcedRequest { original, rid }) = self.unforced.take() else { return false };
        self.body = self.product.unforced_body(original, rid.as_ref().map(InlineRid::as_str));
        self.echo = false;
        let Some(rid) = rid else { return false };
        let rid = rid.as_str();
        for (known, _) in &mut self.rids {
            // assigned ids have one length; those of a batch end with the index
            let suffix = known.get(rid.len()..).unwrap_or_default();
            *known = format!("{rid}{suffix}").into();
        }
        true
    }
}

/// Limits of the engine. A request beyond them could crash it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GuardLimits {
    /// Whether the engine generates, if known. An engine with an embedding model exits when it is asked to generate.
    pub generates: Option<bool>,
    /// Vocabulary size, if known.
    pub vocab_size: Option<u32>,
    /// 1024, or 128 under prefill/decode disaggregation.
    pub max_top_logprobs: u32,
}

/// Why a request that could crash the engine is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct GuardRefusal {
    /// The metric's label.
    pub rule: &'static str,
    /// The error message for the client.
    pub message: String,
}
