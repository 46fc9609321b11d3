// SPDX-License-Identifier: Apache-2.0
//! Rows for the tests of the formats: a conversation of two turns, a branch after its first turn, and readers of the output.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ::safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::{Batch, Export, Needs, Shape, settle};
use crate::columns::{self, Column, NumberType};
use crate::images::Image;
use crate::session::{Path, PromptImages, RewardScope, Row, Snapshot, Span, Step, Turn, TurnMetadata};

/// The needs of a format that trains with logprobs and entropies, and has no place for pictures.
pub(super) const ALL: Needs = Needs {
    logprobs: true,
    entropy: true,
    temperature: false,
    kept: None,
    kept_prompt: None,
    int32_ids: false,
    images: None,
};

/// A turn whose logprobs are -0.5, -1.0, … and whose entropies are 0.25, 0.5, ….
pub(super) fn turn(id: u32, parent: Option<u32>, prompt: &[u32], response: &[u32]) -> Turn {
    let ordinals = || (1..=response.len()).map(|at| f32::from(u16::try_from(at).expect("short")));
    Turn {
        id,
        parent,
        prompt: prompt.into(),
        response: response.into(),
        logprobs: ordinals().map(|at| -0.5 * at).collect(),
        entropy: ordinals().map(|at| 0.25 * at).collect(),
        about: TurnMetadata {
            uid: format!("{id:032x}").parse().expect("hexadecimal digits"),
            finish: Some("stop".into()),
            model: "m".into(),
            ..TurnMetadata::default()
        },
    }
}

pub(super) fn span(start: u32, end: u32, epoch: u64) -> Span {
    Span { start, end, epoch, until: epoch, weight_version: None, version: None, process: None, adapter: None }
}

pub(super) fn path(turns: &[&Arc<Turn>]) -> Path {
    let steps =
        turns.iter().map(|turn| Step { turn: Arc::clone(turn), trained: false, reward: None, scores: None }).collect();
    Path::new("s".into(), 0, steps)
}

/// `1 2 3 [4 5]`, then `6 [7 8 9]` in one row, and `10 [11]` in the other.
pub(super) fn turns() -> [Turn; 3] {
    let mut first = turn(0, None, &[1, 2, 3], &[4, 5]);
    first.about.policy = vec![Span { weight_version: Some("w1".into()), version: Some("10".into()), ..span(0, 2, 1) }];
    let mut second = turn(1, Some(0), &[6], &[7, 8, 9]);
    second.about.policy = vec![span(0, 1, 11), Span { until: 13, weight_version: Some("w2".into()), ..span(1, 3, 12) }];
    second.about.finish = Some("length".into());
    let mut branch = turn(2, Some(0), &[10], &[11]);
    branch.about.policy = vec![span(0, 1, 12)];
    [first, second, branch]
}

/// The turns with routed experts of one layer with two experts a token: token `t` of a row has `2 t` and `2 t + 1`.
pub(super) fn with_experts(mut turns: [Turn; 3]) -> [Turn; 3] {
    for (turn, tokens, first) in [(0, -3..1, 0), (1, -2..2, 8), (2, -2..0, 8)] {
        let values = 2 * u8::try_from(tokens.end - tokens.start).expect("a few tokens");
        turns[turn].about.columns.push(Column {
            name: "routed_experts".into(),
            number: NumberType::U8,
            tokens,
            shape: columns::Shape::Fixed([1, 2].into()),
            data: (first..first + values).collect::<Vec<u8>>().into(),
        });
    }
    turns
}

/// The settings of the processor of the pictures.
pub(super) const SETTINGS: &str = r#"{"processor":{}}"#;

/// Adds a picture with these tokens of the prompt.
pub(super) fn add_picture(turn: &mut Turn, image: Image, tokens: Range<u32>) {
    let images = PromptImages::new(&turn.prompt, [(Arc::new(image), tokens)]);
    turn.about.images = Some(Box::new(images.with_settings(Some(SETTINGS.into()))));
}

/// The turns with a picture in the first prompt, and one in that of the branch, of which only the digest is known.
pub(super) fn with_pictures(mut turns: [Turn; 3]) -> [Turn; 3] {
    add_picture(&mut turns[0], Image::new(b"BM first"[..].into()), 1..3);
    add_picture(&mut turns[2], Image { bytes: None, ..Image::new(b"gone"[..].into()) }, 0..1);
    turns
}

/// The two rows of these turns, with rewards.
pub(super) fn rows_of(turns: [Turn; 3]) -> Vec<Path> {
    let [first, second, branch] = turns.map(Arc::new);
    let mut rows = vec![path(&[&first, &second]), path(&[&first, &branch])];
    rows[0].reward = Some(Arc::new(Value::from(1.5)));
    rows[1].reward = Some(Arc::new(serde_json::json!({"score": 0.5})));
    rows
}

