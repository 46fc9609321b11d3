//! Counts the buffered bytes of an attempt in the total of all attempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The buffered bytes of one attempt, subtracted from the total when it is dropped.
#[derive(Debug)]
pub(super) struct BufferedBytes {
    all: Arc<AtomicUsize>,
    /// Bytes of the request.
    request: usize,
    /// Bytes of the reply.
    reply: usize,
}

impl BufferedBytes {
    /// Starts at zero; `all` is the total.
    pub(super) fn new(all: Arc<AtomicUsize>) -> Self {
        Self { all, request: 0, reply: 0 }
    }

    /// Adds bytes of the reply.
    pub(super) fn add(&mut self, bytes: usize) {
        self.reply += bytes;
        self.all.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Removes the bytes of the reply.
    pub(super) fn clear(&mut self) {
        self.all.fetch_sub(std::mem::take(&mut self.reply), Ordering::Relaxed);
    }

    /// Sets the bytes of the request.
    pub(super) fn set_request(&mut self, bytes: usize) {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        self.all.fetch_sub(std::mem::replace(&mut self.request, bytes), Ordering::Relaxed);
    }
}

impl Drop for BufferedBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.request + self.reply, Ordering::Relaxed);
    }
}
