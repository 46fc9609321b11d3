//! The plan of a request: what the client requested, what is requested upstream, and what is removed from the reply.

use std::sync::Arc;

use bytes::Bytes;

use crate::config::EntropyConfig;
use crate::engine::probe::{Capabilities, Plugin};
use crate::engine::request::{GenerateRequest, PerItem, Texts};
use crate::error::Error;
use crate::generation::entropy_request::EntropyRequest;
use crate::generation::forcing::{FailuresSinceProbe, ForcingFacts, ItemPlan};
use crate::generation::reason::Reason;
use crate::generation::request::EngineChat;
use crate::generation::rewrite::{RewrittenBody, rewrite};
use crate::generation::rid::{self, InlineRid};

/// The kind of a request, for remembering engine failures: a forced top-k can break grammars and greedy sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestShape {
    /// A grammar constrains the tokens.
    pub grammar: bool,
    /// The sampling is greedy.
    pub greedy: bool,
}

/// How one request is served.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The client's entropy request.
    pub entropy_request: EntropyRequest,
    /// One per prompt.
    pub items: Vec<ItemPlan>,
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
    pub rids: Vec<(Arc<str>, usize)>,
    /// The client's own `rid` string, under which all sequences can be read.
    pub rid: Option<Arc<str>>,
    /// The kind of the request.
    pub shape: RequestShape,
    /// The engine has a plugin, whose member may appear in a reply that did not request it.
    pub plugin: bool,
}

/// The client's request without anything forced.
#[derive(Debug, Clone)]
pub struct UnforcedRequest {
    /// The body, which is built when it is needed.
    body: RewrittenBody,
    /// Another assigned id, because an engine may keep the id of a request that it has refused (SGLang 0.5.12).
    rid: Option<InlineRid>,
}

impl RequestShape {
    /// Whether a forced top-k may have caused a failure of this kind. Plain sampling is too common to be given up after one failure.
    #[must_use]
    pub fn is_delicate(self) -> bool {
        self.grammar || self.greedy
    }
}

impl Plan {
    /// Plans a request.
    ///
    /// # Errors
    /// A 400 when `entropy_options` is wrong.
    pub fn try_new(
        request: &GenerateRequest,
        upstream: &Capabilities,
        config: &EntropyConfig,
        context: &PlanContext<'_>,
    ) -> Result<Self, Error> {
        let entropy_request = EntropyRequest::of(request, config)?;
        let shape = shape(request);
        let limits = (config, context.max_reply_bytes);
        let facts = ForcingFacts::new(request, entropy_request, upstream, limits, (context.since)(shape));
        let items = facts.items();
        let assigned_rid = if context.assign_rid { assign_rid(request) } else { None };
        let echo = context.record && entropy_request.wanted && wants_echo(request, upstream);
        let body = rewrite(&facts, &items, assigned_rid.as_deref(), echo).into_bytes();
        let forced = items.iter().any(|item| item.logprob && !item.asked) && items.iter().all(|item| !item.asked);
        let unforced = (forced || items.iter().any(ItemPlan::forces_exact)).then(|| {
            let plain: Vec<ItemPlan> = items.iter().copied().map(ItemPlan::unforced).collect();
            let rid = assigned_rid.as_ref().map(|_| InlineRid::new());
            UnforcedRequest { body: rewrite(&facts, &plain, rid.as_ref().map(InlineRid::as_str), false), rid }
        });
        let rid = match &request.rid {
            PerItem::One(rid) => Some(rid.as_str().into()),
            _ => None,
        };
        Ok(Self {
            entropy_request,
            n: request.n(),
            stream: request.stream == Some(true),
            rids: known_rids(request, assigned_rid.as_ref()),
            items,
            body,
            echo,
            unforced,
            rid,
            shape,
            plugin: upstream.plugin != Plugin::Absent,
        })
    }

    /// The plan of a chat for the engine's own endpoint: nothing is measured.
    #[must_use]
    pub fn of_chat(chat: &EngineChat) -> Self {
        Self {
            entropy_request: EntropyRequest::NONE,
            items: Vec::new(),
            n: chat.n,
            stream: false,
            body: chat.body.clone(),
            echo: false,
            unforced: None,
            rids: chat.rid.iter().map(|rid| (Arc::clone(rid), 0)).collect(),
            rid: None,
            shape: RequestShape { grammar: false, greedy: false },
            plugin: false,
        }
    }

    /// Whether the reply must be parsed, because members are added or removed.
    #[must_use]
    pub fn reads_reply(&self) -> bool {
        self.entropy_request.wanted
            || self.echo
            || self.plugin
            || self.items.iter().any(|item| item.logprob != item.asked || item.k != item.asked_k)
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

    /// Drops the bodies once the engine has answered: the request will not be sent again.
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
        let Some(UnforcedRequest { body, rid }) = self.unforced.take() else { return false };
        self.body = body.into_bytes();
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

/// The inputs of a plan besides the request.
pub struct PlanContext<'a> {
    /// Whether an id may be assigned to a request that has none.
    pub assign_rid: bool,
    /// Whether turns are recorded.
    pub record: bool,
    /// `--max-reply-bytes`, bytes.
    pub max_reply_bytes: u64,
    /// Returns the failures since the last probe, of requests of this shape and of the plugin.
    pub since: &'a dyn Fn(RequestShape) -> FailuresSinceProbe,
}

impl std::fmt::Debug for PlanContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanContext").field("assign_rid", &self.assign_rid).finish_non_exhaustive()
    }
}

fn shape(request: &GenerateRequest) -> RequestShape {
    let prompts = request.batch().unwrap_or(1);
    let mut samplings = (0..prompts).filter_map(|at| request.sampling.get(at)).peekable();
    let greedy =
        |temperature: Option<f64>, top_k: Option<i64>| temperature.is_some_and(|t| t < 1e-6) || top_k == Some(1);
    RequestShape {
        greedy: samplings.peek().is_some_and(|sampling| greedy(sampling.temperature, sampling.top_k)),
        grammar: samplings.any(|sampling| sampling.grammar),
    }
}

/// Whether to ask the engine for the prompt's ids. Not in a stream, where it would repeat them in each event.
fn wants_echo(request: &GenerateRequest, upstream: &Capabilities) -> bool {
    let unknown = request.text != Texts::Absent && request.stream == Some(false);
    unknown && upstream.echoes_prompt && !request.return_prompt_token_ids
}

/// Returns an id for a request without one, so that it can be aborted and looked up before the engine returns its id. A batch gets a single
/// string too, because routers forward a string but not a list. With n > 1 the engine always assigns random ids.
fn assign_rid(request: &GenerateRequest) -> Option<Arc<str>> {
    let unnamed = request.is_readable() && request.n() <= 1 && matches!(request.rid, PerItem::Absent);
    unnamed.then(rid::fresh)
}

/// The ids of the sequences, derived from the client's ids or from the assigned one.
fn known_rids(request: &GenerateRequest, assigned_rid: Option<&Arc<str>>) -> Vec<(Arc<str>, usize)> {
    let ids = match assigned_rid {
        Some(rid) if request.batch().is_none() => return vec![(Arc::clone(rid), 0)],
        Some(rid) => request.rids_named(rid),
        None => request.rids(),
    };
    ids.into_iter().enumerate().map(|(at, rid)| (rid.into(), at)).collect()
}
