// SPDX-License-Identifier: Apache-2.0
//! The epochs of LoRA adapters: a trainer loads, unloads and replaces an adapter while the base weights stay.
//!
//! SGLang serves the requests of an adapter before it unloads it, and refuses to load a name that is loaded. So an adapter is updated by
//! an unload and a load, and each of the two begins an epoch of this adapter only.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Adapters whose epochs are remembered.
const REMEMBERED: usize = 1024;

/// The adapter that sampled a span of tokens together with the base weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterSpan {
    /// The name, as the request has it in `lora_path` or in `model`.
    pub name: Arc<str>,
    /// The epoch of the adapter, or the first possible one.
    pub epoch: u64,
    /// The last possible epoch; equal to `epoch` if the epoch is certain.
    pub until: u64,
    /// The trainer's name of the epoch (`POST /v1/policy`).
    pub version: Option<Box<str>>,
}

/// An adapter of a request, and its epoch when the request came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedAdapter {
    /// The name.
    pub name: Arc<str>,
    /// The epoch.
    pub epoch: u64,
}

/// A call that changes adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterCall {
    /// Loads an adapter. Requests may use it before the call returns.
    Load,
    /// Unloads an adapter, after its requests have ended.
    Unload,
}

#[derive(Debug, Clone, Default)]
struct AdapterEpoch {
    number: u64,
    version: Option<Box<str>>,
    /// Calls that load it and have not returned.
    loading: u32,
    /// The epoch began with an unload, so it has no tokens of requests that came before.
    is_unloaded: bool,
}

/// The epoch of each adapter.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    known: HashMap<Arc<str>, AdapterEpoch>,
    /// The epoch of all other adapters: at least that of every adapter that was forgotten.
    others: u64,
}

impl Adapters {
    /// The current epoch of an adapter.
    pub(super) fn epoch(&self, name: &str) -> u64 {
        self.known.get(name).map_or(self.others, |known| known.number)
    }

    /// The adapter of tokens that were sampled until now, of a request that came in the epoch `asked` of the adapter.
    pub(super) fn span(&self, requested: &RequestedAdapter) -> AdapterSpan {
        let RequestedAdapter { name, epoch } = requested;
        let known = self.known.get(name);
        let is_loading = known.is_some_and(|known| known.loading > 0);
        let is_unloaded = known.is_some_and(|known| known.is_unloaded);
        let now = self.epoch(name) - u64::from(is_unloaded);
        let until = now.max(*epoch) + u64::from(is_loading);
        let version = known.filter(|_| until == *epoch).and_then(|known| known.version.clone());
        AdapterSpan { name: Arc::clone(name), epoch: *epoch, until, version }
    }

    /// Records that a call to load an adapter is sent.
    pub(super) fn begin_load(&mut self, name: &str) {
        self.entry(name).loading += 1;
    }

    /// Records that a call to load an adapter has returned or failed.
    pub(super) fn end_load(&mut self, name: &str) {
        if let Some(known) = self.known.get_mut(name) {
            known.loading = known.loading.saturating_sub(1);
        }
    }

    /// Begins an epoch of an adapter.
    pub(super) fn next(&mut self, name: &str, version: Option<Box<str>>) -> u64 {
        let known = self.entry(name);
        known.number += 1;
        (known.version, known.is_unloaded) = (version, false);
        known.number
    }

    /// Begins an epoch of an adapter that was unloaded.
    pub(super) fn unload(&mut self, name: &str) -> u64 {
        let number = self.next(name, None);
        self.entry(name).is_unloaded = true;
        number
    }

    /// Begins an epoch of every adapter, all with one number.
    pub(super) fn next_of_all(&mut self) -> u64 {
        self.raise(self.last() + 1);
        self.others
    }

    /// The trainer's name of the current epoch of an adapter.
    pub(super) fn version(&self, name: &str) -> Option<&str> {
        self.known.get(name)?.version.as_deref()
    }

    /// Raises the epoch of every adapter to at least `number`.
    pub(super) fn raise(&mut self, number: u64) {
        if number > self.others {
            self.others = number;
            self.known.retain(|_, known| known.loading > 0);
            for known in self.known.values_mut() {
                known.number = known.number.max(number);
                (known.version, known.is_unloaded) = (None, false);
            }
        }
    }

    /// The largest epoch of all adapters.
    pub(super) fn last(&self) -> u64 {
        self.known.values().map(|known| known.number).max().unwrap_or(0).max(self.others)
    }

