// SPDX-License-Identifier: Apache-2.0
//! The pictures of shared sessions.
//!
//! The entries of a list have references. The ledger has the bytes of each picture once for all sessions, within a limit. They are stored before the
//! entry of the turn that brings them, and read with the session. A picture that the ledger refuses or loses stays a reference in other processes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};

use super::image_sync::{AT_ONCE, LONGEST_WAIT, key};
use super::list_cache::ListCache;
use super::{Line, Sharing};
use crate::images::Image;
use crate::session::ledger::{IMAGE_OVERHEAD, ImageKey, LedgerError, sending_time};
use crate::session::state::Session;
use crate::session::store::ImageStore;
use crate::session::turn::SessionImages;
use crate::session::{Draft, Turn, Uid};

/// How long pictures are neither stored nor read after a failure.
const PAUSE: Duration = Duration::from_secs(10);

/// A failure of the ledger to store or to read pictures.
#[derive(Debug, Clone, Copy)]
pub(super) struct ImagesFailing {
    since: Instant,
    paused_until: Instant,
}

impl Sharing {
    /// Stores the pictures of a turn that is to be appended, if they take little time. The background stores the others, and marks those of
    /// the session as used. Never fails: the entries are appended in any case.
    pub(super) async fn share_new_images(&self, line: &Line, known: &mut ListCache, turn: &Turn) {
        let Some(session) = known.session.clone() else { return };
        let suspicion = self.suspicion();
        let (new, are_all) = {
            let state = session.state();
            let own = turn.about.images.iter().flat_map(|images| &images.list).map(|image| &image.image);
            let own = own.filter(|image| !state.images.contains_key(&image.digest));
            let new: SessionImages = own.map(|image| (image.digest, Arc::clone(image))).collect();
            (new, state.images.is_empty() && known.images.unread().next().is_none())
        };
        if !new.is_empty() {
            let limit = self.limits.timeout / 2;
            // half of what is expected to be stored in this time
            let most = self.most_bytes() / 4;
            let stored = match self.are_images_paused() {
                true => Err(LedgerError::Unavailable("it failed a moment ago".into())),
                false => timeout(limit, self.put_images(session.birth, &new, most))
                    .await
                    .unwrap_or(Err(LedgerError::Timeout(limit)))
                    .inspect_err(|error| self.pause_images(error)),
            };
            match stored {
                Ok(true) if are_all => known.images.note_shared(suspicion),
                Ok(true) => {}
                Ok(false) | Err(_) => {
                    // unless the memory is full of them, the session stays until they are stored
                    known.images.is_failed |= !self.is_full_of_detached();
                    known.images.forget_shared();
                }
            }
        }
        self.note_images(line, known);
    }

    /// Notes that the pictures of a session are to be stored or marked as used, if it is time, so that they outlive the list.
    /// Returns whether it is.
    pub(super) fn note_images(&self, line: &Line, known: &ListCache) -> bool {
        let suspicion = self.suspicion();
        let has_images = || {
            let is_known = |session: &Arc<Session>| !session.state().images.is_empty();
            known.images.unread().next().is_some() || known.session.as_ref().is_some_and(is_known)
        };
        let is_due =
            known.images.is_failed || (!known.images.is_shared(self.store.limits.ttl / 4, suspicion) && has_images());
        if is_due {
            self.due_images.lock().insert(Arc::clone(&line.name));
        }
        is_due
    }

    /// Stores the pictures of the sessions that are noted, and marks them as used, in the background.
    pub(in crate::session) async fn share_due_images(&self) {
        let mut names: Vec<Arc<str>> = self.due_images.lock().iter().map(Arc::clone).collect();
        // a session that fails each time must not keep those after it from being stored
        if let Some(last) = &*self.last_due_images.lock() {
            let next = names.partition_point(|name| name <= last);
            names.rotate_left(next);
        }
        for name in names {
            if self.are_images_paused() {
                return;
            }
            if self.is_down(&name) {
                continue;
            }
            *self.last_due_images.lock() = Some(Arc::clone(&name));
            let turns = self.share_images(&name).await;
            let line = self.line(&name);
            // other processes may have stored those that this one lacks
            let _ = self.read_images(&line).await;
            // publishes paths that waited for the pictures
            if let Some(turns) = turns
                && self.finish_before(&name, Some(turns)).await.is_err()
            {
                let images = &mut line.known.lock().await.images;
                images.finish_due = images.finish_due.max(Some(turns));
                self.due_images.lock().insert(name);
            }
        }
    }

