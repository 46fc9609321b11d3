//! `/v1/sessions`: lists, shows, freezes and deletes sessions, and records rewards.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::query::Query;
use super::{Problem, ok, session, session_problem, stream_reply};
use crate::export::{Annotate, entry, repeated_rows};
use crate::rl;
use crate::serve::body::Body;
use crate::serve::control::trainer_state::TrainerState;
use crate::serve::offload::offload;
use crate::session::ledger::ListOrder;
use crate::session::{ListCursor, ListQuery, ListedPage, Row, Session, SessionError, Store, Turn};

/// The default and the maximum number of sessions of a page.
const PAGE: (usize, usize) = (100, 10_000);

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

/// A page of sessions.
#[derive(Debug)]
pub(crate) struct Page {
    /// The sessions.
    pub sessions: Vec<SessionEntry>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<PageCursor>,
    /// Whether it lists the sessions of all processes.
    pub is_of_fleet: bool,
}

/// A session of a page.
#[derive(Debug)]
pub(crate) struct SessionEntry {
    /// Its name.
    pub name: Arc<str>,
    /// `None` if another process has it and this process has not read it.
    pub session: Option<Arc<Session>>,
    /// Its last append or renewal by the clock of the shared ledger.
    pub used_ms: Option<u64>,
}

/// Where the next page begins.
#[derive(Debug, Clone)]
pub(crate) enum PageCursor {
    /// In the list of this process: the number of a session.
    Process(u64),
    /// In the list of all processes.
    Fleet(ListCursor),
}

impl fmt::Display for PageCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(number) => number.fmt(f),
            Self::Fleet(cursor) => cursor.fmt(f),
        }
    }
}

impl PageCursor {
    fn parse(text: &str, is_shared: bool) -> Result<Self, Problem> {
        if let Ok(number) = text.parse() {
            return Ok(Self::Process(number));
        }
        let cursor = if is_shared { text.parse().ok() } else { None };
        cursor.map(Self::Fleet).ok_or_else(|| Problem::bad(format!("after: must be the next of a page, not {text:?}")))
    }
}

impl Page {
    /// Reads a page. If sessions are shared, those of all processes are listed. If the shared ledger fails, the list with the newest first has
    /// the sessions of this process; the other one, from which programs read all sessions, is an error.
    ///
    /// # Errors
    /// 400 for a malformed query; 503 if the shared ledger fails.
    pub(crate) async fn read(state: &Arc<TrainerState>, query: PageQuery) -> Result<Self, Problem> {
        let PageQuery { order, after, limit, part } = query;
        if part.is_some() && order == ListOrder::Oldest {
            return Err(Problem::bad("search: needs order=newest"));
        }
        let (limit, part) = (limit.unwrap_or(PAGE.0).clamp(1, PAGE.1), part.unwrap_or_default());
        let sharing = state.sessions.sharing();
        // 0 is the first page
        let after = after.filter(|after| after != "0").map(|after| PageCursor::parse(&after, sharing.is_some()));
        let after = after.transpose()?;
        let number = match (sharing, after) {
            (Some(_), Some(PageCursor::Process(_))) if order == ListOrder::Oldest => {
                return Err(Problem::bad("after: is a cursor of one process, and sessions are shared".to_owned()));
            }
            (_, Some(PageCursor::Process(number))) => Some(number),
            (Some(sharing), after) => {
                let after =
                    after.and_then(|after| if let PageCursor::Fleet(after) = after { Some(after) } else { None });
                let may_be_partial = after.is_none() && order == ListOrder::Newest;
                match sharing.list(ListQuery { order, after, limit, part: part.clone() }).await {
                    Ok(page) => {
                        let store = Arc::clone(&state.sessions);
                        return Ok(offload(move || Self::of_fleet(&store, page, order, limit)).await);
                    }
                    Err(error) if may_be_partial => {
                        tracing::debug!(%error, "the list has the sessions of this process only")
                    }
                    Err(error) => return Err(super::ledger_problem(&error)),
                }
                None
            }
            (None, _) => None,
        };
        let store = Arc::clone(&state.sessions);
        let page = offload(move || match order {
            ListOrder::Oldest => store.page(number.unwrap_or(0), limit),
            ListOrder::Newest => store.page_back(number.unwrap_or(u64::MAX), limit, &part),
        });
        let page = page.await;
        let next = page.last().filter(|_| page.len() == limit).map(|(number, _)| PageCursor::Process(*number));
        let listed = |(_, session): (u64, Arc<Session>)| SessionEntry {
            name: Arc::clone(&session.id),
            session: Some(session),
            used_ms: None,
        };
        Ok(Self { sessions: page.into_iter().map(listed).collect(), next, is_of_fleet: false })
    }

