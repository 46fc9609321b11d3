// SPDX-License-Identifier: Apache-2.0
//! The list of sessions, in pages.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{Backend, Sessions};
use crate::long_work::offload;
use crate::session::ids::has_part;
use crate::session::ledger::{LedgerError, ListOrder};
use crate::session::sharing::{FleetPage, FleetQuery, LastUseCursor};
use crate::session::state::Session;
use crate::session::store::Store;

/// Entries that are copied per lock of the order.
const LISTED: usize = 512;

/// A query of the list.
#[derive(Debug, Clone)]
pub struct ListQuery {
    /// By creation, or by the last append or renewal if sessions are shared.
    pub order: ListOrder,
    /// The `next` of the previous page; `None` or `0`: the first page.
    pub after: Option<String>,
    /// The most sessions, at least 1.
    pub limit: usize,
    /// A part of the names, in any case; empty for all sessions. Needs [`ListOrder::Newest`].
    pub part: String,
}

/// A page of the list.
#[derive(Debug)]
pub struct ListedPage {
    /// The sessions.
    pub sessions: Vec<ListedSession>,
    /// Where the next page begins; `None` on the last page.
    pub next: Option<ListCursor>,
    /// The scope, if it may change from page to page.
    pub scope: Option<ListScope>,
}

/// A session of a page.
#[derive(Debug)]
pub struct ListedSession {
    /// Its name.
    pub name: Arc<str>,
    /// `None` if another process has it and this process has not read it.
    pub session: Option<Arc<Session>>,
    /// Its last append or renewal by the clock of the ledger.
    pub used_ms: Option<u64>,
}

/// The scope of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListScope {
    /// The sessions of this process.
    Process,
    /// The sessions of all processes.
    Fleet,
}

impl ListScope {
    /// Its name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Fleet => "fleet",
        }
    }
}

/// Where a page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListCursor(ListPosition);

#[derive(Debug, Clone, PartialEq, Eq)]
enum ListPosition {
    /// In the list of this process: the number of a session.
    Process(u64),
    /// In the list of all processes.
    Fleet(LastUseCursor),
}

impl ListCursor {
    /// The number, in the list of this process.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match self.0 {
            ListPosition::Process(number) => Some(number),
            ListPosition::Fleet(_) => None,
        }
    }
}

impl fmt::Display for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ListPosition::Process(number) => number.fmt(f),
            ListPosition::Fleet(cursor) => cursor.fmt(f),
        }
    }
}

impl FromStr for ListCursor {
    type Err = ListError;

    fn from_str(text: &str) -> Result<Self, ListError> {
        if let Ok(number) = text.parse() {
            return Ok(Self(ListPosition::Process(number)));
        }
        let cursor = text.parse().map_err(|_| ListError::Malformed(text.to_owned()))?;
        Ok(Self(ListPosition::Fleet(cursor)))
    }
}

