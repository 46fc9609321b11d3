//! What acts on running requests from outside: aborts, pauses, weight updates.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, watch};

use super::refusal::Refusal;
use super::weights::Weights;

/// How `/pause_generation` treats running requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pause {
    /// End it.
    Abort,
    /// Hold them in place.
    InPlace,
    /// Put it back into the queue.
    Retract,
}

/// The switches of one engine.
#[derive(Debug)]
pub(super) struct Control {
    // Both locks are held for a few instructions and never across an await.
    weights: Mutex<Weights>,
    running: Arc<Mutex<HashMap<String, watch::Sender<bool>>>>,
    pause: watch::Sender<Option<Pause>>,
    /// Pauses so far that put everything back into the queue.
    retracted: AtomicUsize,
    /// Read while a request runs, written while weights change: an update waits
    /// for running requests, and later ones wait for the update.
    gate: Arc<RwLock<()>>,
}

/// A place among the running requests; dropping it gives the place up.
#[derive(Debug)]
pub(super) struct Ticket {
    rid: String,
    running: Arc<Mutex<HashMap<String, watch::Sender<bool>>>>,
    aborted: watch::Receiver<bool>,
}

impl Control {
    pub(super) fn new() -> Self {
        Self {
            weights: Mutex::default(),
            running: Arc::default(),
            pause: watch::Sender::new(None),
            retracted: AtomicUsize::new(0),
            gate: Arc::default(),
        }
    }

    pub(super) fn weights(&self) -> Weights {
        lock(&self.weights).clone()
    }

    pub(super) fn change_weights(&self, change: impl FnOnce(&mut Weights)) {
        change(&mut lock(&self.weights));
    }

    /// Takes a place for each id, or none when one of them is taken.
    pub(super) fn register<'a>(&self, rids: impl Iterator<Item = &'a str> + Clone) -> Result<Vec<Ticket>, Refusal> {
        let mut running = lock(&self.running);
        if let Some(rid) = rids.clone().find(|rid| running.contains_key(*rid)) {
            return Err(Refusal::Value(format!("Duplicate request ID detected: {rid}")));
        }
        let ticket = |rid: &str| {
            let (abort, aborted) = watch::channel(false);
            running.insert(rid.to_owned(), abort);
            Ticket { rid: rid.to_owned(), running: self.running.clone(), aborted }
        };
        Ok(rids.map(ticket).collect())
    }

    /// Aborts every request whose id begins with `prefix`, as SGLang matches them.
    pub(super) fn abort(&self, prefix: &str) {
        let running = lock(&self.running);
        let hit = running.iter().filter(|(rid, _)| rid.starts_with(prefix));
        hit.for_each(|(_, abort)| {
            abort.send_replace(true);
        });
    }

    pub(super) fn is_idle(&self) -> bool {
        lock(&self.running).is_empty()
    }

    /// Whether a pause holds requests in place, so that their state must be kept.
    pub(super) fn holds_state(&self) -> bool {
        *self.pause.borrow() == Some(Pause::InPlace) && !self.is_idle()
    }

    pub(super) fn is_paused(&self) -> bool {
        self.pause.borrow().is_some()
    }

    /// Pauses; in `Abort` mode returns when nothing is left running.
    pub(super) async fn pause(&self, mode: Pause) {
        self.pause.send_replace(Some(mode));
        if mode == Pause::Retract {
            self.retracted.fetch_add(1, Ordering::Relaxed);
        }
        // Again and again, since a request may have come in between.
        while mode == Pause::Abort && !self.is_idle() {
            self.abort("");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(super) fn go_on(&self) {
        self.pause.send_replace(None);
    }

    /// How often what was running has been put back. A count rather than the
    /// pause itself, which may be over before a request looks.
    pub(super) fn retracted(&self) -> usize {
        self.retracted.load(Ordering::Relaxed)
    }

    /// Waits out a pause.
    pub(super) async fn unpaused(&self) {
        // The sender is a field of self, so it cannot be gone.
        let _ = self.pause.subscribe().wait_for(Option::is_none).await;
    }

    pub(super) async fn read_gate(&self) -> OwnedRwLockReadGuard<()> {
        self.gate.clone().read_owned().await
    }

    /// Waits for everything running, unless it is paused: then weights change at once.
    pub(super) async fn write_gate(&self) -> Option<OwnedRwLockWriteGuard<()>> {
        match self.is_paused() {
            true => None,
            false => Some(self.gate.clone().write_owned().await),
        }
    }
}

impl Ticket {
    pub(super) fn rid(&self) -> &str {
        &self.rid
    }

    /// Returns when the request has been aborted.
    pub(super) async fn aborted(&mut self) {
        if self.aborted.wait_for(|aborted| *aborted).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.running).remove(&self.rid);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is whole at every moment, so a panic elsewhere spoils nothing.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
