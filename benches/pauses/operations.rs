// SPDX-License-Identifier: Apache-2.0
//! The CPU time of single operations on a full store.

use std::hint::black_box;
use std::sync::Arc;

use futures_util::FutureExt;
use tokentap::metrics::Metrics;
use tokentap::session::ledger::ListOrder;
use tokentap::session::{Call, ListQuery, Sessions, StoreLimits};

use crate::fill::{self, BOUNDLESS, LONG, PROMPT, SAMPLED, Sizes, TOKENS};
use crate::times::Times;

/// Repetitions of an operation.
const ROUNDS: u32 = 200;

pub fn run(sizes: Sizes) {
    println!("CPU time of one operation in microseconds: median, longest");
    println!("| operation | empty or small | | full | |\n|---|---|---|---|---|");
    growth(sizes);
    let small = store(Sizes { sessions: 10, turns: 10, siblings: 10, requests: 0 });
    let full = store(sizes);
    let both = |name: &str, work: &dyn Fn(&Arc<Sessions>, u32, &mut Times)| {
        let mut times = [Times::default(), Times::default()];
        for round in 0..ROUNDS {
            // one after the other, so that both see the same load of the machine
            for (store, times) in [&small, &full].into_iter().zip(&mut times) {
                work(store, round, times);
            }
        }
        row(name, &times);
    };
    both("commit a turn of a new session", &|store, round, times| {
        let draft = fill::draft(PROMPT.into(), fill::tokens(round, TOKENS));
        times.measure(|| {
            drop(Call::new(Arc::clone(store), format!("new-{round}").into()).commit(draft));
        });
    });
    both("commit a turn with a new prompt, long session", &|store, round, times| {
        let mut prompt = PROMPT;
        prompt[0] = round;
        commit(store, LONG, prompt.into(), round, times);
    });
    both("commit one more sample of a prompt", &|store, round, times| {
        commit(store, SAMPLED, PROMPT.into(), round, times);
    });
    both("commit a turn after the last turn of the long session", &|store, round, times| {
        let session = store.session(LONG).unwrap();
        let leaf = if round == 0 { deepest(store) } else { session.latest(1)[0].id };
        let mut prompt = session.tokens(leaf);
        prompt.extend(fill::tokens(round, TOKENS));
        commit(store, LONG, prompt.into(), round, times);
    });
    both("snapshot of the long session", &|store, _, times| {
        let session = store.session(LONG).unwrap();
        drop(times.measure(|| session.snapshot(None).unwrap()));
    });
    both("tokens of the deepest path", &|store, _, times| {
        let session = store.session(LONG).unwrap();
        let leaf = deepest(store);
        drop(black_box(times.measure(|| session.tokens(leaf))));
    });
    both("summary of the long session", &|store, _, times| {
        let session = store.session(LONG).unwrap();
        drop(times.measure(|| session.summary()));
    });
    both("whether the first turn ends a path", &|store, _, times| {
        let session = store.session(LONG).unwrap();
        times.measure(|| black_box(session.ends_path(0)));
    });
    both("list a page of 100 sessions", &|store, round, times| {
        let query =
            ListQuery { order: ListOrder::Oldest, after: Some(round.to_string()), limit: 100, part: String::new() };
        drop(times.measure(|| store.list(query).now_or_never().unwrap().unwrap()));
    });
    both("number of sessions and bytes", &|store, _, times| {
        times.measure(|| black_box(store.size()));
    });
    let metrics = Metrics::new("cpu");
    both("write the metrics", &|_, _, times| {
        drop(times.measure(|| metrics.render()));
    });
    println!();
}

/// The deepest turn that was restored.
fn deepest(store: &Sessions) -> u32 {
    let session = store.session(LONG).unwrap();
    // turns of the other rows have no parent
    let turns = session.extent().0;
    (0..turns as u32).rev().find(|turn| session.turn(*turn).is_some_and(|turn| turn.parent.is_some())).unwrap()
}

fn commit(store: &Arc<Sessions>, session: &str, prompt: Arc<[u32]>, seed: u32, times: &mut Times) {
    let draft = fill::draft(prompt, fill::tokens(seed, TOKENS));
    let mut call = Call::new(Arc::clone(store), session.into());
    drop(times.measure(|| call.commit(draft)));
}

/// The longest operation while a store and a session grow, each the best of three runs.
fn growth(sizes: Sizes) {
    let runs = || (0..3).map(|_| grow(sizes)).reduce(|a, b| [0, 1].map(|at| (a[at].clone()).shortest(b[at].clone())));
    let [sessions, turns] = runs().expect("three runs");
    for (name, times) in
        [("commit while the number of sessions grows", sessions), ("commit while a session grows", turns)]
    {
        let (first, rest) = times.split(100);
        row(&format!("{name}: the first 1 %, the rest"), &[first, rest]);
    }
}

fn grow(sizes: Sizes) -> [Times; 2] {
    let limits = StoreLimits { bytes: 1 << 40, ttl: BOUNDLESS, idle: BOUNDLESS };
    let store = Arc::new(Sessions::new(limits));
    let (mut sessions, mut turns) = (Times::default(), Times::default());
    for session in 0..sizes.sessions as u32 {
        let draft = fill::draft(PROMPT.into(), fill::tokens(session, TOKENS));
        sessions.measure(|| {
            drop(Call::new(Arc::clone(&store), format!("session-{session:06}").into()).commit(draft));
        });
    }
    // beyond the sizes of the other rows, because each doubling of a list is worse than the one before
    for turn in 0..10 * sizes.turns as u32 {
        let mut prompt = PROMPT;
        prompt[0] = turn;
        commit(&store, "growing", prompt.into(), turn, &mut turns);
    }
    [sessions, turns]
}

/// A store with restored turns.
fn store(sizes: Sizes) -> Arc<Sessions> {
    let limits = StoreLimits { bytes: 1 << 40, ttl: BOUNDLESS, idle: BOUNDLESS };
    let store = Arc::new(Sessions::new(limits));
    for (session, turn) in fill::turns(sizes) {
        store.restore(fill::record(session, turn));
    }
    store
}

fn row(name: &str, [small, full]: &[Times; 2]) {
    println!(
        "| {name} | {:.1} | {:.0} | {:.1} | {:.0} |",
        small.median(),
        small.longest(),
        full.median(),
        full.longest()
    );
}
