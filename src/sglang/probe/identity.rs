//! Whether the engine at an address is still the engine that was asked.

use std::collections::HashMap;

use super::Capabilities;

/// What an engine keeps for as long as it runs. Neither its model path nor its served name is among it: loading weights changes both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineIdentity {
    tokenizer_path: Option<String>,
    generates: Option<bool>,
}

impl EngineIdentity {
    pub(super) fn of(found: &Capabilities) -> Self {
        Self { tokenizer_path: found.tokenizer_path.clone(), generates: found.generates }
    }

    /// Whether a member that both answers have differs. A member that one of them lacks proves nothing.
    fn differs(&self, other: &Self) -> bool {
        fn differ<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
            one.zip(other).is_some_and(|(one, other)| one != other)
        }
        let Self { tokenizer_path, generates } = self;
        differ(tokenizer_path.as_ref(), other.tokenizer_path.as_ref())
            || differ(generates.as_ref(), other.generates.as_ref())
    }
}

/// The identity of each engine when it was last asked, by its URL.
#[derive(Debug, Default)]
pub struct IdentityTracker {
    known: HashMap<String, EngineIdentity>,
    /// Other identities that the last answers of some engines had.
    suspected: HashMap<String, EngineIdentity>,
}

/// What the identities in a round of answers show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// Each engine is the one that was asked.
    Same,
    /// An engine has another identity for the first time: it was replaced, or a load balancer chose another engine for this answer.
    Suspected,
    /// An engine has had the same other identity in two rounds.
    Replaced,
}

impl IdentityTracker {
    /// The engines have been asked anew.
    pub fn reset(&mut self, identities: Vec<(String, EngineIdentity)>) {
        self.known = identities.into_iter().collect();
        self.suspected.clear();
    }

    /// Compares a round of answers with what is known.
    pub fn observe(&mut self, identities: Vec<(String, EngineIdentity)>) -> Observation {
        let mut observation = Observation::Same;
        for (engine, now) in identities {
            let Some(known) = self.known.get_mut(&engine) else {
                self.known.insert(engine, now);
                continue;
            };
            if !known.differs(&now) {
                known.tokenizer_path = known.tokenizer_path.take().or(now.tokenizer_path);
                known.generates = known.generates.or(now.generates);
                self.suspected.remove(&engine);
                continue;
            }
            let is_confirmed = self.suspected.insert(engine, now.clone()).is_some_and(|last| !last.differs(&now));
            if is_confirmed {
                observation = Observation::Replaced;
            } else if observation == Observation::Same {
                observation = Observation::Suspected;
            }
        }
        observation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(path: Option<&str>, generates: Option<bool>) -> Vec<(String, EngineIdentity)> {
        vec![("http://a".to_owned(), EngineIdentity { tokenizer_path: path.map(str::to_owned), generates })]
    }

    fn tracker() -> IdentityTracker {
        let mut tracker = IdentityTracker::default();
        tracker.reset(round(Some("/one"), Some(true)));
        tracker
    }

    #[test]
    fn engine_is_replaced_when_two_rounds_in_a_row_show_the_same_other_identity() {
        let mut tracker = tracker();
        let other = || round(Some("/other"), Some(true));
        assert_eq!(tracker.observe(other()), Observation::Suspected);
        assert_eq!(tracker.observe(other()), Observation::Replaced);
        tracker.reset(other());
        assert_eq!(tracker.observe(other()), Observation::Same);
    }

    #[test]
    fn engines_that_take_turns_are_not_replaced() {
        let mut tracker = tracker();
        for _ in 0..3 {
            assert_eq!(tracker.observe(round(Some("/two"), Some(true))), Observation::Suspected);
            assert_eq!(tracker.observe(round(Some("/three"), Some(true))), Observation::Suspected);
            assert_eq!(tracker.observe(round(Some("/one"), Some(true))), Observation::Same);
        }
    }

    #[test]
    fn missing_members_are_not_compared() {
        let mut tracker = IdentityTracker::default();
        tracker.reset(round(Some("/one"), None));
        assert_eq!(tracker.observe(round(None, Some(true))), Observation::Same);
        assert_eq!(
            tracker.observe(round(Some("/one"), Some(false))),
            Observation::Suspected,
            "known from the second round"
        );
    }
}
