// SPDX-License-Identifier: Apache-2.0
//! `/v1/sessions`: lists, shows, tags, freezes and deletes sessions, and records rewards.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use super::query::Query;
use super::{decode_json, ok, read_request};
use crate::export::{Annotate, entry, part, repeated_rows};
use crate::long_work::offload;
use crate::rl;
use crate::serve::body::Body;
use crate::serve::problem::{ErrorCode, Problem};
use crate::serve::proxy::Proxy;
use crate::serve::response::{json_response, stream_response};
use crate::session::ledger::ListOrder;
use crate::session::{
    Cause, Frozen, InvalidOrder, Labels, ListQuery, ListedPage, ListedSession, RewardScope, RewardTarget, Row, Session,
    SessionError, TableCursor, TableOrder, TablePage, TableQuery, Tags, Turn, TurnImage,
};

/// The default and the maximum number of sessions of a page.
const PAGE: (usize, usize) = (100, 10_000);

/// The maximum bytes of a reward's body. Every exported row of the session holds the reward.
const LARGEST_REWARD: u64 = 64 << 10;

/// The maximum bytes of a body with tags, which is above that of any valid one.
const LARGEST_TAGS: u64 = 64 << 10;

/// The default and the maximum number of tokens of a reply with a part of a path.
const TOKENS: (usize, usize) = (16_384, 131_072);

/// A query of the list of sessions.
#[derive(Debug)]
pub(crate) struct PageQuery {
    /// By creation, or by the last append or renewal if sessions are shared.
    pub order: ListOrder,
    /// The `next` of the previous page.
    pub after: Option<String>,
    pub limit: Option<usize>,
    /// A part of the names. Needs [`ListOrder::Newest`].
    pub part: Option<String>,
}

impl PageQuery {
    /// Reads the page.
    ///
    /// # Errors
    /// 400 for a malformed query; 503 if the shared ledger fails.
    pub(crate) async fn read(self, proxy: &Proxy) -> Result<ListedPage, Problem> {
        let Self { order, after, limit, part } = self;
        if part.is_some() && order == ListOrder::Oldest {
            return Err(Problem::bad_request("search: needs order=newest, sort or where"));
        }
        let (limit, part) = (limit.unwrap_or(PAGE.0).clamp(1, PAGE.1), part.unwrap_or_default());
        Ok(proxy.sessions.list(ListQuery { order, after, limit, part }).await?)
    }
}

/// The body of `POST /v1/sessions/{id}/reward`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RewardRequest {
    reward: Value,
    leaf: Option<u32>,
    turn: Option<u32>,
    /// The `generation` of the session that `leaf` or `turn` belongs to. Only shared sessions have others than 0.
    generation: Option<u32>,
}

/// Returns the session with this name.
///
/// # Errors
/// 404 for an unknown name, 410 for a session that was evicted.
pub(crate) fn find(proxy: &Proxy, id: &str) -> Result<Arc<Session>, Problem> {
    proxy.sessions.session(id).ok_or_else(|| missing(proxy, id))
}

/// The 404 for an unknown session, or the 410 for one that was evicted.
fn missing(proxy: &Proxy, id: &str) -> Problem {
    let Some(gone) = proxy.sessions.eviction_of(id) else { return Problem::no_such_session(id) };
    let hint = if gone.reason == "ttl" { "--session-ttl" } else { "--session-bytes" };
    let message = format!("session {id:?} was evicted ({}); see {hint} and --data-dir", gone.reason);
    Problem::new(ErrorCode::EVICTED, message)
}

pub(super) async fn list(proxy: &Arc<Proxy>, query: Query) -> Result<Response<Body>, Problem> {
    if query.sort.is_some() || query.conditions.is_some() || query.same_prompt.is_some() {
        return table(proxy, query).await;
    }
    let Query { after, limit, search: part, newest, .. } = query;
    let order = if newest { ListOrder::Newest } else { ListOrder::Oldest };
    let page = PageQuery { order, after, limit, part }.read(proxy).await?;
    let owned = Arc::clone(proxy);
    Ok(offload(move || list_page(&owned, &page, newest)).await)
}