    fn of_fleet(store: &Store, page: ListedPage, order: ListOrder, limit: usize) -> Self {
        let known: HashSet<Arc<str>> = page.sessions.iter().map(|last| Arc::clone(&last.session)).collect();
        let listed = |name: Arc<str>, used_ms| SessionEntry { session: store.session(&name), name, used_ms };
        let detached = page.detached.into_iter().filter(|name| !known.contains(name));
        // after a disruption many sessions are compared with the ledger, and few have turns that it lacks
        let is_detached = |listed: &SessionEntry| listed.session.as_ref().is_some_and(|session| session.is_detached());
        let detached = detached.map(|name| listed(name, None)).filter(is_detached).take(limit);
        let mut sessions: Vec<SessionEntry> = detached.collect();
        let detached = sessions.len();
        sessions.extend(page.sessions.into_iter().map(|last| listed(last.session, Some(last.used_ms))));
        if order == ListOrder::Oldest {
            // they were used last
            sessions.rotate_left(detached);
        }
        Self { sessions, next: page.next.map(PageCursor::Fleet), is_of_fleet: true }
    }
}

/// The body of `POST /v1/sessions/{id}/reward`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RewardRequest {
    reward: Value,
    leaf: Option<u32>,
    /// The `generation` of the session that `leaf` belongs to. Only shared sessions have others than 0.
    generation: Option<u32>,
}

pub(super) async fn list(state: &Arc<TrainerState>, query: Query) -> Result<Response<Body>, Problem> {
    let Query { after, limit, search: part, newest, .. } = query;
    let order = if newest { ListOrder::Newest } else { ListOrder::Oldest };
    let page = Page::read(state, PageQuery { order, after, limit, part }).await?;
    super::short_answer(state, move |state| Ok(list_reply(state, &page, newest))).await
}

fn list_reply(state: &TrainerState, page: &Page, newest: bool) -> Response<Body> {
    let next = page.next.as_ref().map(ToString::to_string);
    let sessions: Vec<Value> = page.sessions.iter().map(SessionEntry::json).collect();
    let evicted: Vec<Value> = state
        .sessions
        .evicted()
        .iter()
        .map(|gone| json!({"session": &*gone.session, "reason": gone.reason, "at_ms": gone.at_ms}))
        .collect();
    let mut listed = json!({"sessions": sessions, "next": next});
    if !newest {
        // a client that polls for the newest sessions does not need up to a thousand evicted names
        listed["evicted"] = evicted.into();
    }
    if state.sessions.sharing().is_some() {
        listed["scope"] = if page.is_of_fleet { "fleet" } else { "process" }.into();
    }
    ok(&listed)
}

impl SessionEntry {
    fn json(&self) -> Value {
        let mut listed =
            self.session.as_ref().map_or_else(|| json!({"session": &*self.name}), |session| summary(session));
        if let Some(used_ms) = self.used_ms {
            listed["used_ms"] = used_ms.into();
        }
        listed
    }
}

fn summary(session: &Session) -> Value {
    let summary = session.summary();
    let count_map = |counts: &[(&'static str, usize)]| counts.iter().copied().collect::<HashMap<_, _>>();
    json!({
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
    })
}

pub(super) fn show(state: &TrainerState, id: &str, query: Query) -> Result<Response<Body>, Problem> {
    let session = session(state, id)?;
    let snapshot = session.snapshot(query.version).map_err(|error| session_problem(id, error))?;
    let mut shown = summary(&session);
    if state.sessions.sharing().is_some() {
        shown["generation"] = json!(session.generation());
    }
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
        "predecessor": turn.about.predecessor,
        "fault": turn.about.fault.map(crate::session::Fault::name),
        "finish_reason": turn.about.finish,
        "rid": turn.about.rid,
        "context_retokenised": turn.about.chat.as_ref().is_some_and(|chat| chat.retokenised),
        "foreign_assistant_text": turn.about.chat.as_ref().is_some_and(|chat| chat.foreign_text),
        "inserted_end_of_turn": turn.about.chat.as_ref().map_or(0, |chat| chat.inserted_end_of_turn),
        "reply_changes": turn.about.reply_changes(),
        "prompt_tokens": turn.prompt.len(),
        "sampled_tokens": turn.response.len(),
        "mean_entropy": mean(&turn.entropy),
        "labels": turn.about.labels,
    })
}

