// SPDX-License-Identifier: Apache-2.0
//! Concurrent callers: no deadlock, no lost turn, and the store equals the model.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::{Classes, RewardScope, Sessions, StoreLimits};
use super::look::{ExportedVersion, check_export, check_turns, keep, number};
use super::model::{Model, ModelTurn};
use super::{BOUNDLESS, bytes, call, draft, store, tokens};

const WRITERS: u32 = 6;
const CALLS: u32 = 150;
/// The first two sessions are never deleted.
const NAMES: [&str; 3] = ["a", "b", "deleted"];

/// The prompts and responses that callers committed, by session and turn.
type Sent = Mutex<BTreeMap<(&'static str, u32), (Vec<u32>, Vec<u32>)>>;

/// Fails if the test takes longer than a minute.
fn within_a_minute(test: impl FnOnce() + Send + 'static) {
    let (done, is_done) = channel();
    let runner = std::thread::spawn(move || {
        test();
        _ = done.send(());
    });
    let timed_out = is_done.recv_timeout(Duration::from_secs(60)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
    assert!(!timed_out, "the test hangs");
    runner.join().unwrap();
}

/// The next pseudo-random number.
fn random(state: &mut u32, below: u32) -> u32 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    (*state >> 16) % below
}

/// A prompt that continues a recorded path, or a new one.
fn prompt(store: &Sessions, name: &str, seed: &mut u32) -> Vec<u32> {
    let mut ids = Vec::new();
    let open = |session: Arc<super::super::Session>| session.snapshot(Some(number(session.summary().frozen) + 1)).ok();
    if let Some(snapshot) = store.session(name).and_then(open).filter(|open| !open.turns().is_empty()) {
        let turn = random(seed, number(snapshot.turns().len()));
        ids = tokens(&snapshot.context(turn).path());
    }
    ids.truncate(ids.len().saturating_sub(random(seed, 3) as usize));
    // short paths share prefixes more often
    if ids.len() > 40 {
        ids.clear();
    }
    ids.extend((0..random(seed, 3)).map(|_| random(seed, 3)));
    ids
}

/// Makes the calls of one client, one after the other. Waits after half of them until a version is `frozen`.
fn write(store: &Arc<Sessions>, writer: u32, sent: &Sent, frozen: &OnceLock<()>) {
    let mut seed = writer + 1;
    for at in 0..CALLS {
        if at == CALLS / 2 {
            frozen.wait();
        }
        let name = NAMES[random(&mut seed, 3) as usize];
        let mut call = call(store, name);
        let ids = prompt(store, name, &mut seed);
        for _ in 0..=random(&mut seed, 2) {
            let response: Vec<u32> = (0..random(&mut seed, 4)).map(|_| random(&mut seed, 3)).collect();
            let turn = call.commit(draft(&ids, &response)).0;
            assert!(turn.is_some() || name == "deleted", "no turn is lost");
            if let Some(turn) = turn.filter(|_| name != "deleted") {
                let before = sent.lock().insert((name, turn), (ids.clone(), response));
                assert!(before.is_none(), "a number is used once");
            }
        }
        if at % 40 == 39 {
            call.mark_last();
        }
    }
}

/// The model of a session, from the turns that callers committed.
fn model(sent: &Sent, name: &'static str) -> Model {
    let mut model = Model::default();
    for ((_, turn), (prompt, response)) in sent.lock().range((name, 0)..=(name, u32::MAX)) {
        assert_eq!(*turn as usize, model.turns.len(), "numbers have no gaps");
        model.commit(ModelTurn {
            prompt: Some(prompt.clone()),
            response: response.clone(),
            finish: Some("stop"),
            fault: None,
            supersedes: Vec::new(),
            parent: None,
            cause: None,
        });
    }
    model
}

/// Freezes, reads, sweeps and deletes until `stop` is set. Sets `is_frozen` after the first freeze of a session that is never deleted. Returns
/// the frozen versions.
fn disturb(store: &Sessions, stop: &AtomicBool, is_frozen: &OnceLock<()>) -> Vec<(&'static str, ExportedVersion)> {
    let mut kept: Vec<(&str, ExportedVersion)> = Vec::new();
    for round in 0_u32.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        for name in NAMES {
            let Some(session) = store.session(name) else { continue };
            if round % 16 == 0 && kept.len() < 30 {
                let frozen = store.memory().freeze(&session);
                if let (Ok((frozen, _)), true) = (frozen, name != "deleted") {
                    kept.push((name, keep(&session, frozen.version)));
                    _ = is_frozen.set(());
                }
            }
            _ = store.memory().reward(&session, RewardScope::Session, serde_json::json!(1));
            _ = session.snapshot(None).map(|snapshot| snapshot.paths(false));
            _ = session.summary();
        }
        store.sweep();
        _ = store.size();
        _ = store.memory().page(0, 10);
        if round % 4 == 0 {
            store.memory().delete("deleted");
        }
    }
    kept
}

