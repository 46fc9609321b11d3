// SPDX-License-Identifier: Apache-2.0
//! The pictures of all sessions in memory, each once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::images::{Image, ImageDigest};
use crate::session::PromptImages;
use crate::session::turn::SessionImages;

/// The pictures of a store.
#[derive(Debug, Default)]
pub(in crate::session) struct ImageStore {
    // locked for one picture or for those of one session, after a session
    held: Mutex<BTreeMap<ImageDigest, HeldImage>>,
    /// The bytes that the pictures take. Written while `held` is locked.
    bytes: AtomicU64,
}

#[derive(Debug)]
struct HeldImage {
    image: Arc<Image>,
    /// The number of sessions that have it.
    sessions: usize,
}

/// Bytes of a picture's places in the maps of the store and of a session.
const PLACES: u64 = 256;

impl ImageStore {
    /// Adds the pictures of a turn to those of its session. Replaces each by the first copy in memory, which also gives a reference its bytes.
    pub(in crate::session) fn hold(&self, session: &mut SessionImages, images: &mut PromptImages) {
        for turn_image in &mut images.list {
            if let Some(known) = session.get(&turn_image.image.digest) {
                turn_image.image = Arc::clone(known);
            } else if turn_image.image.bytes.is_some() {
                let image = self.add(&turn_image.image);
                session.insert(image.digest, Arc::clone(&image));
                turn_image.image = image;
            }
        }
    }

    /// Removes the pictures of a session that is removed from memory.
    pub(in crate::session) fn release(&self, session: SessionImages) {
        if session.is_empty() {
            return;
        }
        let mut held = self.held.lock();
        for digest in session.into_keys() {
            let Entry::Occupied(mut held) = held.entry(digest) else { continue };
            held.get_mut().sessions -= 1;
            if held.get().sessions == 0 {
                self.bytes.fetch_sub(held.remove().image.size + PLACES, Ordering::Relaxed);
            }
        }
    }

