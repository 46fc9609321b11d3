// SPDX-License-Identifier: Apache-2.0
//! Determines which policy sampled which tokens.
//!
//! SGLang's `weight_version` changes only when a trainer sets it, and many trainers never do. So tokentap counts policy epochs. A new
//! epoch begins with every call that changes weights, with every change of the label that no such call explains, and on request.
//!
//! Behind a router the labels of several engines alternate while their weights are updated one engine after the other, and the engine of
//! a reply is unknown. There an epoch begins with each label that was not reported before, and the label alone determines the epoch of
//! a token: the time of a request does not limit it.
//!
//! The calls from `/begin_weight_update` to `/end_weight_update` are one update, and one epoch begins at its end. Tokens that are sampled
//! in between may belong to the epoch before or after it. Any other call that changes weights ends the update, because
//! the trainer that began it may be gone. Adapters have epochs that are counted apart: a call that loads or unloads one leaves the base
//! weights as they are.

mod adapters;
mod pause;
mod spans;
mod state;

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::ledger::{Ack, Change, LogRecord, ProcessRecord, Record, SharedLog};
use adapters::Adapters;
pub use adapters::{AdapterCall, AdapterSpan, RequestedAdapter};
pub use spans::{EpochMark, INITIAL_WEIGHT_VERSION, ReportedVersions, Span};
use spans::{LabelledPart, begun, covers, possible};
use state::{Epoch, OpenUpdate, PolicyState};

/// A call that changes the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightCall {
    /// `/begin_weight_update`.
    Begin,
    /// A call that is part of an open update.
    Part,
    /// A call that changes weights by itself, whether or not an update is open.
    Whole,
    /// `/end_weight_update`.
    End,
}

/// The outcome of a [`WeightCall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightCallOutcome {
    /// The engine changed its weights, or began or ended an update.
    Succeeded,
    /// The engine refused the call.
    Refused,
    /// The reply is missing, or does not tell whether the weights changed.
    Unknown,
}

/// The policy epochs of the upstream.
#[derive(Debug)]
pub struct Policy {
    // locked for one access, never across an await
    state: Mutex<PolicyState>,
    /// Several engines serve the upstream's requests.
    several_engines: AtomicBool,
    /// A trainer has paused the engine, or is about to.
    paused: watch::Sender<bool>,
    /// Records each new epoch.
    log: SharedLog,
}

impl Policy {
    /// The policy at epoch 0; later epochs are appended to `log`.
    #[must_use]
    pub fn new(log: SharedLog) -> Self {
        let first = Epoch { number: 0, label: None, version: None, by_label: false, is_gradual: false };
        let state = PolicyState {
            epochs: VecDeque::from([first]),
            update: None,
            paused_at: None,
            model_info: None,
            adapters: Adapters::default(),
        };
        let (several_engines, paused) = (AtomicBool::new(false), watch::Sender::new(false));
        Self { state: Mutex::new(state), several_engines, paused, log }
    }

    /// Sets whether several engines serve the upstream's requests, and their labels may alternate.
    pub fn set_several_engines(&self, several: bool) {
        self.several_engines.store(several, Ordering::Relaxed);
    }

    fn has_several_engines(&self) -> bool {
        self.several_engines.load(Ordering::Relaxed)
    }

