// SPDX-License-Identifier: Apache-2.0
//! Pauses of the generation: what a trainer's calls and the tokens that arrive say about them.

use std::ops::RangeInclusive;

use tokio::time::Instant;

use super::Policy;

impl Policy {
    /// The possible epochs of tokens that have just arrived, of a request that was received at `requested`. A paused engine samples
    /// nothing for new requests, so such tokens show that it has continued.
    #[must_use]
    pub fn observe_tokens(&self, requested: Instant) -> RangeInclusive<u64> {
        let mut state = self.state.lock();
        if state.paused_at.is_some_and(|paused| requested > paused) {
            state.end_pause();
            self.paused.send_if_modified(|paused| std::mem::replace(paused, false));
        }
        state.sampled_epochs()
    }

    /// Records that a call to pause the generation is sent. [`Self::settle_pause`] follows.
    pub fn begin_pause(&self) {
        self.paused.send_replace(true);
    }

    /// Records that the generation was paused.
    pub fn mark_paused(&self) {
        self.state.lock().paused_at = Some(Instant::now());
        self.paused.send_replace(true);
    }

    /// Records that a call to continue the generation is sent: tokens may be sampled from now on, but new calls wait for
    /// [`Self::settle_pause`]. The engine could get them before this call. Returns whether the generation was paused.
    pub fn begin_continue(&self) -> bool {
        let mut state = self.state.lock();
        let was_paused = state.paused_at.is_some();
        state.end_pause();
        was_paused
    }

    /// Records that a call to pause or to continue the generation has ended. A failed call to pause leaves the state as it was before.
    pub fn settle_pause(&self) {
        let state = self.state.lock();
        self.paused.send_replace(state.paused_at.is_some());
    }

    /// Whether a trainer has paused the generation, or is about to, and the engine has not answered a call to continue it.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        *self.paused.borrow()
    }

    /// Waits until the generation is not paused.
    pub async fn wait_continued(&self) {
        // `self` owns the sender, so waiting cannot fail
        let _ = self.paused.subscribe().wait_for(|paused| !paused).await;
    }
}
