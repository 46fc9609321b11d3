// SPDX-License-Identifier: Apache-2.0
//! Random operations on sessions, with few tokens, so that prompts often share a prefix.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::Fault;
use super::model::Model;

/// One operation.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    pub(super) session: usize,
    pub(super) kind: OperationKind,
}

#[derive(Debug, Clone)]
pub(super) enum OperationKind {
    /// A call begins. The next [`OperationKind::Call`] of the session ends it.
    Begin,
    Call {
        prompt: Prompt,
        samples: Vec<Sample>,
        last: bool,
    },
    Freeze,
    Reward {
        leaf: Option<usize>,
        value: i64,
    },
    Incomplete,
    /// Sweeps all sessions.
    Sweep,
    Delete,
}

/// How a prompt is made from earlier turns. Numbers are taken modulo the number of choices.
#[derive(Debug, Clone)]
pub(super) enum Prompt {
    Fresh(Vec<u32>),
    /// The prompt continues a turn.
    Continue(usize, Vec<u32>),
    /// One token of a turn is replaced.
    Replace(usize, usize, u32),
    /// The tokens of a turn are truncated.
    Truncate(usize, usize),
    /// The prompt of a turn is repeated, with more tokens.
    Repeat(usize, Vec<u32>),
    Unknown,
}

#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) response: Vec<u32>,
    pub(super) finish: Option<&'static str>,
    pub(super) fault: Option<Fault>,
    pub(super) supersedes: Option<usize>,
}

impl Prompt {
    /// The ids of the prompt in this state of the session.
    pub(super) fn ids(&self, model: &Model) -> Option<Vec<u32>> {
        let count = model.turns.len().max(1);
        let full = |turn: usize| model.turns.get(turn % count).map(super::model::ModelTurn::full).unwrap_or_default();
        Some(match self {
            Self::Fresh(ids) => ids.clone(),
            Self::Continue(turn, more) => [full(*turn), more.clone()].concat(),
            Self::Replace(turn, at, by) => {
                let mut ids = full(*turn);
                let len = ids.len().max(1);
                if let Some(id) = ids.get_mut(at % len) {
                    *id = (*id + by) % 4;
                }
                ids
            }
            Self::Truncate(turn, len) => {
                let ids = full(*turn);
                ids[..len % (ids.len() + 1)].to_vec()
            }
            Self::Repeat(turn, more) => {
                let prompt = model.turns.get(turn % count).and_then(|turn| turn.prompt.clone());
                [prompt.unwrap_or_default(), more.clone()].concat()
            }
            Self::Unknown => return None,
        })
    }
}

fn ids(size: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u32>> {
    vec(0..4_u32, size)
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let turn = 0..1000_usize;
    prop_oneof![
        2 => ids(0..5).prop_map(Prompt::Fresh),
        6 => (turn.clone(), ids(1..3)).prop_map(|(turn, more)| Prompt::Continue(turn, more)),
        2 => turn.clone().prop_map(|turn| Prompt::Continue(turn, Vec::new())),
        2 => (turn.clone(), 0..1000_usize, 1..4_u32).prop_map(|(turn, at, by)| Prompt::Replace(turn, at, by)),
        2 => (turn.clone(), 0..1000_usize).prop_map(|(turn, len)| Prompt::Truncate(turn, len)),
        3 => turn.clone().prop_map(|turn| Prompt::Repeat(turn, Vec::new())),
        1 => (turn, ids(1..3)).prop_map(|(turn, more)| Prompt::Repeat(turn, more)),
        1 => Just(Prompt::Unknown),
    ]
}

fn sample() -> impl Strategy<Value = Sample> {
    let end = prop_oneof![
        6 => Just((Some("stop"), None)),
        2 => Just((Some("length"), None)),
        2 => Just((Some("abort"), Some(Fault::Aborted))),
        1 => Just((None, Some(Fault::Disconnected))),
        1 => Just((Some("stop"), Some(Fault::IdsMismatch))),
    ];
    let response = prop_oneof![1 => Just(Vec::new()), 8 => ids(1..4)];
    let supersedes = prop_oneof![4 => Just(None), 1 => (0..1000_usize).prop_map(Some)];
    (response, end, supersedes).prop_map(|(response, (finish, fault), supersedes)| Sample {
        response,
        finish,
        fault,
        supersedes,
    })
}

fn operation_kind() -> impl Strategy<Value = OperationKind> {
    let call = (prompt(), vec(sample(), 1..4), prop::bool::weighted(0.1))
        .prop_map(|(prompt, samples, last)| OperationKind::Call { prompt, samples, last });
    let reward =
        (prop::option::of(0..60_usize), -9..9_i64).prop_map(|(leaf, value)| OperationKind::Reward { leaf, value });
    prop_oneof![
        20 => call,
        2 => Just(OperationKind::Begin),
        2 => Just(OperationKind::Freeze),
        3 => reward,
        1 => Just(OperationKind::Incomplete),
        1 => Just(OperationKind::Sweep),
        1 => Just(OperationKind::Delete),
    ]
}

/// Up to 60 operations on three sessions.
pub(super) fn operations() -> impl Strategy<Value = Vec<Operation>> {
    vec((0..3_usize, operation_kind()).prop_map(|(session, kind)| Operation { session, kind }), 1..60)
}
