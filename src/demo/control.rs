//! Control of running requests: aborts, pauses, weight updates.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, watch};

use super::refusal::Refusal;
use super::weights::Weights;

/// How `/pause_generation` treats running requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PauseMode {
    /// Abort them.
    Abort,
    /// Hold them in place.
    InPlace,
    /// Put them back into the queue.
    Retract,
}

/// The running requests of an engine, its pause and its weights.
#[derive(Debug)]
pub(super) struct EngineControl {
    // `weights` and `running` are locked for a few instructions, never across an await
    weights: Mutex<Weights>,
    /// The abort flag of each running request, by request id.
    running: Arc<Mutex<HashMap<String, watch::Sender<bool>>>>,
    pause: watch::Sender<Option<PauseMode>>,
    /// The number of pauses that put the running requests back into the queue.
    retractions: AtomicUsize,
    /// A request that runs holds a read lock, and a weight update holds the write lock: an update waits for running requests, and later
    /// requests wait for the update.
    gate: Arc<RwLock<()>>,
    /// `/begin_weight_update` was called, and `/end_weight_update` was not.
    updating: AtomicBool,
}

/// A request id that is registered as running. Dropping it removes the id.
#[derive(Debug)]
pub(super) struct Registration {
    rid: String,
    running: Arc<Mutex<HashMap<String, watch::Sender<bool>>>>,
    aborted: watch::Receiver<bool>,
}

impl EngineControl {
    pub(super) fn new() -> Self {
        Self {
            weights: Mutex::default(),
            running: Arc::default(),
            pause: watch::Sender::new(None),
            retractions: AtomicUsize::new(0),
            gate: Arc::default(),
            updating: AtomicBool::new(false),
        }
    }

    pub(super) fn weights(&self) -> Weights {
        lock(&self.weights).clone()
    }

    pub(super) fn change_weights(&self, change: impl FnOnce(&mut Weights)) {
        change(&mut lock(&self.weights));
    }

    /// Registers all ids. Registers none and returns an error when one of them is running.
    pub(super) fn register<'a>(
        &self,
        rids: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<Vec<Registration>, Refusal> {
        let mut running = lock(&self.running);
        if let Some(rid) = rids.clone().find(|rid| running.contains_key(*rid)) {
            return Err(Refusal::Value(format!("Duplicate request ID detected: {rid}")));
        }
        let registration = |rid: &str| {
            let (abort, aborted) = watch::channel(false);
            running.insert(rid.to_owned(), abort);
            Registration { rid: rid.to_owned(), running: self.running.clone(), aborted }
        };
        Ok(rids.map(registration).collect())
    }

    /// Aborts every request whose id begins with `prefix`, as SGLang does.
    pub(super) fn abort(&self, prefix: &str) {
        let running = lock(&self.running);
        let matching = running.iter().filter(|(rid, _)| rid.starts_with(prefix));
        matching.for_each(|(_, abort)| {
            abort.send_replace(true);
        });
    }

    pub(super) fn is_idle(&self) -> bool {
        lock(&self.running).is_empty()
    }

    /// Whether a pause holds requests in place, so that their state must be kept.
    pub(super) fn holds_state(&self) -> bool {
        *self.pause.borrow() == Some(PauseMode::InPlace) && !self.is_idle()
    }

    pub(super) fn is_paused(&self) -> bool {
        self.pause.borrow().is_some()
    }

    /// Pauses generation. In [`PauseMode::Abort`] it returns once no request is running.
    pub(super) async fn pause(&self, mode: PauseMode) {
        self.pause.send_replace(Some(mode));
        if mode == PauseMode::Retract {
            self.retractions.fetch_add(1, Ordering::Relaxed);
        }
        // repeated, because a request may have started in between
        while mode == PauseMode::Abort && !self.is_idle() {
            self.abort("");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(super) fn resume(&self) {
        self.pause.send_replace(None);
    }

    /// How often the running requests were put back into the queue. It is a count, because a pause may end before a request checks it.
    pub(super) fn retractions(&self) -> usize {
        self.retractions.load(Ordering::Relaxed)
    }

    /// Waits until generation is not paused.
    pub(super) async fn wait_unpaused(&self) {
        // `self` owns the sender, so waiting cannot fail
        let _ = self.pause.subscribe().wait_for(Option::is_none).await;
    }

    pub(super) fn is_updating(&self) -> bool {
        self.updating.load(Ordering::Relaxed)
    }

    /// Begins or ends an update; returns whether one was open before.
    pub(super) fn set_updating(&self, updating: bool) -> bool {
        self.updating.swap(updating, Ordering::Relaxed)
    }

    pub(super) async fn read_gate(&self) -> OwnedRwLockReadGuard<()> {
        self.gate.clone().read_owned().await
    }

    /// Waits until no request runs. Returns `None` at once while generation is paused: then the weights change without waiting.
    pub(super) async fn write_gate(&self) -> Option<OwnedRwLockWriteGuard<()>> {
        match self.is_paused() {
            true => None,
            false => Some(self.gate.clone().write_owned().await),
        }
    }
}

impl Registration {
    pub(super) fn rid(&self) -> &str {
        &self.rid
    }

    /// Waits until the request is aborted.
    pub(super) async fn aborted(&mut self) {
        if self.aborted.wait_for(|aborted| *aborted).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        lock(&self.running).remove(&self.rid);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // the data is consistent after each instruction, so a poisoned lock is safe to use
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
