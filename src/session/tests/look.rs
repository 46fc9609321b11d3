// SPDX-License-Identifier: Apache-2.0
//! Compares the exports of a session with those of its model.

use super::super::{Cause, ExportedRow, Path, Session, Turn, reward_number};
use super::model::{Model, ModelRow};
use super::tokens;
use crate::export::{Batch, Format};

/// The whole export of a version.
#[derive(Debug, PartialEq)]
pub(super) struct ExportedVersion {
    pub(super) version: u32,
    pub(super) rows: Vec<ModelRow>,
    pub(super) single: Vec<ModelRow>,
    pub(super) refused: Vec<(usize, &'static str)>,
    pub(super) turns: Vec<Turn>,
}

pub(super) fn number(of: usize) -> u32 {
    u32::try_from(of).unwrap()
}

pub(super) fn row(path: &Path) -> ModelRow {
    ModelRow {
        leaf: path.leaf().id as usize,
        tokens: tokens(path),
        steps: path.steps.iter().map(|step| (step.turn.id as usize, step.trained)).collect(),
        reward: path.reward.as_ref().map(|reward| reward.as_i64().unwrap()),
        incomplete: path.incomplete,
    }
}

fn rows(paths: &[Path]) -> Vec<ModelRow> {
    paths.iter().map(row).collect()
}

pub(super) fn keep(session: &Session, version: u32) -> ExportedVersion {
    let snapshot = session.snapshot(Some(version)).unwrap();
    let (paths, refused) = snapshot.paths(true);
    ExportedVersion {
        version,
        rows: rows(&paths),
        single: rows(&snapshot.paths(false).0),
        refused: refused.iter().map(|refused| (refused.leaf as usize, refused.reason)).collect(),
        turns: snapshot.turns().iter().map(|turn| without_uid(turn)).collect(),
    }
}

/// The files that trainers get.
pub(super) fn files(session: &Session, version: u32) -> Vec<Vec<u8>> {
    let (rows, refused) = session.snapshot(Some(version)).unwrap().rows(true);
    let bytes = |format: Format| {
        let batch = Batch { rows: rows.clone(), refused: refused.clone(), ..Batch::default() };
        format.export(batch).chunks.flatten().collect()
    };
    [Format::Jsonl, Format::Verl].map(bytes).into()
}

/// A turn with the same id in every run.
pub(super) fn without_uid(turn: &Turn) -> Turn {
    let mut turn = turn.clone();
    turn.about.uid = "0".repeat(32).parse().unwrap();
    turn
}

/// The numbers that are kept with a session are those of its open version.
pub(super) fn check_exported(session: &Session) {
    let exported = session.state().exported().clone();
    let open = session.state().open_version();
    let (rows, _) = session.snapshot(Some(open)).unwrap().rows(true);
    let expected = rows.iter().map(|row| ExportedRow {
        root: row.upwards().last().unwrap().id,
        sampled_tokens: row.upwards().map(|turn| turn.response.len() as u64).sum(),
        reward: row.reward().and_then(|reward| reward_number(reward)),
        is_truncated: row.upwards().next().unwrap().about.finish.as_deref() == Some("length"),
    });
    assert_eq!(*exported.rows, *expected.collect::<Vec<_>>());
    let trained = rows.iter().map(|row| row.path().trained_tokens() as u64).sum::<u64>();
    assert_eq!(exported.trained_tokens, trained);
}

pub(super) fn check_turns(model: &Model, turns: &[Turn]) {
    assert_eq!(turns.len(), model.turns.len(), "nothing is refused or merged");
    for (turn, known) in turns.iter().zip(&model.turns) {
        assert_eq!(turn.parent, known.parent.map(number), "turn {} of {:?}", turn.id, model.turns);
        let behind = known.parent.map_or_else(Vec::new, |parent| model.turns[parent].full());
        let prompt = known.prompt.clone().unwrap_or_default();
        assert_eq!([&behind[..], &turn.prompt].concat(), prompt, "the prompt is unchanged");
        assert_eq!(&turn.response[..], known.response);
        if let Some(cause) = known.cause {
            assert_eq!(turn.about.cause, cause, "turn {} of {:?}", turn.id, model.turns);
        } else {
            use Cause::{Forks, HistoryEdited, NewConversation, ResponseEdited, StopReplaced};
            let branches = [Forks, HistoryEdited, NewConversation, ResponseEdited, StopReplaced];
            assert!(branches.contains(&turn.about.cause), "{:?} is no branch", turn.about.cause);
        }
    }
}

pub(super) fn check_export(model: &Model, version: usize, export: &ExportedVersion) {
    assert_eq!(export.rows, model.export(version, true));
    assert_eq!(export.single, model.export(version, false), "the leaf with the most trainable tokens");
    let turns = model.turns_of(version);
    let trained = model.trained(turns);
    let tokens =
        |turns: &mut dyn Iterator<Item = usize>| -> usize { turns.map(|turn| model.turns[turn].response.len()).sum() };
    let masks = export.rows.iter().flat_map(|row| &row.steps).filter(|step| step.1);
    assert_eq!(tokens(&mut masks.map(|step| step.0)), tokens(&mut trained.iter().copied()), "each token once");
    // the model does not define the order
    let mut refused = export.refused.clone();
    refused.sort_unstable();
    assert_eq!(refused, model.refused(turns));
    for leaf in (0..turns).filter(|turn| !model.turns[..turns].iter().any(|other| other.parent == Some(*turn))) {
        let exported = export.rows.iter().filter(|row| row.leaf == leaf).count();
        let refused = refused.iter().filter(|(turn, reason)| *turn == leaf && !reason.is_empty()).count();
        assert_eq!(exported + refused, 1, "leaf {leaf} is exported or refused");
    }
}
