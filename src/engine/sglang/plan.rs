// SPDX-License-Identifier: Apache-2.0
//! Plans a request for SGLang.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::forcing::ForcingFacts;
use super::request::{GenerateRequest, PerItem};
use super::rewrite::{Additions, rewrite};
use crate::engine::capabilities::{Capabilities, PluginState};
use crate::engine::plan::{Plan, PlanInputs, RequestShape, UnforcedRequest};
use crate::engine::rid::{self, InlineRid};

/// Plans a request.
#[must_use]
pub(crate) fn plan(request: &GenerateRequest, upstream: &Capabilities, inputs: PlanInputs) -> Plan {
    let facts = ForcingFacts::new(request, upstream, inputs);
    let (items, columns) = facts.items();
    let assigned_rid = if inputs.assigns_rid { assign_rid(request) } else { None };
    let echo = inputs.records && wants_echo(request, upstream, inputs.entropy_request.wanted);
    let additions = Additions { rid: assigned_rid.as_deref(), echo, column_start: columns.start };
    let body = rewrite(&facts, &items, additions);
    let forced = items.iter().any(|item| item.logprob && !item.asked) && items.iter().all(|item| !item.asked);
    let unforced = (forced || items.iter().any(|item| item.forces_exact() || item.forces_columns())).then(|| {
        UnforcedRequest { original: request.bytes.clone(), rid: assigned_rid.as_ref().map(|_| InlineRid::new()) }
    });
    let rid = match &request.rid {
        PerItem::One(rid) => Some(rid.as_str().into()),
        _ => None,
    };
    Plan {
        product: upstream.traits().product,
        entropy_request: inputs.entropy_request,
        n: request.n(),
        stream: request.stream == Some(true),
        rids: known_rids(request, assigned_rid.as_ref()),
        items,
        body,
        echo,
        unforced,
        rid,
        shape: inputs.shape,
        plugin: upstream.plugin != PluginState::Absent,
        column_start: columns.start,
        keeps_top: inputs.columns.keeps_top,
    }
}

/// The kind of a request.
#[must_use]
pub(crate) fn shape(request: &GenerateRequest) -> RequestShape {
    let prompts = request.batch().unwrap_or(1);
    let mut samplings = (0..prompts).filter_map(|at| request.sampling.get(at)).peekable();
    let greedy =
        |temperature: Option<f64>, top_k: Option<i64>| temperature.is_some_and(|t| t < 1e-6) || top_k == Some(1);
    RequestShape {
        greedy: samplings.peek().is_some_and(|sampling| greedy(sampling.temperature, sampling.top_k)),
        grammar: samplings.any(|sampling| sampling.grammar),
    }
}

/// Whether to ask the engine for the prompt's ids. Those of a text are not asked for in a stream, where the engine would repeat them in each
/// event, because its tokenizer returns them too. Only the echo shows the tokens of pictures; in a stream it is asked for if they can be
/// recorded then.
fn wants_echo(request: &GenerateRequest, upstream: &Capabilities, wants_entropy: bool) -> bool {
    let is_whole = request.stream == Some(false);
    let unknown = request.has_text() && is_whole && wants_entropy;
    let has_media = request.has_media() && (is_whole || request.has_recordable_images());
    (unknown || has_media) && upstream.echoes_prompt && !request.return_prompt_token_ids
}

/// Returns an id for a request without one, so that it can be aborted and looked up before the engine returns its id. A batch gets a single
/// string too, because routers forward a string but not a list. With n > 1 the engine always assigns random ids.
fn assign_rid(request: &GenerateRequest) -> Option<Arc<str>> {
    let unnamed = request.is_readable() && request.n() <= 1 && matches!(request.rid, PerItem::Absent);
    unnamed.then(rid::fresh)
}

/// The ids of the sequences, derived from the client's ids or from the assigned one.
fn known_rids(request: &GenerateRequest, assigned_rid: Option<&Arc<str>>) -> SmallVec<[(Arc<str>, usize); 1]> {
    let ids = match assigned_rid {
        Some(rid) if request.batch().is_none() => return smallvec![(Arc::clone(rid), 0)],
        Some(rid) => request.rids_named(rid),
        None => request.rids(),
    };
    ids.into_iter().enumerate().map(|(at, rid)| (rid.into(), at)).collect()
}
