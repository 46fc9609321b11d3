//! The request ids that are running, known to the guard and to those who abort.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

/// Ids in flight. Engines abort by prefix: ending `job-1` would end `job-10` too, which is why the ids are kept in order.
#[derive(Debug, Clone, Default)]
pub struct Flights {
    // held for the length of a map operation, never across an await
    ids: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Flights {
    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<String, usize>) -> T) -> T {
        act(&mut self.ids.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a request with this id is running.
    #[must_use]
    pub fn is_live(&self, rid: &str) -> bool {
        self.with(|ids| ids.contains_key(rid))
    }

    /// Whether `rid` is a proper prefix of an id that is running.
    #[must_use]
    pub fn is_prefix(&self, rid: &str) -> bool {
        self.with(|ids| {
            let mut later = ids.range::<str, _>((Bound::Excluded(rid), Bound::Unbounded));
            later.next().is_some_and(|(id, _)| id.starts_with(rid))
        })
    }

    /// Notes the ids of one request; they are forgotten when the result is dropped.
    #[must_use]
    pub fn start(&self, rids: impl IntoIterator<Item = String>) -> Flight {
        let mut flight = Flight { all: self.clone(), ids: Vec::new() };
        for rid in rids {
            flight.add(rid);
        }
        flight
    }
}

/// The ids of one running request.
#[derive(Debug)]
pub struct Flight {
    all: Flights,
    ids: Vec<String>,
}

impl Flight {
    /// Notes an id that the engine has named.
    pub fn add(&mut self, rid: String) {
        if !self.ids.contains(&rid) {
            self.all.with(|ids| *ids.entry(rid.clone()).or_default() += 1);
            self.ids.push(rid);
        }
    }

    /// Takes the ids out of flight and returns those that can be aborted without ending another request.
    pub fn take_abortable(&mut self) -> Vec<String> {
        let ids = self.land();
        ids.into_iter().filter(|rid| !rid.is_empty() && !self.all.is_prefix(rid)).collect()
    }

    fn land(&mut self) -> Vec<String> {
        let landed = std::mem::take(&mut self.ids);
        self.all.with(|ids| {
            for rid in &landed {
                if let Some(count) = ids.get_mut(rid) {
                    *count -= 1;
                    if *count == 0 {
                        ids.remove(rid);
                    }
                }
            }
        });
        landed
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.land();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_of_another_request_is_not_aborted() {
        let flights = Flights::default();
        let mut one = flights.start(["job-1".to_owned()]);
        let ten = flights.start(["job-10".to_owned()]);
        assert!(flights.is_live("job-1") && flights.is_prefix("job-1") && !flights.is_prefix("job-10"));
        assert!(one.take_abortable().is_empty());
        assert!(!flights.is_live("job-1") && flights.is_live("job-10"));
        drop(ten);
        let mut batch = flights.start(["R_1".to_owned(), "R_10".to_owned()]);
        assert_eq!(batch.take_abortable(), ["R_1", "R_10"], "ids of the same request do not protect each other");
    }
}
