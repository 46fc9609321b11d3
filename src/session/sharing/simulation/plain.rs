// SPDX-License-Identifier: Apache-2.0
//! Compares every process of a history with a store that is not shared.

use std::sync::Arc;

use super::check::SessionEntries;
use super::clients::{images_of, rows, scores_of};
use super::faults::Loss;
use super::history::{History, Process};
use crate::columns::Column;
use crate::images::ImageDigest;
use crate::session::ledger::Change;
use crate::session::tests::{BOUNDLESS, store};
use crate::session::{Call, Draft, ScoredTurn, Scores, Session, Tags, Turn, TurnMetadata, TurnScores};

/// Everything of a session that an export shows.
#[derive(Debug, PartialEq)]
struct Export {
    versions: Vec<Vec<(Vec<u32>, Vec<bool>)>>,
    rewards: Vec<Vec<Option<Arc<serde_json::Value>>>>,
    incomplete: bool,
    tags: Tags,
    finished: Vec<(u32, u32)>,
    /// By turn: the logprobs, and the names of the columns.
    scores: Vec<(u32, Vec<f32>, Vec<Box<str>>)>,
    causes: Vec<crate::session::Cause>,
    /// By turn.
    images: Vec<Vec<ImageDigest>>,
}

fn export(session: &Session) -> Export {
    let state = session.state();
    let (frozen, incomplete) = (state.frozen.len(), state.incomplete.is_some());
    let tags = state.tags.clone();
    let finished = state.finished.iter().map(|path| (path.leaf, path.trained_from)).collect();
    let of_turn = |scores: &Arc<Scores>| {
        let names = scores.columns.iter().map(|column| column.name.clone()).collect();
        (scores.turn, scores.logprobs.to_vec(), names)
    };
    let scores = state.scores.all().map(of_turn).collect();
    let causes = state.forest.turns().iter().map(|turn| turn.about.cause).collect();
    let images_of = |turn: &Arc<Turn>| {
        let images = turn.about.images.iter().flat_map(|images| &images.list);
        images.map(|image| image.image.digest).collect()
    };
    let images = state.forest.turns().iter().map(images_of).collect();
    drop(state);
    let (mut versions, mut rewards) = (Vec::new(), Vec::new());
    for version in 1..=u32::try_from(frozen).expect("it is small") + 1 {
        let Ok(snapshot) = session.snapshot(Some(version)) else { continue };
        versions.push(rows(&snapshot));
        rewards.push(snapshot.paths(true).0.into_iter().map(|path| path.reward).collect());
    }
    Export { versions, rewards, incomplete, tags, finished, scores, causes, images }
}

