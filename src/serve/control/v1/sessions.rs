//! `/v1/sessions`: lists sessions, shows them, and takes rewards.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::query::Query;
use super::{Problem, made, ok, refused, session};
use crate::export::{Annotate, entry};
use crate::rl;
use crate::serve::body::Body;
use crate::serve::control::offload::offload;
use crate::serve::control::trainer_state::TrainerState;
use crate::session::{Row, Session, Turn};

/// Entries of a page unless it says otherwise, and at most.
const PAGE: (usize, usize) = (100, 10_000);

/// Sessions in the order of their birth.
#[derive(Debug)]
pub struct Page {
    /// The sessions.
    pub sessions: Vec<Arc<Session>>,
    /// Where the next page begins; `None` on the last.
    pub next: Option<u64>,
}

impl Page {
    /// The sessions behind `after`, which is 0 or the `next` of the page before.
    #[must_use]
    pub fn of(state: &TrainerState, after: u64, limit: Option<usize>) -> Self {
        let limit = limit.unwrap_or(PAGE.0).clamp(1, PAGE.1);
        Self::made(state.sessions.page(after, limit), limit)
    }

    /// The latest first, whose names hold `part`, behind `after`, the `next` of the page before.
    #[must_use]
    pub fn newest(state: &TrainerState, after: Option<u64>, limit: Option<usize>, part: &str) -> Self {
        let limit = limit.unwrap_or(PAGE.0).clamp(1, PAGE.1);
        Self::made(state.sessions.page_back(after.unwrap_or(u64::MAX), limit, part), limit)
    }

    fn made(page: Vec<(u64, Arc<Session>)>, limit: usize) -> Self {
        let next = page.last().filter(|_| page.len() == limit).map(|(birth, _)| *birth);
        Self { sessions: page.into_iter().map(|(_, session)| session).collect(), next }
    }
}

/// `POST /v1/sessions/{id}/reward`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RewardRequest {
    reward: Value,
    leaf: Option<u32>,
}

pub(super) fn list(state: &TrainerState, query: Query) -> Result<Response<Body>, Problem> {
    let after = query
        .after
        .map(|after| after.parse().map_err(|_| Problem::bad(format!("after: the next of a page, not {after:?}"))));
    let after = after.transpose()?;
    let newest = query.newest;
    let page = match (newest, query.search) {
        (true, part) => Page::newest(state, after, query.limit, &part.unwrap_or_default()),
        (false, None) => Page::of(state, after.unwrap_or(0), query.limit),
        (false, Some(_)) => return Err(Problem::bad("search: goes with order=newest")),
    };
    let next = page.next.map(|next| next.to_string());
    let sessions: Vec<Value> = page.sessions.iter().map(|session| summary(session)).collect();
    let evicted: Vec<Value> = state
        .sessions
        .evicted()
        .iter()
        .map(|gone| json!({"session": &*gone.session, "reason": gone.reason, "at_ms": gone.at_ms}))
        .collect();
    let mut listed = json!({"sessions": sessions, "next": next});
    if !newest {
        // who looks at the newest again and again has no use for a thousand names of what is gone
        listed["evicted"] = evicted.into();
    }
    Ok(ok(&listed))
}

