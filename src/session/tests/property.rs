// SPDX-License-Identifier: Apache-2.0
//! Property tests: after any operations the store equals the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::super::{Call, Classes, Fault, Frozen, RewardScope, Session, SessionError, Sessions, Summary};
use super::look::{ExportedVersion, check_export, check_exported, check_turns, files, keep, number, row};
use super::model::{Model, ModelRow, ModelTurn};
use super::operations::{Operation, OperationKind, Sample, operations};
use super::{BOUNDLESS, bytes, call, draft, store};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// The model of a session, and what the test needs to compare them.
#[derive(Default)]
struct Pair {
    model: Model,
    /// The number of deletions of the session.
    deletions: u32,
    exists: bool,
    /// A running call, and `deletions` when it entered the session; `None` if the session did not exist.
    running: Option<(Call, Option<u32>)>,
    /// The exports of frozen versions at the time of the freeze, and their files.
    kept: Vec<(ExportedVersion, Vec<Vec<u8>>)>,
}

struct TestWorld {
    /// Whether it checks everything after every operation.
    checks_each: bool,
    store: Arc<Sessions>,
    pairs: [Pair; 3],
}

impl TestWorld {
    fn all(operations: &[Operation], checks_each: bool) -> Self {
        let mut world = Self { checks_each, store: store(BOUNDLESS), pairs: Default::default() };
        operations.iter().for_each(|operation| world.apply(operation));
        world
    }

    fn session(&self, of: usize) -> Option<Arc<Session>> {
        self.store.session(NAMES[of])
    }

    fn apply(&mut self, operation: &Operation) {
        let of = operation.session;
        match &operation.kind {
            OperationKind::Begin => {
                let begun = call(&self.store, NAMES[of]);
                let pair = &mut self.pairs[of];
                // the call that was running before ends without a turn
                pair.running = Some((begun, pair.exists.then_some(pair.deletions)));
            }
            OperationKind::Call { prompt, samples, last } => {
                let prompt = prompt.ids(&self.pairs[of].model);
                self.call(of, prompt.as_deref(), samples, *last);
            }
            OperationKind::Freeze => self.freeze(of),
            OperationKind::Reward { leaf, value } => self.reward(of, *leaf, *value),
            OperationKind::Incomplete => {
                self.store.mark_incomplete(&NAMES[of].into());
                let pair = &mut self.pairs[of];
                pair.exists = true;
                let version = pair.model.open_version();
                pair.model.incomplete.get_or_insert(version);
            }
            OperationKind::Sweep => {
                self.store.sweep();
                let runs = |pair: &Pair| {
                    pair.running
                        .as_ref()
                        .is_some_and(|(_, entered)| entered.is_none_or(|entered| entered == pair.deletions))
                };
                self.pairs.iter_mut().filter(|pair| !runs(pair)).for_each(|pair| pair.model.finish());
            }
            OperationKind::Delete => {
                let pair = &mut self.pairs[of];
                assert_eq!(
                    self.store.memory().delete(NAMES[of]).is_some(),
                    pair.exists,
                    "an existing session can be deleted"
                );
                assert!(self.store.session(NAMES[of]).is_none());
                (pair.model, pair.exists, pair.deletions) = (Model::default(), false, pair.deletions + 1);
                pair.kept.clear();
            }
        }
        if self.checks_each {
            self.check(of);
        }
    }

    fn call(&mut self, of: usize, prompt: Option<&[u32]>, samples: &[Sample], last: bool) {
        let pair = &mut self.pairs[of];
        let fresh = pair.exists.then_some(pair.deletions);
        let (mut running, found) = pair.running.take().unwrap_or_else(|| (call(&self.store, NAMES[of]), fresh));
        // a call whose session was deleted commits nothing
        let is_lost = found.is_some_and(|deletions| deletions != pair.deletions);
        for sample in samples {
            let supersedes: Vec<usize> = sample
                .supersedes
                .filter(|_| !pair.model.turns.is_empty())
                .map(|at| at % pair.model.turns.len())
                .into_iter()
                .collect();
            let fault = sample.fault.or(prompt.is_none().then_some(Fault::PromptUnknown));
            let mut draft = draft(prompt.unwrap_or_default(), &sample.response);
            draft.prompt = prompt.map(Into::into);
            (draft.about.finish, draft.about.fault) = (sample.finish.map(Into::into), fault);
            draft.about.supersedes = supersedes.iter().map(|at| number(*at)).collect();
            let expected = (!is_lost).then_some(number(pair.model.turns.len()));
            assert_eq!(running.commit(draft).0, expected, "no call is refused");
            if !is_lost {
                pair.exists = true;
                pair.model.commit(ModelTurn {
                    prompt: prompt.map(<[u32]>::to_vec),
                    response: sample.response.clone(),
                    finish: sample.finish,
                    fault,
                    supersedes,
                    parent: None,
                    cause: None,
                });
            }
        }
        if last {
            running.mark_last();
        }
        drop(running);
        if last && !is_lost {
            pair.model.finish();
            self.check_done(of);
        }
    }

    fn freeze(&mut self, of: usize) {
        let Some(session) = self.session(of) else { return };
        let pair = &mut self.pairs[of];
        let (Frozen { version, .. }, _) = self.store.memory().freeze(&session).unwrap();
        if !pair.model.is_frozen() {
            pair.model.frozen.push(pair.model.turns.len());
        }
        assert_eq!(version as usize, pair.model.frozen.len());
        pair.model.finish();
        if pair.kept.last().is_none_or(|(kept, _)| kept.version < version) {
            pair.kept.push((keep(&session, version), files(&session, version)));
        }
    }

