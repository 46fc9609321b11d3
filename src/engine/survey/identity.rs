// SPDX-License-Identifier: Apache-2.0
//! Detects whether the engine at an address was replaced since it was probed.

use std::collections::HashMap;

use crate::engine::capabilities::Capabilities;

/// The properties that an engine keeps while it runs. The model path and the served name are not among them, because loading weights
/// changes both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineIdentity {
    tokenizer_path: Option<String>,
    generates: Option<bool>,
}

impl From<&Capabilities> for EngineIdentity {
    fn from(found: &Capabilities) -> Self {
        Self { tokenizer_path: found.tokenizer_path.clone(), generates: found.generates }
    }
}

impl EngineIdentity {
    /// Whether a member that both identities have differs. A missing member is not compared.
    fn differs(&self, other: &Self) -> bool {
        fn differ<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
            one.zip(other).is_some_and(|(one, other)| one != other)
        }
        let Self { tokenizer_path, generates } = self;
        differ(tokenizer_path.as_ref(), other.tokenizer_path.as_ref())
            || differ(generates.as_ref(), other.generates.as_ref())
    }
}

/// An engine counts as replaced after this many consecutive answers with unknown identities. More than two, because a load balancer may
/// choose the same engine twice.
const ROUNDS: usize = 5;

/// The largest number of identities per address.
const LIMIT: usize = 16;

/// An identity is dropped after this many consecutive answers of others. In a rolling upgrade the old and the new engine alternate until
/// the old one ends. Of three engines behind a load balancer, one is skipped this often with a probability of five in a million.
const ABSENT: u32 = 30;

/// The URL and the identity of each engine; `None` for an engine that did not answer.
pub type Identities = Vec<(String, Option<EngineIdentity>)>;

/// Tracks the identities of engines by URL.
#[derive(Debug, Default)]
pub struct IdentityTracker {
    addresses: HashMap<String, Address>,
}

/// The engines that answer at one URL: one, or several behind a load balancer.
#[derive(Debug)]
struct Address {
    /// The known identities. The first is that of the engine that was probed.
    known: Vec<KnownIdentity>,
    /// The unknown identities of the latest answers, fewer than [`ROUNDS`].
    others: Vec<EngineIdentity>,
}

/// An identity, and the number of consecutive answers from others.
#[derive(Debug)]
struct KnownIdentity {
    identity: EngineIdentity,
    absent: u32,
}

impl From<EngineIdentity> for KnownIdentity {
    fn from(identity: EngineIdentity) -> Self {
        Self { identity, absent: 0 }
    }
}

/// The result of comparing identities. The greatest one of a round counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Observation {
    /// Every engine is the one that was probed.
    Same,
    /// The answer may be from an engine that was not probed: the engine was replaced, or several engines share one address.
    Suspected,
    /// An engine has answered for the first time.
    New,
    /// The probed engine was replaced: the last five answers were from unknown engines, or the last thirty from others than the probed one.
    Replaced,
}

impl IdentityTracker {
    /// Forgets all identities, after the upstream was away, and records these.
    pub fn reset(&mut self, identities: Identities) {
        self.addresses.clear();
        self.observe(identities);
    }

    /// Compares a round of answers with the known identities. The round lists every engine; URLs that it lacks are forgotten.
    pub fn observe(&mut self, identities: Identities) -> Observation {
        let mut before = std::mem::take(&mut self.addresses);
        let mut observation = Observation::Same;
        for (url, now) in identities {
            let (address, seen) = match (before.remove(&url), now) {
                (None, None) => continue,
                (None, Some(now)) => (Address { known: vec![now.into()], others: Vec::new() }, Observation::New),
                (Some(address), None) => (address, Observation::Same),
                (Some(mut address), Some(now)) => {
                    let seen = address.observe(&url, now);
                    (address, seen)
                }
            };
            self.addresses.insert(url, address);
            observation = observation.max(seen);
        }
        observation
    }
}

impl Address {
    fn observe(&mut self, url: &str, now: EngineIdentity) -> Observation {
        let Some(at) = self.known.iter().position(|known| !known.identity.differs(&now)) else {
            self.others.push(now);
            if self.others.len() < ROUNDS {
                return Observation::Suspected;
            }
            self.known.clear();
            self.learn();
            return Observation::Replaced;
        };
        if !self.others.is_empty() {
            tracing::warn!(upstream = url, "engines with different tokenizers share one address");
        }
        for known in &mut self.known {
            known.absent += 1;
        }
        let known = &mut self.known[at];
        known.absent = 0;
        known.identity.tokenizer_path = known.identity.tokenizer_path.take().or(now.tokenizer_path);
        known.identity.generates = known.identity.generates.or(now.generates);
        // engines that share an address are known once an earlier one answers again
        self.learn();
        let is_asked_gone = self.known[0].absent >= ABSENT;
        self.known.retain(|known| known.absent < ABSENT);
        match self.known.len() {
            _ if is_asked_gone => Observation::Replaced,
            1 => Observation::Same,
            _ => Observation::Suspected,
        }
    }

