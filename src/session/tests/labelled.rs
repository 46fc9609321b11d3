// SPDX-License-Identifier: Apache-2.0
//! Turns with classes: which of them an export trains, and which leaves it excludes.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::{Classes, Draft, Labels, Path, RequestClass, Session, Sessions, TurnMetadata};
use super::{BOUNDLESS, call, draft, store};
use crate::export::{Batch, Format};

fn labelled(prompt: &[u32], response: &[u32], class: Option<RequestClass>) -> Draft {
    let labels = class.map(|class| Arc::new(Labels { request_class: Some(class), ..Labels::default() }));
    let draft = draft(prompt, response);
    Draft { about: TurnMetadata { labels, ..draft.about }, ..draft }
}

/// Commits these turns and finishes the session.
fn finished(turns: Vec<Draft>) -> (Arc<Sessions>, Arc<Session>) {
    let store = store(BOUNDLESS);
    let mut call = call(&store, "s");
    turns.into_iter().for_each(|turn| drop(call.commit(turn)));
    call.mark_last();
    drop(call);
    let session = store.session("s").expect("it has turns");
    (store, session)
}

/// A main conversation of two turns, its compaction, and a call for its title.
fn compacted() -> Vec<Draft> {
    let [main, compaction, auxiliary] =
        [RequestClass::Main, RequestClass::Compaction, RequestClass::Auxiliary].map(Some);
    vec![
        labelled(&[1], &[2], main),
        labelled(&[1, 2, 3], &[4], main),
        labelled(&[1, 2, 3, 4, 5], &[6], compaction),
        labelled(&[9], &[8], auxiliary),
    ]
}

fn shown(path: &Path) -> (u32, Vec<(u32, bool)>) {
    (path.leaf().id, path.steps.iter().map(|step| (step.turn.id, step.trained)).collect())
}

