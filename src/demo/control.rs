// SPDX-License-Identifier: Apache-2.0
//! The state that control routes change: running requests, a pause, the weights, the prefix cache.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, watch};

use super::refusal::Refusal;

/// The weights that are loaded at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// The `version` of [`Model::logits`](super::Model::logits): 0 at start, incremented by every update.
    pub number: u64,
    /// The label in the spans of `weight_versions`, which is that of SGLang's scheduler.
    pub label: String,
    /// The label in `meta_info` and `/model_info`, which is that of SGLang's HTTP process. It differs from `label` after an update whose
    /// cache flush was refused.
    pub reported_label: String,
    /// `model_path`.
    pub path: String,
    /// `served_model_name`. An update from disk replaces it with the path.
    pub name: String,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            number: 0,
            label: "default".into(),
            reported_label: "default".into(),
            path: "tokentap-demo".into(),
            name: "tokentap-demo".into(),
        }
    }
}

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
        self.weights.lock().clone()
    }

    pub(super) fn change_weights(&self, change: impl FnOnce(&mut Weights)) {
        change(&mut self.weights.lock());
    }

    /// Registers all ids. Registers none and returns an error when one of them is running.
    pub(super) fn register<'a>(
        &self,
        rids: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<Vec<Registration>, Refusal> {
        let mut running = self.running.lock();
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
        let running = self.running.lock();
        let matching = running.iter().filter(|(rid, _)| rid.starts_with(prefix));
        matching.for_each(|(_, abort)| {
            abort.send_replace(true);
        });
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.lock().is_empty()
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
        self.running.lock().remove(&self.rid);
    }
}

/// The maximum number of sequences in a [`PrefixCache`].
const MAX_SEQUENCES: usize = 64;

/// The most recent sequences. They save no computation; only `cached_tokens` depends on them.
#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    // held while prompts are compared, never across an await
    sequences: Mutex<VecDeque<Vec<u32>>>,
}

impl PrefixCache {
    /// The length of the longest prefix of `prompt` that a cached sequence begins with, at most `limit` tokens.
    pub(super) fn cached_prefix_len(&self, prompt: &[u32], limit: usize) -> usize {
        let sequences = self.sequences.lock();
        let common = |seen: &Vec<u32>| seen.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        sequences.iter().map(common).max().unwrap_or(0).min(limit)
    }

    pub(super) fn insert(&self, sequence: Vec<u32>) {
        let mut sequences = self.sequences.lock();
        if sequences.len() == MAX_SEQUENCES {
            sequences.pop_front();
        }
        sequences.push_back(sequence);
    }

    pub(super) fn flush(&self) {
        self.sequences.lock().clear();
    }
}