/// The exports of every process are those of a plain store in which the calls were made in the order of the list.
pub(super) async fn processes_agree_with_a_plain_store(
    history: &History,
    lists: &[SessionEntries],
) -> Result<(), String> {
    let plain = store(BOUNDLESS);
    // a process that ends, or has no room, may have pictures that it could not store yet
    let is_unlimited = |process: &Process| process.store.memory().limits.bytes == u64::MAX;
    let is_complete =
        history.settings.loss == Loss::None && history.crashed.is_empty() && history.processes.iter().all(is_unlimited);
    for list in lists {
        let name = &list.name;
        for (at, (_, record)) in list.records.iter().enumerate() {
            let session = plain.session(name);
            match &record.change {
                // a process may freeze it before another one appends the first turn
                Change::Begin { .. } if at == 0 => drop(plain.memory().session_of(name, record.birth)),
                Change::Healed => {}
                Change::Turn(turn) => {
                    let call = history.client_log.turns.iter().find(|call| *turn.response == call.response[..]);
                    let call = call.ok_or_else(|| format!("{name}: no client has {turn:?}"))?;
                    let draft = Draft {
                        prompt: Some(call.prompt.as_slice().into()),
                        response: call.response.clone(),
                        logprobs: vec![-1.0; 2],
                        entropy: vec![0.5; 2],
                        about: TurnMetadata {
                            finish: Some("stop".into()),
                            supersedes: turn.about.supersedes.clone(),
                            images: images_of(&call.prompt),
                            ..TurnMetadata::default()
                        },
                        ..Draft::default()
                    };
                    let mut call = Call::new(Arc::clone(&plain), Arc::clone(name));
                    call.set_tags(turn.about.tags.clone());
                    let _ = call.commit(draft);
                }
                Change::Reward { scope, reward, .. } => {
                    let session = session.ok_or_else(|| format!("{name}: a reward before the first turn"))?;
                    let set = plain.memory().reward(&session, *scope, (**reward).clone());
                    set.map_err(|error| format!("{name}: entry {at} is a reward, but {error}"))?;
                }
                Change::Tags(tags) => {
                    let session = session.ok_or_else(|| format!("{name}: tags before the first turn"))?;
                    let set = plain.memory().set_tags(&session, tags);
                    set.map_err(|error| format!("{name}: entry {at} has tags, but {error}"))?;
                }
                Change::Freeze { turns } => {
                    let session = session.ok_or_else(|| format!("{name}: frozen before the first turn"))?;
                    let (frozen, _) = plain.memory().freeze(&session).map_err(|error| error.to_string())?;
                    if frozen.turns != *turns {
                        return Err(format!("{name}: entry {at} freezes {turns} turns"));
                    }
                }
                Change::Scored(scores) => {
                    let session = session.ok_or_else(|| format!("{name}: scores before the first turn"))?;
                    let turn = session.turn(scores.turn).ok_or_else(|| format!("{name}: scores of no turn"))?;
                    let expected = scores_of(&turn);
                    let is_other = |column: &Column| column.floats().as_ref() != Some(&expected);
                    if scores.logprobs[..] != expected || scores.columns.iter().any(is_other) {
                        return Err(format!("{name}: entry {at} has the scores of another turn than {turn:?}"));
                    }
                    let (turn, uid) = (turn.id, turn.about.uid);
                    let (logprobs, columns) = (scores.logprobs.clone(), scores.columns.clone());
                    let turns = vec![ScoredTurn { turn, uid, weights: scores.weights, logprobs, columns }];
                    let scores = TurnScores { teacher: Arc::clone(&scores.teacher), turns, again: false };
                    // no client asks again, so no entry takes a column away
                    let set = plain.memory().score(&session, &scores);
                    set.map_err(|error| format!("{name}: entry {at} has scores, but {error}"))?;
                }
                Change::Incomplete => plain.mark_incomplete(name),
                Change::Finished { .. } => {}
                other => return Err(format!("{name}: entry {at} is {other:?}")),
            }
        }
        let Some(expected) = plain.session(name) else { continue };
        let expected = export(&expected);
        let mut first: Option<Export> = None;
        for (at, process) in history.processes.iter().enumerate() {
            let sharing = process.store.sharing();
            sharing.refresh(name).await.map_err(|error| format!("{name}: process {at}: {error}"))?;
            let session = process.store.session(name).ok_or_else(|| format!("{name}: process {at} lacks it"))?;
            let found = export(&session);
            let members = |export: &Export| {
                let versions = (export.versions.clone(), export.images.clone());
                (versions, export.rewards.clone(), export.incomplete, export.tags.clone(), export.scores.clone())
            };
            if members(&found) != members(&expected) || found.causes != expected.causes {
                return Err(format!("{name}: process {at} exports {found:?}, not {expected:?}"));
            }
            let lacks_bytes = |turn: &Arc<Turn>| {
                let mut images = turn.about.images.iter().flat_map(|images| &images.list);
                images.any(|image| image.image.bytes.is_none())
            };
            if is_complete && session.state().forest.turns().iter().any(lacks_bytes) {
                return Err(format!("{name}: process {at} lacks a picture"));
            }
            match &first {
                Some(first) if *first != found => return Err(format!("{name}: processes 0 and {at} differ")),
                Some(_) => {}
                None => first = Some(found),
            }
        }
        for (frozen, birth, version, rows_then) in &history.client_log.frozen {
            // a version that a failover has lost with its turns cannot be appended again
            let is_same = frozen == name && *birth == list.birth && history.settings.loss == Loss::None;
            if is_same && expected.versions.get(*version as usize - 1) != Some(rows_then) {
                return Err(format!("{name}: version {version} was {rows_then:?}"));
            }
        }
    }
    Ok(())
}
