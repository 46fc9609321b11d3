// SPDX-License-Identifier: Apache-2.0
//! Compares the replies to the clients of a history with the ledger, and every process with a store that is not shared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::clients::ClientTurn;
use super::faults::Loss;
use super::history::{History, Process};
use super::plain::processes_agree_with_a_plain_store;
use crate::columns::Column;
use crate::session::ledger::{Change, ListOrder, Record};
use crate::session::sharing::{FleetQuery, LoadedPath};
use crate::session::view::{published_leaves, upwards};
use crate::session::{Classes, Consumer, Uid};

/// A session as the ledger has it.
pub(super) struct SessionEntries {
    pub name: Arc<str>,
    pub birth: Uid,
    pub records: Vec<(Uid, Record)>,
}

impl SessionEntries {
    fn turns(&self) -> impl Iterator<Item = &Arc<crate::session::Turn>> {
        self.records.iter().filter_map(|(_, record)| match &record.change {
            Change::Turn(turn) => Some(turn),
            _ => None,
        })
    }

    fn generation(&self) -> usize {
        self.records.iter().filter(|(_, record)| matches!(record.change, Change::Healed)).count()
    }
}

fn listed(history: &History) -> Vec<SessionEntries> {
    let state = history.server.memory.state();
    let list = |(name, entries): (&Arc<str>, &Vec<crate::session::ledger::Entry>)| {
        let records = entries.iter().map(|entry| {
            let record = Record::decode(&entry.body).expect("the entries were written by this build");
            (entry.uid, record)
        });
        SessionEntries { name: Arc::clone(name), birth: entries[0].uid, records: records.collect() }
    };
    state.lists.iter().map(list).collect()
}

/// What the history violates.
pub(super) async fn check(history: &History) -> Result<(), String> {
    let lists = listed(history);
    uids_are_unique(&lists)?;
    acknowledged_turns_are_listed_once(history, &lists)?;
    order_is_real_time(history, &lists)?;
    deleted_sessions_stay_deleted(history, &lists)?;
    retries_replace_undelivered_turns_only(history, &lists)?;
    incomplete_sessions_are_marked(history, &lists)?;
    logs_keep_turns_that_the_replica_lacks(history)?;
    acknowledged_scores_are_kept(history, &lists)?;
    for list in &lists {
        prompts_are_whole(history, list)?;
        stream_has_each_leaf(history, list)?;
    }
    for process in &history.processes {
        nothing_is_detached(process)?;
    }
    index_has_each_list(history, &lists).await?;
    stream_trains_each_turn_once(history, &lists).await?;
    processes_agree_with_a_plain_store(history, &lists).await
}

fn uids_are_unique(lists: &[SessionEntries]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for list in lists {
        for (uid, record) in &list.records {
            if !seen.insert(uid) {
                return Err(format!("{}: entry {uid} is listed twice: {record:?}", list.name));
            }
        }
    }
    Ok(())
}

/// Whether a turn may be missing although it was acknowledged.
fn may_be_lost(history: &History, turn: &ClientTurn) -> bool {
    let lost = history.server.failovers.load(Ordering::Relaxed) > 0
        && matches!(history.settings.loss, Loss::Acknowledged | Loss::All)
        // only a process that has the turn can append it again
        && history.crashed.contains(&turn.process);
    lost || was_deleted(history, turn)
}

/// Whether a later process restores it from the local log: it is in the log until replicas have it.
fn is_restored(history: &History, turn: &ClientTurn) -> bool {
    turn.detached && history.settings.has_logs && matches!(history.settings.loss, Loss::None | Loss::Unconfirmed)
}

/// Whether its session was deleted after the call had begun.
fn was_deleted(history: &History, turn: &ClientTurn) -> bool {
    history.client_log.deletes.iter().any(|(name, ended)| *name == turn.session && *ended >= turn.begun)
}

fn acknowledged_turns_are_listed_once(history: &History, lists: &[SessionEntries]) -> Result<(), String> {
    let mut listed: BTreeMap<&[u32], usize> = BTreeMap::new();
    for turn in lists.iter().flat_map(SessionEntries::turns) {
        *listed.entry(&turn.response).or_default() += 1;
    }
    for turn in &history.client_log.turns {
        match listed.get(&turn.response[..]).copied().unwrap_or(0) {
            0 if turn.acknowledged && !may_be_lost(history, turn) => {
                return Err(format!("an acknowledged turn is lost: {turn:?}"));
            }
            // a process that did not crash appends its detached turns, and one with a log after a crash as well
            0 if !turn.acknowledged
                && !turn.left_out
                && (!history.crashed.contains(&turn.process) || is_restored(history, turn))
                && !was_deleted(history, turn) =>
            {
                return Err(format!("a detached turn was not appended: {turn:?}"));
            }
            0 | 1 => {}
            count => return Err(format!("a turn is listed {count} times: {turn:?}")),
        }
    }
    Ok(())
}