    /// The bytes that the pictures take.
    pub(in crate::session) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Adds a session to those that have the picture. Returns the first copy.
    fn add(&self, image: &Arc<Image>) -> Arc<Image> {
        match self.held.lock().entry(image.digest) {
            Entry::Occupied(held) => {
                let held = held.into_mut();
                held.sessions += 1;
                Arc::clone(&held.image)
            }
            Entry::Vacant(place) => {
                self.bytes.fetch_add(image.size + PLACES, Ordering::Relaxed);
                image.remember();
                Arc::clone(&place.insert(HeldImage { image: Arc::clone(image), sessions: 1 }).image)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::sync::oneshot;

    use super::*;
    use crate::session::ledger::memory::MemoryLedger;
    use crate::session::ledger::{
        Ack, AppendError, Change, Health, LogRecord, Record, RecordLog, RecordLogStats, SharedLog,
    };
    use crate::session::store::NoObserver;
    use crate::session::tests::{BOUNDLESS, shared, store};
    use crate::session::{Call, Chat, Draft, ProcessId, Sessions, StoreLimits, StoredRequest, Turn, TurnMetadata};

    /// The bytes of a picture, another allocation each time.
    const BYTES: usize = 100_000;

    fn picture(content: u8) -> Arc<Image> {
        Arc::new(Image::new(Bytes::from(vec![content; BYTES])))
    }

    /// Commits a turn with a picture, whose tokens follow `ids`.
    async fn turn(store: &Arc<Sessions>, session: &str, ids: &[u32], content: u8) {
        commit(store, session, ids, content).await.expect("no log refuses it");
    }

    fn commit(store: &Arc<Sessions>, session: &str, ids: &[u32], content: u8) -> Ack {
        let prompt = [ids, &[9, 9]].concat();
        let start = u32::try_from(ids.len()).unwrap();
        let images = PromptImages::new(&prompt, [(picture(content), start..start + 2)]);
        let about = TurnMetadata { images: Some(Box::new(images)), ..TurnMetadata::default() };
        let mut call = Call::new(Arc::clone(store), session.into());
        let draft = Draft { prompt: Some(prompt.into()), response: vec![5], about, ..Draft::default() };
        call.commit(draft).1
    }

    /// A log that stores a record when its turn comes.
    #[derive(Debug, Clone, Default)]
    struct SlowLog(Arc<Mutex<LogState>>);

    #[derive(Debug, Default)]
    struct LogState {
        rejects: bool,
        waiting: Vec<(LogRecord, oneshot::Sender<Result<(), AppendError>>)>,
        stored: Vec<Vec<u8>>,
    }

    impl SlowLog {
        /// Rejects records before they wait.
        fn reject(&self, rejects: bool) {
            self.0.lock().rejects = rejects;
        }

        /// Stores the waiting records, or fails.
        fn answer(&self, is_ok: bool) {
            let state = &mut *self.0.lock();
            for (record, answer) in state.waiting.drain(..) {
                let LogRecord::Session(record) = record else { continue };
                let mut bytes = Vec::new();
                record.encode(&mut bytes).unwrap();
                state.stored.extend(is_ok.then_some(bytes));
                // a caller may have left
                let _ = answer.send(if is_ok { Ok(()) } else { Err(AppendError::Degraded) });
            }
        }

        /// The sessions after a restart.
        fn restart(&self) -> Arc<Sessions> {
            let restored = store(BOUNDLESS);
            for record in &self.0.lock().stored {
                restored.restore(Record::decode(record).unwrap());
            }
            restored
        }

        /// The lengths of the stored records, in pictures.
        fn pictures(&self) -> Vec<usize> {
            self.0.lock().stored.iter().map(|record| record.len() / BYTES).collect()
        }
    }

    impl RecordLog for SlowLog {
        fn append(&self, record: LogRecord) -> Ack {
            let state = &mut *self.0.lock();
            if state.rejects {
                return Ack::failed(AppendError::QueueFull);
            }
            let (answer, awaited) = oneshot::channel();
            state.waiting.push((record, answer));
            Ack::awaited(awaited)
        }

        fn written(&self) -> Ack {
            Ack::done()
        }

        fn id(&self) -> ProcessId {
            ProcessId::random()
        }

        fn read(&self, _: &mut dyn FnMut(LogRecord)) -> io::Result<()> {
            Ok(())
        }

        fn health(&self) -> Health {
            Health::Ok
        }

        fn stats(&self) -> RecordLogStats {
            RecordLogStats::default()
        }

        fn is_behind(&self) -> bool {
            false
        }
    }

    fn logged(log: &SlowLog) -> Arc<Sessions> {
        let shared = SharedLog::default();
        shared.set(log.clone());
        Arc::new(Sessions::local(BOUNDLESS, shared, Arc::new(NoObserver)))
    }

    fn image_of(store: &Sessions, session: &str, turn: u32) -> Arc<Image> {
        let turn = store.session(session).unwrap().turn(turn).unwrap();
        Arc::clone(&turn.about.images.as_ref().unwrap().list[0].image)
    }

    #[tokio::test]
    async fn equal_pictures_are_stored_and_counted_once() {
        let store = store(BOUNDLESS);
        let pictures = |bytes: u64| bytes / BYTES as u64;
        for (session, ids, content, expected) in
            [("a", &[1][..], 1, 1), ("a", &[2], 1, 1), ("b", &[1], 1, 1), ("b", &[3], 2, 2)]
        {
            turn(&store, session, ids, content).await;
            assert_eq!(pictures(store.size().1), expected, "{session} {ids:?}");
        }
        let first = image_of(&store, "a", 0);
        assert!(Arc::ptr_eq(&first, &image_of(&store, "a", 1)) && Arc::ptr_eq(&first, &image_of(&store, "b", 0)));
        assert_eq!(store.session("a").unwrap().image(first.digest), Some(first));
        store.delete("a").await.unwrap();
        assert_eq!(pictures(store.size().1), 2, "the other session has both");
        store.delete("b").await.unwrap();
        assert_eq!(store.size().1, 0);
    }

    #[tokio::test]
    async fn pictures_count_towards_the_limit_of_the_store() {
        let store = store(StoreLimits { bytes: 5 * BYTES as u64, ..BOUNDLESS });
        for session in 0..20_u8 {
            turn(&store, &session.to_string(), &[1], session).await;
        }
        store.sweep();
        let (sessions, bytes) = store.size();
        assert!((3..=5).contains(&sessions) && bytes <= 5 * BYTES as u64, "{sessions} {bytes}");
        assert_eq!(image_of(&store, "19", 0), picture(19), "the latest session is complete");
    }

    #[tokio::test]
    async fn restored_reference_gets_the_bytes_of_an_earlier_turn() {
        let written = store(BOUNDLESS);
        turn(&written, "s", &[1], 1).await;
        turn(&written, "s", &[2], 1).await;
        let session = written.session("s").unwrap();
        let read = |turn: u32| {
            let mut bytes = Vec::new();
            session.record(Change::Turn(session.turn(turn).unwrap())).encode(&mut bytes).unwrap();
            Record::decode(&bytes).unwrap()
        };
        let restored = store(BOUNDLESS);
        [0, 1].into_iter().for_each(|turn| restored.restore(read(turn)));
        assert!(Arc::ptr_eq(&image_of(&restored, "s", 0), &image_of(&restored, "s", 1)));
        assert_eq!((image_of(&restored, "s", 1), restored.size()), (picture(1), written.size()));
        // without the first record, a turn keeps its reference and its place
        let damaged = store(BOUNDLESS);
        damaged.restore(read(1));
        let image = image_of(&damaged, "s", 1);
        assert_eq!((image.digest, &image.bytes), (picture(1).digest, &None));
        assert_eq!(damaged.session("s").unwrap().image(image.digest), None);
        let again = damaged.session("s").unwrap();
        let keys = again.turn(1).unwrap().prompt_keys().to_vec();
        assert_eq!(keys, session.turn(1).unwrap().prompt_keys());
    }

    #[tokio::test]
    async fn stored_request_keeps_the_text_of_a_picture_whose_bytes_are_lost() {
        let text = Arc::<str>::from(format!(
            r#"{{"image_url":"data:image/png;base64,{}"}}"#,
            base64_simd::STANDARD.encode_to_string(vec![1; BYTES])
        ));
        let written = store(BOUNDLESS);
        turn(&written, "s", &[1], 1).await;
        let reference = Turn::clone(&written.session("s").unwrap().turn(0).unwrap());
        for is_lost in [false, true] {
            let store = store(BOUNDLESS);
            turn(&store, "s", &[1], 1).await;
            if is_lost {
                store.delete("s").await.unwrap();
                let mut bytes = Vec::new();
                let mut reference = reference.clone();
                reference.about.images.as_mut().unwrap().mark_stored(|_| true);
                let session = written.session("s").unwrap();
                session.record(Change::Turn(Arc::new(reference))).encode(&mut bytes).unwrap();
                store.restore(Record::decode(&bytes).unwrap());
            }
            // the client sends the picture again
            let prompt = [1, 9, 9, 5, 2];
            let images = PromptImages::new(&prompt, [(picture(1), 1..3)]);
            let stored = StoredRequest { items: vec![Arc::clone(&text).into()], ..StoredRequest::default() };
            let chat = Chat { stored: Some(Arc::new(stored)), ..Chat::default() };
            let about =
                TurnMetadata { images: Some(Box::new(images)), chat: Some(Box::new(chat)), ..TurnMetadata::default() };
            let draft = Draft { prompt: Some(prompt.into()), response: vec![6], about, ..Draft::default() };
            Call::new(Arc::clone(&store), "s".into()).commit(draft).1.await.unwrap();
            let session = store.session("s").unwrap();
            let turn = session.turn(1).unwrap();
            assert_eq!((turn.parent, turn.about.images.is_none()), (Some(0), true));
            let item = &turn.about.chat.as_ref().unwrap().stored.as_ref().unwrap().items[0];
            assert_eq!(item.json(|_| None).is_some(), is_lost);
            assert_eq!(item.json(|digest| session.image(digest)), Some(Arc::clone(&text)));
        }
    }

    #[tokio::test]
    async fn picture_of_a_rejected_record_is_stored_by_a_later_turn() {
        let log = SlowLog::default();
        let sessions = logged(&log);
        // the queue is full
        log.reject(true);
        commit(&sessions, "s", &[1], 1).await.unwrap_err();
        commit(&sessions, "s", &[2], 1).await.unwrap_err();
        log.reject(false);
        // the disk is full, and the caller has left
        drop(commit(&sessions, "s", &[3], 1));
        log.answer(false);
        // a record that waits is expected to be stored
        let acks = [4, 5].map(|id| commit(&sessions, "s", &[id], 1));
        log.answer(true);
        for ack in acks {
            ack.await.unwrap();
        }
        drop(commit(&sessions, "s", &[6], 1));
        log.answer(true);
        assert_eq!(log.pictures(), [1, 0, 0]);
        let restored = log.restart();
        for turn in 3..6 {
            assert_eq!(image_of(&restored, "s", turn), picture(1), "turn {turn}");
        }
    }

    #[tokio::test]
    async fn picture_of_a_removed_session_is_not_held() {
        let store = store(BOUNDLESS);
        turn(&store, "s", &[1], 1).await;
        let session = store.session("s").unwrap();
        let mut next = Turn::clone(&session.turn(0).unwrap());
        store.delete("s").await.unwrap();
        next.id = 1;
        session.apply(Change::Turn(Arc::new(next)), 0, &store.memory().images);
        assert_eq!(store.memory().images.bytes(), 0);
    }

    #[tokio::test]
    async fn prompt_is_shared_by_samples_with_the_same_picture_only() {
        let store = store(BOUNDLESS);
        for (content, count) in [(1, 2), (2, 2)] {
            for _ in 0..count {
                turn(&store, "s", &[1], content).await;
            }
        }
        let session = store.session("s").unwrap();
        let turns: Vec<Arc<Turn>> = (0..4).map(|id| session.turn(id).unwrap()).collect();
        let is_shared = |a: usize, b: usize| {
            std::ptr::eq(turns[a].prompt_keys(), turns[b].prompt_keys())
                && Arc::ptr_eq(&turns[a].prompt, &turns[b].prompt)
        };
        assert!(is_shared(0, 1) && is_shared(2, 3) && !is_shared(0, 2));
        assert_eq!(turns[0].prompt, turns[2].prompt);
    }

    #[tokio::test]
    async fn process_that_shares_the_sessions_has_the_pictures() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second] = [(); 2].map(|()| shared(&ledger, Duration::MAX));
        turn(&first, "s", &[1], 1).await;
        second.refresh(["s"]).await.unwrap();
        assert_eq!(image_of(&second, "s", 0), picture(1));
        // a turn that continues it in the other process
        turn(&second, "s", &[1, 9, 9, 5, 2], 2).await;
        first.refresh(["s"]).await.unwrap();
        let session = first.session("s").unwrap();
        let next = session.turn(1).unwrap();
        assert_eq!(
            (next.parent, &*next.prompt),
            (None, &[1, 9, 9, 5, 2, 9, 9][..]),
            "its prompt has no picture before the new one"
        );
        assert_eq!(image_of(&first, "s", 1), picture(2));
    }
}
