//! Which policy sampled which tokens.
//!
//! SGLang's `weight_version` changes only when a trainer sets it, and many trainers never do. So tokentap counts epochs: one more with
//! every call that changes weights, with every change of the label that no such call explains, and when the trainer requests it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::ledger::{Ack, Record, SharedLedger};

/// Epochs of which label and name are remembered: more than any request spans.
const REMEMBERED: usize = 1024;

/// Tokens of one response that one policy sampled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The first token, counted from the start of the response.
    pub start: u32,
    /// Behind the last one.
    pub end: u32,
    /// tokentap's policy epoch. Where weights changed in between and the engine did not say at which token: the first that is possible.
    pub epoch: u64,
    /// The last epoch that is possible; equal to `epoch` where it is known.
    pub until: u64,
    /// The engine's `weight_version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_version: Option<Box<str>>,
    /// What the trainer called the epoch (`POST /v1/policy`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Box<str>>,
}

impl Span {
    /// Whether it is known which policy it was.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.epoch == self.until
    }
}

/// The weight versions that the engine reported for a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reported {
    /// `weight_version`.
    pub label: Option<Box<str>>,
    /// `weight_versions`: label, first token, behind the last.
    pub spans: Vec<(Box<str>, u32, u32)>,
}

/// How far a response had come when an epoch was first and last seen while it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The epoch.
    pub epoch: u64,
    /// Tokens that had come when it was first seen.
    pub first: u32,
    /// Tokens that had come when it was last seen.
    pub last: u32,
}

#[derive(Debug, Clone)]
struct Epoch {
    number: u64,
    label: Option<Box<str>>,
    version: Option<Box<str>>,
}

/// The policy of the upstream, as far as it is known.
#[derive(Debug)]
pub struct Policy {
    // held for a look at the last epochs, never across an await
    epochs: Mutex<VecDeque<Epoch>>,
    /// The label that `/model_info` showed last; held as shortly.
    shown: Mutex<Option<Box<str>>>,
    /// Keeps each new epoch.
    ledger: SharedLedger,
}

impl Policy {
    /// The policy at epoch 0; later epochs are appended to `ledger`.
    #[must_use]
    pub fn new(ledger: SharedLedger) -> Self {
        let first = Epoch { number: 0, label: None, version: None };
        Self { epochs: Mutex::new(VecDeque::from([first])), shown: Mutex::default(), ledger }
    }

