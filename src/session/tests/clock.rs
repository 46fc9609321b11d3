// SPDX-License-Identifier: Apache-2.0
//! Eviction by bytes and by time, and which sessions count as used.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::advance;

use super::super::{Classes, Sessions, StoreLimits};
use super::{BOUNDLESS, bytes, call, draft, store, turn};

const SECOND: Duration = Duration::from_secs(1);

fn names(store: &Sessions) -> Vec<String> {
    store.memory().page(0, usize::MAX).iter().map(|(_, session)| session.id.to_string()).collect()
}

fn evicted(store: &Sessions) -> Vec<(String, &'static str)> {
    store.evicted().iter().map(|gone| (gone.session.to_string(), gone.reason)).collect()
}

fn finished(store: &Sessions) -> Vec<String> {
    store.memory().finished_after(0, usize::MAX).iter().map(|(_, session)| session.to_string()).collect()
}

/// Bytes of a session with one usual turn.
fn one() -> u64 {
    let store = store(BOUNDLESS);
    turn(&store, "a", &[1], &[2]);
    store.size().1
}

fn gone(name: &str, reason: &'static str) -> (String, &'static str) {
    (name.to_owned(), reason)
}

#[tokio::test(start_paused = true)]
async fn least_recently_used_session_is_evicted_first() {
    let store = store(StoreLimits { bytes: 3 * one(), ..BOUNDLESS });
    for name in ["a", "b", "c"] {
        turn(&store, name, &[1], &[2]);
    }
    assert_eq!((store.size(), evicted(&store)), ((3, 3 * one()), vec![]), "sessions within the limit stay");
    // a call that records nothing counts as use
    drop(call(&store, "a"));
    turn(&store, "d", &[1], &[2]);
    assert_eq!(evicted(&store), [gone("b", "bytes")]);
    turn(&store, "e", &[1], &[2]);
    assert_eq!(evicted(&store), [gone("b", "bytes"), gone("c", "bytes")]);
    assert_eq!(names(&store), ["a", "d", "e"], "a page is in the order of creation");
    assert_eq!(store.size().1, bytes(&store));
}

