// SPDX-License-Identifier: Apache-2.0
//! Failures that the model found, reduced.

use std::sync::Arc;

use serde_json::json;

use super::super::{Classes, RewardScope, SessionError};
use super::look::without_uid;
use super::{BOUNDLESS, call, draft, store, turn};

#[test]
fn frozen_version_stays_incomplete() {
    let store = store(BOUNDLESS);
    turn(&store, "a", &[1], &[2]);
    store.mark_incomplete(&"a".into());
    let session = store.session("a").unwrap();
    let incomplete = |version| session.snapshot(Some(version)).unwrap().paths(true).0[0].incomplete;
    store.memory().freeze(&session).unwrap();
    assert!(incomplete(1));
    store.mark_incomplete(&"a".into());
    assert!(incomplete(1), "a later unrecorded generation does not reset the mark");
}

#[test]
fn incomplete_mark_after_a_freeze_belongs_to_the_next_version() {
    let store = store(BOUNDLESS);
    turn(&store, "a", &[1], &[2]);
    let session = store.session("a").unwrap();
    assert_eq!(store.memory().freeze(&session).unwrap().0.version, 1);
    assert_eq!(store.memory().freeze(&session).unwrap().0.version, 1, "nothing is new");
    assert_eq!(store.memory().reward(&session, RewardScope::Session, json!(1)).unwrap_err(), SessionError::Frozen);
    store.mark_incomplete(&"a".into());
    assert_eq!(store.memory().freeze(&session).unwrap().0.version, 2, "the mark is a change");
    assert_eq!(store.memory().freeze(&session).unwrap().0.version, 2);
    let incomplete = |version| session.snapshot(Some(version)).unwrap().incomplete;
    assert_eq!((incomplete(1), incomplete(2)), (false, true));
}

#[test]
fn sessions_with_the_same_prompt_share_nothing() {
    let store = store(BOUNDLESS);
    for name in ["a", "b"] {
        assert_eq!(call(&store, name).commit(draft(&[1, 2, 3], &[4])).0, Some(0));
    }
    let turns = ["a", "b"].map(|name| store.session(name).unwrap().snapshot(None).unwrap().turns()[0].clone());
    assert_eq!(without_uid(&turns[0]), without_uid(&turns[1]));
    assert_ne!(turns[0].about.uid, turns[1].about.uid);
    assert!(!Arc::ptr_eq(&turns[0].prompt, &turns[1].prompt), "not even memory");
    store.memory().delete("a");
    assert!(store.session("a").is_none() && store.session("b").is_some());
    assert_eq!(turn(&store, "b", &[1, 2, 3, 4, 5], &[6]), 1);
    assert_eq!(turn(&store, "a", &[1, 2, 3, 4, 5], &[6]), 0);
}

/// Thousands of paths are published one by one, without a walk over the earlier ones for each.
#[test]
fn many_finished_paths_of_a_long_session_can_be_read() {
    let store = store(BOUNDLESS);
    let (mut prompt, mut last) = (vec![1], call(&store, "a"));
    for _ in 0..1000 {
        // each turn is sampled twice, and the second sample is continued
        for response in [2, 3] {
            assert!(last.commit(draft(&prompt, &[response])).0.is_some());
        }
        prompt.extend([3, 4]);
    }
    last.mark_last();
    drop(last);
    let session = store.session("a").unwrap();
    let numbers = store.memory().finished_after(0, usize::MAX);
    let trained =
        numbers.iter().map(|(number, _)| session.finished(*number, Classes::ALL).unwrap().unwrap().trained_tokens());
    assert_eq!((numbers.len(), trained.sum::<usize>()), (1001, 2000));
}