/// Rows of these paths. Neighbours that agree on their turns share them, as the rows of a session do.
pub(super) fn rows(mut paths: &[Path]) -> Vec<Row> {
    let mut rows = Vec::new();
    while let Some(first) = paths.first() {
        let mut turns: BTreeMap<u32, Arc<Turn>> = BTreeMap::new();
        let mut agrees = |path: &&Path| {
            let same = (&path.session, path.incomplete) == (&first.session, first.incomplete);
            let known = |step: &Step| turns.get(&step.turn.id).is_none_or(|turn| Arc::ptr_eq(turn, &step.turn));
            let agrees = same && path.steps.iter().all(known);
            if agrees {
                turns.extend(path.steps.iter().map(|step| (step.turn.id, Arc::clone(&step.turn))));
            }
            agrees
        };
        let count = paths.iter().take_while(&mut agrees).count();
        let (own, others) = paths.split_at(count);
        let last = turns.keys().next_back().copied().unwrap_or_default();
        let filled = (0..=last).map(|id| turns.remove(&id).unwrap_or_else(|| turn(id, None, &[1], &[]).into()));
        let of_path = |path: &Path| Some((RewardScope::Leaf(path.leaf().id), path.reward.clone()?));
        let of_turn = |step: &Step| Some((RewardScope::Turn(step.turn.id), step.reward.clone()?));
        let turns_of = own.iter().flat_map(|path| path.steps.iter().filter_map(of_turn));
        let rewards = own.iter().filter_map(of_path).chain(turns_of).collect();
        let snapshot = Snapshot::of_path(first, filled.collect(), rewards);
        rows.extend(own.iter().map(|path| snapshot.context(path.leaf().id)));
        paths = others;
    }
    rows
}

/// The exported paths of a format without needs.
pub(super) fn settled(paths: &[Path]) -> Vec<Path> {
    settle(rows(paths), Vec::new(), Needs::default()).rows.iter().map(Row::path).collect()
}

pub(super) fn batch(paths: Vec<Path>) -> Batch {
    Batch { rows: rows(&paths), shape: Shape { pad_token_id: 99, ..Shape::default() }, ..Batch::default() }
}

/// The two rows.
pub(super) fn example() -> Batch {
    batch(rows_of(turns()))
}

pub(super) fn bytes(export: Export) -> Vec<u8> {
    let length = export.length;
    let mut whole = Vec::new();
    for piece in export.chunks {
        assert!(!piece.is_empty() && piece.len() <= super::PIECE, "a piece of {} bytes", piece.len());
        whole.extend_from_slice(&piece);
    }
    assert!(length.is_none_or(|length| length == whole.len() as u64), "the length was {length:?}");
    whole
}

pub(super) fn json(export: Export) -> Value {
    assert_eq!(export.content_type, "application/json");
    serde_json::from_slice(&bytes(export)).expect("an export is JSON")
}

/// A safetensors file, read by the crate that trainers use.
pub(super) struct File(Vec<u8>);

impl File {
    pub(super) fn of(export: Export) -> Self {
        assert_eq!(export.content_type, "application/octet-stream");
        let bytes = bytes(export);
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        assert_eq!(header % 8, 0, "the data are aligned");
        Self(bytes)
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.0).expect("an export is a safetensors file")
    }

    pub(super) fn names(&self) -> Vec<String> {
        let tensors = self.tensors();
        let mut names: Vec<String> = tensors.names().into_iter().map(ToString::to_string).collect();
        names.sort();
        names
    }

    pub(super) fn shape(&self, name: &str) -> Vec<usize> {
        self.tensors().tensor(name).expect(name).shape().to_vec()
    }

    pub(super) fn integers(&self, name: &str) -> Vec<i64> {
        let tensors = self.tensors();
        let tensor = tensors.tensor(name).expect(name);
        match tensor.dtype() {
            Dtype::I64 => cells(tensor.data(), i64::from_le_bytes),
            Dtype::I32 => cells(tensor.data(), |bytes| i64::from(i32::from_le_bytes(bytes))),
            Dtype::U8 | Dtype::BOOL => tensor.data().iter().map(|byte| i64::from(*byte)).collect(),
            other => panic!("{name} is {other:?}"),
        }
    }

    pub(super) fn floats(&self, name: &str) -> Vec<f64> {
        let tensors = self.tensors();
        let tensor = tensors.tensor(name).expect(name);
        match tensor.dtype() {
            Dtype::F64 => cells(tensor.data(), f64::from_le_bytes),
            Dtype::F32 => cells(tensor.data(), |bytes| f64::from(f32::from_le_bytes(bytes))),
            other => panic!("{name} is {other:?}"),
        }
    }

    pub(super) fn dtype(&self, name: &str) -> Dtype {
        self.tensors().tensor(name).expect(name).dtype()
    }

    pub(super) fn metadata(&self, name: &str) -> String {
        let (_, metadata) = SafeTensors::read_metadata(&self.0).expect("a header");
        metadata.metadata().as_ref().and_then(|members| members.get(name).cloned()).expect(name)
    }

    pub(super) fn metadata_json(&self, name: &str) -> Value {
        serde_json::from_str(&self.metadata(name)).expect(name)
    }
}

fn cells<const N: usize, T>(data: &[u8], read: fn([u8; N]) -> T) -> Vec<T> {
    data.chunks_exact(N).map(|cell| read(cell.try_into().expect("exact"))).collect()
}