    /// The current epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.state.lock().last().number
    }

    /// The possible epochs of tokens that are sampled now: the current one, and the next while weights are updated and the generation is
    /// not paused.
    #[must_use]
    pub fn sampled_epochs(&self) -> RangeInclusive<u64> {
        self.state.lock().sampled_epochs()
    }

    /// Whether an update has begun and not ended.
    #[must_use]
    pub fn is_updating(&self) -> bool {
        self.state.lock().update.is_some()
    }

    /// The label and the trainer's name of the current epoch, if known. Until a reply has named the label, it is that of `/model_info`.
    #[must_use]
    pub fn names(&self) -> (Option<Box<str>>, Option<Box<str>>) {
        let mut state = self.state.lock();
        let Epoch { number, label, version, .. } = state.last().clone();
        let reported =
            || state.model_info.as_ref().filter(|(epoch, _)| *epoch == number).map(|(_, label)| label.clone());
        (label.or_else(reported), version)
    }

    /// Begins an epoch: another engine answers, whose weights may differ.
    pub fn observe_new_engine(&self) -> u64 {
        let (epoch, of_adapters) = {
            let mut state = self.state.lock();
            state.paused_at = None;
            self.paused.send_replace(false);
            (state.next(None, None), state.adapters.next_of_all())
        };
        self.log.append_unacknowledged(ProcessRecord::AdapterEpoch { number: of_adapters });
        self.append(epoch).0
    }

    /// An adapter with its current epoch.
    #[must_use]
    pub fn requested_adapter(&self, name: Arc<str>) -> RequestedAdapter {
        let epoch = self.state.lock().adapters.epoch(&name);
        RequestedAdapter { name, epoch }
    }

    /// The adapters that were updated, in order of their names: name, epoch, and the trainer's name of the epoch.
    #[must_use]
    pub fn adapters(&self) -> Vec<(Arc<str>, u64, Option<Box<str>>)> {
        self.state.lock().adapters.list()
    }

    /// Begins an epoch of an adapter with the trainer's name, unless its current epoch has that name.
    pub fn begin_named_adapter_epoch(&self, adapter: &str, version: &str) -> (u64, Ack) {
        let number = {
            let adapters = &mut self.state.lock().adapters;
            if adapters.version(adapter) == Some(version) {
                return (adapters.epoch(adapter), Ack::done());
            }
            adapters.next(adapter, Some(version.into()))
        };
        (number, self.log.append(ProcessRecord::AdapterEpoch { number }))
    }

    /// Observes that a call for an adapter is sent.
    pub fn begin_adapter_call(&self, call: AdapterCall, name: &str) {
        if call == AdapterCall::Load {
            self.state.lock().adapters.begin_load(name);
        }
    }

    /// Observes the outcome of a call for an adapter. Returns the epoch of the adapter that begins with it. `name` is that of
    /// [`Self::begin_adapter_call`]; without one, an epoch of every adapter begins.
    pub fn observe_adapter_call(
        &self,
        call: AdapterCall,
        name: Option<&str>,
        outcome: WeightCallOutcome,
    ) -> Option<(u64, Ack)> {
        let number = {
            let adapters = &mut self.state.lock().adapters;
            if let Some(name) = name.filter(|_| call == AdapterCall::Load) {
                adapters.end_load(name);
            }
            match name {
                _ if outcome == WeightCallOutcome::Refused => return None,
                Some(name) if call == AdapterCall::Unload => adapters.unload(name),
                Some(name) => adapters.next(name, None),
                None => adapters.next_of_all(),
            }
        };
        Some((number, self.log.append(ProcessRecord::AdapterEpoch { number })))
    }

    /// Begins an epoch with the trainer's name. If the current epoch has that name, no epoch begins. During an update, the name is that of
    /// the epoch that begins if the update succeeds. A second name means that the update was left without an end: it ends with an epoch
    /// before the named one.
    pub fn begin_named_epoch(&self, version: &str) -> (u64, Ack) {
        let epoch = {
            let mut state = self.state.lock();
            let current = state.last().clone();
            if let Some(update) = &mut state.update {
                if &**update.version.get_or_insert_with(|| version.into()) == version {
                    return (current.number + 1, Ack::done());
                }
                state.next(None, None);
                state.next(None, Some(version.into()))
            } else if current.version.as_deref() == Some(version) {
                current
            } else {
                let epoch = state.next(None, Some(version.into()));
                // a name changes no weights
                if let Some((requested, _)) = &mut state.model_info {
                    *requested = epoch.number;
                }
                epoch
            }
        };
        self.append(epoch)
    }

    /// Observes a call that changes weights. Returns the epoch that begins with it: one for each call, but one only for the calls of an
    /// update. An update also ends, without its name, with a [`WeightCall::Whole`], and with a call that failed or whose outcome is
    /// unknown, because its weights may be those of neither side.
    pub fn observe_weight_call(&self, call: WeightCall, outcome: WeightCallOutcome) -> Option<(u64, Ack)> {
        use {WeightCall as Call, WeightCallOutcome as Outcome};
        let is_several = self.has_several_engines();
        let epoch = {
            let mut state = self.state.lock();
            let is_open = state.update.is_some();
            let begins_epoch = match (call, outcome) {
                (_, Outcome::Unknown) | (Call::Whole | Call::End, Outcome::Succeeded) => true,
                (Call::Part, Outcome::Succeeded) => !is_open,
                // an engine that begins an update has lost the earlier one
                (Call::Begin, Outcome::Succeeded) | (Call::Part | Call::Whole | Call::End, Outcome::Refused) => is_open,
                (Call::Begin, Outcome::Refused) => false,
            };
            let has_succeeded = (call, outcome) == (Call::End, Outcome::Succeeded);
            let version = state.update.as_mut().filter(|_| has_succeeded).and_then(|update| update.version.take());
            let epoch = begins_epoch.then(|| state.next(None, version));
            if (call, outcome) == (Call::Begin, Outcome::Succeeded) {
                // a pause at a router is not a pause of each engine
                let is_gradual = is_several || state.paused_at.is_none();
                state.update = Some(OpenUpdate { is_gradual, version: None });
            }
            epoch
        };
        epoch.map(|epoch| self.append(epoch))
    }

    fn append(&self, Epoch { number, version, .. }: Epoch) -> (u64, Ack) {
        (number, self.log.append(ProcessRecord::Epoch { number, version }))
    }

    /// Raises the epoch to at least the one before a restart.
    pub fn restore(&self, epoch: u64, version: Option<Box<str>>) {
        let mut state = self.state.lock();
        let known = state.last();
        if epoch >= known.number {
            *known = Epoch { number: epoch, label: None, version, by_label: false, is_gradual: false };
        }
    }

    /// Restores the epoch of a record, before the log is open.
    pub(super) fn restore_record(&self, record: &LogRecord) {
        match record {
            LogRecord::Session(Record { change: Change::Turn(turn), .. }) => {
                let adapters = turn.about.policy.iter().filter_map(|span| span.adapter.as_ref());
                if let Some(last) = adapters.map(|adapter| adapter.until).max() {
                    self.raise_adapter_epochs(last);
                }
                let epoch = turn.about.policy.iter().map(|span| span.until).max().unwrap_or(0);
                if epoch > self.epoch() {
                    self.restore(epoch, None);
                }
            }
            LogRecord::Process(ProcessRecord::Epoch { number, version }) => self.restore(*number, version.clone()),
            LogRecord::Process(ProcessRecord::AdapterEpoch { number }) => self.raise_adapter_epochs(*number),
            _ => {}
        }
    }

    /// Raises the epochs of all adapters to at least one before a restart.
    pub(super) fn raise_adapter_epochs(&self, number: u64) {
        self.state.lock().adapters.raise(number);
    }

    /// The largest epoch of all adapters.
    pub(super) fn last_adapter_epoch(&self) -> u64 {
        self.state.lock().adapters.last()
    }

    /// Observes the label of `/model_info`, which was requested in `epoch`. The engine's HTTP process reports it, and it may be older
    /// than the weights of the schedulers (SGLang 0.5.23, if the cache could not be flushed). So only a change of it counts.
    /// Returns the new epoch, if one began.
    pub fn observe_model_info(&self, epoch: u64, label: &str) -> Option<u64> {
        let before = {
            let mut state = self.state.lock();
            let is_outdated = state.model_info.as_ref().is_some_and(|(newest, _)| *newest > epoch);
            if is_outdated || state.update.is_some() {
                return None; // the update explains the label, and the first answer after it counts
            }
            state.model_info.replace((epoch, label.into()))
        };
        let is_new = before.is_none_or(|(_, before)| *before != *label);
        is_new.then(|| self.observe(epoch, label)).flatten()
    }

    /// Observes the engine's label on the reply to a request of `epoch`. If no call explains a change, an epoch begins and is returned.
    pub fn observe(&self, epoch: u64, label: &str) -> Option<u64> {
        let begun = self.take_label(epoch, label)?;
        Some(self.append(begun).0)
    }

    fn take_label(&self, epoch: u64, label: &str) -> Option<Epoch> {
        let mut state = self.state.lock();
        if state.update.is_some() {
            return None;
        }
        if self.has_several_engines() {
            return state.take_label_of_several(epoch, label);
        }
        let epochs = &state.epochs;
        let before = epochs.len().checked_sub(2).and_then(|at| epochs[at].label.clone());
        let now = state.last();
        match &now.label {
            // a late reply from before a change must not undo it
            _ if epoch > now.number => {}
            None if epoch == now.number || before.as_deref().is_some_and(|before| before != label) => {
                now.label = Some(label.into());
            }
            Some(known) if **known != *label && epoch == now.number => {
                return Some(state.next(Some(label.into()), None));
            }
            _ => {}
        }
        None
    }

    /// The policies that sampled a response of `tokens` tokens with `adapter`. It was requested in the epoch `asked` of the base weights,
    /// and `seen` was observed during it.
    #[must_use]
    pub fn spans(
        &self,
        asked: u64,
        tokens: u32,
        reported: &ReportedVersions,
        seen: &[EpochMark],
        adapter: Option<&RequestedAdapter>,
    ) -> Vec<Span> {
        let state = self.state.lock();
        let mut spans = self.base_spans(&state, asked, tokens, reported, seen);
        if let Some(adapter) = adapter {
            let adapter = state.adapters.span(adapter);
            spans.iter_mut().for_each(|span| span.adapter = Some(Box::new(adapter.clone())));
        }
        spans
    }

    /// The spans without adapters.
    fn base_spans(
        &self,
        state: &PolicyState,
        asked: u64,
        tokens: u32,
        reported: &ReportedVersions,
        seen: &[EpochMark],
    ) -> Vec<Span> {
        if tokens == 0 {
            return Vec::new();
        }
        let epochs = &state.epochs;
        let several = self.has_several_engines();
        let from = if several { begun(epochs, asked) } else { asked };
        // behind a router, epochs that were observed during the response may be those of other engines
        let seen = if several { &[] } else { seen };
        let whole: [(Option<&str>, u32, u32); 1] = [(reported.label.as_deref(), 0, tokens)];
        let labelled = reported.spans.iter().map(|(label, start, end)| (Some(&**label), *start, (*end).min(tokens)));
        let covers = covers(&reported.spans, tokens);
        let in_update = state.is_sampling_in_update();
        // the label changes at one of the calls of an update, and tokens may have been sampled before and after that call
        let is_gradual = in_update || epochs.iter().any(|epoch| epoch.is_gradual && epoch.number > asked);
        let parts: Vec<_> = if covers { labelled.collect() } else { whole.to_vec() };
        let mut spans = Vec::new();
        for (label, start, end) in parts {
            // without spans the engine's label is that of the last token, and the label of the first token is unknown; behind a router
            // it may have any number, because epochs are numbered in the order in which labels were first reported
            let (first, until) = possible(epochs, from, label.filter(|_| (covers || !several) && !is_gradual));
            let first = if covers { first } else { from };
            let part = LabelledPart { label, start, end, first, until: until + u64::from(in_update), is_exact: covers };
            part.divide(epochs, seen, &mut spans);
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Policy {
        /// The spans of a request without an adapter.
        fn base(&self, asked: u64, tokens: u32, reported: &ReportedVersions, seen: &[EpochMark]) -> Vec<Span> {
            self.spans(asked, tokens, reported, seen, None)
        }

        /// Begins an epoch: the weights have changed.
        fn begin_epoch(&self) -> u64 {
            let epoch = self.state.lock().next(None, None);
            self.append(epoch).0
        }
    }

    fn at_epoch(epoch: u64) -> Policy {
        let policy = Policy::new(SharedLog::default());
        policy.restore(epoch, None);
        policy
    }

    fn reported(label: &str, spans: &[(&str, u32, u32)]) -> ReportedVersions {
        let spans = spans.iter().map(|(label, start, end)| ((*label).into(), *start, *end)).collect();
        ReportedVersions { label: Some(label.into()), spans }
    }

    fn mark(epoch: u64, first: u32, last: u32) -> EpochMark {
        EpochMark { epoch, until: epoch, first, last }
    }

    fn short(spans: &[Span]) -> Vec<(u32, u32, u64, u64)> {
        spans.iter().map(|span| (span.start, span.end, span.epoch, span.until)).collect()
    }

    #[test]
    fn unchanged_policy_has_one_certain_span() {
        let policy = at_epoch(5);
        policy.observe(5, "v1");
        let spans = policy.base(5, 8, &reported("v1", &[("v1", 0, 8)]), &[]);
        assert_eq!(short(&spans), [(0, 8, 5, 5)]);
        assert!(spans[0].is_certain() && spans[0].weight_version.as_deref() == Some("v1"));
        assert_eq!(policy.base(5, 0, &reported("v1", &[]), &[]), []);
    }

    #[test]
    fn spans_of_the_engine_are_mapped_to_epochs() {
        let policy = at_epoch(1);
        policy.observe(1, "v4");
        policy.begin_epoch();
        policy.observe(1, "v5");
        let spans = policy.base(1, 120, &reported("v5", &[("v4", 0, 79), ("v5", 79, 120)]), &[]);
        assert_eq!(short(&spans), [(0, 79, 1, 1), (79, 120, 2, 2)]);
        let queued = policy.base(1, 6, &reported("v5", &[("v5", 0, 6)]), &[]);
        assert_eq!(short(&queued), [(0, 6, 2, 2)], "requested before the change, sampled after it");
    }

    #[test]
    fn unexplained_label_change_begins_one_epoch() {
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
    fn stale_model_info_label_begins_no_epoch() {
        let policy = at_epoch(1);
        assert_eq!(policy.observe_model_info(1, "a"), None);
        policy.begin_epoch();
        assert_eq!(
            policy.observe_model_info(2, "a"),
            None,
            "the flush was refused: /model_info still has the old label"
        );
        policy.observe(1, "b");
        let spans = policy.base(1, 9, &reported("b", &[("a", 0, 4), ("b", 4, 9)]), &[]);
        assert_eq!(short(&spans), [(0, 4, 1, 1), (4, 9, 2, 2)]);
        assert_eq!((policy.observe_model_info(2, "a"), policy.observe(2, "b"), policy.epoch()), (None, None, 2));
        assert_eq!(policy.observe_model_info(2, "c"), Some(3), "a change of the label in /model_info counts");
        assert_eq!((policy.observe(3, "c"), policy.epoch()), (None, 3));
    }

    #[test]
    fn label_of_no_epoch_gets_a_range_of_epochs() {
        let policy = at_epoch(1);
        policy.observe(1, "a");
        policy.begin_epoch();
        policy.observe(2, "b");
        assert_eq!(short(&policy.base(1, 5, &reported("x", &[]), &[])), [(0, 5, 1, 2)]);
    }

    #[test]
    fn without_labels_the_epoch_is_a_range_unless_the_stream_was_observed() {
        let policy = at_epoch(1);
        policy.observe(1, "default");
        policy.begin_epoch();
        let whole = policy.base(1, 10, &reported("default", &[]), &[]);
        assert_eq!(short(&whole), [(0, 10, 1, 2)]);
        let marks = [mark(1, 1, 4), mark(2, 6, 10)];
        let watched = policy.base(1, 10, &reported("default", &[]), &marks);
        assert_eq!(short(&watched), [(0, 4, 1, 1), (4, 6, 1, 2), (6, 10, 2, 2)]);
    }

    #[test]
    fn last_label_does_not_determine_the_first_epoch() {
        let policy = at_epoch(1);
        policy.observe(1, "a");
        policy.begin_epoch();
        policy.observe(1, "b");
        let whole = policy.base(1, 150, &reported("b", &[]), &[]);
        assert_eq!(short(&whole), [(0, 150, 1, 2)]);
        assert_eq!(whole[0].weight_version, None, "either is possible");
        let marks = [mark(1, 1, 100), mark(2, 101, 150)];
        let watched = policy.base(1, 150, &reported("b", &[]), &marks);
        assert_eq!(short(&watched), [(0, 100, 1, 1), (100, 101, 1, 2), (101, 150, 2, 2)]);
        let labels: Vec<_> = watched.iter().map(|span| span.weight_version.as_deref()).collect();
        assert_eq!(labels, [Some("a"), None, Some("b")]);
    }

    #[test]
    fn trainer_names_begin_epochs() {
        let policy = at_epoch(0);
        assert_eq!(["step-1", "step-1", "step-2"].map(|name| policy.begin_named_epoch(name).0), [1, 1, 2]);
        assert_eq!(policy.base(2, 3, &ReportedVersions::default(), &[])[0].version.as_deref(), Some("step-2"));
        policy.begin_epoch();
        assert_eq!(policy.base(2, 3, &ReportedVersions::default(), &[])[0].version, None, "two epochs are possible");
        policy.restore(9, Some("step-9".into()));
        assert_eq!(policy.begin_epoch(), 10);
    }

    fn several(epoch: u64) -> Policy {
        let policy = at_epoch(epoch);
        policy.set_several_engines(true);
        policy
    }

    /// The spans of a response whose weights did not change while it ran.
    fn exact(policy: &Policy, asked: u64, label: &str) -> Vec<Span> {
        policy.base(asked, 9, &reported(label, &[(label, 0, 9)]), &[])
    }

    #[test]
    fn alternating_labels_of_several_engines_have_one_epoch_each() {
        let policy = several(3);
        let epochs = ["a", "b", "a", "b", "a"].map(|label| {
            let asked = policy.epoch();
            policy.observe(asked, label);
            let spans = exact(&policy, asked, label);
            assert!(spans[0].weight_version.as_deref() == Some(label), "{spans:?}");
            short(&spans)
        });
        let (a, b) = ([(0, 9, 3, 3)], [(0, 9, 4, 4)]);
        assert_eq!((epochs, policy.epoch()), ([a, b, a, b, a].map(Vec::from), 4));
        policy.observe(3, "c");
        assert_eq!(policy.epoch(), 5, "requested before another engine reported b");
        assert_eq!(policy.observe_model_info(5, "b"), None, "all engines report a label that is known");
    }

    #[test]
    fn single_engine_that_returns_to_a_label_begins_an_epoch() {
        let policy = at_epoch(3);
        let epochs = ["a", "b", "a"].map(|label| {
            policy.observe(policy.epoch(), label);
            policy.epoch()
        });
        assert_eq!(epochs, [3, 4, 5], "its weights may be others than before");
    }

    #[test]
    fn call_that_changes_weights_separates_the_labels_of_several_engines() {
        let policy = several(0);
        policy.observe(0, "a");
        policy.observe(0, "b");
        assert_eq!(policy.begin_named_epoch("step-3").0, 2);
        policy.observe(1, "a");
        assert_eq!(policy.names().0, None, "a late reply does not label the new epoch");
        assert_eq!(short(&exact(&policy, 1, "a")), [(0, 9, 0, 2)], "it may have been sampled on either side");
        policy.observe(2, "b");
        assert_eq!(short(&exact(&policy, 2, "b")), [(0, 9, 2, 2)]);
        assert_eq!(short(&exact(&policy, 1, "a")), [(0, 9, 0, 0)]);
        assert_eq!(exact(&policy, 2, "b")[0].version.as_deref(), Some("step-3"));
    }

    #[test]
    fn label_of_the_last_token_of_one_of_several_engines_is_uncertain() {
        let policy = several(0);
        policy.observe(0, "a");
        let last = |label| policy.base(policy.epoch(), 9, &reported(label, &[]), &[]);
        assert_eq!((short(&last("a")), last("a")[0].weight_version.as_deref()), (vec![(0, 9, 0, 0)], Some("a")));
        policy.observe(0, "b");
        for label in ["a", "b"] {
            assert_eq!((short(&last(label)), &last(label)[0].weight_version), (vec![(0, 9, 0, 1)], &None), "{label}");
        }
        let marks = [mark(0, 1, 4), mark(1, 6, 9)];
        let watched = policy.base(0, 9, &reported("b", &[]), &marks);
        assert_eq!(short(&watched), [(0, 9, 0, 1)], "another engine may have reported b");
        policy.begin_epoch();
        policy.observe(2, "b");
        assert_eq!(short(&last("b")), [(0, 9, 2, 2)]);
    }

    /// Makes calls of an update; returns whether an epoch began with each.
    fn calls<const N: usize>(policy: &Policy, calls: [(WeightCall, WeightCallOutcome); N]) -> [bool; N] {
        calls.map(|(call, outcome)| policy.observe_weight_call(call, outcome).is_some())
    }

    const BEGIN: (WeightCall, WeightCallOutcome) = (WeightCall::Begin, WeightCallOutcome::Succeeded);
    const PART: (WeightCall, WeightCallOutcome) = (WeightCall::Part, WeightCallOutcome::Succeeded);
    const END: (WeightCall, WeightCallOutcome) = (WeightCall::End, WeightCallOutcome::Succeeded);

    #[test]
    fn calls_of_an_update_begin_one_epoch_at_its_end() {
        use WeightCall::{Begin, End, Part, Whole};
        use WeightCallOutcome::{Refused, Unknown};
        let policy = at_epoch(0);
        assert_eq!(calls(&policy, [BEGIN, PART, PART, END]), [false, false, false, true]);
        assert_eq!(calls(&policy, [PART, END]), [true, true], "without an update each call counts");
        let refused = [(Begin, Refused), (Part, Refused), (End, Refused)];
        assert_eq!(calls(&policy, refused), [false; 3], "nothing changed");
        assert_eq!(calls(&policy, [BEGIN, (Begin, Refused), PART, END]), [false, false, false, true]);
        assert_eq!(calls(&policy, [BEGIN, BEGIN, END]), [false, true, true], "the engine lost the first update");
        for failed in [(Part, Refused), (End, Refused), (Begin, Unknown), (Part, Unknown), (End, Unknown)] {
            assert_eq!(calls(&policy, [BEGIN, failed, PART, END]), [false, true, true, true], "{failed:?}");
        }
        for ended in [(Whole, WeightCallOutcome::Succeeded), (Whole, Refused), (Whole, Unknown)] {
            assert_eq!(calls(&policy, [BEGIN, PART, ended, PART, END]), [false, false, true, true, true], "{ended:?}");
        }
        calls(&policy, [BEGIN]);
        let before = policy.epoch();
        assert_eq!((policy.is_updating(), policy.observe_new_engine()), (true, before + 1));
        assert_eq!((policy.is_updating(), policy.sampled_epochs()), (false, before + 1..=before + 1));
    }

    #[test]
    fn tokens_of_an_update_belong_to_either_epoch() {
        let policy = at_epoch(1);
        policy.observe(1, "a");
        calls(&policy, [BEGIN, PART]);
        assert_eq!((policy.observe(1, "b"), policy.observe_model_info(1, "b")), (None, None), "the update explains it");
        assert_eq!(policy.sampled_epochs(), 1..=2);
        for label in ["a", "b"] {
            let spans = policy.base(1, 9, &reported(label, &[(label, 0, 9)]), &[]);
            assert_eq!((short(&spans), spans[0].weight_version.as_deref()), (vec![(0, 9, 1, 2)], Some(label)));
        }
        calls(&policy, [PART, END]);
        assert_eq!((policy.observe_model_info(2, "b"), policy.names().0.as_deref()), (None, Some("b")));
        let late = policy.base(1, 9, &reported("b", &[("a", 0, 4), ("b", 4, 9)]), &[]);
        assert_eq!(short(&late), [(0, 4, 1, 2), (4, 9, 1, 2)]);
        let marks = [mark(1, 1, 2), EpochMark { until: 2, ..mark(1, 3, 5) }, mark(2, 7, 9)];
        let watched = policy.base(1, 9, &reported("b", &[("a", 0, 4), ("b", 4, 9)]), &marks);
        assert_eq!(short(&watched), [(0, 2, 1, 1), (2, 4, 1, 2), (4, 7, 1, 2), (7, 9, 2, 2)]);
        assert_eq!(short(&exact(&policy, 2, "b")), [(0, 9, 2, 2)]);
    }

    #[test]
    fn update_during_a_pause_leaves_no_token_uncertain() {
        let policy = at_epoch(1);
        policy.observe(1, "a");
        policy.mark_paused();
        calls(&policy, [BEGIN, PART, END]);
        policy.begin_continue();
        policy.observe(1, "b");
        let across = reported("b", &[("a", 0, 4), ("b", 4, 9)]);
        assert_eq!(short(&policy.base(1, 9, &across, &[])), [(0, 4, 1, 1), (4, 9, 2, 2)]);
        policy.mark_paused();
        calls(&policy, [BEGIN]);
        policy.begin_continue();
        calls(&policy, [PART, END]);
        assert_eq!(short(&policy.base(2, 9, &reported("c", &[("c", 0, 9)]), &[])), [(0, 9, 2, 3)], "continued early");
    }

    #[test]
    fn pause_of_a_router_does_not_make_the_tokens_of_an_update_certain() {
        let policy = several(1);
        policy.mark_paused();
        calls(&policy, [BEGIN, PART]);
        assert_eq!(policy.sampled_epochs(), 1..=2);
        assert_eq!(policy.observe(1, "b"), None);
        calls(&policy, [END]);
        policy.observe(2, "b");
        assert_eq!(short(&exact(&policy, 1, "b")), [(0, 9, 1, 2)]);
        assert_eq!(short(&exact(&policy, 2, "b")), [(0, 9, 2, 2)]);
    }

    #[test]
    fn label_is_that_of_the_model_information_until_a_reply_has_one() {
        let policy = at_epoch(1);
        let label = || policy.names().0;
        assert_eq!(label(), None);
        policy.observe_model_info(1, "a");
        assert_eq!(policy.begin_named_epoch("step-1").0, 2);
        assert_eq!(label().as_deref(), Some("a"), "a name changes no weights");
        policy.begin_epoch();
        assert_eq!(label(), None, "the label may have changed");
        assert_eq!((policy.observe_model_info(3, "a"), label().as_deref()), (None, Some("a")));
        assert_eq!((policy.observe_model_info(2, "b"), label().as_deref()), (None, Some("a")), "an earlier request");
        policy.observe(3, "b");
        assert_eq!((policy.epoch(), label().as_deref()), (3, Some("b")), "the model information was outdated");
    }

    #[test]
    fn spans_with_a_gap_are_ignored() {
        let policy = at_epoch(0);
        let spans = policy.base(0, 9, &reported("x", &[("x", 0, 3), ("y", 4, 9)]), &[]);
        assert_eq!(short(&spans), [(0, 9, 0, 0)]);
    }
}