    /// Adds the unknown identities of the latest answers to the known ones.
    fn learn(&mut self) {
        for other in self.others.drain(..) {
            if self.known.len() < LIMIT && self.known.iter().all(|known| known.identity.differs(&other)) {
                self.known.push(other.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "http://a";

    fn engine(path: Option<&str>, generates: Option<bool>) -> EngineIdentity {
        EngineIdentity { tokenizer_path: path.map(str::to_owned), generates }
    }

    fn round(path: &str) -> Identities {
        vec![(URL.to_owned(), Some(engine(Some(path), Some(true))))]
    }

    fn tracker() -> IdentityTracker {
        let mut tracker = IdentityTracker::default();
        tracker.reset(round("/one"));
        tracker
    }

    fn observed(tracker: &mut IdentityTracker, paths: &[&str]) -> Vec<Observation> {
        paths.iter().map(|path| tracker.observe(round(path))).collect()
    }

    use Observation::{New, Replaced, Same, Suspected};

    #[test]
    fn engine_is_replaced_when_five_answers_in_a_row_lack_the_known_identity() {
        let mut tracker = tracker();
        let seen = observed(&mut tracker, &["/other"; 6]);
        assert_eq!(seen, [Suspected, Suspected, Suspected, Suspected, Replaced, Same]);
        // unknown engines behind a load balancer
        let seen = observed(&mut tracker, &["/x", "/y", "/x", "/y", "/x", "/y", "/x"]);
        assert_eq!(seen, [Suspected, Suspected, Suspected, Suspected, Replaced, Suspected, Suspected]);
    }

    #[test]
    fn engines_sharing_an_address_are_not_replaced() {
        let mut tracker = tracker();
        assert_eq!(observed(&mut tracker, &["/two", "/two", "/two", "/one"]), [Suspected; 4]);
        for _ in 0..100 {
            assert_eq!(observed(&mut tracker, &["/two", "/two", "/one", "/three", "/two", "/one"]), [Suspected; 6]);
        }
    }

    #[test]
    fn engine_that_a_rolling_upgrade_ends_is_replaced() {
        let mut tracker = tracker();
        assert_eq!(observed(&mut tracker, &["/two", "/one", "/two", "/one"]), [Suspected; 4]);
        assert_eq!(observed(&mut tracker, &["/two"; ABSENT as usize - 1]), [Suspected; ABSENT as usize - 1]);
        assert_eq!(observed(&mut tracker, &["/two", "/two"]), [Replaced, Same]);
    }

    #[test]
    fn engine_that_answers_alone_again_is_the_same() {
        let mut tracker = tracker();
        assert_eq!(observed(&mut tracker, &["/two", "/one"]), [Suspected; 2]);
        // the two answers above were one from each engine
        assert_eq!(observed(&mut tracker, &["/one"; ABSENT as usize - 1]), [Suspected; ABSENT as usize - 1]);
        assert_eq!(observed(&mut tracker, &["/one", "/two"]), [Same, Suspected], "the other is forgotten");
    }

    #[test]
    fn round_without_an_answer_neither_confirms_nor_clears_a_suspicion() {
        let mut tracker = tracker();
        assert_eq!(observed(&mut tracker, &["/other"; 4]), [Suspected; 4]);
        assert_eq!(tracker.observe(vec![(URL.to_owned(), None)]), Same);
        assert_eq!(observed(&mut tracker, &["/other"]), [Replaced]);
    }

    #[test]
    fn engine_that_answers_for_the_first_time_is_new_and_one_that_left_is_forgotten() {
        let mut tracker = tracker();
        let with = |second| vec![round("/one").remove(0), ("http://b".to_owned(), second)];
        assert_eq!(tracker.observe(with(None)), Same);
        assert_eq!(tracker.observe(with(Some(engine(Some("/one"), None)))), New);
        assert_eq!(tracker.observe(with(Some(engine(Some("/one"), None)))), Same);
        assert_eq!(tracker.observe(round("/one")), Same);
        assert_eq!(tracker.addresses.len(), 1);
        assert_eq!(tracker.observe(with(Some(engine(Some("/other"), None)))), New);
    }

    #[test]
    fn missing_members_are_not_compared() {
        let mut tracker = IdentityTracker::default();
        let one = |path, generates| vec![(URL.to_owned(), Some(engine(path, generates)))];
        tracker.reset(one(Some("/one"), None));
        assert_eq!(tracker.observe(one(None, Some(true))), Same);
        assert_eq!(tracker.observe(one(Some("/one"), Some(false))), Suspected, "known from the second round");
    }
}
