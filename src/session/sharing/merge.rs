// SPDX-License-Identifier: Apache-2.0
//! Merges a session with a list of the ledger that does not continue it.
//!
//! That happens if a failover of the ledger lost entries, or if other processes appended while this one could not. The order of the list
//! is kept. Entries that it lacks are appended again after it, under their old uids.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::list_cache::{CachedEntry, ListCache, entry};
use super::missing::{Missing, MissingChange};
use super::spill::is_only_logged;
use super::{Line, Outdated, Sharing};
use crate::session::ledger::{Change, Entry, LedgerError, LogRecord, Position, ProcessRecord, Record};
use crate::session::state::Session;
use crate::session::{Scores, Uid};

/// Entries that are appended again in one step.
const STEP: usize = 64;

/// Bytes after which a step takes no more entries.
const STEP_BYTES: usize = 1 << 20;

impl Sharing {
    /// The list of a session does not exist. If the ledger may have lost it, or detached changes follow it, all entries are appended again
    /// later. Otherwise it was deleted or has expired, and the session in memory is removed.
    pub(super) async fn list_is_absent(&self, line: &Line, known: &mut ListCache) -> Result<(), LedgerError> {
        if known.position.is_none() {
            return Ok(());
        }
        let is_kept = known.is_detached() || self.may_have_lost(known).await?;
        if !is_kept {
            self.discard(line, known);
        } else if !self.forget_deleted(line, known, false).await? {
            self.counts.healed.fetch_add(known.confirmed() as u64, Ordering::Relaxed);
            known.position = None;
            known.images.forget_shared();
            self.mark_unsettled(line, known);
        }
        Ok(())
    }

    /// Whether the ledger may have lost entries since the list was compared.
    async fn may_have_lost(&self, known: &ListCache) -> Result<bool, LedgerError> {
        self.check_fleet().await.map_err(super::fleet_unknown)?;
        Ok(known.checked != self.suspicion())
    }

    /// Notes that changes of the session are not in the ledger. The session is not evicted until they are.
    pub(super) fn mark_unsettled(&self, line: &Line, known: &ListCache) {
        if let Some(session) = &known.session {
            self.set_detached(session, true);
        }
        self.unsettled.lock().insert(Arc::clone(&line.name));
    }

    /// Removes the session from memory, and its detached changes.
    pub(super) fn discard(&self, line: &Line, known: &mut ListCache) {
        let is_logged = known.is_detached() && !self.is_spilled(&line.name);
        self.remove_from_memory(line, known);
        if is_logged {
            self.end_detached(&line.name);
        }
    }

    /// Removes the session from memory. Its detached turns stay in the local log.
    pub(super) fn remove_from_memory(&self, line: &Line, known: &mut ListCache) {
        if let Some(session) = &known.session {
            self.store.remove_session(session);
        }
        self.unsettled.lock().remove(&line.name);
        *known = ListCache { checked: known.checked, ..ListCache::default() };
    }

    /// Replaces the session in memory by the fold of its list, and keeps the changes that the list lacks as missing.
    pub(super) async fn merge(&self, line: &Line, known: &mut ListCache) -> Result<(), LedgerError> {
        let list = self.fetch_all(line).await?;
        let Some(first) = list.first() else { return self.list_is_absent(line, known).await };
        let same = known.log.iter().zip(&list).take_while(|(own, entry)| own.uid == entry.uid).count();
        if same > 0 && (same == known.log.len() || same == list.len()) {
            // one is the beginning of the other
            self.counts.healed.fetch_add(known.confirmed().saturating_sub(same) as u64, Ordering::Relaxed);
            // an append without an answer may have reached the primary only
            known.is_unconfirmed |= same > known.confirmed();
            known.position = Position::after(None, &list[..same]);
            if known.log.len() > same {
                self.mark_unsettled(line, known);
            }
            let follows = self.follow(line, known, list[same..].to_vec()).await?;
            debug_assert!(follows, "nothing contradicts the beginning of a list");
            return Ok(());
        }
        if known.log.first().is_some_and(|own| own.uid != first.uid) {
            // another session has the name
            let is_kept = known.is_detached() || self.may_have_lost(known).await?;
            if !is_kept {
                self.discard(line, known);
            } else {
                self.forget_deleted(line, known, false).await?;
            }
        }
        self.replace(line, known, list).await
    }