#[tokio::test(start_paused = true)]
async fn large_session_evicts_several_and_an_oversized_one_is_evicted_itself() {
    let store = store(StoreLimits { bytes: 4 * one(), ..BOUNDLESS });
    for name in ["a", "b", "c"] {
        turn(&store, name, &[1], &[2]);
    }
    turn(&store, "large", &vec![1; usize::try_from(one() / 2).unwrap()], &[2]);
    assert_eq!(names(&store), ["c", "large"], "{:?}", evicted(&store));
    turn(&store, "too large", &vec![1; usize::try_from(one()).unwrap()], &[2]);
    assert_eq!(names(&store), Vec::<String>::new(), "the limit holds");
    assert_eq!(evicted(&store).last(), Some(&gone("too large", "bytes")));
    assert_eq!(store.size(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn unused_sessions_are_evicted_on_time() {
    let store = store(StoreLimits { ttl: 10 * SECOND, ..BOUNDLESS });
    turn(&store, "a", &[1], &[2]);
    advance(4 * SECOND).await;
    turn(&store, "b", &[1], &[2]);
    advance(SECOND * 6 - Duration::from_nanos(1)).await;
    store.sweep();
    assert_eq!(names(&store), ["a", "b"], "not before the TTL");
    advance(Duration::from_nanos(1)).await;
    store.sweep();
    assert_eq!((names(&store), evicted(&store)), (vec!["b".to_owned()], vec![gone("a", "ttl")]));
    turn(&store, "b", &[1, 2, 3], &[4]);
    advance(9 * SECOND).await;
    store.sweep();
    assert_eq!(names(&store), ["b"], "a turn counts as use");
    advance(SECOND).await;
    store.sweep();
    assert_eq!(store.size(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn running_call_protects_its_session_from_eviction() {
    let limits = StoreLimits { bytes: 3 * one(), ttl: 10 * SECOND, idle: SECOND };
    let store = store(limits);
    turn(&store, "a", &[1], &[2]);
    let mut running = call(&store, "a");
    advance(20 * SECOND).await;
    store.sweep();
    assert!(finished(&store).is_empty(), "the call still runs");
    for name in ["b", "c", "d", "e"] {
        turn(&store, name, &[1], &[2]);
    }
    assert_eq!(names(&store), ["a", "d", "e"], "others are evicted instead");
    // its second turn brings the indexes, which take about as much as a session
    assert_eq!(running.commit(draft(&[1, 2, 3], &[4])).0, Some(1));
    drop(running);
    let is_there = store.session("a").is_some();
    assert!(is_there && !evicted(&store).contains(&gone("a", "ttl")), "the end of the call counted as use");
    advance(10 * SECOND).await;
    store.sweep();
    assert_eq!(evicted(&store).last().map(|gone| gone.1), Some("ttl"));
    assert_eq!(store.size(), (0, 0));
}

/// The first calls of a session often run concurrently. The session is created when the first of them ends.
#[tokio::test(start_paused = true)]
async fn call_that_began_before_its_session_protects_it_from_eviction() {
    let store = store(StoreLimits { bytes: one(), ttl: 10 * SECOND, idle: SECOND });
    let (mut slow, refused) = (call(&store, "a"), call(&store, "a"));
    turn(&store, "a", &[1], &[2]);
    advance(20 * SECOND).await;
    turn(&store, "b", &[1], &[2]);
    store.sweep();
    assert_eq!(finished(&store), ["b"], "it is not idle");
    assert_eq!(evicted(&store), [gone("b", "bytes")]);
    drop(refused);
    assert_eq!(slow.commit(draft(&[1], &[3])).0, Some(1), "it enters the session that another call created");
    drop(slow);
    advance(10 * SECOND).await;
    store.sweep();
    assert_eq!(store.size(), (0, 0), "no call uses it any more");
}

#[tokio::test(start_paused = true)]
async fn session_is_used_until_both_calls_end() {
    let store = store(StoreLimits { ttl: SECOND, ..BOUNDLESS });
    turn(&store, "a", &[1], &[2]);
    let (one, other) = (call(&store, "a"), call(&store, "a"));
    advance(9 * SECOND).await;
    drop(one);
    advance(9 * SECOND).await;
    store.sweep();
    assert_eq!(store.session("a").unwrap().summary().running, 1);
    drop(other);
    advance(SECOND).await;
    store.sweep();
    assert!(store.session("a").is_none());
}

#[tokio::test(start_paused = true)]
async fn idle_sessions_finish_once() {
    let store = store(StoreLimits { idle: 5 * SECOND, ..BOUNDLESS });
    turn(&store, "a", &[1], &[2]);
    advance(3 * SECOND).await;
    turn(&store, "b", &[1], &[2]);
    advance(2 * SECOND).await;
    store.sweep();
    store.sweep();
    assert_eq!(finished(&store), ["a"]);
    let running = call(&store, "b");
    advance(60 * SECOND).await;
    store.sweep();
    assert_eq!(finished(&store), ["a"], "a session with a running call is not idle");
    drop(running);
    store.sweep();
    assert_eq!(finished(&store), ["a"], "its end counted as use");
    advance(5 * SECOND).await;
    store.sweep();
    assert_eq!(finished(&store), ["a", "b"]);
    // continuing makes a longer path; the published turns are context there
    turn(&store, "a", &[1, 2, 3], &[4, 5]);
    advance(5 * SECOND).await;
    store.sweep();
    store.sweep();
    let numbers = store.memory().finished_after(2, 9);
    assert_eq!(numbers, [(3, "a".into())]);
    let path = store.session("a").unwrap().finished(3, Classes::ALL).unwrap().unwrap();
    assert_eq!((path.len(), path.trained_tokens()), (5, 2));
    assert_eq!(store.memory().finished_after(0, 2), [(1, "a".into()), (2, "b".into())], "pages are bounded");
}

#[tokio::test(start_paused = true)]
async fn last_call_finishes_the_session_at_once() {
    let store = store(StoreLimits { idle: 5 * SECOND, ..BOUNDLESS });
    let mut last = call(&store, "a");
    last.mark_last();
    assert_eq!(last.commit(draft(&[1], &[2])).0, Some(0));
    assert!(finished(&store).is_empty(), "it still runs");
    drop(last);
    assert_eq!(finished(&store), ["a"]);
    assert!(store.session("a").unwrap().summary().done);
    assert_eq!(turn(&store, "a", &[1, 2], &[3]), 1, "a call after the last is not refused");
}

#[tokio::test(start_paused = true)]
async fn the_last_1000_evictions_are_remembered() {
    let store = store(StoreLimits { ttl: SECOND, ..BOUNDLESS });
    for number in 0..1100 {
        turn(&store, &format!("s{number}"), &[1], &[2]);
    }
    advance(SECOND).await;
    store.sweep();
    assert_eq!(store.size(), (0, 0));
    let evicted = evicted(&store);
    assert_eq!((evicted.len(), &evicted[0], &evicted[999]), (1000, &gone("s100", "ttl"), &gone("s1099", "ttl")));
    assert!(store.eviction_of("s99").is_none());
    assert_eq!(store.eviction_of("s100").unwrap().reason, "ttl");
    assert_eq!(turn(&store, "s100", &[1, 2, 3], &[4]), 0, "the name is free for a new session");
}

#[tokio::test(start_paused = true)]
async fn deleted_session_is_not_listed_as_evicted() {
    let store = store(BOUNDLESS);
    turn(&store, "a", &[1], &[2]);
    let mut running = call(&store, "a");
    assert!(store.memory().delete("a").is_some(), "a running call does not prevent deletion");
    assert!(store.memory().delete("a").is_none() && store.evicted().is_empty() && store.eviction_of("a").is_none());
    assert_eq!(running.commit(draft(&[1], &[2])).0, None);
    running.mark_last();
    drop(running);
    assert_eq!((store.size(), finished(&store)), ((0, 0), vec![]), "the end of the call restores nothing");
}

#[tokio::test(start_paused = true)]
async fn call_without_a_turn_creates_no_session() {
    let store = store(BOUNDLESS);
    let mut refused = call(&store, "a");
    refused.mark_last();
    drop(refused);
    assert!(store.size() == (0, 0) && store.session("a").is_none() && store.memory().page(0, 9).is_empty());
}

/// A trainer that polls a session does not delay its eviction.
#[tokio::test(start_paused = true)]
async fn reading_does_not_count_as_use() {
    let store = store(StoreLimits { ttl: 10 * SECOND, ..BOUNDLESS });
    turn(&store, "a", &[1], &[2]);
    advance(9 * SECOND).await;
    let session = store.session("a").unwrap();
    assert_eq!(session.snapshot(None).unwrap().paths(true).0.len(), 1);
    advance(SECOND).await;
    store.sweep();
    assert!(store.session("a").is_none());
    assert!(store.memory().freeze(&session).is_err(), "a stale reference cannot change it");
    assert_eq!(Arc::strong_count(&session), 1, "no other reference exists");
}