/// The rows of an export, each with its leaf and its turns, and the excluded leaves.
#[expect(clippy::type_complexity, reason = "compared with literals")]
fn export(session: &Session, classes: Classes) -> (Vec<(u32, Vec<(u32, bool)>)>, Vec<(u32, &'static str)>) {
    let (rows, refused) = session.snapshot_of(None, classes).unwrap().paths(true);
    (rows.iter().map(shown).collect(), refused.iter().map(|leaf| (leaf.leaf, leaf.reason)).collect())
}

#[tokio::test]
async fn turns_of_other_classes_are_context_and_their_leaves_are_excluded() {
    let (_store, session) = finished(compacted());
    let (rows, refused) = export(&session, Classes::default());
    assert_eq!(rows, [(1, vec![(0, true), (1, true)])], "the conversation ends before its compaction");
    assert_eq!(refused, [(2, "class_compaction"), (3, "class_auxiliary")]);
    let (rows, refused) = export(&session, Classes::parse(["compaction"]).unwrap());
    assert_eq!(rows, [(2, vec![(0, false), (1, false), (2, true)])]);
    assert_eq!(refused, [(3, "class_auxiliary")], "the turns of the conversation are in the row");
    let (rows, refused) = export(&session, Classes::ALL);
    assert_eq!(rows, [(2, vec![(0, true), (1, true), (2, true)]), (3, vec![(3, true)])]);
    assert_eq!(refused, []);
    assert_eq!([0, 1, 2, 3].map(|leaf| session.ends_path(leaf)), [false, true, true, true]);
}

#[tokio::test]
async fn compaction_inside_a_path_is_context() {
    let mut turns = compacted();
    turns.push(labelled(&[1, 2, 3, 4, 5, 6, 7], &[7], Some(RequestClass::Main)));
    let (_store, session) = finished(turns);
    let (rows, refused) = export(&session, Classes::default());
    assert_eq!(rows, [(4, vec![(0, true), (1, true), (2, false), (4, true)])]);
    assert_eq!(refused, [(3, "class_auxiliary")]);
}

#[tokio::test]
async fn turns_without_a_class_are_exported() {
    let (_store, session) = finished(vec![labelled(&[1], &[2], None)]);
    assert_eq!(export(&session, Classes::default()).0, [(0, vec![(0, true)])]);
    assert_eq!(export(&session, Classes::parse(["main"]).unwrap()).1, [(0, "class_unlabelled")]);
}

#[tokio::test]
async fn finished_path_of_another_class_is_refused_under_its_number() {
    let (store, session) = finished(compacted());
    let numbers: Vec<u64> = store.memory().finished_after(0, usize::MAX).iter().map(|(number, _)| *number).collect();
    let read = |classes| -> Vec<_> {
        let path = |number: &u64| session.finished(*number, classes).expect("it was published");
        numbers.iter().map(|number| path(number).map_err(|leaf| (leaf.leaf, leaf.reason))).collect()
    };
    let default: Vec<_> = read(Classes::default()).into_iter().map(|path| path.map(|path| shown(&path))).collect();
    assert_eq!(
        default,
        [Ok((1, vec![(0, true), (1, true)])), Err((2, "class_compaction")), Err((3, "class_auxiliary"))]
    );
    let all: Vec<_> = read(Classes::ALL).into_iter().map(|path| shown(&path.unwrap())).collect();
    let rest = [(2, vec![(0, false), (1, false), (2, true)]), (3, vec![(3, true)])];
    assert_eq!(all[1..], rest, "each token is trained in one path");
}

#[tokio::test]
async fn masks_of_a_file_follow_the_classes() {
    let mut turns = compacted();
    turns.push(labelled(&[1, 2, 3, 4, 5, 6, 7], &[7], Some(RequestClass::Main)));
    let (_store, session) = finished(turns);
    let lines = |classes| {
        let (rows, refused) = session.snapshot_of(None, classes).unwrap().rows(true);
        let export = Format::Jsonl.export(Batch { rows, refused, ..Batch::default() });
        let counted = export.tally.refused.clone();
        let bytes: Vec<u8> = export.chunks.flatten().collect();
        let lines = String::from_utf8(bytes).unwrap();
        let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (lines, counted)
    };
    let (default, refused) = lines(Classes::default());
    assert_eq!(default.len(), 1);
    assert_eq!(default[0]["loss_mask"], serde_json::json!([0, 1, 0, 1, 0, 0, 0, 1]));
    assert_eq!(refused, [("class_auxiliary", 1)].into());
    assert_eq!(default[0]["turns"][2]["labels"]["request_class"], "compaction");
    let (all, refused) = lines(Classes::ALL);
    assert_eq!((all.len(), all[1]["loss_mask"].clone()), (2, serde_json::json!([0, 1, 0, 1, 0, 1, 0, 1])));
    assert!(refused.is_empty());
}

/// Random turns, each with its parent and its class.
fn forest() -> impl Strategy<Value = Vec<(Option<usize>, Option<RequestClass>)>> {
    let class = prop_oneof![Just(None), prop::sample::select(&RequestClass::ALL[..]).prop_map(Some)];
    prop::collection::vec((any::<u32>(), class), 1..14).prop_map(|specs| {
        let turn = |(id, (parent, class)): (usize, (u32, _))| {
            (Some(parent as usize % (id + 1)).filter(|parent| *parent < id), class)
        };
        specs.into_iter().enumerate().map(turn).collect()
    })
}

fn drafts(forest: &[(Option<usize>, Option<RequestClass>)]) -> Vec<Draft> {
    let mut full: Vec<Vec<u32>> = Vec::new();
    let turn = |(id, (parent, class)): (usize, &(Option<usize>, Option<RequestClass>))| {
        let id = u32::try_from(id).unwrap();
        let mut prompt = parent.map_or_else(Vec::new, |parent| full[parent].clone());
        prompt.push(100 + id);
        full.push([&prompt[..], &[200 + id]].concat());
        labelled(&prompt, &[200 + id], *class)
    };
    forest.iter().enumerate().map(turn).collect()
}

proptest! {
    #[test]
    fn every_turn_of_the_classes_is_trained_once(forest in forest(), bits in 1..32_u8) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        let names = ["unlabelled", "main", "subagent", "compaction", "auxiliary"];
        let classes = Classes::parse(names.into_iter().enumerate().filter_map(|(at, name)| (bits >> at & 1 == 1).then_some(name)));
        let (store, session) = finished(drafts(&forest));
        for classes in [classes.unwrap(), Classes::default(), Classes::ALL] {
            let ids = |trained: &dyn Fn(Option<RequestClass>) -> bool| -> Vec<u32> {
                let turns = forest.iter().enumerate().filter(|(_, (_, class))| trained(*class));
                turns.map(|(id, _)| u32::try_from(id).unwrap()).collect()
            };
            let wanted = ids(&|class| classes.contains(class));
            let trained = |paths: &[Path]| {
                let steps = paths.iter().flat_map(|path| &path.steps).filter(|step| step.trained);
                let mut ids: Vec<u32> = steps.map(|step| step.turn.id).collect();
                ids.sort_unstable();
                ids
            };
            let (rows, refused) = session.snapshot_of(None, classes).unwrap().paths(true);
            prop_assert_eq!(trained(&rows), wanted.clone());
            prop_assert!(rows.iter().all(|row| row.steps.last().is_some_and(|leaf| leaf.trained)), "no row ends in context");
            // a turn that is not trained is context of a row, or before an excluded leaf
            let context = rows.iter().flat_map(|row| row.steps.iter().map(|step| step.turn.id));
            let before = refused.iter().flat_map(|leaf| session.snapshot(None).unwrap().context(leaf.leaf).path().steps);
            let mut listed: Vec<u32> = context.chain(before.map(|step| step.turn.id)).collect();
            listed.sort_unstable();
            listed.dedup();
            prop_assert_eq!(listed.len(), forest.len(), "no turn is lost silently");
            let numbers = store.memory().finished_after(0, usize::MAX);
            let paths = numbers.iter().filter_map(|(number, _)| session.finished(*number, classes)?.ok());
            prop_assert_eq!(trained(&paths.collect::<Vec<_>>()), wanted);
        }
    }
}
