// SPDX-License-Identifier: Apache-2.0
//! The time of operations on a session is linear in its size, whatever its shape.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::session::forest::Forest;
use crate::session::ledger::{Change, Record};
use crate::session::{ScoredTurn, Sessions, StoreLimits, Turn, TurnMetadata, TurnScores, Uid};

/// Fails if `work` on 8,000 turns takes more than 8 times as long as on 2,000. Linear work takes 4 times as long, quadratic 16 times.
fn assert_linear(work: impl Fn(u32)) {
    // CPU time, and the shortest of several runs, because the machine does other work meanwhile
    let fastest = |turns| {
        let time = || {
            let begin = thread_cpu_time();
            work(turns);
            thread_cpu_time() - begin
        };
        (0..3).map(|_| time()).min().expect("three runs")
    };
    let (small, large) = (fastest(2_000), fastest(8_000));
    assert!(large < small * 8, "4 times the turns took {large:?} instead of {small:?}: quadratic would be 16 times");
}

fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("CPU time is not negative")
}

fn turn(id: u32, parent: Option<u32>, prompt: &[u32], response: &[u32]) -> Arc<Turn> {
    let about = TurnMetadata { finish: Some("stop".into()), ..TurnMetadata::default() };
    let (logprobs, entropy) = (vec![-1.0; response.len()].into(), vec![0.5; response.len()].into());
    Arc::new(Turn { id, parent, prompt: prompt.into(), response: response.into(), logprobs, entropy, about })
}

/// Places a call and adds its turn, as a store does.
fn attach(forest: &mut Forest, prompt: &[u32], response: &[u32]) {
    let place = forest.place(prompt, &[]);
    let mut turn = Arc::unwrap_or_clone(turn(forest.next_id(), place.parent, &[], response));
    (turn.prompt, turn.about.cause) = (prompt[place.known..].into(), place.cause);
    forest.push(Arc::new(turn));
}

fn restore(turns: impl Iterator<Item = Arc<Turn>>, finished: impl Iterator<Item = (u32, u32)>) -> Sessions {
    let limits = StoreLimits { bytes: 1 << 30, ttl: Duration::MAX, idle: Duration::MAX };
    let (store, birth) = (Sessions::new(limits), Uid::unique());
    for turn in turns {
        store.restore(Record::new("s", birth, Change::Turn(turn)));
    }
    for (number, (leaf, turns)) in finished.enumerate() {
        store.restore(Record::new("s", birth, Change::Finished { leaf, turns, number: number as u64 }));
    }
    store
}

/// A system prompt and the first message of a conversation.
fn opening(conversation: u32) -> Vec<u32> {
    let mut prompt = vec![7; 32];
    prompt.push(conversation);
    prompt
}

#[test]
fn attaching_conversations_with_one_system_prompt_is_linear() {
    assert_linear(|turns| {
        let mut forest = Forest::default();
        (0..turns).for_each(|at| attach(&mut forest, &opening(at), &[at]));
        assert_eq!(forest.counts().leaves, turns as usize);
    });
}

#[test]
fn sampling_a_prompt_and_continuing_its_samples_is_linear() {
    assert_linear(|turns| {
        let mut forest = Forest::default();
        (0..turns / 2).for_each(|at| attach(&mut forest, &[1], &[7, at]));
        (0..turns / 2).for_each(|at| attach(&mut forest, &[1, 7, at, 5], &[6]));
        assert_eq!(forest.turns().last().and_then(|turn| turn.parent), Some(turns / 2 - 1));
    });
}

#[test]
fn editing_the_samples_of_a_prompt_is_linear() {
    assert_linear(|turns| {
        let mut forest = Forest::default();
        (0..turns / 2).for_each(|at| attach(&mut forest, &[1], &[7, at]));
        (0..turns / 2).for_each(|at| attach(&mut forest, &[1, 8, at], &[6]));
    });
}

#[test]
fn restoring_a_chain_is_linear() {
    assert_linear(|turns| {
        restore((0..turns).map(|id| turn(id, id.checked_sub(1), &[id], &[id])), std::iter::empty());
    });
}

#[test]
fn restoring_branches_of_one_turn_is_linear() {
    assert_linear(|turns| {
        let branch = |id: u32| turn(id, id.checked_sub(1).map(|_| 0), &opening(id), &[id]);
        restore((0..turns).map(branch), std::iter::empty());
    });
}

#[test]
fn scoring_the_turns_of_a_chain_is_linear() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
    // numbers of turns are as they were read, or have changed since
    for moved in [0, 1] {
        assert_linear(|turns| {
            let chain: Vec<Arc<Turn>> = (0..turns)
                .map(|id| {
                    let mut turn = Arc::unwrap_or_clone(turn(id, id.checked_sub(1), &[id], &[id]));
                    turn.about.uid = Uid::unique();
                    Arc::new(turn)
                })
                .collect();
            let scored = |turn: &Arc<Turn>| ScoredTurn {
                turn: turn.id + moved,
                uid: turn.about.uid,
                weights: None,
                logprobs: [-1.0].into(),
                columns: Vec::new(),
            };
            let scores = TurnScores { teacher: "t".into(), turns: chain.iter().map(scored).collect(), again: false };
            let store = restore(chain.into_iter(), std::iter::empty());
            drop(runtime.block_on(store.score("s", &scores)).expect("the session has all turns"));
            let stored = store.session("s").expect("it was restored").scores("t", turns);
            assert_eq!(stored.len(), turns as usize);
        });
    }
}

#[test]
fn restoring_finished_paths_of_a_deep_session_is_linear() {
    assert_linear(|turns| {
        let half = turns / 2;
        let chain = (0..half).map(|id| turn(id, id.checked_sub(1), &[id], &[id]));
        let leaves = (half..turns).map(|id| turn(id, Some(half - 1), &[id], &[id]));
        let store = restore(chain.chain(leaves), (half..turns).map(|leaf| (leaf, turns)));
        assert_eq!(store.memory().order().last_finished(), u64::from(half) - 1);
    });
}