    /// Replaces the session in memory by the fold of `list`.
    async fn replace(&self, line: &Line, known: &mut ListCache, list: Vec<Entry>) -> Result<(), LedgerError> {
        let present: HashSet<Uid> = list.iter().map(|entry| entry.uid).collect();
        let confirmed = known.confirmed();
        let mut before = std::mem::take(known);
        let mut missing = std::mem::take(&mut before.missing);
        let images = before.session.as_ref().map(|session| session.state().images.clone());
        if let Some(session) = &before.session {
            let lacks = |(at, logged): (usize, &CachedEntry)| {
                if present.contains(&logged.uid) {
                    return None;
                }
                let change = self.missing_change(session, &logged.change);
                let count = u64::from(at < confirmed);
                match &change {
                    Some(_) => self.counts.healed.fetch_add(count, Ordering::Relaxed),
                    None => self.counts.unhealed.fetch_add(u64::from(count > 0), Ordering::Relaxed),
                };
                Some(Missing::new(logged.uid, logged.at, change?, &self.store.missing_bytes))
            };
            let own = before.log.iter().enumerate().skip(1).filter_map(lacks);
            let own: Vec<Missing> = own.collect();
            if own.iter().any(|missing| matches!(missing.change, MissingChange::Turn(_))) {
                let (uid, at) = (Uid::unique(), Instant::now());
                missing.push_back(Missing::new(uid, at, MissingChange::Healed, &self.store.missing_bytes));
            }
            missing.extend(own);
            self.store.remove_session(session);
        }
        let is_found = before.log[confirmed..].iter().any(|own| present.contains(&own.uid));
        known.is_unconfirmed = before.is_unconfirmed || is_found;
        (known.missing, known.checked) = (missing, before.checked);
        if known.is_detached() || known.is_unconfirmed {
            // before the session exists: it is created as one that must not be evicted
            self.mark_unsettled(line, known);
        }
        let follows = self.follow(line, known, list).await?;
        debug_assert!(follows, "nothing is detached");
        // the ledger need not have all of them
        self.supply_images(known, &images.unwrap_or_default());
        Ok(())
    }

    /// Restores a detached turn from the local log, or forgets those of a session that was appended. Turns that have no room in memory are
    /// read back later.
    pub(in crate::session) fn restore(&self, record: LogRecord) {
        match record {
            LogRecord::Session(Record { session, birth, change: Change::Turn(turn) }) => {
                if self.is_full_of_detached() {
                    return self.note_spilled(&session, turn.record_bytes(), is_only_logged(birth, &turn).into());
                }
                let line = self.line(&session);
                let mut known = line.known.try_lock().expect("no call runs during the restoration");
                known.missing.push_back(Missing::turn(turn, &self.store.missing_bytes));
                self.unsettled.lock().insert(session);
            }
            LogRecord::Session(Record { session, change: Change::Evicted, .. })
            | LogRecord::Process(ProcessRecord::Settled { session }) => {
                let line = self.line(&session);
                line.known.try_lock().expect("no call runs during the restoration").missing.clear();
                self.unsettled.lock().remove(&session);
                self.spilled.lock().remove(&session);
            }
            _ => {}
        }
    }

    /// Compares the list again if the ledger may have lost entries, and appends all detached changes.
    ///
    /// # Errors
    /// When the ledger fails, and [`LedgerError::AwaitsImages`].
    pub(super) async fn settle(&self, line: &Line, known: &mut ListCache) -> Result<(), LedgerError> {
        if self.settle_available(line, known, true).await? { Ok(()) } else { Err(LedgerError::AwaitsImages) }
    }