/// The last scores of a turn have the columns of all acknowledged ones.
fn acknowledged_scores_are_kept(history: &History, lists: &[SessionEntries]) -> Result<(), String> {
    if matches!(history.settings.loss, Loss::Acknowledged | Loss::All) {
        return Ok(());
    }
    for scored in &history.client_log.scored {
        let is_deleted = |(name, ended): &(Arc<str>, Instant)| *name == scored.session && *ended >= scored.begun;
        if history.client_log.deletes.iter().any(is_deleted) {
            continue;
        }
        let list = lists.iter().find(|list| list.name == scored.session);
        let turn = list.and_then(|list| list.turns().find(|turn| turn.about.uid == scored.turn));
        let last = list.zip(turn).and_then(|(list, turn)| {
            list.records.iter().rev().find_map(|(_, record)| match &record.change {
                Change::Scored(scores) if scores.turn == turn.id => Some(scores),
                _ => None,
            })
        });
        let has = |name: &str| last.is_some_and(|last| Column::named(&last.columns, name).is_some());
        if last.is_none() || !scored.columns.iter().map(|name| &**name).all(has) {
            return Err(format!("acknowledged scores are lost: {scored:?}; the last ones are {last:?}"));
        }
    }
    Ok(())
}

/// A turn that was acknowledged before another call began is before it.
fn order_is_real_time(history: &History, lists: &[SessionEntries]) -> Result<(), String> {
    for list in lists.iter().filter(|list| list.generation() == 0) {
        if matches!(history.settings.loss, Loss::Acknowledged | Loss::All) {
            continue;
        }
        let position = |turn: &ClientTurn| list.turns().position(|listed| *listed.response == turn.response[..]);
        let call: Vec<_> =
            history.client_log.turns.iter().filter(|turn| turn.acknowledged && turn.session == list.name).collect();
        for a in &call {
            for b in &call {
                if a.ended < b.begun && position(a).zip(position(b)).is_some_and(|(a, b)| a > b) {
                    return Err(format!("{}: {a:?} was acknowledged before {b:?} began, and is after it", list.name));
                }
            }
        }
    }
    for read in &history.client_log.reads {
        let list = lists.iter().find(|list| list.name == read.session && list.birth == read.birth);
        let Some(list) = list.filter(|list| list.generation() == read.generation as usize) else { continue };
        let turns: Vec<Uid> = list.turns().map(|turn| turn.about.uid).collect();
        let may_differ = match history.settings.loss {
            Loss::None => false,
            // it may have seen an entry that no replica had confirmed, and that was evicted before the failover lost it
            Loss::Unconfirmed => true,
            // the process has what it has read in memory, and the generation rises when it appends that again in another order
            // unless a client deleted the session, and the deletion was lost with the data
            Loss::Acknowledged | Loss::All => {
                history.crashed.contains(&read.process)
                    || history.client_log.deletes.iter().any(|(name, _)| *name == read.session)
            }
        };
        if !may_differ && !turns.starts_with(&read.turns) {
            return Err(format!("{}: a read is no prefix: {:?} of {turns:?}", list.name, read.turns));
        }
    }
    Ok(())
}

/// How much later than its turn a deletion has to be. A process that was cut off knows the time of a deletion to the delay of an answer.
const TELLABLE: Duration = Duration::from_secs(2);

/// How long after a loss of all data the process that deleted a session must be reachable.
const RECOVERY: Duration = Duration::from_secs(10);