/// Lists sessions by a value.
async fn table(proxy: &Arc<Proxy>, query: Query) -> Result<Response<Body>, Problem> {
    let Query { after, limit, search, newest, sort, conditions, same_prompt, .. } = query;
    if newest {
        let message = "order: not with sort, where or same_prompt; sort=-created_ms has the newest sessions first";
        return Err(Problem::bad_request(message));
    }
    let order = sort.map(|sort| sort.parse()).transpose();
    let order: TableOrder =
        order.map_err(|error: InvalidOrder| Problem::bad_request(error.to_string()))?.unwrap_or_default();
    let after = after.map(|after| TableCursor::parse(&after, &order)).transpose();
    let after = after.map_err(|error| Problem::bad_request(error.to_string()))?;
    let (limit, part) = (limit.unwrap_or(PAGE.0).clamp(1, PAGE.1), search.unwrap_or_default());
    let same_prompt = match same_prompt {
        Some(name) => Some(first_turn(proxy, &name).await?),
        None => None,
    };
    let query = TableQuery { order, conditions, same_prompt, part, after, limit };
    let proxy = Arc::clone(proxy);
    Ok(offload(move || {
        let TablePage { sessions, next, matched, scope } = proxy.sessions.table(&query);
        let sessions: Vec<Value> = sessions.iter().map(|session| summary(session)).collect();
        let next = next.map(|next| next.to_string());
        let mut reply = json!({"sessions": sessions, "next": next, "matched": matched});
        if let Some(scope) = scope {
            reply["scope"] = scope.name().into();
        }
        ok(&reply)
    })
    .await)
}

/// Returns the turn `SESSION/TURN`, or the first one of `SESSION`, if it continues no other.
async fn first_turn(proxy: &Proxy, name: &str) -> Result<Arc<Turn>, Problem> {
    let (id, number) = name.split_once('/').unwrap_or((name, "0"));
    let bad = |problem: &str| {
        Problem::bad_request(format!("same_prompt: must be SESSION or SESSION/TURN, {problem}, not {name:?}"))
    };
    let number: u32 = number.parse().map_err(|_| bad("with the number of a turn"))?;
    proxy.sessions.refresh([id]).await?;
    let session = find(proxy, id)?;
    let turn = session.turn(number);
    let turn = turn.ok_or_else(|| {
        Problem::session(id, SessionError::NoTurn(u32::try_from(session.summary().turns).unwrap_or(u32::MAX)))
    })?;
    let is_first = turn.parent.is_none() && turn.about.cause != Cause::Unplaced;
    is_first.then_some(turn).ok_or_else(|| bad("a turn that continues no other and whose prompt is known"))
}

fn list_page(proxy: &Proxy, page: &ListedPage, newest: bool) -> Response<Body> {
    let next = page.next.as_ref().map(ToString::to_string);
    let sessions: Vec<Value> = page.sessions.iter().map(listed).collect();
    let evicted: Vec<Value> = proxy
        .sessions
        .evicted()
        .iter()
        .map(|gone| json!({"session": &*gone.session, "reason": gone.reason, "at_ms": gone.at_ms}))
        .collect();
    let mut reply = json!({"sessions": sessions, "next": next});
    if !newest {
        // a client that polls for the newest sessions does not need up to a thousand evicted names
        reply["evicted"] = evicted.into();
    }
    if let Some(scope) = page.scope {
        reply["scope"] = scope.name().into();
    }
    ok(&reply)
}

fn listed(listed: &ListedSession) -> Value {
    let unread = || json!({"session": &*listed.name});
    let mut shown = listed.session.as_ref().map_or_else(unread, |session| summary(session));
    if let Some(used_ms) = listed.used_ms {
        shown["used_ms"] = used_ms.into();
    }
    shown
}

