//! A plan: what the client asked, what is asked upstream, and what is taken away again.

use bytes::Bytes;

use crate::config::EntropyConfig;
use crate::engine::probe::{Capabilities, Plugin};
use crate::engine::request::{GenerateRequest, PerItem, Texts};
use crate::error::Error;
use crate::generation::entropy_request::EntropyRequest;
use crate::generation::forcing::{Facts, Item, Since};
use crate::generation::reason::Reason;
use crate::generation::rewrite::rewrite;
use crate::generation::rid;

/// What kind of request it is to an engine that failed on it: grammars and greedy sampling are what a forced top-k can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// A grammar constrains the tokens.
    pub grammar: bool,
    /// The argmax is taken.
    pub greedy: bool,
}

/// How one request is served.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What the client wants to know.
    pub entropy_request: EntropyRequest,
    /// One per prompt.
    pub items: Vec<Item>,
    /// Samples per prompt; result `i` belongs to prompt `i / n`.
    pub n: usize,
    /// The reply is a stream.
    pub stream: bool,
    /// The body that goes upstream.
    pub body: Bytes,
    /// The engine is asked to repeat the prompt's ids, which the client did not want.
    pub echo: bool,
    /// The same without anything forced; `None` where nothing was, or no more than a k on logprobs that the client wanted itself.
    pub unforced: Option<Bytes>,
    /// Request ids known before the engine has answered, with the index of their sequence.
    pub rids: Vec<(String, usize)>,
    /// The client's own `rid` string, under which all sequences can be read.
    pub rid: Option<String>,
    /// What kind of request it is.
    pub shape: Shape,
    /// The engine has a plugin, whose key may turn up in the reply to a request that did not ask it.
    pub plugin: bool,
}

impl Shape {
    /// Whether forcing a top-k can be what broke it; plain sampling is every other request, and is never given up for one failure.
    #[must_use]
    pub fn is_delicate(self) -> bool {
        self.grammar || self.greedy
    }
}

impl Plan {
    /// Makes the plan of a request.
    ///
    /// # Errors
    /// A 400 when `entropy_options` is wrong.
    pub fn try_new(
        request: &GenerateRequest,
        upstream: &Capabilities,
        config: &EntropyConfig,
        context: &Context<'_>,
    ) -> Result<Self, Error> {
        let entropy_request = EntropyRequest::of(request, config)?;
        let shape = shape(request);
        let mut facts = Facts::new(request, entropy_request, upstream, config, (context.since)(shape));
        facts.max_reply_bytes = context.max_reply_bytes;
        let items = facts.items();
        let given = if context.assign_rid { assigned(request) } else { None };
        let echo = context.record && entropy_request.wanted && wants_echo(request, upstream);
        let body = rewrite(&facts, &items, given.as_deref(), echo);
        let forced = items.iter().any(|item| item.logprob && !item.asked) && items.iter().all(|item| !item.asked);
        let unforced = (forced || items.iter().any(Item::is_asked_exactly)).then(|| {
            let plain: Vec<Item> = items.iter().copied().map(Item::as_asked).collect();
            rewrite(&facts, &plain, given.as_deref(), false)
        });
        let rid = match &request.rid {
            PerItem::One(rid) => Some(rid.clone()),
            _ => None,
        };
        Ok(Self {
            entropy_request,
            n: request.n(),
            stream: request.stream == Some(true),
            rids: known_rids(request, given.as_deref()),
            items,
            body,
            echo,
            unforced,
            rid,
            shape,
            plugin: upstream.plugin != Plugin::Absent,
        })
    }

    /// Whether the reply must be read: something is to be added to it, or taken away again.
    #[must_use]
    pub fn reads_reply(&self) -> bool {
        self.entropy_request.wanted
            || self.echo
            || self.plugin
            || self.items.iter().any(|item| item.logprob != item.asked || item.k != item.asked_k)
    }

    /// The plan of the sequence with this index.
    #[must_use]
    pub fn item(&self, index: usize) -> Option<&Item> {
        self.items.get(index / self.n.max(1))
    }

    /// The reason why no sequence will have entropies, when that is known already.
    #[must_use]
    pub fn hopeless(&self) -> Option<Reason> {
        let first = self.items.first()?.reason;
        self.items.iter().all(|item| item.reason.is_some()).then_some(first).flatten()
    }

    /// The engine has answered; it will not be asked again.
    pub fn answered(&mut self) {
        self.body = Bytes::new();
        self.unforced = None;
    }

    /// From now on the request is served as the client wrote it.
    pub fn give_up(&mut self, reason: Reason) {
        for item in &mut self.items {
            *item = item.as_asked();
            item.reason = self.entropy_request.wanted.then_some(reason);
        }
        if let Some(body) = self.unforced.take() {
            self.body = body;
            self.echo = false;
        }
    }
}

/// What a plan depends on besides the request.
pub struct Context<'a> {
    /// Whether ids may be given to a request that has none.
    pub assign_rid: bool,
    /// Whether turns are recorded.
    pub record: bool,
    /// `--max-reply-bytes`, bytes.
    pub max_reply_bytes: u64,
    /// What happened since the last probe, to requests of this shape or to all.
    pub since: &'a dyn Fn(Shape) -> Since,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("assign_rid", &self.assign_rid).finish_non_exhaustive()
    }
}

fn shape(request: &GenerateRequest) -> Shape {
    let prompts = request.batch().unwrap_or(1);
    let mut samplings = (0..prompts).filter_map(|at| request.sampling.get(at)).peekable();
    let greedy =
        |temperature: Option<f64>, top_k: Option<i64>| temperature.is_some_and(|t| t < 1e-6) || top_k == Some(1);
    Shape {
        greedy: samplings.peek().is_some_and(|sampling| greedy(sampling.temperature, sampling.top_k)),
        grammar: samplings.any(|sampling| sampling.grammar),
    }
}

/// Whether the engine is the one to say what the prompt's ids are. In a stream it would repeat them with each event.
fn wants_echo(request: &GenerateRequest, upstream: &Capabilities) -> bool {
    let unknown = request.text != Texts::Absent && request.stream == Some(false);
    unknown && upstream.echoes_prompt && !request.return_prompt_token_ids
}

/// An id for a request without one, so that it can be aborted and looked up before the engine has named it. It is one string for a
/// batch, too, which routers pass on as they do not pass a list. Samples beyond the first get random ids from the engine whatever the
/// request says.
fn assigned(request: &GenerateRequest) -> Option<String> {
    let unnamed = request.is_readable() && request.n() <= 1 && matches!(request.rid, PerItem::Absent);
    unnamed.then(rid::fresh)
}

/// The ids of the sequences, by the client's own ids or by the one that the request is given.
fn known_rids(request: &GenerateRequest, given: Option<&str>) -> Vec<(String, usize)> {
    let ids = given.map_or_else(|| request.rids(), |rid| request.rids_named(rid));
    ids.into_iter().enumerate().map(|(at, rid)| (rid, at)).collect()
}
