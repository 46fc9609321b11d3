//! The engine's own log: the prompt and the sampled tokens of each sequence, written where they are sampled.
//!
//! It shares nothing with the wire: whatever is lost, cut, rounded or put together wrongly on the way to a client is still whole here,
//! so a test can compare the far end of a proxy with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A token as the engine sampled it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token.
    pub id: u32,
    /// Its logprob under the distribution that [`Engine::distribution`](super::Engine::distribution) describes, natural logarithm.
    pub logprob: f32,
    /// The entropy of that distribution over the whole vocabulary, nats.
    pub entropy: f64,
    /// The number of the weights that sampled it.
    pub weights: u64,
    /// Their label.
    pub label: String,
}

/// How a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By a stop token or a stop string.
    Stop,
    /// By its limit.
    Length,
    /// It was aborted.
    Abort,
    /// The client that waited for it disconnected.
    Left,
}

/// A sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalEntry {
    /// Its id, `meta_info.id`.
    pub rid: String,
    /// The prompt as it went into the model.
    pub prompt: Vec<u32>,
    /// What was sampled, one by one.
    pub sampled: Vec<Sampled>,
    /// How it ended; `None` while it runs.
    pub end: Option<End>,
}

/// The log of one engine, its sequences in the order in which they began.
#[derive(Debug, Clone, Default)]
pub(super) struct Journal {
    // held to copy or to add to it, never across an await
    entries: Arc<Mutex<Vec<JournalEntry>>>,
}

/// Writes the entry of one sequence. Dropped before the end, it records [`End::Left`]: no client waits any more.
#[derive(Debug)]
pub(super) struct JournalWriter {
    journal: Journal,
    at: usize,
}

impl End {
    /// The name of this end in `finish_reason`; a sequence whose client disconnected has none.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Stop => Some("stop"),
            Self::Length => Some("length"),
            Self::Abort => Some("abort"),
            Self::Left => None,
        }
    }
}

impl JournalEntry {
    /// The sampled ids.
    pub fn output(&self) -> Vec<u32> {
        self.sampled.iter().map(|token| token.id).collect()
    }
}

impl Journal {
    /// Begins the entry of a sequence.
    pub(super) fn begin(&self, rid: &str, prompt: &[u32]) -> JournalWriter {
        let mut entries = self.lock();
        entries.push(JournalEntry { rid: rid.to_owned(), prompt: prompt.to_vec(), sampled: Vec::new(), end: None });
        JournalWriter { journal: self.clone(), at: entries.len() - 1 }
    }

    /// Everything so far.
    pub(super) fn entries(&self) -> Vec<JournalEntry> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<JournalEntry>> {
        // an entry is whole after each token, so a panic elsewhere spoils nothing
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JournalWriter {
    /// Records a token.
    pub(super) fn sampled(&self, token: Sampled) {
        self.journal.lock()[self.at].sampled.push(token);
    }

    /// Records the end; only the first one counts.
    pub(super) fn end(&self, end: End) {
        self.journal.lock()[self.at].end.get_or_insert(end);
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        self.end(End::Left);
    }
}