fn summary(session: &Session) -> Value {
    let seen = session.summary();
    let counted = |counts: &[(&'static str, usize)]| counts.iter().copied().collect::<HashMap<_, _>>();
    json!({
        "session": &*session.id,
        "created_ms": seen.created_ms,
        "turns": seen.turns,
        "sampled_tokens": seen.sampled_tokens,
        "faults": counted(&seen.faults),
        "causes": counted(&seen.causes),
        "frozen_versions": seen.frozen,
        "done": seen.done,
        "incomplete": seen.incomplete,
        "running": seen.running,
        "bytes": seen.bytes,
    })
}

pub(super) fn show(state: &TrainerState, id: &str, query: Query) -> Result<Response<Body>, Problem> {
    let session = session(state, id)?;
    let snapshot = session.snapshot(query.version).map_err(|error| refused(id, error))?;
    let mut shown = summary(&session);
    shown["version"] = json!(snapshot.version);
    shown["frozen"] = json!(snapshot.is_frozen);
    shown["list"] = snapshot.turns().iter().map(|turn| line(turn)).collect();
    Ok(ok(&shown))
}

fn line(turn: &Turn) -> Value {
    json!({
        "turn": turn.id,
        "parent": turn.parent,
        "cause": turn.about.cause.name(),
        "fault": turn.about.fault.map(crate::session::Fault::name),
        "finish_reason": turn.about.finish,
        "rid": turn.about.rid,
        "context_retokenised": turn.about.chat.as_ref().is_some_and(|chat| chat.retokenised),
        "foreign_assistant_text": turn.about.chat.as_ref().is_some_and(|chat| chat.foreign_text),
        "inserted_end_of_turn": turn.about.chat.as_ref().map_or(0, |chat| chat.inserted_end_of_turn),
        "prompt_tokens": turn.prompt.len(),
        "sampled_tokens": turn.response.len(),
        "mean_entropy": mean(&turn.entropy),
    })
}

/// Of the numbers there are; nats.
fn mean(entropy: &[f32]) -> Option<f64> {
    let known = entropy.iter().filter(|value| !value.is_nan());
    let (sum, count) = known.fold((0.0, 0_u32), |(sum, count), value| (sum + f64::from(*value), count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

pub(super) async fn delete(state: &TrainerState, id: &str) -> Result<Response<Body>, Problem> {
    session(state, id)?;
    let (store, name) = (Arc::clone(&state.sessions), id.to_owned());
    if let Some(ack) = offload(move || store.delete(&name)).await {
        super::written(state, ack).await;
    }
    Ok(ok(&json!({"deleted": id})))
}

pub(super) async fn freeze(state: &TrainerState, id: &str) -> Result<Response<Body>, Problem> {
    let session = session(state, id)?;
    let store = Arc::clone(&state.sessions);
    let frozen = offload(move || {
        let frozen = store.freeze(&session);
        frozen.map(|(version, ack)| (version, ack, session.turns_of(version)))
    });
    let (version, ack, turns) = frozen.await.map_err(|error| refused(id, error))?;
    super::written(state, ack).await;
    Ok(ok(&json!({"session": id, "version": version, "turns": turns})))
}

pub(super) async fn reward(state: &TrainerState, id: &str, said: RewardRequest) -> Result<Response<Body>, Problem> {
    if !said.reward.is_object() && !said.reward.as_f64().is_some_and(f64::is_finite) {
        return Err(Problem::bad(format!("reward: a number or an object, not {}", said.reward)));
    }
    let session = session(state, id)?;
    let ack = state.sessions.reward(&session, said.leaf, said.reward).map_err(|error| refused(id, error))?;
    super::written(state, ack).await;
    // a turn that ends no path, or ends one no longer, has no row for the reward
    let applies = said.leaf.is_none_or(|leaf| session.ends_path(leaf));
    Ok(ok(&json!({"session": id, "leaf": said.leaf, "applies": applies})))
}

/// The statistics that trainers compute from each path.
#[must_use]
pub fn annotate(state: &TrainerState) -> Annotate {
    let tokens = state.think_tokens();
    Arc::new(move |path| rl::thinking(path, tokens, rl::HIGH_ENTROPY))
}

/// Every path of a session: those that are exported, and those of which nothing is trained.
pub(super) fn trajectories(state: &TrainerState, id: &str, query: Query) -> Result<Response<Body>, Problem> {
    let session = session(state, id)?;
    let snapshot = session.snapshot(query.version).map_err(|error| refused(id, error))?;
    let (mut rows, out) = snapshot.rows(true);
    rows.extend(out.iter().map(|refused| snapshot.context(refused.leaf)));
    rows.sort_by_key(Row::leaf);
    let annotate = annotate(state);
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
    Ok(made("application/json", None, Box::new(chunks)))
}