    /// The background does not wait for pictures that failed a moment ago any longer.
    pub(in crate::session) fn end_pause_of_images(&self) {
        if let Some(failing) = &mut *self.images_failing.lock() {
            failing.paused_until = Instant::now();
        }
    }

    /// Stores the pictures of a session, and marks them as used. Each picture has a time limit by its size, in which turns do not wait.
    /// Returns the number of turns whose paths are to be finished, if any are.
    async fn share_images(&self, name: &Arc<str>) -> Option<u32> {
        let line = self.line(name);
        let of = |session: &Arc<Session>, known: &ListCache| {
            let references = known.images.unread().map(Arc::clone);
            // the bytes come last, in place of a reference
            let state = session.state();
            let images = references.chain(state.images.values().map(Arc::clone));
            images.map(|image| (image.digest, image)).collect::<SessionImages>()
        };
        let (birth, suspicion, images) = {
            let known = line.known.lock().await;
            self.due_images.lock().remove(name);
            let session = known.session.as_ref()?;
            (session.birth, self.suspicion(), of(session, &known))
        };
        let stored = self.put_images(birth, &images, u64::MAX).await.inspect_err(|error| self.pause_images(error));
        let mut known = line.known.lock().await;
        let session = known.session.clone().filter(|session| session.birth == birth)?;
        let is_complete = stored.is_ok() && of(&session, &known).keys().all(|digest| images.contains_key(digest));
        known.images.is_failed &= !is_complete && !self.is_full_of_detached();
        if is_complete {
            known.images.note_shared(suspicion);
            let is_settled = !known.is_detached() && !known.is_unconfirmed;
            if is_settled && self.unsettled.lock().contains(name) {
                self.end_unsettled(&line, &known);
            }
        } else {
            self.due_images.lock().insert(Arc::clone(name));
        }
        // it is noted again if they are not settled
        known.images.finish_due.take()
    }

    /// Reads the pictures that keep paths from being finished. Returns whether none is left; otherwise the background finishes the paths.
    pub(super) async fn settle_images(&self, name: &Arc<str>) -> bool {
        let line = self.line(name);
        // those that cannot be read now may be read later
        let _ = self.read_images(&line).await;
        let is_settled = line.known.lock().await.images.is_settled();
        if !is_settled {
            self.due_images.lock().insert(Arc::clone(name));
        }
        is_settled
    }

