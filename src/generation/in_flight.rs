//! The request ids that are running, known to the guard and to those who abort.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Ids in flight. Engines abort by prefix: ending `job-1` would end `job-10` too, which is why the ids are kept in order.
#[derive(Debug, Clone, Default)]
pub struct InFlightIds {
    // held for the length of a few map operations, never across an await
    ids: Arc<Mutex<BTreeMap<String, usize>>>,
    /// Generations whose ids are not known and may be any.
    unnamed: Arc<AtomicUsize>,
    /// Generations whose ids are the engine's own.
    random: Arc<AtomicUsize>,
}

/// Characters of the ids that engines make, which are lower-case hexadecimal: no other id begins with one of them.
const WHOLE: usize = 32;

/// A generation whose id has not been said, or will not be said here. Forgotten when it is dropped.
#[derive(Debug)]
pub struct Unnamed(Arc<AtomicUsize>);

impl Unnamed {
    fn count(of: &Arc<AtomicUsize>) -> Self {
        of.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(of))
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request with this id is running already.
#[derive(Debug, PartialEq, Eq)]
pub struct Live(pub String);

impl InFlightIds {
    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<String, usize>) -> T) -> T {
        act(&mut self.ids.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a request with this id is running.
    #[must_use]
    pub fn is_live(&self, rid: &str) -> bool {
        self.with(|ids| ids.contains_key(rid))
    }

    /// Notes a generation whose id is not known: its client may have chosen it.
    #[must_use]
    pub fn unnamed(&self) -> Unnamed {
        Unnamed::count(&self.unnamed)
    }

    /// Notes a generation whose id the engine chooses.
    #[must_use]
    pub fn random(&self) -> Unnamed {
        Unnamed::count(&self.random)
    }

    /// Whether the id of a generation that is not known here may begin with this one.
    #[must_use]
    pub fn may_hide(&self, rid: &str) -> bool {
        self.may_hide_beside(rid, None)
    }

    /// The same beside a generation of its own.
    fn may_hide_beside(&self, rid: &str, own: Option<&Unnamed>) -> bool {
        let hexadecimal = || rid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let others = |count: &Arc<AtomicUsize>| {
            let own = own.is_some_and(|own| Arc::ptr_eq(&own.0, count));
            count.load(Ordering::Relaxed) > usize::from(own)
        };
        rid.len() < WHOLE && (others(&self.unnamed) || others(&self.random) && hexadecimal())
    }

    /// Whether the id of another running request begins with this one.
    #[must_use]
    pub fn is_prefix(&self, rid: &str) -> bool {
        let later = (Bound::Excluded(rid), Bound::Unbounded);
        self.with(|ids| ids.range::<str, _>(later).next().is_some_and(|(id, _)| id.starts_with(rid)))
    }

    /// Notes the ids of one request; they are forgotten when the result is dropped.
    #[must_use]
    pub fn start(&self, rids: impl IntoIterator<Item = String>) -> InFlight {
        let mut flight = InFlight { all: self.clone(), ids: HashSet::new(), unnamed: None };
        rids.into_iter().for_each(|rid| flight.add(rid));
        flight
    }

    /// The same, unless one of them is running: of two requests at once, one gets the id.
    ///
    /// # Errors
    /// [`Live`] with the first id that is running.
    pub fn try_start(&self, rids: &[String]) -> Result<InFlight, Live> {
        self.with(|ids| {
            if let Some(live) = rids.iter().find(|rid| ids.contains_key(*rid)) {
                return Err(Live(live.clone()));
            }
            for rid in rids {
                *ids.entry(rid.clone()).or_default() += 1;
            }
            Ok(())
        })?;
        Ok(InFlight { all: self.clone(), ids: rids.iter().cloned().collect(), unnamed: None })
    }
}

/// The ids of one running request.
#[derive(Debug)]
pub struct InFlight {
    all: InFlightIds,
    ids: HashSet<String>,
    unnamed: Option<Unnamed>,
}

impl InFlight {
    /// Notes an id that the engine has named.
    pub fn add(&mut self, rid: String) {
        if !self.ids.contains(&rid) {
            self.all.with(|ids| *ids.entry(rid.clone()).or_default() += 1);
            self.ids.insert(rid);
        }
    }

    /// It has ids that are not known: the engine's own, or where `named` the client's.
    pub fn hide(&mut self, named: bool) {
        self.unnamed = Some(if named { self.all.unnamed() } else { self.all.random() });
    }

    /// The ids of this request.
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        self.ids.iter().cloned().collect()
    }

    /// Whether `rid` can be aborted without ending another request: it is no proper prefix of an id that is running elsewhere, and
    /// cannot be one of an id that is not known.
    #[must_use]
    pub fn may_abort(&self, rid: &str) -> bool {
        let others = |ids: &mut BTreeMap<String, usize>| {
            let later = ids.range::<str, _>((Bound::Excluded(rid), Bound::Unbounded));
            later.take_while(|(id, _)| id.starts_with(rid)).any(|(id, _)| !self.ids.contains(id))
        };
        !rid.is_empty() && !self.all.may_hide_beside(rid, self.unnamed.as_ref()) && !self.all.with(others)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.all.with(|ids| {
            for rid in &self.ids {
                if let Some(count) = ids.get_mut(rid) {
                    *count -= 1;
                    if *count == 0 {
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
    fn a_prefix_of_another_request_is_not_aborted() {
        let flights = InFlightIds::default();
        let one = flights.start(["job-1".to_owned()]);
        let ten = flights.start(["job-10".to_owned()]);
        assert!(flights.is_live("job-1") && !one.may_abort("job-1") && ten.may_abort("job-10"));
        drop(ten);
        assert!(one.may_abort("job-1") && !flights.is_live("job-10"));
        let batch = flights.start(["R_1".to_owned(), "R_10".to_owned()]);
        assert!(batch.may_abort("R_1"), "ids of the same request do not protect each other");
    }

    #[test]
    fn a_short_id_is_not_aborted_while_others_are_unknown() {
        let flights = InFlightIds::default();
        let whole = "0123456789abcdef0123456789abcdef";
        let short = flights.start(["a".to_owned()]);
        let long = flights.start([whole.to_owned()]);
        let mut several = flights.start([]);
        several.hide(false);
        assert!(!short.may_abort("a") && flights.may_hide("a") && long.may_abort(whole));
        assert!(!flights.may_hide("agent-1") && !flights.may_hide("A"), "no id of an engine begins so");
        several.add("s_0".to_owned());
        assert!(several.may_abort("s_0"), "its own are known by now");
        let chat = flights.unnamed();
        drop(several);
        assert!(!short.may_abort("a") && flights.may_hide("agent-1"), "the other one runs, under whatever id");
        drop(chat);
        let mut named = flights.start([]);
        named.hide(true);
        assert!(flights.may_hide("agent-1") && named.may_abort("agent-1"), "by a header, which may say anything");
        drop(named);
        assert!(short.may_abort("a") && !flights.may_hide("a"));
    }

    #[test]
    fn of_two_requests_at_once_one_gets_the_id() {
        let flights = InFlightIds::default();
        let first = flights.try_start(&["a".to_owned(), "b".to_owned()]);
        assert_eq!(flights.try_start(&["c".to_owned(), "b".to_owned()]).err(), Some(Live("b".to_owned())));
        assert!(!flights.is_live("c"), "a request that was refused leaves nothing behind");
        drop(first);
        assert!(flights.try_start(&["b".to_owned()]).is_ok());
    }
}
