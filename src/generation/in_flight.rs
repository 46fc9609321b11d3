// SPDX-License-Identifier: Apache-2.0
//! The request ids in flight, for the guard and for aborts.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Ids in flight. Engines abort by prefix: aborting `job-1` would abort `job-10` too. An ordered map makes the prefix check cheap.
#[derive(Debug, Clone, Default)]
pub struct InFlightIds {
    // held for the length of a few map operations, never across an await
    ids: Arc<Mutex<BTreeMap<Arc<str>, LiveId>>>,
    /// Generations with an unknown id that the client may have chosen.
    unnamed: Arc<AtomicUsize>,
    /// Generations with an unknown id that the engine chooses.
    random: Arc<AtomicUsize>,
}

/// An id in flight.
#[derive(Debug, Default)]
struct LiveId {
    /// The requests that have it.
    requests: usize,
    /// A client has aborted it.
    is_aborted: bool,
    /// The id under which the engine continues the request.
    continued_as: Option<Arc<str>>,
}

/// Length of an engine's own ids, which are lower-case hexadecimal. An id of this length is not a prefix of another.
const ENGINE_RID_LEN: usize = 32;

/// Counts a generation whose id is unknown until the guard is dropped.
#[derive(Debug)]
pub struct UnknownRidGuard(Arc<AtomicUsize>);

impl UnknownRidGuard {
    fn count(of: &Arc<AtomicUsize>) -> Self {
        of.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(of))
    }
}

impl Drop for UnknownRidGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request with this id is running already.
#[derive(Debug, PartialEq, Eq)]
pub struct RidInUse(pub Arc<str>);

impl InFlightIds {
    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<Arc<str>, LiveId>) -> T) -> T {
        act(&mut self.ids.lock())
    }

    /// Whether a request with this id is running.
    #[must_use]
    pub fn is_live(&self, rid: &str) -> bool {
        self.with(|ids| ids.contains_key(rid))
    }

    /// Records that a client aborts a running request. Returns the id that the engine has for it now; `None` if it is not running.
    #[must_use]
    pub fn mark_aborted(&self, rid: &str) -> Option<Arc<str>> {
        self.with(|ids| {
            let live = ids.get_mut(rid)?;
            live.is_aborted = true;
            Some(live.continued_as.clone().unwrap_or_else(|| rid.into()))
        })
    }

    /// Counts a generation with an unknown id that the client may have chosen.
    #[must_use]
    pub fn unnamed(&self) -> UnknownRidGuard {
        UnknownRidGuard::count(&self.unnamed)
    }

    /// Counts a generation with an unknown id that the engine chooses.
    #[must_use]
    pub fn random(&self) -> UnknownRidGuard {
        UnknownRidGuard::count(&self.random)
    }

    /// Whether the unknown id of a generation may begin with this id.
    #[must_use]
    pub fn may_prefix_unknown_rid(&self, rid: &str) -> bool {
        self.may_prefix_other_rid(rid, None)
    }

    /// The same, without counting the caller's own generation.
    fn may_prefix_other_rid(&self, rid: &str, own: Option<&UnknownRidGuard>) -> bool {
        let hexadecimal = || rid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let others = |count: &Arc<AtomicUsize>| {
            let own = own.is_some_and(|own| Arc::ptr_eq(&own.0, count));
            count.load(Ordering::Relaxed) > usize::from(own)
        };
        rid.len() < ENGINE_RID_LEN && (others(&self.unnamed) || others(&self.random) && hexadecimal())
    }

    /// Whether the id of another running request begins with this one.
    #[must_use]
    pub fn is_prefix(&self, rid: &str) -> bool {
        let later = (Bound::Excluded(rid), Bound::Unbounded);
        self.with(|ids| ids.range::<str, _>(later).next().is_some_and(|(id, _)| id.starts_with(rid)))
    }

    /// Registers the ids of one request until the result is dropped.
    #[must_use]
    pub fn start(&self, rids: impl IntoIterator<Item = Arc<str>>) -> InFlight {
        let mut flight = InFlight { all: self.clone(), ids: RequestIds::default(), unnamed: None };
        rids.into_iter().for_each(|rid| flight.add(rid));
        flight
    }

    /// The same, but fails if one of the ids is in flight: of two concurrent requests one gets the id.
    ///
    /// # Errors
    /// [`RidInUse`] with the first id that is running.
    pub fn try_start<'a>(&self, rids: impl Iterator<Item = &'a Arc<str>> + Clone) -> Result<InFlight, RidInUse> {
        let mut own = RequestIds::default();
        self.with(|ids| {
            if let Some(live) = rids.clone().find(|rid| ids.contains_key(&***rid)) {
                return Err(RidInUse(Arc::clone(live)));
            }
            for rid in rids.filter(|rid| own.insert(rid)) {
                ids.entry(Arc::clone(rid)).or_default().requests += 1;
            }
            Ok(())
        })?;
        Ok(InFlight { all: self.clone(), ids: own, unnamed: None })
    }
}