    fn epochs(&self) -> MutexGuard<'_, VecDeque<Epoch>> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch at this moment.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        last(&mut self.epochs()).number
    }

    /// The label and the trainer's name of the epoch, where they are known.
    #[must_use]
    pub fn names(&self) -> (Option<Box<str>>, Option<Box<str>>) {
        let mut epochs = self.epochs();
        let epoch = last(&mut epochs);
        (epoch.label.clone(), epoch.version.clone())
    }

    /// Begins an epoch: a call has changed the weights, or another engine answers, whose weights may differ.
    pub fn changed(&self) -> (u64, Ack) {
        let epoch = next(&mut self.epochs(), None, None);
        (epoch, self.append(epoch, None))
    }

    /// Begins an epoch that the trainer names; the name that the epoch has already begins none.
    pub fn named(&self, version: &str) -> (u64, Ack) {
        let epoch = {
            let mut epochs = self.epochs();
            let epoch = last(&mut epochs);
            if epoch.version.as_deref() == Some(version) {
                epoch.number
            } else {
                next(&mut epochs, None, Some(version.into()))
            }
        };
        (epoch, self.append(epoch, Some(version.into())))
    }

    fn append(&self, epoch: u64, version: Option<Box<str>>) -> Ack {
        self.ledger.append(Record::Policy { epoch, version })
    }

    /// The epoch was at least this one, before a restart.
    pub fn restore(&self, epoch: u64, version: Option<Box<str>>) {
        let mut epochs = self.epochs();
        let known = last(&mut epochs);
        if epoch >= known.number {
            *known = Epoch { number: epoch, label: None, version };
        }
    }

    /// Takes over the epoch of a record, before the ledger is open.
    pub(super) fn restore_record(&self, record: &Record) {
        match record {
            Record::Turn { turn, .. } => {
                let epoch = turn.about.policy.iter().map(|span| span.until).max().unwrap_or(0);
                if epoch > self.epoch() {
                    self.restore(epoch, None);
                }
            }
            Record::Policy { epoch, version } => self.restore(*epoch, version.clone()),
            _ => {}
        }
    }

    /// `/model_info` shows this label, asked in `epoch`. That is the label of the engine's front, which may stay behind what its
    /// schedulers sample from (0.5.23, when new weights are in and the cache could not be flushed): it says something when it changes.
    /// Returns the epoch where it moves.
    pub fn shown(&self, epoch: u64, label: &str) -> Option<u64> {
        let before = self.shown.lock().unwrap_or_else(PoisonError::into_inner).replace(label.into());
        (before.as_deref() != Some(label)).then(|| self.observe(epoch, label)).flatten()
    }

    /// The engine's label was seen on what was asked in `epoch`. Where no call explains a change, the epoch moves, and is returned.
    pub fn observe(&self, epoch: u64, label: &str) -> Option<u64> {
        let moved = self.take_label(epoch, label)?;
        drop(self.append(moved, None));
        Some(moved)
    }

    fn take_label(&self, epoch: u64, label: &str) -> Option<u64> {
        let mut epochs = self.epochs();
        let before = epochs.len().checked_sub(2).and_then(|at| epochs[at].label.clone());
        let now = last(&mut epochs);
        match &now.label {
            // a late reply from before a change must not undo it
            _ if epoch > now.number => {}
            None if epoch == now.number || before.as_deref().is_some_and(|before| before != label) => {
                now.label = Some(label.into());
            }
            Some(known) if **known != *label && epoch == now.number => {
                return Some(next(&mut epochs, Some(label.into()), None));
            }
            _ => {}
        }
        None
    }

    /// Who sampled the tokens of a response of `tokens` tokens that was asked for in the epoch `asked`. `seen` are moments on the way.
    #[must_use]
    pub fn spans(&self, asked: u64, tokens: u32, reported: &Reported, seen: &[Mark]) -> Vec<Span> {
        if tokens == 0 {
            return Vec::new();
        }
        let epochs = self.epochs();
        let whole: [(Option<&str>, u32, u32); 1] = [(reported.label.as_deref(), 0, tokens)];
        let labelled = reported.spans.iter().map(|(label, start, end)| (Some(&**label), *start, (*end).min(tokens)));
        let covers = covers(&reported.spans, tokens);
        let parts: Vec<_> = if covers { labelled.collect() } else { whole.to_vec() };
        let mut spans = Vec::new();
        for (label, start, end) in parts {
            // without spans the engine's label is that of the last token, and does not tell which label a response began with
            cut(&epochs, (asked, covers), (label, start, end), seen, &mut spans);
        }
        spans
    }
}

fn last(epochs: &mut VecDeque<Epoch>) -> &mut Epoch {
    epochs.back_mut().expect("there is always an epoch")
}

fn next(epochs: &mut VecDeque<Epoch>, label: Option<Box<str>>, version: Option<Box<str>>) -> u64 {
    let number = last(epochs).number + 1;
    epochs.push_back(Epoch { number, label, version });
    if epochs.len() > REMEMBERED {
        epochs.pop_front();
    }
    number
}

/// Whether the engine's spans are those of this response, without a gap.
fn covers(spans: &[(Box<str>, u32, u32)], tokens: u32) -> bool {
    let end = spans.iter().try_fold(0, |at, (_, start, end)| (*start == at && end >= start).then_some(*end));
    end.is_some_and(|end| end >= tokens) && !spans.is_empty()
}

