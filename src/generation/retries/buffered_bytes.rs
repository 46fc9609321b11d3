//! Bytes that are kept, counted together with those of all others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes of one attempt; given back when it is dropped.
#[derive(Debug)]
pub(super) struct BufferedBytes {
    all: Arc<AtomicUsize>,
    /// Of the request.
    asked: usize,
    /// Of the reply.
    replied: usize,
}

impl BufferedBytes {
    /// No bytes; `all` is where they are counted.
    pub(super) fn new(all: Arc<AtomicUsize>) -> Self {
        Self { all, asked: 0, replied: 0 }
    }

    /// Bytes of the reply are kept.
    pub(super) fn add(&mut self, bytes: usize) {
        self.replied += bytes;
        self.all.fetch_add(bytes, Ordering::Relaxed);
    }

    /// None of them are any more.
    pub(super) fn clear(&mut self) {
        self.all.fetch_sub(std::mem::take(&mut self.replied), Ordering::Relaxed);
    }

    /// The request is kept; counted once.
    pub(super) fn ask(&mut self, bytes: usize) {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        self.all.fetch_sub(std::mem::replace(&mut self.asked, bytes), Ordering::Relaxed);
    }
}

impl Drop for BufferedBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.asked + self.replied, Ordering::Relaxed);
    }
}