/// The ids of one request: usually one, sometimes a million.
#[derive(Debug, Default)]
struct RequestIds {
    first: Option<Arc<str>>,
    others: HashSet<Arc<str>>,
}

impl RequestIds {
    fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        self.first.iter().chain(&self.others)
    }

    fn contains(&self, rid: &str) -> bool {
        self.first.as_deref() == Some(rid) || !self.others.is_empty() && self.others.contains(rid)
    }

    /// Returns false if the id is known.
    fn insert(&mut self, rid: &Arc<str>) -> bool {
        if self.first.is_none() {
            self.first = Some(Arc::clone(rid));
            return true;
        }
        !self.contains(rid) && self.others.insert(Arc::clone(rid))
    }
}

/// The ids of one running request.
#[derive(Debug)]
pub struct InFlight {
    all: InFlightIds,
    ids: RequestIds,
    unnamed: Option<UnknownRidGuard>,
}

impl InFlight {
    /// Registers an id that the engine has returned.
    pub fn add(&mut self, rid: Arc<str>) {
        if self.ids.insert(&rid) {
            self.all.with(|ids| ids.entry(rid).or_default().requests += 1);
        }
    }

    /// Registers the id under which the engine continues this request. Aborts of its other ids go to it.
    pub fn continue_as(&mut self, rid: &Arc<str>) {
        self.add(Arc::clone(rid));
        self.all.with(|ids| {
            for known in self.ids.iter().filter(|known| *known != rid) {
                if let Some(live) = ids.get_mut(known) {
                    live.continued_as = Some(Arc::clone(rid));
                }
            }
        });
    }

    /// Counts the request's unknown ids: the client's if `named`, otherwise the engine's.
    pub fn add_unknown_rids(&mut self, named: bool) {
        self.unnamed = Some(if named { self.all.unnamed() } else { self.all.random() });
    }

    /// The ids of this request.
    #[must_use]
    pub fn ids(&self) -> Vec<Arc<str>> {
        self.ids.iter().cloned().collect()
    }

    /// Whether a client has aborted one of these ids.
    #[must_use]
    pub fn is_aborted_by_client(&self) -> bool {
        self.all.with(|ids| self.ids.iter().any(|rid| ids.get(rid).is_some_and(|live| live.is_aborted)))
    }

