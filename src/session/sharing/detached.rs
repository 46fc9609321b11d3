// SPDX-License-Identifier: Apache-2.0
//! Sessions in memory whose changes the ledger lacks: their bytes, and their turns in the local log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::Sharing;
use crate::session::ledger::{Ack, Change, ProcessRecord, Record};
use crate::session::state::Session;
use crate::session::{Cause, Draft, Uid};

impl Sharing {
    /// Sets whether the ledger lacks changes of a session. A detached session is not evicted.
    pub(super) fn set_detached(&self, session: &Arc<Session>, is_detached: bool) {
        let mut order = self.store.order();
        let size = {
            let mut state = session.state();
            if std::mem::replace(&mut state.is_detached, is_detached) == is_detached || state.removed {
                return;
            }
            state.size()
        };
        match is_detached {
            true => order.pin(session, size),
            false => order.unpin(session, Instant::now()),
        }
    }

    /// Counts the bytes by which a session grows, unless it was evicted.
    pub(super) fn add_bytes(&self, session: &Session, bytes: i64) {
        let (mut order, state) = (self.store.order(), session.state());
        if !state.removed {
            order.change_session(session, bytes, || state.size());
        }
    }

    /// Bytes of the detached sessions, with their pictures, and of the missing changes.
    pub(in crate::session) fn detached_bytes(&self) -> u64 {
        self.store.order().pinned_bytes() + self.store.missing_bytes.load(Ordering::Relaxed)
    }

    /// The limit of [`Self::detached_bytes`]. The rest of the memory is for sessions of partitions that work.
    pub(super) fn detached_limit(&self) -> u64 {
        self.store.limits.bytes / 4 * 3
    }

    /// Whether the limit is reached, so that further detached turns are not kept in memory.
    pub(super) fn is_full_of_detached(&self) -> bool {
        self.detached_bytes() > self.detached_limit()
    }

    /// Writes a turn that is not in the ledger to the local log, with its whole prompt and each picture of it once. Without a birth, the
    /// turn is in the log only, and its own uid is the birth.
    pub(super) fn log_detached(&self, session: &Arc<str>, birth: Option<Uid>, id: u32, draft: &Draft) -> Ack {
        let (prompt, cause) = (draft.prompt.clone().unwrap_or_default(), Cause::NewConversation);
        let cause = if draft.prompt.is_some() { cause } else { Cause::Unplaced };
        let mut turn = draft.clone().place(id, None, cause, prompt);
        if let Some(images) = &mut turn.about.images {
            // the log may lose earlier records of the session
            images.mark_stored(|_| false);
        }
        let turn = Arc::new(turn);
        let birth = birth.unwrap_or(turn.about.uid);
        self.store.log.append(Record { session: Arc::clone(session), birth, change: Change::Turn(turn) })
    }

    /// Records in the local log that no turn of the session is detached any more.
    pub(super) fn end_detached(&self, name: &Arc<str>) {
        self.store.log.append_unacknowledged(ProcessRecord::Settled { session: Arc::clone(name) });
    }
}