    /// The adapters whose epochs began with a call or on request, with their epochs and the trainer's names of them, in order of the names.
    pub(super) fn list(&self) -> Vec<(Arc<str>, u64, Option<Box<str>>)> {
        let mut list: Vec<_> = self
            .known
            .iter()
            .filter(|(_, known)| known.number > self.others || known.version.is_some())
            .map(|(name, known)| (Arc::clone(name), known.number, known.version.clone()))
            .collect();
        list.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        list
    }

    fn entry(&mut self, name: &str) -> &mut AdapterEpoch {
        if self.known.len() >= REMEMBERED && !self.known.contains_key(name) {
            self.forget_one();
        }
        let number = self.others;
        self.known.entry(name.into()).or_insert_with(|| AdapterEpoch { number, ..AdapterEpoch::default() })
    }

    /// Forgets the adapter with the fewest updates. Its next epoch is later than every one that it has had.
    fn forget_one(&mut self) {
        let fewest = self.known.iter().min_by_key(|(_, known)| (known.loading > 0, known.number));
        let Some(name) = fewest.map(|(name, _)| Arc::clone(name)) else { return };
        if let Some(forgotten) = self.known.remove(&name) {
            self.others = self.others.max(forgotten.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(adapters: &Adapters, name: &str) -> RequestedAdapter {
        RequestedAdapter { name: name.into(), epoch: adapters.epoch(name) }
    }

    fn possible(adapters: &Adapters, requested: &RequestedAdapter) -> (u64, u64) {
        let span = adapters.span(requested);
        (span.epoch, span.until)
    }

    #[test]
    fn update_of_an_adapter_leaves_the_others_unchanged() {
        let mut adapters = Adapters::default();
        let (a, b) = (asked(&adapters, "a"), asked(&adapters, "b"));
        assert_eq!((adapters.next("a", None), adapters.next("a", Some("2".into()))), (1, 2));
        assert_eq!((possible(&adapters, &a), possible(&adapters, &b)), ((0, 2), (0, 0)));
        let later = adapters.span(&asked(&adapters, "a"));
        assert_eq!((later.epoch, later.until, later.version.as_deref()), (2, 2, Some("2")));
        assert_eq!(adapters.span(&a).version, None, "several epochs are possible");
        assert_eq!(adapters.list(), [("a".into(), 2, Some("2".into()))]);
    }

    #[test]
    fn tokens_that_are_sampled_during_a_load_belong_to_either_epoch() {
        let mut adapters = Adapters::default();
        adapters.begin_load("a");
        let during = asked(&adapters, "a");
        assert_eq!((possible(&adapters, &during), possible(&adapters, &asked(&adapters, "b"))), ((0, 1), (0, 0)));
        adapters.end_load("a");
        assert_eq!(possible(&adapters, &during), (0, 0), "the engine refused it");
        adapters.next("a", None);
        assert_eq!(possible(&adapters, &during), (0, 1));
    }

    #[test]
    fn unload_leaves_the_tokens_of_earlier_requests_certain() {
        let mut adapters = Adapters::default();
        let before = asked(&adapters, "a");
        assert_eq!((adapters.unload("a"), possible(&adapters, &before)), (1, (0, 0)));
        assert_eq!(possible(&adapters, &asked(&adapters, "a")), (1, 1), "SGLang has loaded it again by itself");
        adapters.next("a", None);
        assert_eq!(possible(&adapters, &before), (0, 2), "it may have come after the load");
    }

    #[test]
    fn restored_epochs_are_not_used_again() {
        let mut adapters = Adapters::default();
        adapters.next("a", Some("1".into()));
        adapters.begin_load("b");
        assert_eq!(
            (adapters.next_of_all(), adapters.epoch("a"), adapters.epoch("b"), adapters.epoch("c")),
            (2, 2, 2, 2)
        );
        assert_eq!(adapters.version("a"), None);
        adapters.raise(1);
        assert_eq!(adapters.last(), 2, "epochs never decrease");
        assert_eq!(adapters.next("c", None), 3);
    }

    #[test]
    fn forgotten_adapter_continues_after_its_last_epoch() {
        let mut adapters = Adapters::default();
        for _ in 0..3 {
            adapters.next("a", None);
        }
        for other in 0..2 * REMEMBERED {
            for _ in 0..4 {
                adapters.next(&format!("other-{other}"), None);
            }
        }
        assert!(adapters.known.len() <= REMEMBERED);
        assert!(adapters.next("a", None) > 3, "the number belongs to earlier weights");
    }
}