    /// Stores pictures that the ledger lacks, as far as they have room, and at most `most` bytes. Returns whether none was left out for
    /// that limit.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(super) async fn put_images(
        &self,
        session: Uid,
        images: &SessionImages,
        most: u64,
    ) -> Result<bool, LedgerError> {
        let (images, mut left): (Vec<_>, u64) = (images.values().collect(), most);
        let mut is_complete = true;
        for some in images.chunks(AT_ONCE) {
            let keys = some.iter().map(|image| key(image)).collect();
            let held = within(self.limits.timeout, self.ledger.hold_images(session, keys)).await?;
            let mut free = held.free;
            for (image, is_present) in some.iter().zip(held.present) {
                let Some(bytes) = image.bytes.as_ref().filter(|_| !is_present) else { continue };
                let size = image.size.saturating_add(IMAGE_OVERHEAD);
                // one without room need not be sent
                let has_room = size <= free;
                if has_room && image.size > left {
                    is_complete = false;
                    continue;
                }
                let limit = self.limits.timeout + sending_time(image.size);
                let is_stored =
                    has_room && within(limit, self.ledger.put_image(session, key(image), bytes.clone())).await?;
                if is_stored {
                    (free, left) = (free - size, left - image.size);
                    count(&self.counts.images_stored);
                } else if count(&self.counts.images_refused) == 0 {
                    tracing::warn!(
                        "the ledger has no room for further pictures: other tokentaps have references, see --ledger-image-bytes"
                    );
                }
            }
        }
        *self.images_failing.lock() = None;
        Ok(is_complete)
    }

    /// Reads the pictures of a session of which other processes have appended references. Turns do not wait for it.
    ///
    /// # Errors
    /// When the ledger fails. The pictures that were read before are in memory.
    pub(super) async fn read_images(&self, line: &Line) -> Result<(), LedgerError> {
        let mut last = None;
        loop {
            let next = {
                let mut known = line.known.lock().await;
                let images = &mut known.images;
                if last.is_none() && !images.has_unread() {
                    return Ok(());
                }
                let next = images.next_unread(last);
                if next.is_empty() {
                    self.counts.images_absent.fetch_add(images.note_absent(), Ordering::Relaxed);
                    return Ok(());
                }
                next
            };
            if self.are_images_paused() {
                return Err(LedgerError::Unavailable("its pictures could not be read a moment ago".into()));
            }
            let (count, size) = (next.len(), next.iter().map(|image| image.size).sum());
            let limit = self.limits.timeout + sending_time(size);
            let read = within(limit, self.ledger.images(next.clone())).await;
            let read = read.inspect_err(|error| self.pause_images(error))?;
            if read.is_empty() || read.len() > count {
                return Err(LedgerError::Unreadable("it returns other pictures than it was asked for".into()));
            }
            last = Some(next[read.len() - 1].digest);
            let verified = tokio::task::spawn_blocking(move || verify(&next, read)).await;
            let (found, damaged) = verified.map_err(|error| LedgerError::Unreadable(error.to_string().into()))?;
            *self.images_failing.lock() = None;
            if let Some(first) = damaged.first() {
                let (count, digest) = (damaged.len(), first.digest.to_string());
                tracing::error!(
                    count,
                    digest,
                    "the ledger has other bytes under the digests of pictures: they are removed"
                );
                // a process that has the pictures stores them again
                self.release_images(None, &damaged).await;
            }
            self.counts.images_read.fetch_add(found.len() as u64, Ordering::Relaxed);
            self.supply_images(&mut *line.known.lock().await, &found);
        }
    }

    /// Gives references of a session the bytes of pictures.
    pub(super) fn supply_images(&self, known: &mut ListCache, images: &SessionImages) {
        let Some(session) = &known.session else { return };
        let turns = images.keys().flat_map(|digest| known.images.take_unread(*digest)).collect();
        session.supply_images(images, turns, &self.store.images);
        // a pinned session counts them
        self.add_bytes(session, 0);
    }

    /// Ends the use of pictures by a deleted session, or by all sessions. Pictures that the ledger does not remove expire.
    pub(super) async fn release_images(&self, session: Option<Uid>, images: &[ImageKey]) {
        let release = async {
            for some in images.chunks(AT_ONCE) {
                if self.are_images_paused() || self.ledger.release_images(session, some.to_vec()).await.is_err() {
                    return;
                }
            }
        };
        // the reply to the deletion waits for it
        let _ = timeout(self.limits.timeout, release).await;
    }

    /// Takes the bytes of pictures of which the session has only the digests from a turn that brings them again: clients send all pictures
    /// of a conversation in each call.
    pub(super) fn take_sent_images(&self, known: &mut ListCache, draft: &Draft) {
        let sent = draft.about.images.iter().flat_map(|images| &images.list).map(|sent| &sent.image);
        let missing = sent.filter(|image| image.bytes.is_some() && known.images.is_unread(image.digest));
        let found: SessionImages = missing.map(|image| (image.digest, Arc::clone(image))).collect();
        if !found.is_empty() {
            self.supply_images(known, &found);
            // the ledger may lack them, too
            known.images.forget_shared();
        }
    }

    fn are_images_paused(&self) -> bool {
        self.images_failing.lock().is_some_and(|failing| Instant::now() < failing.paused_until)
    }

    /// Whether pictures have failed for so long that finished paths are returned without them.
    pub(super) fn are_images_given_up(&self) -> bool {
        self.images_failing.lock().is_some_and(|failing| failing.since.elapsed() >= LONGEST_WAIT)
    }

    /// A failure must not delay each turn.
    fn pause_images(&self, error: &LedgerError) {
        let now = Instant::now();
        let failing = &mut *self.images_failing.lock();
        let since = failing.map_or(now, |failing| failing.since);
        *failing = Some(ImagesFailing { since, paused_until: now + PAUSE });
        if count(&self.counts.images_failed) == 0 {
            tracing::error!(%error, "pictures of shared sessions are neither stored in the ledger nor read");
        }
    }
}

impl ListCache {
    /// The pictures of the session, and of references to further ones.
    pub(super) fn image_keys(&self) -> Vec<ImageKey> {
        let Some(session) = &self.session else { return Vec::new() };
        let state = session.state();
        let references = self.images.unread();
        references.chain(state.images.values()).map(|image| key(image)).collect()
    }
}