fn deleted_sessions_stay_deleted(history: &History, lists: &[SessionEntries]) -> Result<(), String> {
    let loss = history.settings.loss;
    let flushes = history.server.flushes.lock().clone();
    for deletion in &history.client_log.deleted {
        // only the process that deleted it can tell a ledger that has lost all data
        let is_forgotten = || {
            let is_cut = |flush: &Instant| {
                let (from, until) = (*flush, *flush + RECOVERY);
                let is_of = |number: usize| number == deletion.process;
                history.cuts.iter().any(|(number, cut, end)| is_of(*number) && *cut <= until && *end >= from)
            };
            history.crashed.contains(&deletion.process) || flushes.iter().any(is_cut)
        };
        match loss {
            // a failover loses the deletion with everything else that the replica lacks
            Loss::Acknowledged => continue,
            Loss::All if is_forgotten() => continue,
            Loss::None | Loss::Unconfirmed | Loss::All => {}
        }
        let name = &deletion.session;
        if loss == Loss::None && lists.iter().any(|list| list.birth == deletion.birth) {
            return Err(format!("{deletion:?}, and the session exists"));
        }
        let of_session = |list: &&SessionEntries| list.name == *name;
        for listed in lists.iter().filter(of_session).flat_map(SessionEntries::turns) {
            let is_earlier = |turn: &&ClientTurn| {
                // a process without the ledger's data cannot have noticed its loss
                let is_restored = loss == Loss::All && history.crashed.contains(&turn.process);
                turn.session == *name && turn.ended + TELLABLE < deletion.begun && !is_restored
            };
            let mut earlier = history.client_log.turns.iter().filter(is_earlier);
            if let Some(turn) = earlier.find(|turn| *listed.response == turn.response[..]) {
                return Err(format!("{deletion:?}, and a turn from before it exists: {turn:?}"));
            }
        }
    }
    Ok(())
}

/// A turn replaces the turn of the same request id only, and that one if the ledger had it.
fn retries_replace_undelivered_turns_only(history: &History, lists: &[SessionEntries]) -> Result<(), String> {
    let call = |response: &[u32]| history.client_log.turns.iter().find(|turn| turn.response == response);
    for list in lists {
        let turns: Vec<_> = list.turns().collect();
        for (at, turn) in turns.iter().enumerate() {
            let Some(retry) = call(&turn.response) else { continue };
            let attempt = retry.retry_of.as_deref();
            for replaced in &turn.about.supersedes {
                let replaced = &turns[*replaced as usize].response;
                if attempt != Some(&**replaced) {
                    return Err(format!("{}: turn {at} supersedes {replaced:?}, which is had: {retry:?}", list.name));
                }
            }
            let is_listed = attempt.is_some_and(|attempt| turns[..at].iter().any(|turn| *turn.response == *attempt));
            let is_known = attempt.and_then(call).is_some_and(|attempt| attempt.acknowledged && retry.acknowledged);
            if is_listed && is_known && list.generation() == 0 && turn.about.supersedes.is_empty() {
                return Err(format!("{}: turn {at} does not supersede its earlier attempt: {retry:?}", list.name));
            }
        }
    }
    Ok(())
}

fn incomplete_sessions_are_marked(history: &History, lists: &[SessionEntries]) -> Result<(), String> {
    let log = &history.client_log;
    for (name, process) in &log.incomplete {
        if history.crashed.contains(process) || log.deletes.iter().any(|(deleted, _)| deleted == name) {
            continue;
        }
        let is_marked = |(_, record): &(Uid, Record)| matches!(record.change, Change::Incomplete);
        if !lists.iter().any(|list| list.name == *name && list.records.iter().any(is_marked)) {
            return Err(format!("{name} is not marked as incomplete"));
        }
    }
    Ok(())
}

/// A local log forgets a turn only when the replica has it, or when its session was deleted.
fn logs_keep_turns_that_the_replica_lacks(history: &History) -> Result<(), String> {
    if history.settings.loss != Loss::Unconfirmed {
        return Ok(());
    }
    let forgotten = history.server.forgotten.lock();
    let deletes = &history.client_log.deletes;
    match forgotten.iter().find(|(name, _)| !deletes.iter().any(|(deleted, _)| deleted == name)) {
        Some((name, turn)) => Err(format!("{name}: the local log forgot {turn}, which no replica has")),
        None => Ok(()),
    }
}

/// The tokens of a turn's parent and its own part of the prompt are the prompt that was sent.
fn prompts_are_whole(history: &History, list: &SessionEntries) -> Result<(), String> {
    let turns: Vec<_> = list.turns().collect();
    for (at, turn) in turns.iter().enumerate() {
        if turn.id as usize != at {
            return Err(format!("{}: turn {} has the number {}", list.name, at, turn.id));
        }
        let mut prompt = turn.prompt.to_vec();
        let mut next = turn.parent;
        while let Some(parent) = next {
            let parent = turns[parent as usize];
            prompt.splice(0..0, [&parent.prompt[..], &parent.response].concat());
            next = parent.parent;
        }
        let call = history.client_log.turns.iter().find(|call| *turn.response == call.response[..]);
        if call.is_some_and(|call| call.prompt != prompt) {
            return Err(format!("{}: turn {at} has the prompt {prompt:?}, not that of {call:?}", list.name));
        }
    }
    Ok(())
}