    /// The same; if `waits`, for the changes before a finished path whose pictures the ledger may lack: the background stores them first.
    /// Returns whether all changes are appended.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(super) async fn settle_available(
        &self,
        line: &Line,
        known: &mut ListCache,
        waits: bool,
    ) -> Result<bool, LedgerError> {
        known.forget_removed();
        let is_checked = known.position.is_none() || known.checked == self.suspicion();
        if is_checked && !known.is_detached() {
            return Ok(true);
        }
        let mut is_gone = false;
        loop {
            self.load(line, known).await?;
            if known.is_detached() {
                self.forget_deleted(line, known, is_gone && known.position.is_none()).await?;
            }
            if !known.missing.is_empty() {
                self.begin(line, known)?;
            }
            let outcome = match self.append_detached(line, known, waits).await? {
                Ok(true) => self.append_missing(line, known, waits).await?,
                other => other,
            };
            match outcome {
                Ok(true) => break,
                Ok(false) => {
                    self.mark_unsettled(line, known);
                    return Ok(false);
                }
                Err(Outdated) => {}
            }
            // a list that was to be begun, and still does not exist then, is that of a deleted session
            is_gone = known.position.is_none();
        }
        if self.note_images(line, known) {
            known.images.is_failed = !self.is_full_of_detached();
        }
        if known.is_unconfirmed || known.images.is_failed {
            // the session in memory may be another one than before, and must not be evicted
            self.mark_unsettled(line, known);
        } else {
            self.end_unsettled(line, known);
        }
        Ok(true)
    }

    /// Whether finished paths of the session may be appended: the ledger has its pictures, or they are given up. An archiver excludes a path
    /// that lacks a picture, and does not look at it again.
    fn may_publish(&self, line: &Line, known: &mut ListCache) -> bool {
        if self.note_images(line, known) {
            known.images.is_failed = !self.is_full_of_detached();
        }
        known.images.is_settled()
    }

    /// Notes that the ledger has all changes of the session, unless it may have lost some since the list was compared.
    pub(super) fn end_unsettled(&self, line: &Line, known: &ListCache) {
        if known.position.is_some() && known.checked != self.suspicion() {
            // compared in the next round
            self.mark_unsettled(line, known);
            return;
        }
        if let Some(session) = &known.session {
            self.set_detached(session, false);
        }
        if !self.is_spilled(&line.name) {
            self.end_detached(&line.name);
        }
        self.unsettled.lock().remove(&line.name);
    }

    /// Appends the detached entries of the session in memory. Returns false at a finished path that waits for pictures, if `waits`.
    pub(super) async fn append_detached(
        &self,
        line: &Line,
        known: &mut ListCache,
        waits: bool,
    ) -> Result<Result<bool, Outdated>, LedgerError> {
        while known.is_detached() && known.log.len() > known.confirmed() {
            let from = known.confirmed();
            let until = known.log.len().min(from + STEP);
            let (mut entries, mut finished, mut turns, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
            for at in from..until {
                if bytes > STEP_BYTES {
                    break;
                }
                let record = known.record(at);
                turns += u64::from(matches!(record.change, Change::Turn(_)));
                if let Change::Finished { leaf, .. } = &record.change {
                    if waits && !self.may_publish(line, known) {
                        break;
                    }
                    let leaf = known.session.as_ref().and_then(|session| Some(session.turn(*leaf)?.about.uid));
                    finished.extend(leaf);
                }
                let entry = entry(known.log[at].uid, &record)?;
                bytes += entry.body.len();
                entries.push(entry);
            }
            if entries.is_empty() {
                return Ok(Ok(false));
            }
            let Ok(replicated) = self.append(line, known, &entries, finished, true).await? else {
                return Ok(Err(Outdated));
            };
            // until replicas have them, this process and its local log keep them as detached
            known.is_unconfirmed |= !replicated;
            known.position = Position::after(known.position, &entries);
            self.counts.joined.fetch_add(turns, Ordering::Relaxed);
        }
        Ok(Ok(true))
    }

    /// Appends the changes that other entries took the place of. Returns false at a finished path that waits for pictures, if `waits`.
    async fn append_missing(
        &self,
        line: &Line,
        known: &mut ListCache,
        waits: bool,
    ) -> Result<Result<bool, Outdated>, LedgerError> {
        while let Some(first) = known.missing.front() {
            if waits && matches!(first.change, MissingChange::Finished(_)) && !self.may_publish(line, known) {
                return Ok(Ok(false));
            }
            let Some(next) = known.missing.front() else { break };
            let uid = next.uid;
            let session = known.session.clone().expect("a list has a first entry");
            let record = self.record_of(&session, known.confirmed() as u64, &next.change);
            let Some((record, finished)) = record else {
                // a path that does not finish again is in the stream
                let is_lost = !matches!(next.change, MissingChange::Finished(_));
                self.counts.unhealed.fetch_add(is_lost.into(), Ordering::Relaxed);
                known.missing.pop_front();
                continue;
            };
            let entry = entry(uid, &record)?;
            let entries = [entry];
            let Ok(replicated) = self.append(line, known, &entries, finished, true).await? else {
                return Ok(Err(Outdated));
            };
            known.is_unconfirmed |= !replicated;
            let turns = u64::from(matches!(record.change, Change::Turn(_)));
            self.counts.joined.fetch_add(turns, Ordering::Relaxed);
            // removes it from the missing changes
            self.apply(line, known, uid, record)?;
            known.position = Position::after(known.position, &entries);
        }
        Ok(Ok(true))
    }

    /// The record of a missing change after `length` entries, and the uid of the last turn of a path that it finishes. `None` if it cannot
    /// be applied any more.
    fn record_of(&self, session: &Arc<Session>, length: u64, change: &MissingChange) -> Option<(Record, Vec<Uid>)> {
        // locked before the state
        let publication = session.publication.lock();
        let mut state = session.state();
        let id = |uid: Uid| state.forest.turns().iter().rev().find(|turn| turn.about.uid == uid).map(|turn| turn.id);
        let mut finished = Vec::new();
        let change = match change {
            MissingChange::Healed => Change::Healed,
            MissingChange::Turn(draft) => {
                let mut draft = (**draft).clone();
                // the values in the list may be newer
                draft.about.tags = draft.about.tags.absent_from(&state.tags);
                Change::Turn(Arc::new(session.place(&mut state, draft)))
            }
            MissingChange::Reward { scope, value } => {
                let scope = scope.rename(id)?;
                let (reward, version) = (Arc::clone(value), state.rewarded_version(scope).ok()?);
                if state.rewards.has(version, scope) {
                    // a later one replaced it
                    return None;
                }
                Change::Reward { scope, reward, version }
            }
            MissingChange::Incomplete => Change::Incomplete,
            MissingChange::ResponseDeleted(uid) => Change::ResponseDeleted { turn: id(*uid)? },
            MissingChange::Scored(uid, scores) => {
                let scores = Scores { turn: id(*uid)?, ..Scores::clone(scores) };
                // later ones replaced them, or would lose a column
                let is_replaced = |stored: &Arc<Scores>| stored.covers(&scores) || !scores.covers(stored);
                if state.scores.get(&scores).is_some_and(is_replaced) {
                    return None;
                }
                Change::Scored(Arc::new(scores))
            }
            MissingChange::Tags(tags) => {
                // the same holds for these
                let merged = state.tags.merged(&tags.absent_from(&state.tags))?;
                state.changes_tags(&merged).ok()?;
                Change::Tags(merged)
            }
            MissingChange::Finished(uid) => {
                let (leaf, turns) = (id(*uid)?, state.forest.next_id());
                if publication.has(leaf) {
                    // another process has finished it
                    return None;
                }
                finished.push(*uid);
                Change::Finished { leaf, turns, number: length }
            }
        };
        Some((session.record(change), finished))
    }
}