impl Session {
    /// Gives the references of some turns their bytes.
    fn supply_images(&self, found: &SessionImages, turns: BTreeSet<u32>, store: &ImageStore) {
        let mut state = self.state();
        if state.removed {
            return;
        }
        let state = &mut *state;
        for id in turns {
            let Some(turn) = state.forest.turn_mut(id) else { continue };
            let Some(images) = &mut Arc::make_mut(turn).about.images else { continue };
            for image in images.list.iter_mut().filter(|image| image.image.bytes.is_none()) {
                if let Some(found) = found.get(&image.image.digest) {
                    image.image = Arc::clone(found);
                }
            }
            store.hold(&mut state.images, images);
        }
    }
}

/// The answer of the ledger, or an error after this time.
async fn within<T>(limit: Duration, answer: impl Future<Output = Result<T, LedgerError>>) -> Result<T, LedgerError> {
    timeout(limit, answer).await.unwrap_or(Err(LedgerError::Timeout(limit)))
}

/// Increments a counter. Returns its value before.
fn count(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed)
}

/// The pictures that were read, and those that are damaged.
fn verify(asked: &[ImageKey], read: Vec<Option<Bytes>>) -> (SessionImages, Vec<ImageKey>) {
    let (mut images, mut damaged) = (SessionImages::new(), Vec::new());
    for (key, bytes) in asked.iter().zip(read) {
        let Some(image) = bytes.map(Image::new) else { continue };
        match image.digest == key.digest {
            true => drop(images.insert(key.digest, Arc::new(image))),
            false => damaged.push(*key),
        }
    }
    (images, damaged)
}

#[cfg(test)]
mod tests {
    use super::super::image_sync::{EXPECTED, FIRST_RETRY, RETRY};
    use super::*;
    use crate::session::ledger::memory::MemoryLedger;
    use crate::session::ledger::{AppendError, Change, PARTITIONS, Record, SharedLog};
    use crate::session::tests::{BOUNDLESS, draft, shared, shared_with};
    use crate::session::{Call, PromptImages, Sessions, StoreLimits};

    /// The bytes of a picture.
    const BYTES: usize = 10_000;

    /// How long unused sessions are kept.
    const TTL: Duration = Duration::from_secs(1000);

    fn picture(content: u8) -> Arc<Image> {
        Arc::new(Image::new(Bytes::from(vec![content; BYTES])))
    }

    /// Commits a turn with a picture, whose tokens follow `ids`.
    async fn turn(store: &Arc<Sessions>, session: &str, ids: &[u32], content: u8) -> Result<(), AppendError> {
        let prompt = [ids, &[9, 9]].concat();
        let start = u32::try_from(ids.len()).unwrap();
        let mut draft = draft(&prompt, &[5]);
        draft.about.images = Some(Box::new(PromptImages::new(&prompt, [(picture(content), start..start + 2)])));
        Call::new(Arc::clone(store), session.into()).commit(draft).1.await
    }

    async fn text(store: &Arc<Sessions>, session: &str, ids: &[u32]) {
        Call::new(Arc::clone(store), session.into()).commit(draft(ids, &[5])).1.await.unwrap();
    }

    /// Whether the pictures of the turns of a session are known, after it was read.
    async fn known(store: &Sessions, session: &str) -> Vec<bool> {
        store.refresh([session]).await.unwrap();
        let session = store.session(session).unwrap();
        let turns = session.latest(usize::MAX).into_iter().rev();
        turns.filter_map(|turn| Some(turn.about.images.as_ref()?.list[0].image.bytes.is_some())).collect()
    }

    fn processes<const N: usize>(ledger: &Arc<MemoryLedger>) -> [Arc<Sessions>; N] {
        [(); N].map(|()| shared(ledger, Duration::MAX))
    }

    fn counted(store: &Sessions, counter: impl Fn(&crate::session::SharingCounts) -> &AtomicU64) -> u64 {
        counter(&store.sharing().counts).load(Ordering::Relaxed)
    }

    fn unavailable() -> LedgerError {
        LedgerError::Unavailable("it is down".into())
    }

