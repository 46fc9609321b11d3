// SPDX-License-Identifier: Apache-2.0
//! The engine's journal: the prompt and the sampled tokens of each sequence, recorded when they are sampled.
//!
//! It is independent of the wire format: a token that a reply loses, truncates or rounds is unchanged in the journal, so a test can compare
//! the replies of a proxy with it.

use std::sync::Arc;

use parking_lot::Mutex;

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledToken {
    /// The token id.
    pub id: u32,
    /// Its logprob under the distribution that [`Engine::distribution`](super::Engine::distribution) describes, natural logarithm.
    pub logprob: f32,
    /// The entropy of that distribution over the whole vocabulary, nats.
    pub entropy: f64,
    /// The number of the weights that sampled it.
    pub weights: u64,
    /// The label of these weights.
    pub label: String,
}

/// How a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A stop token or a stop string was sampled.
    Stop,
    /// It reached its maximum length.
    Length,
    /// It was aborted.
    Abort,
    /// The client that waited for it disconnected.
    Left,
}

/// The journal entry of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalEntry {
    /// The request id, `meta_info.id`.
    pub rid: String,
    /// The prompt tokens that the model received.
    pub prompt: Vec<u32>,
    /// The sampled tokens, in order.
    pub sampled: Vec<SampledToken>,
    /// How it ended; `None` while it runs.
    pub end: Option<End>,
}

/// The journal of one engine. Entries are in the order in which their sequences began.
#[derive(Debug, Clone, Default)]
pub(super) struct Journal {
    // held while entries are copied or changed, never across an await
    entries: Arc<Mutex<Vec<JournalEntry>>>,
}

/// Writes the entry of one sequence. If it is dropped before [`end`](Self::end), it records [`End::Left`]: the client has disconnected.
#[derive(Debug)]
pub(super) struct JournalWriter {
    journal: Journal,
    at: usize,
}

impl End {
    /// The `type` of the `finish_reason`; `None` if the client disconnected.
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
    /// The ids of the sampled tokens.
    pub fn output(&self) -> Vec<u32> {
        self.sampled.iter().map(|token| token.id).collect()
    }
}

impl Journal {
    /// Begins the entry of a sequence.
    pub(super) fn begin(&self, rid: &str, prompt: &[u32]) -> JournalWriter {
        let mut entries = self.entries.lock();
        entries.push(JournalEntry { rid: rid.to_owned(), prompt: prompt.to_vec(), sampled: Vec::new(), end: None });
        JournalWriter { journal: self.clone(), at: entries.len() - 1 }
    }

    /// Returns a copy of all entries.
    pub(super) fn entries(&self) -> Vec<JournalEntry> {
        self.entries.lock().clone()
    }
}

impl JournalWriter {
    /// Records a sampled token.
    pub(super) fn record(&self, token: SampledToken) {
        self.journal.entries.lock()[self.at].sampled.push(token);
    }

    /// Records the end. Later calls have no effect.
    pub(super) fn end(&self, end: End) {
        self.journal.entries.lock()[self.at].end.get_or_insert(end);
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        self.end(End::Left);
    }
}
