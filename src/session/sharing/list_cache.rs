// SPDX-License-Identifier: Apache-2.0
//! The cache of a session's list, and how it reads further entries.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::image_sync::ImageSync;
use super::missing::Missing;
use super::{Line, Sharing};
use crate::session::ledger::{Change, Entry, LedgerError, Position, Record, Tail};
use crate::session::state::Session;
use crate::session::{Turn, Uid};

/// Entries that are decoded on the caller's thread.
const FEW: usize = 16;

/// The cache of a session's list.
#[derive(Debug, Default)]
pub(super) struct ListCache {
    /// The session in memory: the fold of `log`. `None` without entries.
    pub session: Option<Arc<Session>>,
    /// The entries of the list that were read or appended; `None` if the list is not known to exist.
    pub position: Option<Position>,
    /// Those entries, then the detached ones.
    pub log: Vec<CachedEntry>,
    /// Detached changes that the session in memory lacks, because other entries took their place.
    pub missing: VecDeque<Missing>,
    /// The primary has entries that replicas did not confirm in time. They may be lost with the primary, also without a disruption that
    /// this process notices.
    pub is_unconfirmed: bool,
    /// The suspicion up to which the list was compared.
    pub checked: u64,
    /// The pictures of the session.
    pub images: ImageSync,
}

/// An entry of a list.
#[derive(Debug)]
pub(super) struct CachedEntry {
    pub uid: Uid,
    pub change: CachedChange,
    /// When this process recorded or read it.
    pub at: Instant,
}

/// The change of an entry. Its record is encoded again on demand.
#[derive(Debug)]
pub(super) enum CachedChange {
    /// The turn with this number.
    Turn(u32),
    /// Any other change.
    Other(Box<Change>),
}

impl ListCache {
    /// Entries of `log` that are in the ledger.
    pub(super) fn confirmed(&self) -> usize {
        self.position.map_or(0, |position| usize::try_from(position.length).expect("they are in memory"))
    }

    /// Whether changes are not in the ledger. A session that only begins here is not a change.
    pub(super) fn is_detached(&self) -> bool {
        let unappended = self.log.len() - self.confirmed();
        !self.missing.is_empty() || unappended > usize::from(self.position.is_none())
    }

    /// Drops a session that was evicted from memory. Its missing changes are still to be appended.
    pub(super) fn forget_removed(&mut self) {
        if self.session.as_ref().is_some_and(|session| session.state().removed) {
            let missing = std::mem::take(&mut self.missing);
            *self = Self { checked: self.checked, missing, ..Self::default() };
        }
    }

    /// Notes an entry that follows all others.
    pub(super) fn push(&mut self, uid: Uid, change: Change) {
        let change = match change {
            Change::Turn(turn) => CachedChange::Turn(turn.id),
            other => CachedChange::Other(Box::new(other)),
        };
        self.log.push(CachedEntry { uid, change, at: Instant::now() });
    }

    /// The turn with this uid. The latest ones are searched first.
    pub(super) fn turn(&self, uid: Uid) -> Option<Arc<Turn>> {
        let logged = self.log.iter().rev().find(|logged| logged.uid == uid)?;
        match &logged.change {
            CachedChange::Turn(id) => self.session.as_ref()?.turn(*id),
            CachedChange::Other(_) => None,
        }
    }

    /// The record of an entry.
    pub(super) fn record(&self, at: usize) -> Record {
        let session = self.session.as_ref().expect("entries belong to a session");
        session.record(match &self.log[at].change {
            CachedChange::Turn(id) => Change::Turn(session.turn(*id).expect("turns are only ever added")),
            CachedChange::Other(change) => (**change).clone(),
        })
    }
}

/// The entry of a record. It has references to pictures.
pub(super) fn entry(uid: Uid, record: &Record) -> Result<Entry, LedgerError> {
    let mut body = Vec::new();
    let encoded = record.without_image_bytes().encode(&mut body);
    encoded.map_err(|error| LedgerError::Refused(format!("a record cannot be encoded: {error}").into()))?;
    Ok(Entry { uid, body: body.into() })
}

fn decode(entries: &[Entry]) -> Result<Vec<Record>, LedgerError> {
    let unreadable = |entry: &Entry| {
        LedgerError::Unreadable(format!("entry {} is damaged, or of another build of tokentap", entry.uid).into())
    };
    let decoded = |entry: &Entry| Record::decode(&entry.body).filter(Record::is_plausible);
    entries.iter().map(|entry| decoded(entry).ok_or_else(|| unreadable(entry))).collect()
}

