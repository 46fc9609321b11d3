// SPDX-License-Identifier: Apache-2.0
//! Appends a session of one process, which was restored from its local log, to the ledger.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::missing::recorded_at;
use super::{SharedLedger, Sharing, SharingLimits};
use crate::session::ledger::{Change, Ledger, LedgerError, Position, Record, SharedLog};
use crate::session::state::Session;
use crate::session::store::NoObserver;
use crate::session::store::{Store, StoreLimits};
use crate::session::{Tags, Uid};

/// The outcome of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Imported {
    /// It was appended, or the rest of it after an import that was interrupted.
    Appended,
    /// The ledger has all of it.
    Present,
    /// Nothing was appended.
    Skipped(SkipReason),
}

/// Why a session was not imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SkipReason {
    /// A tokentap that shares the ledger has deleted it.
    #[error("it was deleted from the ledger")]
    Deleted,
    /// Another session has its name.
    #[error("the ledger has another session of this name")]
    NameTaken,
    /// The ledger has a part of it that other entries follow.
    #[error("the ledger has this session with other turns or rewards")]
    Differs,
}

/// Appends sessions to a ledger.
#[derive(Debug)]
pub struct Importer(Sharing);

impl Importer {
    /// An importer whose appends take this long at most.
    #[must_use]
    pub fn new(ledger: Arc<dyn Ledger>, timeout: Duration) -> Self {
        let store = Store::cache(StoreLimits::UNLIMITED, SharedLog::default(), Arc::new(NoObserver));
        Self(Sharing::new(
            Arc::new(store),
            SharedLedger { ledger, limits: SharingLimits { timeout, idle: Duration::MAX } },
        ))
    }

    /// The pictures that had no room in the ledger.
    #[must_use]
    pub fn refused_images(&self) -> u64 {
        self.0.counts.images_refused.load(Ordering::Relaxed)
    }

    /// Appends a session under its uids, after the pictures that the ledger lacks. Importing it again appends nothing.
    ///
    /// # Errors
    /// When the ledger fails, or replicas do not confirm in time. A part of the session may be in the ledger; importing it again appends
    /// the rest.
    pub async fn import(&self, source: &Session) -> Result<Imported, LedgerError> {
        let sharing = &self.0;
        let records = source.records();
        let birth = records[0].0;
        let line = sharing.line(&source.id);
        let mut known = line.known.lock().await;
        let suspicion = sharing.suspicion();
        let imported = loop {
            let list = sharing.fetch_all(&line).await?;
            let same = records.iter().zip(&list).take_while(|((uid, _), entry)| *uid == entry.uid).count();
            if list.is_empty()
                && let Some((deleted, at)) = sharing.deletion(&line).await?
                && (deleted == birth || source.latest(1).iter().all(|last| recorded_at(&last.about) <= at))
            {
                break Imported::Skipped(SkipReason::Deleted);
            }
            if same < list.len() && same < records.len() {
                let is_same_session = list[0].uid == birth;
                break Imported::Skipped(if is_same_session { SkipReason::Differs } else { SkipReason::NameTaken });
            }
            // also those of a session that an earlier import appended. A path must not be in the ledger before its pictures
            let images = source.state().images.clone();
            sharing.put_images(birth, &images, u64::MAX).await?;
            if same == records.len() {
                break Imported::Present;
            }
            if known.log.is_empty() {
                for (uid, record) in &records {
                    sharing.apply(&line, &mut known, *uid, record.clone())?;
                }
            }
            known.position = Position::after(None, &list);
            if sharing.append_detached(&line, &mut known, false).await?.is_ok() {
                break Imported::Appended;
            }
        };
        if let Some(session) = std::mem::take(&mut *known).session {
            sharing.store.remove_session(&session);
        }
        if !matches!(imported, Imported::Skipped(_)) {
            // also after an import that was interrupted
            sharing.replicated(&line, suspicion).await?;
        }
        Ok(imported)
    }
}