/// Each path of an unused session is in the stream: once, or at least once if a failover lost something.
fn stream_has_each_leaf(history: &History, list: &SessionEntries) -> Result<(), String> {
    let state = history.server.memory.state();
    let stream = state.finished.values().flatten().filter(|entry| entry.session == list.name);
    let mut streamed: BTreeMap<Uid, usize> = BTreeMap::new();
    for entry in stream.filter(|entry| entry.birth == list.birth || history.settings.loss != Loss::None) {
        *streamed.entry(entry.leaf).or_default() += 1;
    }
    let turns: Vec<_> = list.turns().map(Arc::clone).collect();
    let leaves = published_leaves(&turns);
    for leaf in leaves {
        let uid = turns[leaf as usize].about.uid;
        match streamed.get(&uid) {
            Some(1) => {}
            Some(_) if history.settings.loss != Loss::None => {}
            count => return Err(format!("{}: leaf {leaf} is {count:?} times in the stream", list.name)),
        }
    }
    Ok(())
}

/// The paths that a process reads from the stream train each turn that an export trains, once. A path that is listed twice is the same.
async fn stream_trains_each_turn_once(history: &History, lists: &[SessionEntries]) -> Result<(), String> {
    let Some(process) = history.processes.first() else { return Ok(()) };
    let sharing = process.store.sharing();
    let failed = |error| format!("the stream: {error}");
    let mut cursor = sharing.stream_start().await.map_err(failed)?;
    let mut trained: BTreeMap<Uid, Vec<Uid>> = BTreeMap::new();
    loop {
        let page = sharing.finished_after(&cursor, Consumer::default(), 100).await.map_err(failed)?;
        if page.paths.is_empty() {
            break;
        }
        for path in page.paths {
            let Ok(LoadedPath { session, number }) = path.loaded else { continue };
            let Some(Ok(path)) = session.finished(number, Classes::default()) else {
                return Err(format!("{}: path {number} does not exist", session.id));
            };
            let uid = |step: &crate::session::Step| step.turn.about.uid;
            let turns: Vec<Uid> = path.steps.iter().filter(|step| step.trained).map(uid).collect();
            let leaf = path.leaf().about.uid;
            if trained.insert(leaf, turns.clone()).is_some_and(|before| before != turns) {
                return Err(format!("{}: path {leaf} trains other turns the second time", session.id));
            }
        }
        cursor = page.cursor;
    }
    let mut counts: BTreeMap<Uid, usize> = BTreeMap::new();
    for turn in trained.into_values().flatten() {
        *counts.entry(turn).or_default() += 1;
    }
    for list in lists {
        let turns: Vec<_> = list.turns().map(Arc::clone).collect();
        let leaves = published_leaves(&turns);
        let exported: BTreeSet<u32> =
            leaves.into_iter().flat_map(|leaf| upwards(&turns, leaf)).map(|turn| turn.id).collect();
        for turn in exported.into_iter().map(|turn| &turns[turn as usize]).filter(|turn| turn.is_trainable()) {
            let uid = turn.about.uid;
            match counts.get(&uid) {
                Some(1) => {}
                count => return Err(format!("{}: turn {} is trained {count:?} times", list.name, turn.id)),
            }
        }
    }
    Ok(())
}

fn nothing_is_detached(process: &Process) -> Result<(), String> {
    let sharing = process.store.sharing();
    let unsettled = sharing.unsettled.lock().clone();
    if !unsettled.is_empty() {
        return Err(format!("{unsettled:?} are not settled"));
    }
    if !sharing.spilled.lock().is_empty() {
        return Err(format!("{:?} are in the local log only", sharing.spilled.lock()));
    }
    for (_, session) in process.store.memory().page(0, usize::MAX) {
        if session.state().is_detached {
            return Err(format!("{} is detached", session.id));
        }
    }
    Ok(())
}

/// Any process lists the sessions that the ledger has, each once.
async fn index_has_each_list(history: &History, lists: &[SessionEntries]) -> Result<(), String> {
    let Some(process) = history.processes.first() else { return Ok(()) };
    let sharing = process.store.sharing();
    let expected: BTreeSet<Arc<str>> = lists.iter().map(|list| Arc::clone(&list.name)).collect();
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let query = FleetQuery { order: ListOrder::Newest, after, limit: 2, part: String::new() };
        let page = sharing.list(query).await.map_err(|error| format!("the list of sessions: {error}"))?;
        found.extend(page.sessions.into_iter().map(|last| last.session));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if found.len() != expected.len() || !found.iter().all(|session| expected.contains(session)) {
        return Err(format!("the index has {found:?}, the ledger {expected:?}"));
    }
    Ok(())
}