/// The spans of tokens with one label: cut where they were seen to come from different epochs.
fn cut(
    epochs: &VecDeque<Epoch>,
    (asked, exact): (u64, bool),
    (label, start, end): (Option<&str>, u32, u32),
    seen: &[Mark],
    spans: &mut Vec<Span>,
) {
    let now = epochs.back().map_or(asked, |epoch| epoch.number);
    let fits = |epoch: &&Epoch| epoch.label.is_none() || label.is_none() || epoch.label.as_deref() == label;
    let mut possible = epochs.iter().filter(|epoch| (asked..=now).contains(&epoch.number)).filter(fits);
    let (first, until) = match possible.next().map(|epoch| epoch.number) {
        Some(first) => (first, possible.next_back().map_or(first, |epoch| epoch.number)),
        // a label that was not observed elsewhere: only its time is known
        None => (asked, now.max(asked)),
    };
    let (first, until) = if exact { (first, until) } else { (asked, until.max(asked)) };
    let mut push = |start: u32, end: u32, epoch: u64, until: u64| {
        if start < end {
            let known = epochs.iter().find(|known| known.number == epoch && epoch == until);
            let version = known.and_then(|epoch| epoch.version.clone());
            let own = known.and_then(|epoch| epoch.label.as_deref());
            let other = epochs.iter().filter(|known| (epoch..=until).contains(&known.number));
            let clear =
                exact || other.into_iter().all(|known| known.label.is_none() || known.label.as_deref() == label);
            let weight_version = own.filter(|_| !exact).or(label.filter(|_| clear)).map(Into::into);
            spans.push(Span { start, end, epoch, until, weight_version, version });
        }
    };
    let (mut at, mut from) = (start, first);
    for pair in seen.windows(2) {
        let [old, new] = [pair[0], pair[1]];
        let (before, after) = (old.epoch.clamp(from, until), new.epoch.clamp(from, until));
        if before == after {
            continue;
        }
        // what had come before the change is of the old epoch at the latest; what came behind the first event after it is of the new
        let (known, reached) = (old.last.clamp(at, end), new.first.clamp(at, end));
        push(at, known, from, before);
        push(known, reached, before, after);
        (at, from) = (reached, after);
    }
    push(at, end, from, until);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_epoch(epoch: u64) -> Policy {
        let policy = Policy::new(SharedLedger::default());
        policy.restore(epoch, None);
        policy
    }

    fn reported(label: &str, spans: &[(&str, u32, u32)]) -> Reported {
        let spans = spans.iter().map(|(label, start, end)| ((*label).into(), *start, *end)).collect();
        Reported { label: Some(label.into()), spans }
    }

    fn short(spans: &[Span]) -> Vec<(u32, u32, u64, u64)> {
        spans.iter().map(|span| (span.start, span.end, span.epoch, span.until)).collect()
    }

    #[test]
    fn an_unchanged_policy_has_one_certain_span() {
        let policy = at_epoch(5);
        policy.observe(5, "v1");
        let spans = policy.spans(5, 8, &reported("v1", &[("v1", 0, 8)]), &[]);
        assert_eq!(short(&spans), [(0, 8, 5, 5)]);
        assert!(spans[0].is_certain() && spans[0].weight_version.as_deref() == Some("v1"));
        assert_eq!(policy.spans(5, 0, &reported("v1", &[]), &[]), []);
    }

    #[test]
    fn the_engines_spans_are_laid_over_the_epochs() {
        let policy = at_epoch(1);
        policy.observe(1, "v4");
        policy.changed();
        policy.observe(1, "v5");
        let spans = policy.spans(1, 120, &reported("v5", &[("v4", 0, 79), ("v5", 79, 120)]), &[]);
        assert_eq!(short(&spans), [(0, 79, 1, 1), (79, 120, 2, 2)]);
        let queued = policy.spans(1, 6, &reported("v5", &[("v5", 0, 6)]), &[]);
        assert_eq!(short(&queued), [(0, 6, 2, 2)], "asked before the change, sampled behind it");
    }

    #[test]
    fn a_label_that_changes_by_itself_moves_the_epoch_once() {
        let policy = at_epoch(1);
        policy.observe(1, "a");
        policy.observe(1, "b");
        assert_eq!(policy.epoch(), 2);
        policy.observe(1, "a");
        policy.observe(1, "b");
        assert_eq!(policy.epoch(), 2, "late replies from before the change do not undo it");
        policy.observe(2, "b");
        assert_eq!((policy.epoch(), policy.names().0.as_deref()), (2, Some("b")));
    }

    #[test]
    fn a_front_that_stays_behind_moves_nothing() {
        let policy = at_epoch(1);
        assert_eq!(policy.shown(1, "a"), None);
        policy.changed();
        assert_eq!(policy.shown(2, "a"), None, "the flush was refused: the front still says the old label");
        policy.observe(1, "b");
        let spans = policy.spans(1, 9, &reported("b", &[("a", 0, 4), ("b", 4, 9)]), &[]);
        assert_eq!(short(&spans), [(0, 4, 1, 1), (4, 9, 2, 2)]);
        assert_eq!((policy.shown(2, "a"), policy.observe(2, "b"), policy.epoch()), (None, None, 2));
        assert_eq!(policy.shown(2, "c"), Some(3), "a change of what is shown is one");
        assert_eq!((policy.observe(3, "c"), policy.epoch()), (None, 3));
    }

    #[test]
    fn a_label_that_no_epoch_has_is_not_given_one() {
        let policy = at_epoch(1);
        policy.observe(1, "a");
        policy.changed();
        policy.observe(2, "b");
        assert_eq!(short(&policy.spans(1, 5, &reported("x", &[]), &[])), [(0, 5, 1, 2)]);
    }

    #[test]
    fn without_labels_the_epoch_is_a_range_unless_the_stream_was_watched() {
        let policy = at_epoch(1);
        policy.observe(1, "default");
        policy.changed();
        let whole = policy.spans(1, 10, &reported("default", &[]), &[]);
        assert_eq!(short(&whole), [(0, 10, 1, 2)]);
        let marks = [Mark { epoch: 1, first: 1, last: 4 }, Mark { epoch: 2, first: 6, last: 10 }];
        let watched = policy.spans(1, 10, &reported("default", &[]), &marks);
        assert_eq!(short(&watched), [(0, 4, 1, 1), (4, 6, 1, 2), (6, 10, 2, 2)]);
    }

    #[test]
    fn the_last_label_says_nothing_of_where_a_response_began() {
        let policy = at_epoch(1);
        policy.observe(1, "a");
        policy.changed();
        policy.observe(1, "b");
        let whole = policy.spans(1, 150, &reported("b", &[]), &[]);
        assert_eq!(short(&whole), [(0, 150, 1, 2)]);
        assert_eq!(whole[0].weight_version, None, "it may have been either");
        let marks = [Mark { epoch: 1, first: 1, last: 100 }, Mark { epoch: 2, first: 101, last: 150 }];
        let watched = policy.spans(1, 150, &reported("b", &[]), &marks);
        assert_eq!(short(&watched), [(0, 100, 1, 1), (100, 101, 1, 2), (101, 150, 2, 2)]);
        let labels: Vec<_> = watched.iter().map(|span| span.weight_version.as_deref()).collect();
        assert_eq!(labels, [Some("a"), None, Some("b")]);
    }

    #[test]
    fn the_trainer_names_epochs() {
        let policy = at_epoch(0);
        assert_eq!((policy.named("step-1").0, policy.named("step-1").0, policy.named("step-2").0), (1, 1, 2));
        assert_eq!(policy.spans(2, 3, &Reported::default(), &[])[0].version.as_deref(), Some("step-2"));
        policy.changed();
        assert_eq!(policy.spans(2, 3, &Reported::default(), &[])[0].version, None, "which of two it was is not known");
        policy.restore(9, Some("step-9".into()));
        assert_eq!(policy.changed().0, 10);
    }

    #[test]
    fn spans_with_a_gap_are_not_believed() {
        let policy = at_epoch(0);
        let spans = policy.spans(0, 9, &reported("x", &[("x", 0, 3), ("y", 4, 9)]), &[]);
        assert_eq!(short(&spans), [(0, 9, 0, 0)]);
    }
}
