//! One running call of a session.

use std::sync::Arc;

use super::log::Ack;
use super::session::Session;
use super::store::Store;
use super::turn::Draft;

/// A call. While it lives its session is neither idle nor evicted; a session that does not exist comes into being with the first turn,
/// so that a refused call leaves nothing behind.
#[derive(Debug)]
pub struct Call {
    store: Arc<Store>,
    id: Arc<str>,
    session: Option<Arc<Session>>,
    done: bool,
}

impl Call {
    /// A call of the session `id`.
    #[must_use]
    pub fn new(store: Arc<Store>, id: Arc<str>) -> Self {
        let session = store.enter_known(&id);
        Self { store, id, session, done: false }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The session's name.
    #[must_use]
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// It is the session's last call.
    pub fn last(&mut self) {
        self.done = true;
    }

    /// Adds a turn. It is in the store when this returns, and in the log when the answer says so. Its number is missing where the
    /// session has been deleted in the meantime.
    #[must_use]
    pub fn commit(&mut self, draft: Draft) -> (Option<u32>, Ack) {
        let session = self.session.get_or_insert_with(|| {
            let session = self.store.enter(&self.id);
            self.store.arrived(&self.id);
            session
        });
        self.store.commit(session, draft)
    }

    /// Something was generated that is not recorded.
    pub fn incomplete(&self) {
        self.store.incomplete(&self.id);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        match &self.session {
            Some(session) => self.store.leave(session, self.done),
            None => self.store.arrived(&self.id),
        }
    }
}