impl Sharing {
    /// Reads the entries that other processes have appended. The session may be replaced by another one.
    pub(super) async fn load(&self, line: &Line, known: &mut ListCache) -> Result<(), LedgerError> {
        known.forget_removed();
        let suspicion = self.suspicion();
        loop {
            let Some(tail) = self.ledger.fetch(&line.name, known.position).await? else {
                self.list_is_absent(line, known).await?;
                break;
            };
            let length = tail.length;
            if tail.start != known.confirmed() as u64 || !self.follow(line, known, tail.entries).await? {
                self.merge(line, known).await?;
                break;
            }
            if known.confirmed() as u64 >= length {
                break;
            }
        }
        known.checked = suspicion;
        if let Some(session) = &known.session {
            // the caller uses it, so it is not the next one to be evicted
            self.store.touch(session, Instant::now());
        }
        Ok(())
    }

    /// All entries of a list; none if it does not exist.
    pub(super) async fn fetch_all(&self, line: &Line) -> Result<Vec<Entry>, LedgerError> {
        let (mut all, mut position) = (Vec::new(), None);
        loop {
            let Some(Tail { start, length, entries }) = self.ledger.fetch(&line.name, position).await? else {
                return Ok(Vec::new());
            };
            // it was replaced between two parts
            if start != all.len() as u64 {
                (all, position) = (Vec::new(), None);
                if start != 0 {
                    continue;
                }
            }
            position = Position::after(position, &entries);
            all.extend(entries);
            if all.len() as u64 >= length {
                return Ok(all);
            }
        }
    }

    /// Applies entries that follow the confirmed ones. Returns false, and stops, at one that contradicts a detached entry.
    pub(super) async fn follow(
        &self,
        line: &Line,
        known: &mut ListCache,
        entries: Vec<Entry>,
    ) -> Result<bool, LedgerError> {
        let own = known.log[known.confirmed()..].iter();
        let same = own.zip(&entries).take_while(|(own, entry)| own.uid == entry.uid).count();
        // an append without an answer may have reached the primary only
        known.is_unconfirmed |= same > 0;
        known.position = Position::after(known.position, &entries[..same]);
        let new = entries[same..].to_vec();
        if new.is_empty() {
            return Ok(true);
        }
        if known.log.len() > known.confirmed() {
            return Ok(false);
        }
        let records = if new.len() > FEW {
            let entries = new.clone();
            let decoding = tokio::task::spawn_blocking(move || decode(&entries));
            decoding.await.map_err(|error| LedgerError::Unreadable(error.to_string().into()))??
        } else {
            decode(&new)?
        };
        for (entry, record) in new.into_iter().zip(records) {
            known.is_unconfirmed |= known.missing.iter().any(|missing| missing.uid == entry.uid);
            self.apply(line, known, entry.uid, record)?;
            known.position = Position::after(known.position, &[entry]);
        }
        Ok(true)
    }

    /// Applies a record that follows all entries to the session in memory.
    pub(super) fn apply(
        &self,
        line: &Line,
        known: &mut ListCache,
        uid: Uid,
        record: Record,
    ) -> Result<(), LedgerError> {
        let change = record.change;
        let session = match (&known.session, &change) {
            (None, Change::Begin { .. }) => {
                let session = self.store.session_of(&line.name, uid);
                // it must not be evicted until its missing changes are applied and replicas have confirmed them
                if !known.missing.is_empty() || known.is_unconfirmed {
                    self.set_detached(&session, true);
                }
                known.session = Some(Arc::clone(&session));
                session
            }
            (Some(session), change) if is_next(session, change) => Arc::clone(session),
            _ => return Err(LedgerError::Unreadable(format!("entry {uid} does not fit the entries before it").into())),
        };
        known.missing.retain(|missing| missing.uid != uid);
        if let Change::Turn(turn) = &change {
            known.images.note_references(turn, &session.state().images);
        }
        known.push(uid, change.clone());
        let bytes = session.apply(change, 0, &self.store.images);
        self.add_bytes(&session, bytes);
        Ok(())
    }
}

/// Whether a turn has the next number. Changes of other kinds name turns that exist.
fn is_next(session: &Session, change: &Change) -> bool {
    let turns = session.state().forest.next_id();
    match change {
        Change::Begin { .. } => false,
        Change::Turn(turn) => {
            let Turn { id, parent, .. } = &**turn;
            *id == turns && parent.is_none_or(|parent| parent < turns)
        }
        Change::Freeze { turns: frozen } => *frozen <= turns,
        Change::Reward { scope, .. } => scope.turn().is_none_or(|turn| turn < turns),
        Change::ResponseDeleted { turn } => *turn < turns,
        Change::Scored(scores) => scores.turn < turns,
        Change::Finished { leaf, turns: counted, .. } => leaf < counted && *counted <= turns,
        _ => true,
    }
}