    /// Whether `rid` can be aborted without aborting another request: it is not a proper prefix of another request's id, and cannot be a
    /// prefix of an unknown id.
    #[must_use]
    pub fn may_abort(&self, rid: &str) -> bool {
        let others = |ids: &mut BTreeMap<Arc<str>, LiveId>| {
            let later = ids.range::<str, _>((Bound::Excluded(rid), Bound::Unbounded));
            later.take_while(|(id, _)| id.starts_with(rid)).any(|(id, _)| !self.ids.contains(id))
        };
        !rid.is_empty() && !self.all.may_prefix_other_rid(rid, self.unnamed.as_ref()) && !self.all.with(others)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.all.with(|ids| {
            for rid in self.ids.iter() {
                if let Some(live) = ids.get_mut(rid) {
                    live.requests -= 1;
                    if live.requests == 0 {
                        ids.remove(rid);
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_of_another_request_id_is_not_aborted() {
        let flights = InFlightIds::default();
        let one = flights.start(["job-1".into()]);
        let ten = flights.start(["job-10".into()]);
        assert!(flights.is_live("job-1") && !one.may_abort("job-1") && ten.may_abort("job-10"));
        drop(ten);
        assert!(one.may_abort("job-1") && !flights.is_live("job-10"));
        let batch = flights.start(["R_1".into(), "R_10".into()]);
        assert!(batch.may_abort("R_1"), "ids of the same request do not protect each other");
    }

    #[test]
    fn abort_of_a_continued_request_goes_to_its_last_id() {
        let flights = InFlightIds::default();
        let mut flight = flights.start(["a".into()]);
        for rid in ["b", "c"] {
            flight.continue_as(&rid.into());
        }
        for rid in ["a", "b", "c"] {
            assert_eq!(flights.mark_aborted(rid).as_deref(), Some("c"), "{rid}");
        }
        assert_eq!(flight.ids().len(), 3);
        drop(flight);
        assert!(!flights.is_live("a") && !flights.is_live("c"));
    }

    #[test]
    fn abort_of_a_client_is_known_until_the_request_ends() {
        let flights = InFlightIds::default();
        let (one, other) = (flights.start(["a".into()]), flights.start(["b".into()]));
        assert_eq!(flights.mark_aborted("a").as_deref(), Some("a"));
        assert_eq!(flights.mark_aborted("unknown"), None);
        assert!(one.is_aborted_by_client() && !other.is_aborted_by_client());
        drop(one);
        assert!(!flights.start(["a".into()]).is_aborted_by_client(), "a later request with the same id");
        assert!(!flights.is_live("unknown"));
    }

    #[test]
    fn short_id_is_not_aborted_while_other_ids_are_unknown() {
        let flights = InFlightIds::default();
        let whole = "0123456789abcdef0123456789abcdef";
        let short = flights.start(["a".into()]);
        let long = flights.start([whole.into()]);
        let mut several = flights.start([]);
        several.add_unknown_rids(false);
        assert!(!short.may_abort("a") && flights.may_prefix_unknown_rid("a") && long.may_abort(whole));
        assert!(
            !flights.may_prefix_unknown_rid("agent-1") && !flights.may_prefix_unknown_rid("A"),
            "no engine id begins like this"
        );
        several.add("s_0".into());
        assert!(several.may_abort("s_0"), "its own ids are known");
        let chat = flights.unnamed();
        drop(several);
        assert!(
            !short.may_abort("a") && flights.may_prefix_unknown_rid("agent-1"),
            "the other generation may have any id"
        );
        drop(chat);
        let mut named = flights.start([]);
        named.add_unknown_rids(true);
        assert!(flights.may_prefix_unknown_rid("agent-1") && named.may_abort("agent-1"), "a header may name any id");
        drop(named);
        assert!(short.may_abort("a") && !flights.may_prefix_unknown_rid("a"));
    }

    #[test]
    fn second_request_with_an_id_in_flight_is_refused() {
        let flights = InFlightIds::default();
        let (a, b, c): (Arc<str>, Arc<str>, Arc<str>) = ("a".into(), "b".into(), "c".into());
        let first = flights.try_start([&a, &b].into_iter());
        assert_eq!(flights.try_start([&c, &b].into_iter()).err(), Some(RidInUse("b".into())));
        assert!(!flights.is_live("c"), "a refused request registers no id");
        drop(first);
        assert!(flights.try_start([&b].into_iter()).is_ok());
    }
}