fn summary(session: &Session) -> Value {
    let summary = session.summary();
    let count_map = |counts: &[(&'static str, usize)]| counts.iter().copied().collect::<HashMap<_, _>>();
    let mut shown = json!({
        "session": &*session.id,
        "created_ms": summary.created_ms,
        "turns": summary.turns,
        "sampled_tokens": summary.sampled_tokens,
        "faults": count_map(&summary.faults),
        "causes": count_map(&summary.causes),
        "frozen_versions": summary.frozen,
        "done": summary.done,
        "incomplete": summary.incomplete,
        "running": summary.running,
        "bytes": summary.bytes,
        "reward": summary.reward,
        "mean_entropy": summary.totals.entropy.mean(),
        "high_entropy_share": summary.totals.entropy.high_share(),
        "rows": summary.rows,
        "trained_tokens": summary.trained_tokens,
        "finish_reason": summary.finish,
        "policy": summary.policy,
        "flags": summary.totals.flags().collect::<Vec<_>>(),
    });
    if !summary.tags.is_empty() {
        shown["tags"] = summary.tags.json();
    }
    shown
}

pub(super) fn show(proxy: &Proxy, id: &str, query: Query) -> Result<Response<Body>, Problem> {
    let session = find(proxy, id)?;
    let snapshot = session.snapshot(query.version).map_err(|error| Problem::session(id, error))?;
    let mut shown = summary(&session);
    if let Some(generation) = proxy.sessions.generation_of(&session) {
        shown["generation"] = generation.into();
    }
    shown["version"] = json!(snapshot.version);
    shown["frozen"] = json!(snapshot.is_frozen);
    shown["list"] = snapshot.turns().iter().map(|turn| line(turn)).collect();
    Ok(ok(&shown))
}

fn line(turn: &Turn) -> Value {
    let mut shown = json!({
        "turn": turn.id,
        "parent": turn.parent,
        "cause": turn.about.cause.name(),
        "predecessor": turn.about.predecessor,
        "fault": turn.about.fault.map(crate::session::Fault::name),
        "finish_reason": turn.about.finish,
        "rid": turn.about.rid,
        "context_retokenised": turn.about.chat.as_ref().is_some_and(|chat| chat.retokenised),
        "foreign_assistant_text": turn.about.chat.as_ref().is_some_and(|chat| chat.foreign_text),
        "inserted_end_of_turn": turn.about.chat.as_ref().map_or(0, |chat| chat.inserted_end_of_turn),
        "reply_changes": turn.about.reply_changes().names().collect::<Vec<_>>(),
        "prompt_tokens": turn.prompt.len(),
        "sampled_tokens": turn.response.len(),
        "mean_entropy": mean(&turn.entropy),
        "labels": turn.about.labels.as_deref().map(Labels::json),
    });
    if let Some(images) = &turn.about.images {
        shown["images"] = images.list.iter().map(image).collect();
    }
    shown
}

/// A picture of a turn. Its range counts the new prompt tokens of the turn.
fn image(TurnImage { image, start, tokens, .. }: &TurnImage) -> Value {
    json!({
        "start": start,
        "end": u64::from(*start) + u64::from(*tokens),
        "sha256": image.digest.to_string(),
        "media_type": image.media_type.name(),
        "bytes": image.size,
        "available": image.bytes.is_some(),
    })
}

/// The mean of the measured entropies, in nats.
fn mean(entropy: &[f32]) -> Option<f64> {
    let measured = entropy.iter().filter(|value| !value.is_nan());
    let (sum, count) = measured.fold((0.0, 0_u32), |(sum, count), value| (sum + f64::from(*value), count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

pub(super) async fn delete(proxy: &Proxy, id: &str) -> Result<Response<Body>, Problem> {
    let deleted = proxy.sessions.delete(id).await;
    proxy.wait_written(deleted.map_err(|error| change_problem(proxy, id, error))?).await;
    Ok(ok(&json!({"deleted": id})))
}

pub(super) async fn freeze(proxy: &Proxy, id: &str) -> Result<Response<Body>, Problem> {
    let frozen = proxy.sessions.freeze(id).await;
    let (Frozen { version, turns }, ack) = frozen.map_err(|error| change_problem(proxy, id, error))?;
    proxy.wait_written(ack).await;
    Ok(ok(&json!({"session": id, "version": version, "turns": turns})))
}

pub(super) async fn reward(proxy: &Proxy, id: &str, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
    let body = read_request(proxy, request, LARGEST_REWARD).await.map_err(|problem| match problem.code.status {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(
            ErrorCode::REWARD_TOO_LARGE,
            format!("the body is larger than {LARGEST_REWARD} bytes: every exported row holds its reward"),
        ),
        _ => problem,
    })?;
    let RewardRequest { reward, leaf, turn, generation } = decode_json(&body).await?;
    rl::check_storable(&reward)?;
    let scope = match (leaf, turn) {
        (None, None) => RewardScope::Session,
        (Some(leaf), None) => RewardScope::Leaf(leaf),
        (None, Some(turn)) => RewardScope::Turn(turn),
        (Some(_), Some(_)) => {
            let message = "turn: a reward is of a turn or of the path that ends in a leaf; send one request for each";
            return Err(Problem::bad_request(message));
        }
    };
    let set = proxy.sessions.reward(id, RewardTarget { scope, generation }, reward).await;
    let (session, ack) = set.map_err(|error| change_problem(proxy, id, error))?;
    proxy.wait_written(ack).await;
    let applies = match scope {
        RewardScope::Session => true,
        RewardScope::Leaf(leaf) => offload(move || session.ends_path(leaf)).await,
        RewardScope::Turn(turn) => session.turn(turn).is_some_and(|turn| turn.is_trainable()),
    };
    let mut body = json!({"session": id, "leaf": leaf, "applies": applies});
    if let Some(turn) = turn {
        body["turn"] = turn.into();
    }
    Ok(ok(&body))
}

/// Replaces all tags of a session.
pub(super) async fn set_tags(proxy: &Proxy, id: &str, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
    let body = read_request(proxy, request, LARGEST_TAGS).await?;
    let tags = Tags::parse_json(&body).map_err(|error| Problem::bad_request(format!("the body: {error}")))?;
    let ack = proxy.sessions.set_tags(id, &tags).await.map_err(|error| change_problem(proxy, id, error))?;
    proxy.wait_written(ack).await;
    Ok(ok(&json!({"session": id, "tags": tags.json()})))
}

/// The problem of a change of a session.
fn change_problem(proxy: &Proxy, id: &str, error: SessionError) -> Problem {
    match error {
        SessionError::Unknown => missing(proxy, id),
        error => Problem::session(id, error),
    }
}

/// Returns the function that computes the statistics of a path.
pub(crate) fn annotate(proxy: &Proxy) -> Annotate {
    let tokens = proxy.think_tokens();
    Arc::new(move |path| rl::thinking(path, tokens, rl::HIGH_ENTROPY))
}

/// Returns every path of a session, including those that are not exported.
pub(super) fn trajectories(proxy: &Proxy, id: &str, query: Query) -> Result<Response<Body>, Problem> {
    let session = find(proxy, id)?;
    let mut snapshot =
        session.snapshot_of(query.version, query.classes).map_err(|error| Problem::session(id, error))?;
    if let Some(teacher) = &query.scores {
        snapshot = session.scored(&snapshot, teacher);
    }
    let (mut rows, out) = snapshot.rows(true);
    if let Some(teacher) = &query.scores {
        rl::check_scored(&rows, teacher)?;
    }
    let repeated = repeated_rows(&rows);
    rows.iter_mut().zip(repeated).for_each(|(row, repeats)| row.marks.repeats_sample = repeats);
    rows.extend(out.iter().map(|refused| snapshot.context(refused.leaf)));
    rows.sort_by_key(Row::leaf);
    let annotate = annotate(proxy);
    let head = json!({
        "session": id,
        "version": snapshot.version,
        "frozen": snapshot.is_frozen,
        "incomplete": snapshot.incomplete,
        "refused": out.iter().map(|refused| json!({"leaf": refused.leaf, "reason": refused.reason})).collect::<Vec<_>>(),
    });
    let head = head.to_string();
    let head = format!("{},\"trajectories\":[", &head[..head.len() - 1]);
    let entries = rows.into_iter().enumerate().map(move |(at, row)| {
        let mut text = if at == 0 { Vec::new() } else { vec![b','] };
        entry::write(&row.path(), Some(&annotate), &mut text);
        Bytes::from(text)
    });
    let chunks = std::iter::once(Bytes::from(head)).chain(entries).chain(std::iter::once(Bytes::from_static(b"]}")));
    Ok(stream_response("application/json", None, Box::new(chunks)))
}

/// Shows a path: without `from` everything except its tokens, else the tokens from there on.
pub(super) fn path(proxy: &Proxy, id: &str, leaf: &str, query: Query) -> Result<Response<Body>, Problem> {
    let leaf = leaf
        .parse()
        .map_err(|_| Problem::bad_request(format!("a path is named by the number of its last turn, not {leaf:?}")))?;
    let session = find(proxy, id)?;
    let snapshot = session.snapshot_of(query.version, query.classes).map_err(|error| Problem::session(id, error))?;
    let mut path = snapshot.path(leaf).map_err(|error| Problem::session(id, error))?;
    let mut text = Vec::new();
    match query.from {
        Some(from) => {
            let limit = query.limit.unwrap_or(TOKENS.0).clamp(1, TOKENS.1);
            part::tokens(&path, from..from.saturating_add(limit), &mut text);
        }
        None => {
            let (rows, _) = snapshot.rows(true);
            let mut repeated = rows.iter().zip(repeated_rows(&rows));
            path.marks.repeats_sample = repeated.any(|(row, repeats)| repeats && row.leaf() == leaf);
            part::head(&path, Some(&annotate(proxy)), &mut text);
            text.pop();
            let think = proxy.think_tokens().map(|tokens| json!({"start": tokens.start, "end": tokens.end}));
            text.extend_from_slice(format!(",\"think\":{}}}", json!(think)).as_bytes());
        }
    }
    Ok(json_response(StatusCode::OK, text))
}
