// SPDX-License-Identifier: Apache-2.0
//! Adds turns to shared sessions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::list_cache::{ListCache, entry};
use super::{Line, Sharing};
use crate::session::ledger::{Ack, AppendError, Change, LedgerError, Position, Record, partition_of};
use crate::session::store::now_ms;
use crate::session::{Draft, Turn, Uid};

/// The queued changes of a session.
#[derive(Debug, Default)]
pub(super) struct Queue {
    jobs: VecDeque<Job>,
    /// Whether a task processes them.
    is_driven: bool,
}

/// A change that a call makes.
#[derive(Debug)]
enum Job {
    /// Adds a turn of a call that began after this number of deletions.
    Turn { draft: Box<Draft>, deletions: u64, answer: oneshot::Sender<Result<(), AppendError>> },
    /// A generation was not recorded.
    Incomplete,
    /// The last call of the session has ended.
    Finish,
}

/// Resets [`Queue::is_driven`] when it is dropped.
struct Driving<'a>(&'a Line);

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.queue.lock().is_driven = false;
        }
    }
}

impl Sharing {
    /// Adds a turn of this process to a session. The ack resolves when the ledger has confirmed it, or with the reason why it has not.
    pub(in crate::session) fn commit(self: &Arc<Self>, name: &Arc<str>, mut draft: Draft, deletions: u64) -> Ack {
        // turns that are restored, imported or appended again do not come here: another process may have counted their epochs
        let process = Some(self.store.process());
        draft.about.policy.iter_mut().for_each(|span| span.process = process);
        let (answer, awaited) = oneshot::channel();
        self.enqueue(name, Job::Turn { draft: Box::new(draft), deletions, answer });
        Ack::awaited(awaited)
    }

    /// Marks a session as incomplete.
    pub(in crate::session) fn mark_incomplete(self: &Arc<Self>, name: &Arc<str>) {
        self.enqueue(name, Job::Incomplete);
    }

    /// Publishes the paths of a session after its last call.
    pub(in crate::session) fn finish_last(self: &Arc<Self>, name: &Arc<str>) {
        self.enqueue(name, Job::Finish);
    }

    /// Jobs of a session run one after the other, in their order.
    fn enqueue(self: &Arc<Self>, name: &Arc<str>, job: Job) {
        // without a runtime the process is ending, and an ack resolves with an error
        let Ok(runtime) = Handle::try_current() else { return };
        let line = self.line(name);
        let mut queue = line.queue.lock();
        queue.jobs.push_back(job);
        if !std::mem::replace(&mut queue.is_driven, true) {
            drop(queue);
            let sharing = Arc::clone(self);
            runtime.spawn(async move { sharing.drive(&line).await });
        }
    }

    async fn drive(self: &Arc<Self>, line: &Line) {
        // a panic must not stop the later jobs
        let _driving = Driving(line);
        loop {
            let job = {
                let mut queue = line.queue.lock();
                let Some(job) = queue.jobs.pop_front() else {
                    // while it is locked, so that no job is left without a task
                    queue.is_driven = false;
                    return;
                };
                job
            };
            match job {
                Job::Turn { draft, deletions, answer } => {
                    // fails if the reply does not wait
                    let _ = answer.send(self.add(line, *draft, deletions).await);
                }
                Job::Incomplete => self.add_incomplete(line).await,
                // the sweep of any process finishes it later if the ledger fails
                Job::Finish => {
                    let _ = self.finish(&line.name).await;
                }
            }
        }
    }

    /// Adds a turn. If the ledger does not confirm it within the time limit, it is detached.
    async fn add(&self, line: &Line, draft: Draft, deletions: u64) -> Result<(), AppendError> {
        let mut known = line.known.lock().await;
        if line.deletion.load(Ordering::Relaxed) > deletions {
            self.store.observer.turn_dropped();
            return Ok(());
        }
        if !self.is_down(&line.name) {
            let partition = partition_of(&line.name);
            let added = self.within_timeout(Some(partition), self.add_confirmed(line, &mut known, &draft)).await;
            if let Ok(turn) = added {
                self.counts.confirmed.fetch_add(1, Ordering::Relaxed);
                self.store.announce(&line.name, &turn);
                return Ok(());
            }
        }
        self.counts.detached.fetch_add(1, Ordering::Relaxed);
        if self.is_full_of_detached() && known.turn(draft.about.uid).is_none() {
            return self.leave_out(line, known, &draft).await;
        }
        let written = self.detach(line, &mut known, draft);
        // the disk may be slow, and later turns need not wait for it
        drop(known);
        if let Err(error) = written.await {
            tracing::warn!(%error, session = %line.name, "a turn is neither in the shared ledger nor in the local log");
        }
        Err(AppendError::Detached)
    }