    fn reward(&mut self, of: usize, leaf: Option<usize>, value: i64) {
        let Some(session) = self.session(of) else { return };
        let model = &mut self.pairs[of].model;
        let result = self
            .store
            .memory()
            .reward(&session, leaf.map_or(RewardScope::Session, |leaf| RewardScope::Leaf(number(leaf))), json!(value))
            .map(drop);
        let expected = match leaf {
            _ if model.is_frozen() => Err(SessionError::Frozen),
            Some(leaf) if leaf >= model.turns.len() => Err(SessionError::NoTurn(number(model.turns.len()))),
            _ => {
                model.rewards.push((model.open_version(), leaf, value));
                Ok(())
            }
        };
        assert_eq!(result, expected);
    }

    fn check(&self, of: usize) {
        let (pair, model) = (&self.pairs[of], &self.pairs[of].model);
        assert_eq!(self.session(of).is_some(), pair.exists);
        let Some(session) = self.session(of) else { return };
        let open = number(model.open_version());
        let now = keep(&session, open);
        check_turns(model, &now.turns);
        check_exported(&session);
        for version in 1..=model.open_version() {
            let kept = keep(&session, number(version));
            check_export(model, version, &kept);
            assert_eq!(session.snapshot(Some(number(version))).unwrap().is_frozen, kept.version < open);
        }
        for (kept, _) in &pair.kept {
            assert_eq!(keep(&session, kept.version), *kept, "a frozen version does not change");
        }
        assert_eq!(session.snapshot(Some(open + 1)).unwrap_err(), SessionError::NoVersion(open));
        assert_eq!(session.snapshot(None).unwrap().version, (open - 1).max(1), "the last frozen one, or the open one");
    }

    /// Every trained turn is trained in exactly one published row.
    fn check_done(&self, of: usize) {
        let model = &self.pairs[of].model;
        let mut times = BTreeMap::<usize, usize>::new();
        for (turn, trained) in self.finished(of).iter().flat_map(|row| &row.steps) {
            *times.entry(*turn).or_default() += usize::from(*trained);
        }
        for turn in model.trained(model.turns.len()) {
            assert_eq!(times.get(&turn), Some(&1), "turn {turn} is trained in one published row");
        }
    }

    /// The published rows in order.
    fn finished(&self, of: usize) -> Vec<ModelRow> {
        let Some(session) = self.session(of) else { return Vec::new() };
        let numbers = self.store.memory().finished_after(0, usize::MAX);
        let own = numbers.iter().filter(|(_, name)| **name == *NAMES[of]);
        // the paths of deleted sessions cannot be read any more
        let paths = own.filter_map(|(number, _)| session.finished(*number, Classes::ALL)?.ok());
        paths.map(|path| row(&path)).collect()
    }

    fn check_files(&self) {
        for (pair, name) in self.pairs.iter().zip(NAMES) {
            for (kept, before) in &pair.kept {
                let session = self.store.session(name).unwrap();
                assert!(files(&session, kept.version) == *before, "a frozen export gives the same bytes twice");
            }
        }
    }

    fn check_finished(&self) {
        let numbers: Vec<u64> =
            self.store.memory().finished_after(0, usize::MAX).iter().map(|(number, _)| *number).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "numbers rise");
        for at in 0..numbers.len() {
            let rest = self.store.memory().finished_after(numbers[at], usize::MAX);
            assert_eq!(rest.iter().map(|(number, _)| *number).collect::<Vec<_>>(), numbers[at + 1..]);
        }
        for of in 0..NAMES.len() {
            let emitted = self.finished(of);
            let expected = self.pairs[of].model.finished();
            assert_eq!(emitted, expected, "each leaf once, each token trained in the first row that has it");
        }
    }
}

proptest! {
    #[test]
    fn store_equals_the_model(operations in operations()) {
        let mut world = TestWorld::all(&operations, true);
        world.check_files();
        world.check_finished();
        prop_assert_eq!(world.store.size().1, bytes(&world.store), "every byte is accounted for");
        world.pairs.iter_mut().for_each(|pair| pair.running = None);
        for name in NAMES {
            world.store.memory().delete(name);
        }
        prop_assert_eq!(world.store.size(), (0, 0));
        prop_assert!(world.store.memory().page(0, 9).is_empty());
    }

    #[test]
    fn sessions_do_not_affect_each_other(operations in operations()) {
        let together = TestWorld::all(&operations, false);
        for of in 0..NAMES.len() {
            let own = |operation: &&Operation| operation.session == of || matches!(operation.kind, OperationKind::Sweep);
            let own: Vec<Operation> = operations.iter().filter(own).cloned().collect();
            let alone = TestWorld::all(&own, false);
            prop_assert_eq!(together.finished(of), alone.finished(of));
            let whole = |world: &TestWorld| world.session(of).map(|session| {
                let versions = 1..=number(world.pairs[of].model.open_version());
                (Summary { created_ms: 0, ..session.summary() }, versions.map(|version| keep(&session, version)).collect::<Vec<_>>())
            });
            prop_assert_eq!(whole(&together), whole(&alone), "operations on other sessions change nothing");
        }
    }
}