/// Why sessions cannot be listed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The cursor is not one of these sessions.
    #[error("after: must be the next of a page, not {0:?}")]
    Malformed(String),
    /// The cursor is a place in the list of one process.
    #[error("after: is a cursor of one process, and sessions are shared")]
    OfProcess,
    /// The ledger fails.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Sessions {
    /// Reads a page of the list. If sessions are shared, those of all processes are listed by their last append or renewal: a session that is
    /// used while the pages are read moves. With [`ListOrder::Oldest`] it is listed again, with [`ListOrder::Newest`] it may be missing. If the
    /// ledger fails, the list with the newest first has the sessions of this process; the other one, from which programs read all sessions, is
    /// an error.
    ///
    /// # Errors
    /// [`ListError`].
    pub async fn list(&self, query: ListQuery) -> Result<ListedPage, ListError> {
        let ListQuery { order, after, limit, part } = query;
        let after: Option<ListCursor> = after.filter(|after| after != "0").map(|after| after.parse()).transpose()?;
        let (number, scope) = match (self.backend(), after.map(|after| after.0)) {
            (Backend::Local(_), Some(ListPosition::Fleet(cursor))) => {
                return Err(ListError::Malformed(cursor.to_string()));
            }
            (Backend::Local(_), Some(ListPosition::Process(number))) => (Some(number), None),
            (Backend::Local(_), None) => (None, None),
            (Backend::Shared(_), Some(ListPosition::Process(_))) if order == ListOrder::Oldest => {
                return Err(ListError::OfProcess);
            }
            (Backend::Shared(_), Some(ListPosition::Process(number))) => (Some(number), Some(ListScope::Process)),
            (Backend::Shared(sharing), after) => {
                let after =
                    after.and_then(|after| if let ListPosition::Fleet(after) = after { Some(after) } else { None });
                let may_be_partial = after.is_none() && order == ListOrder::Newest;
                match sharing.list(FleetQuery { order, after, limit, part: part.clone() }).await {
                    Ok(page) => {
                        let store = Arc::clone(&sharing.store);
                        return Ok(offload(move || ListedPage::of_fleet(&store, page, order, limit)).await);
                    }
                    Err(error) if may_be_partial => {
                        tracing::debug!(%error, "the list has the sessions of this process only");
                    }
                    Err(error) => return Err(error.into()),
                }
                (None, Some(ListScope::Process))
            }
        };
        let (store, is_whole) = (Arc::clone(self.memory()), part.is_empty());
        let list = move || match order {
            ListOrder::Oldest => store.page(number.unwrap_or(0), limit),
            ListOrder::Newest => store.page_back(number.unwrap_or(u64::MAX), limit, &part),
        };
        // a short page takes microseconds
        let page = if limit <= LISTED && is_whole { list() } else { offload(list).await };
        let next =
            page.last().filter(|_| page.len() == limit).map(|(number, _)| ListCursor(ListPosition::Process(*number)));
        let listed = |(_, session): (u64, Arc<Session>)| ListedSession {
            name: Arc::clone(&session.id),
            session: Some(session),
            used_ms: None,
        };
        Ok(ListedPage { sessions: page.into_iter().map(listed).collect(), next, scope })
    }
}

impl Sessions {
    /// The sessions in memory, the latest first, with their numbers: at most `limit` before the one with the number `before`.
    #[must_use]
    pub fn latest_before(&self, before: u64, limit: usize) -> Vec<(u64, Arc<Session>)> {
        self.memory().page_back(before, limit, "")
    }
}

impl ListedPage {
    fn of_fleet(store: &Store, page: FleetPage, order: ListOrder, limit: usize) -> Self {
        let known: HashSet<Arc<str>> = page.sessions.iter().map(|last| Arc::clone(&last.session)).collect();
        let listed = |name: Arc<str>, used_ms| ListedSession { session: store.session(&name), name, used_ms };
        let detached = page.detached.into_iter().filter(|name| !known.contains(name));
        // after a disruption many sessions are compared with the ledger, and few have turns that it lacks
        let is_detached = |listed: &ListedSession| {
            let session = listed.session.as_ref();
            session.is_some_and(|session| session.state().is_detached)
        };
        let detached = detached.map(|name| listed(name, None)).filter(is_detached).take(limit);
        let mut sessions: Vec<ListedSession> = detached.collect();
        let detached = sessions.len();
        sessions.extend(page.sessions.into_iter().map(|last| listed(last.session, Some(last.used_ms))));
        if order == ListOrder::Oldest {
            // they were used last
            sessions.rotate_left(detached);
        }
        Self {
            sessions,
            next: page.next.map(|next| ListCursor(ListPosition::Fleet(next))),
            scope: Some(ListScope::Fleet),
        }
    }
}

impl Store {
    /// Sessions in the order of their creation, after the one with the number `after`. The order is locked briefly for each part.
    pub(in crate::session) fn page(&self, mut after: u64, limit: usize) -> Vec<(u64, Arc<Session>)> {
        let mut found = Vec::new();
        while found.len() < limit {
            let some = self.order().page(after, LISTED.min(limit - found.len()));
            let Some((last, _)) = some.last() else { break };
            after = *last;
            found.extend(some);
        }
        found
    }

    /// Sessions whose names contain `part` in any case, the latest first, before the one with the number `before`. Names are compared without a
    /// lock.
    pub(in crate::session) fn page_back(&self, mut before: u64, limit: usize, part: &str) -> Vec<(u64, Arc<Session>)> {
        let mut found = Vec::new();
        while found.len() < limit {
            let some = self.order().page_back(before, LISTED);
            let Some((last, _)) = some.last() else { break };
            before = *last;
            found.extend(some.into_iter().filter(|(_, session)| has_part(&session.id, part)));
        }
        found.truncate(limit);
        found
    }
}