    /// Does not keep a turn in memory, which is full of detached sessions. The turn is in the local log only, and is read back when the ledger
    /// works. Without a log it is lost, and its session is incomplete.
    async fn leave_out(
        &self,
        line: &Line,
        known: tokio::sync::MutexGuard<'_, ListCache>,
        draft: &Draft,
    ) -> Result<(), AppendError> {
        // a birth would be that of a session in memory
        let written = match self.store.log.get() {
            Some(_) => self.log_detached(&line.name, None, 0, draft),
            None => Ack::failed(AppendError::NoRoom),
        };
        let Err(error) = written.await else {
            // while the session is locked: nothing may note meanwhile that the log needs none of its turns
            self.spill(&line.name, draft);
            return Err(AppendError::Detached);
        };
        drop(known);
        if self.counts.left_out.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!(%error, session = %line.name, "turns are lost: the memory is full of turns that the shared ledger lacks");
        }
        if self.detached_bytes() / 2 < self.store.limits.bytes {
            self.add_incomplete(line).await;
        }
        Err(AppendError::NoRoom)
    }

    async fn add_confirmed(&self, line: &Line, known: &mut ListCache, draft: &Draft) -> Result<Arc<Turn>, LedgerError> {
        if draft.about.images.is_some() && known.position.is_none() {
            // pictures are held under the birth of the session, which another process may have begun
            self.load(line, known).await?;
        }
        loop {
            self.settle(line, known).await?;
            self.begin(line, known)?;
            let session = Arc::clone(known.session.as_ref().expect("it has begun"));
            self.take_sent_images(known, draft);
            let turn = Arc::new(session.place(&mut session.state(), draft.clone()));
            self.share_new_images(line, known, &turn).await;
            let uid = turn.about.uid;
            let record = session.record(Change::Turn(Arc::clone(&turn)));
            let mut entries = Vec::with_capacity(2);
            if known.position.is_none() {
                entries.push(entry(known.log[0].uid, &known.record(0))?);
            }
            entries.push(entry(uid, &record)?);
            let suspicion = self.suspicion();
            match self.append(line, known, &entries, Vec::new(), true).await? {
                Ok(replicated) => {
                    self.apply(line, known, uid, record)?;
                    known.position = Position::after(known.position, &entries);
                    self.store.touch(&session, Instant::now());
                    if known.images.is_failed {
                        self.mark_unsettled(line, known);
                    }
                    if !replicated {
                        self.replicated(line, suspicion).await?;
                    }
                    return Ok(turn);
                }
                Err(_outdated) => {
                    self.load(line, known).await?;
                    if known.position.is_none() && !known.is_detached() {
                        // the name was deleted, and a new session gets another birth
                        self.discard(line, known);
                    }
                }
            }
        }
    }

    /// Creates the session in memory if no process has begun it.
    pub(super) fn begin(&self, line: &Line, known: &mut ListCache) -> Result<(), LedgerError> {
        if known.session.is_some() {
            return Ok(());
        }
        let birth = Uid::unique();
        let begin = Record::new(Arc::clone(&line.name), birth, Change::Begin { created_ms: now_ms() });
        self.apply(line, known, birth, begin)
    }

    /// Adds a turn to the session in memory and to the local log. It is appended to the ledger later. The ack is that of the local log.
    fn detach(&self, line: &Line, known: &mut ListCache, draft: Draft) -> Ack {
        known.forget_removed();
        if let Err(error) = self.begin(line, known) {
            tracing::error!(%error, session = %line.name, "a turn was not recorded");
            return Ack::done();
        }
        let session = Arc::clone(known.session.as_ref().expect("it has begun"));
        let uid = draft.about.uid;
        // those of the turn may not be in the ledger
        known.images.forget_shared();
        let id = session.state().forest.next_id();
        let written = self.log_detached(&line.name, Some(session.birth), id, &draft);
        if let Some(turn) = known.turn(uid) {
            // the ledger has it, and replicas have not confirmed it
            known.is_unconfirmed = true;
            self.mark_unsettled(line, known);
            self.store.announce(&line.name, &turn);
            return written;
        }
        self.take_sent_images(known, &draft);
        let turn = Arc::new(session.place(&mut session.state(), draft));
        let record = session.record(Change::Turn(Arc::clone(&turn)));
        match self.apply(line, known, uid, record) {
            Ok(()) => {
                self.mark_unsettled(line, known);
                self.store.touch(&session, Instant::now());
                self.store.announce(&line.name, &turn);
            }
            Err(error) => tracing::error!(%error, session = %line.name, "a turn was not recorded"),
        }
        written
    }

    async fn add_incomplete(&self, line: &Line) {
        let mut known = line.known.lock().await;
        known.forget_removed();
        if self.begin(line, &mut known).is_err() {
            return;
        }
        let session = Arc::clone(known.session.as_ref().expect("it has begun"));
        if session.state().incomplete.is_some() {
            return;
        }
        // it is appended with the next turn, or by the next settlement
        let record = session.record(Change::Incomplete);
        if let Err(error) = self.apply(line, &mut known, Uid::unique(), record) {
            tracing::error!(%error, session = %line.name, "a session was not marked as incomplete");
            return;
        }
        self.mark_unsettled(line, &known);
        if !self.is_down(&line.name) {
            let _ = self
                .within_timeout(Some(partition_of(&line.name)), self.settle_available(line, &mut known, true))
                .await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::session::ledger::memory::MemoryLedger;
    use crate::session::tests::{BOUNDLESS, shared, store};
    use crate::session::{Call, Cause, ProcessId, Sessions, Span, TurnMetadata};

    fn sharing(ledger: &Arc<MemoryLedger>) -> Arc<Sessions> {
        shared(ledger, Duration::MAX)
    }

    fn draft(prompt: &[u32], process: Option<ProcessId>) -> Draft {
        let span =
            Span { start: 0, end: 1, epoch: 3, until: 3, weight_version: None, version: None, process, adapter: None };
        let about = TurnMetadata { policy: vec![span], ..TurnMetadata::default() };
        Draft { prompt: Some(prompt.into()), response: vec![9], about, ..Draft::default() }
    }

    async fn commit(store: &Arc<Sessions>, prompt: &[u32]) {
        Call::new(Arc::clone(store), "s".into()).commit(draft(prompt, None)).1.await.expect("it is confirmed");
    }

    /// The processes of the turns of the session.
    fn processes(store: &Sessions) -> Vec<Option<ProcessId>> {
        let session = store.session("s").expect("it is in memory");
        let state = session.state();
        state.forest.turns().iter().map(|turn| turn.about.policy[0].process).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn turn_keeps_the_process_that_counted_its_epoch() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second, third] = [sharing(&ledger), sharing(&ledger), sharing(&ledger)];
        commit(&first, &[1]).await;
        commit(&second, &[2]).await;
        {
            // the ledger loses all data, and the second process appends the turn of the first again
            let mut state = ledger.state();
            state.lists.clear();
            state.fleet += 1;
        }
        assert!(second.refresh(["s"]).await.is_err(), "the session may have been deleted");
        tokio::time::sleep(Duration::from_secs(10)).await;
        commit(&second, &[3]).await;
        third.refresh(["s"]).await.expect("the ledger works");
        let [one, two] = [&first, &second].map(|store| store.memory().process());
        assert_eq!(processes(&third), [one, two, two].map(Some));
        assert_ne!(one, two);
    }

    #[tokio::test(start_paused = true)]
    async fn turn_of_the_local_log_keeps_the_process_that_it_has() {
        let ledger = Arc::new(MemoryLedger::new());
        let store = sharing(&ledger);
        let birth = Uid::unique();
        let earlier = "00000000000000aa".parse().ok();
        for (id, process) in [(0, None), (1, earlier)] {
            let turn = draft(&[id], process).place(id, None, Cause::NewConversation, [id][..].into());
            let record = Record::new("s", birth, Change::Turn(Arc::new(turn)));
            store.sharing().restore(record.into());
        }
        store.settle().await;
        assert!(ledger.state().lists.is_empty(), "the session may have been deleted before the first contact");
        tokio::time::sleep(Duration::from_secs(10)).await;
        store.settle().await;
        commit(&store, &[2]).await;
        assert_eq!(
            processes(&store),
            [None, earlier, Some(store.memory().process())],
            "that of an unshared process has none"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn session_that_is_not_shared_has_no_process() {
        let store = store(BOUNDLESS);
        commit(&store, &[1]).await;
        assert_eq!(processes(&store), [None]);
    }
}