    #[tokio::test(start_paused = true)]
    async fn picture_of_two_sessions_is_in_the_ledger_once() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second] = processes(&ledger);
        turn(&first, "a", &[1], 1).await.unwrap();
        turn(&first, "a", &[2], 1).await.unwrap();
        turn(&second, "b", &[1], 1).await.unwrap();
        {
            let state = ledger.state();
            assert_eq!(state.images.keys().collect::<Vec<_>>(), [&picture(1).digest]);
            let entries = state.lists.values().flatten().map(|entry| entry.body.len()).max();
            assert!(entries.unwrap() < BYTES / 4, "entries have references: {entries:?}");
        }
        assert_eq!([&first, &second].map(|store| counted(store, |counts| &counts.images_stored)), [1, 0]);
        assert_eq!(known(&second, "a").await, [true; 2]);
        assert_eq!(known(&first, "b").await, [true]);
        let held = second.session("a").unwrap().image(picture(1).digest).unwrap();
        assert_eq!(held.bytes, picture(1).bytes);
        let bytes = second.size().1;
        assert!((BYTES as u64..2 * BYTES as u64).contains(&bytes), "{bytes}: once in memory");
    }

    #[tokio::test(start_paused = true)]
    async fn reference_gets_the_bytes_that_a_later_call_brings() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second] = processes(&ledger);
        ledger.image_limit.store(0, Ordering::Relaxed);
        turn(&first, "s", &[1], 1).await.unwrap();
        assert_eq!(known(&second, "s").await, [false]);
        // the client sends all pictures of the conversation
        ledger.image_limit.store(u64::MAX, Ordering::Relaxed);
        let mut draft = draft(&[1, 9, 9, 5, 2], &[5]);
        draft.about.images = Some(Box::new(PromptImages::new(&[1, 9, 9, 5, 2], [(picture(1), 1..3)])));
        Call::new(Arc::clone(&second), "s".into()).commit(draft).1.await.unwrap();
        assert_eq!(known(&second, "s").await, [true]);
    }

    #[tokio::test(start_paused = true)]
    async fn picture_beyond_the_limit_is_a_reference_elsewhere() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second] = processes(&ledger);
        ledger.image_limit.store(BYTES as u64 + 2 * IMAGE_OVERHEAD, Ordering::Relaxed);
        turn(&first, "s", &[1], 1).await.unwrap();
        turn(&first, "s", &[2], 2).await.unwrap();
        turn(&first, "s", &[3], 1).await.unwrap();
        assert_eq!(known(&first, "s").await, [true; 3]);
        assert_eq!(known(&second, "s").await, [true, false, true]);
        let image = second.session("s").unwrap().turn(1).unwrap().about.images.as_ref().unwrap().list[0].image.clone();
        assert_eq!((image.digest, image.size), (picture(2).digest, BYTES as u64));
        assert_eq!(counted(&first, |counts| &counts.images_refused), 1);
        assert_eq!(counted(&second, |counts| &counts.images_absent), 1);
        assert!(!first.session("s").unwrap().state().is_detached, "a picture without room is not sent again");
        // the process that has it stores it when there is room, and the other one asks again
        ledger.image_limit.store(u64::MAX, Ordering::Relaxed);
        ledger.disruptions.send_modify(|count| *count += 1);
        text(&first, "s", &[4]).await;
        first.settle().await;
        tokio::time::sleep(RETRY).await;
        assert_eq!(known(&second, "s").await, [true; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn failure_of_pictures_delays_no_turn_and_is_repaired() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second] = processes(&ledger);
        *ledger.image_failure.lock() = Some(unavailable());
        turn(&first, "s", &[1], 1).await.unwrap();
        turn(&first, "s", &[2], 2).await.unwrap();
        assert_eq!(counted(&first, |counts| &counts.images_failed), 1, "the second turn does not wait");
        assert!(second.refresh(["s"]).await.is_err(), "what cannot be read is not reported as absent");
        assert_eq!(second.session("s").unwrap().summary().turns, 2);
        assert!(first.session("s").unwrap().state().is_detached, "it stays in memory");
        *ledger.image_failure.lock() = None;
        tokio::time::sleep(PAUSE).await;
        first.settle().await;
        assert!(!first.session("s").unwrap().state().is_detached);
        assert_eq!(known(&second, "s").await, [true; 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn detached_turns_bring_their_pictures() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second] = processes(&ledger);
        turn(&first, "s", &[1], 1).await.unwrap();
        ledger.failing.lock().extend((0..PARTITIONS).map(|partition| (partition, unavailable())));
        turn(&first, "s", &[2], 2).await.unwrap_err();
        turn(&first, "t", &[1], 3).await.unwrap_err();
        ledger.failing.lock().clear();
        first.sharing().probe_primaries().await;
        first.settle().await;
        assert_eq!(known(&second, "s").await, [true; 2]);
        assert_eq!(known(&second, "t").await, [true]);
    }

    #[tokio::test(start_paused = true)]
    async fn used_session_keeps_its_pictures_and_an_unused_one_loses_them() {
        let ledger = Arc::new(MemoryLedger::new());
        ledger.image_ttl_ms.store(u64::try_from(TTL.as_millis()).unwrap() / 4 * 5, Ordering::Relaxed);
        let limits = StoreLimits { ttl: TTL, ..BOUNDLESS };
        let process = || shared_with(&ledger, SharedLog::default(), limits, TTL);
        let (first, second) = (process(), process());
        for session in ["used", "running", "unused"] {
            turn(&first, session, &[1], u8::try_from(session.len()).unwrap()).await.unwrap();
        }
        let running = Call::new(Arc::clone(&first), "running".into());
        let background = tokio::spawn(Arc::clone(&first).run());
        for at in 0..20 {
            tokio::time::sleep(TTL / 5).await;
            // by turns, so that neither has all of the session
            text(if at % 2 == 0 { &first } else { &second }, "used", &[1, 9, 9, 5, 100 + at]).await;
        }
        background.abort();
        drop(running);
        let third = process();
        for (session, expected) in [("used", true), ("running", true), ("unused", false)] {
            assert_eq!(known(&third, session).await, [expected], "{session}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn deleted_session_leaves_only_the_pictures_of_others() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second, third] = processes(&ledger);
        turn(&first, "a", &[1], 1).await.unwrap();
        turn(&first, "a", &[2], 2).await.unwrap();
        turn(&second, "b", &[1], 1).await.unwrap();
        // a process that has not read the pictures
        assert_eq!(third.sharing().delete(&"a".into()).await, Ok(true));
        assert_eq!(ledger.state().images.keys().collect::<Vec<_>>(), [&picture(1).digest]);
        assert_eq!(known(&third, "b").await, [true]);
        assert_eq!(third.sharing().delete(&"b".into()).await, Ok(true));
        assert!(ledger.state().images.is_empty());
        // a later session of the name
        turn(&first, "a", &[1], 1).await.unwrap();
        assert_eq!(known(&second, "a").await, [true]);
    }

    #[tokio::test(start_paused = true)]
    async fn ledger_that_lost_all_data_gets_the_pictures_again() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second] = processes(&ledger);
        let background = tokio::spawn(Arc::clone(&first).run());
        turn(&first, "s", &[1], 1).await.unwrap();
        let fleet = ledger.state().fleet + 1;
        *ledger.state() = crate::session::ledger::memory::State { fleet, ..Default::default() };
        ledger.disruptions.send_modify(|count| *count += 1);
        tokio::time::sleep(Duration::from_secs(20)).await;
        background.abort();
        assert_eq!(known(&second, "s").await, [true]);
        // a failover that lost only the picture
        ledger.state().images.clear();
        ledger.disruptions.send_modify(|count| *count += 1);
        first.refresh(["s"]).await.unwrap();
        first.settle().await;
        let [third] = processes(&ledger);
        assert_eq!(known(&third, "s").await, [true]);
    }

    #[tokio::test(start_paused = true)]
    async fn paths_of_a_ledger_that_lost_all_data_follow_their_pictures() {
        // with entries that another process appends first, those of this one are merged after them
        for is_merged in [false, true] {
            for (fails_for, expected) in [(30, 30..30 + 2 * PAUSE.as_secs()), (3600, LONGEST_WAIT.as_secs()..90)] {
                let ledger = Arc::new(MemoryLedger::new());
                let [first, second] = processes(&ledger);
                turn(&first, "s", &[1], 1).await.unwrap();
                first.sharing().freeze(&"s".into()).await.unwrap();
                let finished = || ledger.state().finished.values().map(Vec::len).sum::<usize>();
                assert_eq!(finished(), 1);
                let fleet = ledger.state().fleet + 1;
                *ledger.state() = crate::session::ledger::memory::State { fleet, ..Default::default() };
                ledger.disruptions.send_modify(|count| *count += 1);
                *ledger.image_failure.lock() = Some(LedgerError::Recovering);
                if is_merged {
                    text(&second, "s", &[7]).await;
                }
                let begun = Instant::now();
                let background = tokio::spawn(Arc::clone(&first).run());
                while finished() == 0 {
                    if begun.elapsed().as_secs() >= fails_for {
                        *ledger.image_failure.lock() = None;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                background.abort();
                let elapsed = begun.elapsed().as_secs();
                assert!(expected.contains(&elapsed), "{is_merged}: {elapsed} s, where {expected:?} are expected");
                let turns = second.refresh(["s"]).await.map(|()| second.session("s").unwrap().summary().turns);
                if fails_for < elapsed {
                    assert_eq!(turns, Ok(if is_merged { 2 } else { 1 }));
                    assert!(
                        known(&second, "s").await.into_iter().any(|is_known| is_known),
                        "it is published after its picture"
                    );
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn turns_after_a_path_that_waits_for_its_picture_are_appended_before_the_process_ends() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second] = processes(&ledger);
        turn(&first, "s", &[1], 1).await.unwrap();
        first.sharing().freeze(&"s".into()).await.unwrap();
        let fleet = ledger.state().fleet + 1;
        *ledger.state() = crate::session::ledger::memory::State { fleet, ..Default::default() };
        ledger.disruptions.send_modify(|count| *count += 1);
        *ledger.image_failure.lock() = Some(LedgerError::Recovering);
        let background = tokio::spawn(Arc::clone(&first).run());
        tokio::time::sleep(Duration::from_secs(15)).await;
        background.abort();
        let finished = || ledger.state().finished.values().map(Vec::len).sum::<usize>();
        first.refresh(["s"]).await.expect("the session can be read");
        let failures = counted(&first, |counts| &counts.failures);
        let next = Call::new(Arc::clone(&first), "s".into()).commit(draft(&[3], &[5])).1.await;
        assert_eq!((next.is_err(), finished()), (true, 0), "it is detached");
        assert_eq!(counted(&first, |counts| &counts.failures), failures, "the ledger works");
        assert_eq!(first.settle_rest().await, [0, 1], "only the picture lacks");
        let _ = second.refresh(["s"]).await;
        assert_eq!((second.session("s").unwrap().summary().turns, finished()), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn session_that_is_merged_keeps_pictures_that_the_ledger_lacks() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second] = processes(&ledger);
        ledger.image_limit.store(0, Ordering::Relaxed);
        turn(&first, "s", &[1], 1).await.unwrap();
        second.refresh(["s"]).await.unwrap();
        let before = ledger.state().clone();
        turn(&first, "s", &[2], 2).await.unwrap();
        // the replica that lacks the last turn becomes the primary, and another process appends
        *ledger.state() = before;
        ledger.disruptions.send_modify(|count| *count += 1);
        text(&second, "s", &[3]).await;
        text(&first, "s", &[4]).await;
        assert_eq!(first.session("s").unwrap().state().generation, 1, "it was merged");
        assert_eq!(known(&first, "s").await, [true; 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn damaged_picture_is_replaced() {
        let ledger = Arc::new(MemoryLedger::new());
        let limits = StoreLimits { ttl: TTL, ..BOUNDLESS };
        let [first, second] = [(); 2].map(|()| shared_with(&ledger, SharedLog::default(), limits, Duration::MAX));
        turn(&first, "s", &[1], 1).await.unwrap();
        ledger.state().images.get_mut(&picture(1).digest).unwrap().bytes = Bytes::from_static(b"other");
        assert_eq!(known(&second, "s").await, [false]);
        assert!(ledger.state().images.is_empty());
        // a process that has it marks it as used
        tokio::time::sleep(TTL / 4).await;
        text(&first, "s", &[2]).await;
        first.settle().await;
        assert_eq!(known(&second, "s").await, [true]);
    }

    #[tokio::test(start_paused = true)]
    async fn picture_that_takes_long_is_stored_after_its_turn() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second] = processes(&ledger);
        let large = Arc::new(Image::new(vec![7; 5 << 20].into()));
        let mut draft = draft(&[1, 9, 9], &[5]);
        draft.about.images = Some(Box::new(PromptImages::new(&[1, 9, 9], [(large, 1..3)])));
        Call::new(Arc::clone(&first), "s".into()).commit(draft).1.await.unwrap();
        assert!(ledger.state().images.is_empty(), "two seconds are the time limit of an append");
        turn(&first, "t", &[1], 1).await.unwrap();
        assert_eq!(ledger.state().images.len(), 1, "it is no failure of the ledger");
        // no process finds the path before its picture
        first.sharing().freeze(&"s".into()).await.unwrap();
        let finished = || ledger.state().finished.values().map(Vec::len).sum::<usize>();
        assert_eq!((finished(), known(&second, "s").await), (0, vec![false]));
        first.settle().await;
        assert_eq!((finished(), ledger.state().images.len()), (1, 2));
        assert!(!first.session("s").unwrap().state().is_detached);
        tokio::time::sleep(FIRST_RETRY).await;
        assert_eq!(known(&second, "s").await, [true]);
    }

    #[tokio::test(start_paused = true)]
    async fn paths_wait_for_pictures_of_other_processes_for_a_while() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second] = processes(&ledger);
        let published = || ledger.state().finished.values().map(Vec::len).sum::<usize>();
        *ledger.image_failure.lock() = Some(LedgerError::Recovering);
        for session in ["s", "t"] {
            turn(&first, session, &[1], 1).await.unwrap();
        }
        *ledger.image_failure.lock() = None;
        // a process that has not read the session
        second.sharing().freeze(&"s".into()).await.unwrap();
        assert_eq!(published(), 0);
        first.settle().await;
        tokio::time::sleep(PAUSE).await;
        first.settle().await;
        second.settle().await;
        assert_eq!((published(), known(&second, "s").await), (1, vec![true]));
        // the process ends before the picture is stored
        drop(first);
        ledger.state().images.clear();
        second.sharing().freeze(&"t".into()).await.unwrap();
        let begun = Instant::now();
        while published() == 1 {
            tokio::time::sleep(FIRST_RETRY).await;
            second.settle().await;
        }
        assert_eq!((begun.elapsed(), known(&second, "t").await), (EXPECTED - FIRST_RETRY, vec![false]));
    }

    #[tokio::test(start_paused = true)]
    async fn paths_do_not_wait_for_ever_and_no_later_path_is_published_with_them() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first] = processes(&ledger);
        let published = || ledger.state().finished.values().flatten().map(|entry| entry.leaf).collect::<Vec<_>>();
        *ledger.image_failure.lock() = Some(LedgerError::Recovering);
        turn(&first, "s", &[1], 1).await.unwrap();
        let leaf = first.session("s").unwrap().latest(1)[0].about.uid;
        first.sharing().freeze(&"s".into()).await.unwrap();
        let begun = Instant::now();
        // the agent goes on
        text(&first, "s", &[3]).await;
        while published().is_empty() {
            tokio::time::sleep(FIRST_RETRY).await;
            first.settle().await;
        }
        assert_eq!(published(), [leaf]);
        assert!((LONGEST_WAIT..LONGEST_WAIT + 2 * PAUSE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn idle_session_whose_pictures_fail_is_finished_after_a_while() {
        let ledger = Arc::new(MemoryLedger::new());
        let first = shared_with(&ledger, SharedLog::default(), BOUNDLESS, Duration::from_secs(10));
        *ledger.image_failure.lock() = Some(LedgerError::Recovering);
        turn(&first, "s", &[1], 1).await.unwrap();
        let begun = Instant::now();
        let background = tokio::spawn(Arc::clone(&first).run());
        while ledger.state().finished.values().all(Vec::is_empty) {
            assert!(begun.elapsed() < 3 * LONGEST_WAIT, "it waits for ever");
            tokio::time::sleep(FIRST_RETRY).await;
        }
        background.abort();
        assert!(begun.elapsed() >= LONGEST_WAIT, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn reference_that_is_read_is_marked_as_used() {
        let ledger = Arc::new(MemoryLedger::new());
        ledger.image_ttl_ms.store(u64::try_from(TTL.as_millis()).unwrap() / 4 * 5, Ordering::Relaxed);
        let limits = StoreLimits { ttl: TTL, ..BOUNDLESS };
        let [first, second] = [(); 2].map(|()| shared_with(&ledger, SharedLog::default(), limits, TTL));
        turn(&first, "s", &[1], 1).await.unwrap();
        turn(&second, "s", &[2], 2).await.unwrap();
        let expires = || ledger.state().images[&picture(2).digest].expires_ms;
        let before = expires();
        tokio::time::sleep(TTL / 5 * 4).await;
        // it reads the reference only when it appends
        turn(&first, "s", &[3], 3).await.unwrap();
        first.settle().await;
        assert!(expires() >= before + u64::try_from((TTL / 5 * 4).as_millis()).unwrap(), "as long as the list");
    }

    #[test]
    fn record_without_bytes_keeps_its_references() {
        let prompt = [1, 9, 9, 2];
        let mut draft = draft(&prompt, &[5]);
        draft.about.images = Some(Box::new(PromptImages::new(&prompt, [(picture(1), 1..3)])));
        let turn = draft.place(0, None, crate::session::Cause::First, prompt[..].into());
        let record = Record::new("s", Uid::unique(), Change::Turn(Arc::new(turn)));
        let mut bytes = Vec::new();
        record.without_image_bytes().encode(&mut bytes).unwrap();
        let Some(Record { change: Change::Turn(read), .. }) = Record::decode(&bytes) else { panic!("a turn") };
        let image = &read.about.images.as_ref().unwrap().list[0];
        assert_eq!((image.image.digest, &image.image.bytes, image.is_stored), (picture(1).digest, &None, false));
        assert_eq!(read.prompt_keys().len(), 4);
    }
}