impl Session {
    /// The records whose fold is this session, with their uids. The uids that the log does not have depend on the session, on the place
    /// of the record and on its content only, so that those of an import that is repeated are the same.
    fn records(&self) -> Vec<(Uid, Record)> {
        let birth = self.birth;
        let count = self.state().forest.next_id();
        let turns = self.turns(count);
        let state = self.state();
        let mut changes = vec![(Some(birth), Change::Begin { created_ms: state.created_ms })];
        let mut version = 1;
        let frozen = state.frozen.iter().map(|turns| (*turns, true));
        let mut from = 0;
        for (until, is_frozen) in frozen.chain([(count, false)]) {
            for known in &turns[from..until as usize] {
                changes.push((Some(known.about.uid), Change::Turn(Arc::clone(known))));
            }
            from = until as usize;
            if state.incomplete == Some(version) {
                changes.push((None, Change::Incomplete));
            }
            if is_frozen {
                changes.push((None, Change::Freeze { turns: until }));
                version += 1;
            }
        }
        changes.extend(state.rewards.all().map(|reward| {
            let (scope, version, reward) = (reward.scope, reward.version, Arc::clone(&reward.value));
            (None, Change::Reward { scope, reward, version })
        }));
        let of_calls = turns.iter().fold(Tags::default(), |tags, turn| tags.merged(&turn.about.tags).unwrap_or(tags));
        if of_calls != state.tags {
            changes.push((None, Change::Tags(state.tags.clone())));
        }
        changes.extend(state.scores.all().map(|scores| (None, Change::Scored(Arc::clone(scores)))));
        let mut deleted: Vec<u32> = state.deleted_responses.iter().copied().collect();
        deleted.sort_unstable();
        changes.extend(deleted.into_iter().map(|turn| (None, Change::ResponseDeleted { turn })));
        for path in &state.finished {
            // its number in a list is its place
            let (leaf, turns, number) = (path.leaf, path.turns, changes.len() as u64);
            changes.push((None, Change::Finished { leaf, turns, number }));
        }
        let with_uid = |(at, (uid, change)): (usize, (Option<Uid>, Change))| {
            let record = self.record(change);
            let derived = || {
                let mut body = Vec::new();
                // one that cannot be encoded fails when it is appended
                let _ = record.encode(&mut body);
                birth.derive(&[&(at as u64).to_be_bytes(), &body])
            };
            (uid.unwrap_or_else(derived), record)
        };
        changes.into_iter().enumerate().map(with_uid).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::images::Image;
    use crate::session::ledger::memory::MemoryLedger;
    use crate::session::tests::{BOUNDLESS, draft, shared, store, turn};
    use crate::session::{Call, Fault, PromptImages, RewardScope};

    /// A session with branches, two frozen versions, rewards, a mark and finished paths.
    fn recorded() -> Arc<Session> {
        let store = store(BOUNDLESS);
        turn(&store, "s", &[1], &[2]);
        turn(&store, "s", &[1, 2, 3], &[4]);
        let session = store.session("s").expect("it has turns");
        store.memory().reward(&session, RewardScope::Leaf(1), json!(0.5)).expect("it is open");
        store.memory().reward(&session, RewardScope::Turn(0), json!(0.25)).expect("it is open");
        let tags = Tags::parse_list(b"step=17,task=gsm8k").expect("they are valid");
        store.memory().set_tags(&session, &tags).expect("it is open");
        store.memory().freeze(&session).expect("it exists");
        turn(&store, "s", &[1, 7], &[8]);
        store.mark_incomplete(&"s".into());
        store.memory().reward(&session, RewardScope::Session, json!({"score": 1})).expect("it is open");
        store.memory().freeze(&session).expect("it exists");
        turn(&store, "s", &[1, 2, 9], &[4]);
        assert!(store.delete_response(&session, 1).is_some());
        session
    }

    async fn import(ledger: &Arc<MemoryLedger>, session: &Session) -> Result<Imported, LedgerError> {
        Importer::new(Arc::clone(ledger) as _, Duration::from_secs(2)).import(session).await
    }

    #[tokio::test(start_paused = true)]
    async fn imported_session_is_read_as_it_was() {
        let (ledger, session) = (Arc::new(MemoryLedger::new()), recorded());
        assert_eq!(import(&ledger, &session).await, Ok(Imported::Appended));
        let listed = ledger.state().lists["s"].clone();
        assert_eq!(import(&ledger, &session).await, Ok(Imported::Present));
        assert_eq!(ledger.state().lists["s"], listed, "a second import adds nothing");
        let reader = shared(&ledger, Duration::MAX);
        reader.refresh(["s"]).await.expect("the ledger works");
        let read = reader.session("s").expect("it is in the ledger");
        assert_eq!(read.birth, session.birth);
        // the start of a restored session is that of its first turn
        assert_eq!(read.records()[1..], session.records()[1..]);
        assert_eq!(read.extent(), session.extent());
        let finished = ledger.state().finished.values().map(Vec::len).sum::<usize>();
        assert_eq!(finished, session.state().finished.len());
        assert!(finished > 0 && session.state().incomplete == Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn imported_session_has_its_pictures() {
        let (ledger, store) = (Arc::new(MemoryLedger::new()), store(BOUNDLESS));
        let picture = Image::new(vec![1; 5000].into());
        let mut draft = draft(&[1, 9], &[2]);
        let image = (Arc::new(picture.clone()), 1..2);
        draft.about.images = Some(Box::new(PromptImages::new(&[1, 9], [image])));
        Call::new(Arc::clone(&store), "s".into()).commit(draft).1.await.expect("there is no log");
        let session = store.session("s").expect("it has a turn");
        assert_eq!(import(&ledger, &session).await, Ok(Imported::Appended));
        assert!(ledger.state().lists["s"].iter().all(|entry| entry.body.len() < 1000), "entries have references");
        let reader = shared(&ledger, Duration::MAX);
        reader.refresh(["s"]).await.expect("the ledger works");
        let read = reader.session("s").and_then(|session| session.image(picture.digest));
        assert_eq!(read.and_then(|image| image.bytes.clone()), picture.bytes);
    }

    #[tokio::test(start_paused = true)]
    async fn import_that_is_repeated_stores_pictures_that_the_ledger_lacks() {
        let (ledger, store) = (Arc::new(MemoryLedger::new()), store(BOUNDLESS));
        let picture = Image::new(vec![1; 5000].into());
        let mut draft = draft(&[1, 9], &[2]);
        draft.about.images = Some(Box::new(PromptImages::new(&[1, 9], [(Arc::new(picture.clone()), 1..2)])));
        Call::new(Arc::clone(&store), "s".into()).commit(draft).1.await.expect("there is no log");
        let session = store.session("s").expect("it has a turn");
        let failure = LedgerError::Unavailable("it is down".into());
        *ledger.image_failure.lock() = Some(failure.clone());
        assert_eq!(import(&ledger, &session).await, Err(failure));
        assert!(ledger.state().lists.is_empty(), "the pictures come first");
        *ledger.image_failure.lock() = None;
        ledger.image_limit.store(0, Ordering::Relaxed);
        let importer = Importer::new(Arc::clone(&ledger) as _, Duration::from_secs(2));
        assert_eq!(importer.import(&session).await, Ok(Imported::Appended));
        assert_eq!((importer.refused_images(), ledger.state().images.len()), (1, 0));
        ledger.image_limit.store(u64::MAX, Ordering::Relaxed);
        let importer = Importer::new(Arc::clone(&ledger) as _, Duration::from_secs(2));
        assert_eq!(importer.import(&session).await, Ok(Imported::Present));
        assert_eq!(importer.refused_images(), 0);
        assert!(ledger.state().images.contains_key(&picture.digest));
    }

    #[tokio::test(start_paused = true)]
    async fn interrupted_import_is_continued() {
        let (ledger, session) = (Arc::new(MemoryLedger::new()), recorded());
        import(&ledger, &session).await.expect("the ledger works");
        let whole = ledger.state().lists["s"].clone();
        for length in 1..whole.len() {
            ledger.state().lists.insert("s".into(), whole[..length].to_vec());
            assert_eq!(import(&ledger, &session).await, Ok(Imported::Appended), "after {length} entries");
            assert_eq!(ledger.state().lists["s"], whole, "after {length} entries");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn session_that_the_ledger_has_otherwise_is_skipped() {
        let (ledger, session) = (Arc::new(MemoryLedger::new()), recorded());
        let skipped = |reason| Ok(Imported::Skipped(reason));
        import(&ledger, &session).await.expect("the ledger works");
        assert_eq!(import(&ledger, &recorded()).await, skipped(SkipReason::NameTaken));
        let whole = ledger.state().lists["s"].clone();
        ledger.state().lists.insert("s".into(), [&whole[..2], &whole[3..4]].concat());
        let listed = ledger.state().lists["s"].clone();
        assert_eq!(import(&ledger, &session).await, skipped(SkipReason::Differs));
        assert_eq!(ledger.state().lists["s"], listed, "nothing was appended");
        ledger.state().lists.insert("s".into(), whole);
        let fleet = shared(&ledger, Duration::MAX);
        assert_eq!(fleet.sharing().delete(&"s".into()).await, Ok(true));
        assert_eq!(import(&ledger, &session).await, skipped(SkipReason::Deleted));
        assert!(ledger.state().lists.is_empty(), "it stays deleted");
    }

    #[tokio::test(start_paused = true)]
    async fn session_with_missing_turns_is_imported_with_their_places() {
        let (ledger, source) = (Arc::new(MemoryLedger::new()), store(BOUNDLESS));
        for (at, (_, record)) in recorded().records().into_iter().enumerate() {
            // a damaged record
            if at != 2 {
                source.restore(record);
            }
        }
        let session = source.session("s").expect("it is restored");
        assert!(session.state().forest.has(Fault::Lost));
        assert_eq!(import(&ledger, &session).await, Ok(Imported::Appended));
        assert_eq!(import(&ledger, &session).await, Ok(Imported::Present));
        let reader = shared(&ledger, Duration::MAX);
        reader.refresh(["s"]).await.expect("the ledger works");
        assert_eq!(reader.session("s").expect("it is in the ledger").records(), session.records());
    }
}
