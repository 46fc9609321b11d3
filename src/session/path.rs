// SPDX-License-Identifier: Apache-2.0
//! A path through a session: the turns from a root to a leaf, and which of them are trained in this export.

use std::ops::Range;
use std::sync::Arc;

use super::{Tags, Turn, TurnImage};
use crate::columns::Column;
use crate::images::Image;

/// One row of an export.
#[derive(Debug, Clone)]
pub struct Path {
    /// The session.
    pub session: Arc<str>,
    /// The version of the session.
    pub version: u32,
    /// The turns, the root first; never empty.
    pub steps: Vec<Step>,
    /// The reward of the whole path, else of the session: a number or an object.
    pub reward: Option<Arc<serde_json::Value>>,
    /// A generation of this session was not recorded.
    pub incomplete: bool,
    /// The tags of the session.
    pub tags: Tags,
    /// What the export adds.
    pub marks: ExportMarks,
}

/// What an export adds to a row.
#[derive(Debug, Clone, Default)]
pub struct ExportMarks {
    /// The advantages of the trained tokens, if the export has advantages.
    pub advantages: Option<Advantages>,
    /// The entropy that shapes the advantages lacks that of a sampled token.
    pub advantage_lacks_entropy: bool,
    /// An earlier row of the export has the same first prompt and the same tokens.
    pub repeats_sample: bool,
}

/// The advantages of the trained tokens of a row, in float32, as trainers keep them.
#[derive(Debug, Clone, PartialEq)]
pub enum Advantages {
    /// The same for all tokens.
    Path(f32),
    /// One for each turn of the session, by its number, with NaN for a turn that no row of the export trains.
    Turns(Arc<[f32]>),
    /// One for each sampled token of each turn of the session, by its number; none for a turn that no row of the export trains.
    Tokens(Arc<[Option<Box<[f32]>>]>),
}

/// The advantages of the sampled tokens of a turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TokenAdvantages<'a> {
    /// The same for all tokens.
    Same(f32),
    /// One for each token.
    Each(&'a [f32]),
}

impl Advantages {
    /// The advantages of the tokens of a trained turn.
    #[must_use]
    pub fn of(&self, turn: &Turn) -> TokenAdvantages<'_> {
        match self {
            Self::Path(advantage) => TokenAdvantages::Same(*advantage),
            Self::Turns(advantages) => TokenAdvantages::Same(advantages[turn.id as usize]),
            Self::Tokens(advantages) => {
                let of_turn = advantages[turn.id as usize].as_deref();
                TokenAdvantages::Each(of_turn.expect("a row trains turns that have advantages"))
            }
        }
    }
}

impl Path {
    /// A path without a reward and without the marks of an export.
    #[must_use]
    pub fn new(session: Arc<str>, version: u32, steps: Vec<Step>) -> Self {
        let (tags, marks) = (Tags::default(), ExportMarks::default());
        Self { session, version, steps, reward: None, incomplete: false, tags, marks }
    }
}

/// One turn of a path.
#[derive(Debug, Clone)]
pub struct Step {
    /// The turn.
    pub turn: Arc<Turn>,
    /// Whether its sampled tokens have loss mask 1 in this row: the export trains the turn, and no earlier row of the export holds it.
    pub trained: bool,
    /// The reward of the turn: a number or an object.
    pub reward: Option<Arc<serde_json::Value>>,
    /// The columns of scores of its sampled tokens by the teacher that the reader asked for.
    pub scores: Option<Arc<[Column]>>,
}

/// Consecutive tokens of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// The turn it belongs to.
    pub turn: &'a Turn,
    /// Whether they are sampled tokens or a prompt's.
    pub is_response: bool,
    /// The loss mask of all of them.
    pub trained: bool,
    /// The tokens; never empty.
    pub ids: &'a [u32],
    /// Their logprobs, NaN for a missing one. Empty for a prompt, and if all are missing.
    pub logprobs: &'a [f32],
    /// Their entropies in nats, with the same rules.
    pub entropy: &'a [f32],
}

/// A picture of a path.
#[derive(Debug)]
pub struct PathImage<'a> {
    /// The turn whose prompt has it.
    pub turn: u32,
    /// Its tokens, counted from the start of the path.
    pub tokens: Range<usize>,
    /// The picture.
    pub image: &'a Arc<Image>,
    /// The settings of the processor that expanded it, JSON text; `None` if they are not known.
    pub settings: Option<&'a Arc<str>>,
}

impl Path {
    /// The last turn.
    #[must_use]
    pub fn leaf(&self) -> &Turn {
        &self.steps.last().expect("a path has a turn").turn
    }

    /// The tokens in order. Empty segments are left out.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        self.steps
            .iter()
            .flat_map(|step| Segment::of_turn(&step.turn, step.trained))
            .filter(|segment| !segment.ids.is_empty())
    }

    /// The pictures of the prompts, in their order.
    pub fn images(&self) -> impl Iterator<Item = PathImage<'_>> {
        let turns = self.steps.iter().scan(0, |at, Step { turn, .. }| {
            let start = *at;
            *at += turn.prompt.len() + turn.response.len();
            Some((start, turn))
        });
        turns.flat_map(|(before, turn)| turn.images(before))
    }

    /// Tokens of the first prompt. Trainers call it the prompt.
    #[must_use]
    pub fn prompt_len(&self) -> usize {
        self.steps.first().map_or(0, |step| step.turn.prompt.len())
    }

    /// Tokens of the whole path.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.iter().map(|step| step.turn.prompt.len() + step.turn.response.len()).sum()
    }

    /// Whether the path has no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens after the first prompt, including later prompts. Trainers call them the response.
    #[must_use]
    pub fn response_len(&self) -> usize {
        self.len() - self.prompt_len()
    }

    /// Tokens with loss mask 1.
    #[must_use]
    pub fn trained_tokens(&self) -> usize {
        self.steps.iter().filter(|step| step.trained).map(|step| step.turn.response.len()).sum()
    }
}

impl Turn {
    /// The pictures of its prompt, which begins after the first `before` tokens of a path.
    pub fn images(&self, before: usize) -> impl Iterator<Item = PathImage<'_>> {
        self.about.images.iter().flat_map(move |images| {
            images.list.iter().map(move |TurnImage { image, start, tokens, .. }| {
                let start = before + *start as usize;
                let tokens = start..start + *tokens as usize;
                PathImage { turn: self.id, tokens, image, settings: images.settings.as_ref() }
            })
        })
    }
}

impl<'a> Segment<'a> {
    /// The prompt and the response of a turn.
    pub(super) fn of_turn(turn: &'a Turn, trained: bool) -> [Self; 2] {
        let prompt = Self { turn, is_response: false, trained: false, ids: &turn.prompt, logprobs: &[], entropy: &[] };
        let response = Self {
            turn,
            is_response: true,
            trained,
            ids: &turn.response,
            logprobs: &turn.logprobs,
            entropy: &turn.entropy,
        };
        [prompt, response]
    }
}