fn check(store: &Arc<Sessions>, sent: &Sent, kept: &[(&'static str, ExportedVersion)]) {
    for name in &NAMES[..2] {
        let session = store.session(name).unwrap();
        let mut model = model(sent, name);
        let frozen = session.summary().frozen;
        for version in 1..=frozen {
            model.frozen.push(session.snapshot(Some(number(version))).unwrap().turns().len());
        }
        let open = keep(&session, number(frozen + 1));
        check_turns(&model, &open.turns);
        // rewards are set at any time, so the model does not know them
        let rewards = |rows: &mut Vec<super::model::ModelRow>| rows.iter_mut().for_each(|row| row.reward = None);
        let mut plain = open;
        rewards(&mut plain.rows);
        rewards(&mut plain.single);
        check_export(&model, frozen + 1, &plain);
        for (_, kept) in kept.iter().filter(|(of, _)| of == name) {
            assert_eq!(keep(&session, kept.version), *kept, "a frozen version does not change");
        }
        let mut last = call(store, name);
        last.mark_last();
        drop(last);
        let numbers = store.memory().finished_after(0, usize::MAX);
        assert!(numbers.is_sorted_by(|a, b| a.0 < b.0), "numbers rise");
        let mut times = BTreeMap::new();
        for (number, _) in numbers.iter().filter(|(_, of)| **of == **name) {
            for step in
                session.finished(*number, Classes::ALL).unwrap().unwrap().steps.iter().filter(|step| step.trained)
            {
                *times.entry(step.turn.id as usize).or_insert(0) += 1;
            }
        }
        let once: BTreeMap<usize, i32> = model.trained(model.turns.len()).iter().map(|turn| (*turn, 1)).collect();
        assert_eq!(times, once, "each turn is trained in one published row");
    }
}

#[test]
fn concurrent_callers_and_trainers_equal_the_model() {
    within_a_minute(|| {
        let store = store(BOUNDLESS);
        let (sent, stop, frozen) = (Sent::default(), AtomicBool::new(false), OnceLock::new());
        let kept: Vec<(&str, ExportedVersion)> = std::thread::scope(|scope| {
            let (store, sent, stop, frozen) = (&store, &sent, &stop, &frozen);
            let trainers: Vec<_> = (0..2).map(|_| scope.spawn(|| disturb(store, stop, frozen))).collect();
            let writers: Vec<_> = (0..WRITERS).map(|at| scope.spawn(move || write(store, at, sent, frozen))).collect();
            let ends: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            stop.store(true, Ordering::Relaxed);
            ends.into_iter().for_each(Result::unwrap);
            trainers.into_iter().flat_map(|trainer| trainer.join().unwrap()).collect()
        });
        assert!(!kept.is_empty(), "writers wait for a freeze");
        check(&store, &sent, &kept);
        assert_eq!(store.size().1, bytes(&store), "every byte is accounted for");
        NAMES.iter().for_each(|name| drop(store.memory().delete(name)));
        assert_eq!(store.size(), (0, 0));
    });
}

/// A call protects the session that it entered, also from an eviction that begins at the same time.
#[test]
fn no_turn_is_lost_to_an_eviction() {
    within_a_minute(|| {
        for limits in [StoreLimits { bytes: 500, ..BOUNDLESS }, StoreLimits { ttl: Duration::ZERO, ..BOUNDLESS }] {
            let store = store(limits);
            std::thread::scope(|scope| {
                for _ in 0..WRITERS {
                    scope.spawn(|| {
                        for at in 0..2000 {
                            let name = if at % 3 == 0 { "a" } else { "b" };
                            let mut call = call(&store, name);
                            assert!(call.commit(draft(&[1], &[2])).0.is_some(), "the session was evicted under a call");
                        }
                    });
                }
            });
            store.sweep();
            assert_eq!(store.size(), (0, 0), "all sessions were evicted");
            assert!(store.evicted().len() > 1, "it was evicted several times");
        }
    });
}

/// The bytes of a turn are counted after its session is unlocked. They must add up even if the session is removed in between.
#[test]
fn bytes_add_up_when_sessions_are_deleted_during_calls() {
    within_a_minute(|| {
        let store = store(BOUNDLESS);
        let writers = AtomicU32::new(WRITERS);
        std::thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        _ = call(&store, "a").commit(draft(&[1], &[2]));
                    }
                    writers.fetch_sub(1, Ordering::Relaxed);
                });
            }
            scope.spawn(|| {
                while writers.load(Ordering::Relaxed) > 0 {
                    store.memory().delete("a");
                }
            });
        });
        store.memory().delete("a");
        assert_eq!(store.size(), (0, 0));
    });
}