/// The mean of the measured entropies, in nats.
fn mean(entropy: &[f32]) -> Option<f64> {
    let measured = entropy.iter().filter(|value| !value.is_nan());
    let (sum, count) = measured.fold((0.0, 0_u32), |(sum, count), value| (sum + f64::from(*value), count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

pub(super) async fn delete(state: &TrainerState, id: &str) -> Result<Response<Body>, Problem> {
    let (store, name) = (Arc::clone(&state.sessions), id.to_owned());
    if let Some(sharing) = store.sharing() {
        let deleted = sharing.delete(&store, &name.into()).await.map_err(|error| session_problem(id, error))?;
        return if deleted { Ok(ok(&json!({"deleted": id}))) } else { Err(super::unknown_session(id)) };
    }
    session(state, id)?;
    if let Some(ack) = offload(move || store.delete(&name)).await {
        super::wait_written(state, ack).await;
    }
    Ok(ok(&json!({"deleted": id})))
}

pub(super) async fn freeze(state: &TrainerState, id: &str) -> Result<Response<Body>, Problem> {
    let store = Arc::clone(&state.sessions);
    if let Some(sharing) = store.sharing() {
        let frozen = sharing.freeze(&store, &id.into()).await;
        let (version, turns) = frozen.map_err(|error| shared_problem(state, id, error))?;
        return Ok(ok(&json!({"session": id, "version": version, "turns": turns})));
    }
    let session = session(state, id)?;
    let frozen = offload(move || {
        let frozen = store.freeze(&session);
        frozen.map(|(version, ack)| (version, ack, session.turns_of(version)))
    });
    let (version, ack, turns) = frozen.await.map_err(|error| session_problem(id, error))?;
    super::wait_written(state, ack).await;
    Ok(ok(&json!({"session": id, "version": version, "turns": turns})))
}

pub(super) async fn reward(state: &TrainerState, id: &str, request: RewardRequest) -> Result<Response<Body>, Problem> {
    if !request.reward.is_object() && !request.reward.as_f64().is_some_and(f64::is_finite) {
        return Err(Problem::bad(format!("reward: must be a number or an object, not {}", request.reward)));
    }
    if let Some(sharing) = state.sessions.sharing() {
        let (of, reward) = ((request.leaf, request.generation), request.reward);
        let set = sharing.reward(&state.sessions, &id.into(), of, reward).await;
        set.map_err(|error| shared_problem(state, id, error))?;
        return Ok(rewarded(id, session(state, id)?, request.leaf).await);
    }
    if request.generation.is_some() {
        return Err(Problem::bad("generation: sessions are not shared, see --ledger"));
    }
    let session = session(state, id)?;
    let ack =
        state.sessions.reward(&session, request.leaf, request.reward).map_err(|error| session_problem(id, error))?;
    super::wait_written(state, ack).await;
    Ok(rewarded(id, session, request.leaf).await)
}

/// The reply to a reward.
async fn rewarded(id: &str, session: Arc<Session>, leaf: Option<u32>) -> Response<Body> {
    // no exported row has the reward of a turn that is not, or is no longer, the leaf of a path
    let applies = match leaf {
        Some(leaf) => offload(move || session.ends_path(leaf)).await,
        None => true,
    };
    ok(&json!({"session": id, "leaf": leaf, "applies": applies}))
}

/// The problem of a change of a shared session. A name that is in no list is unknown.
fn shared_problem(state: &TrainerState, id: &str, error: SessionError) -> Problem {
    match error {
        SessionError::EvictedSession if state.sessions.session(id).is_none() => super::unknown_session(id),
        error => session_problem(id, error),
    }
}

/// Returns the function that computes the statistics of a path.
#[must_use]
pub(crate) fn annotate(state: &TrainerState) -> Annotate {
    let tokens = state.think_tokens();
    Arc::new(move |path| rl::thinking(path, tokens, rl::HIGH_ENTROPY))
}

/// Returns every path of a session, also those that are not exported.
pub(super) fn trajectories(state: &TrainerState, id: &str, query: Query) -> Result<Response<Body>, Problem> {
    let session = session(state, id)?;
    let snapshot = session.snapshot_of(query.version, query.classes).map_err(|error| session_problem(id, error))?;
    let (mut rows, out) = snapshot.rows(true);
    let repeated = repeated_rows(&rows);
    rows.iter_mut().zip(repeated).for_each(|(row, repeats)| row.set_repeats_sample(repeats));
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
    Ok(stream_reply("application/json", None, Box::new(chunks)))
}
