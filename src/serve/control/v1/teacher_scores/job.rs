// SPDX-License-Identifier: Apache-2.0
//! What a teacher is asked about a path: requests of a bounded size, and the scores that their replies become.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::columns::{
    Column, NumberType, Shape, TEACHER_LOGPROBS_OF_TOP_IDS, TEACHER_TOP_COLUMNS, TOP_COLUMNS, top_columns,
};
use crate::engine::sglang::score::{ScoreQuery, TokenScores};
use crate::session::{Policy, Row, ScoredTurn, Turn, Uid, WeightEpochs};

/// The logprobs of one reply, at most, unless a single token has more: 9 MB of JSON. The candidates of a request are those of all its tokens,
/// so that fewer tokens in a request are fewer logprobs in all.
const MOST_LOGPROBS: usize = 1 << 18;

/// What a request wants of each turn besides the logprobs of its sampled tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Also of turns that have scores, which are replaced.
    pub(super) again: bool,
    /// The number of the teacher's likeliest tokens at each sampled one.
    pub(super) top: u32,
    /// The teacher's logprobs of the student's likeliest tokens, where a turn has their ids.
    pub(super) of_top_ids: bool,
    /// The teacher is the student's own engine, so that each turn is scored with its adapter.
    pub(super) is_self: bool,
}

/// The columns of the scores of a turn, besides the logprobs of its sampled tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AskedColumns {
    /// The number of the teacher's likeliest tokens at each sampled one.
    top: u32,
    /// The teacher's logprobs of the student's likeliest tokens.
    of_top_ids: bool,
}

impl Wanted {
    /// The columns to ask for a turn that has these scores; `None` if it lacks none. Columns that it has are asked again with those that it
    /// lacks, because the weights of the teacher may have changed since.
    pub(super) fn columns(self, turn: &Turn, scores: Option<&[Column]>) -> Option<AskedColumns> {
        let stored = scores.filter(|_| !self.again);
        let known = stored.map(AskedColumns::of).unwrap_or_default();
        let of_top_ids = (self.of_top_ids || known.of_top_ids) && top_ids(turn).is_some();
        let asked = AskedColumns { top: self.top.max(known.top), of_top_ids };
        (stored.is_none() || asked != known).then_some(asked)
    }
}

impl AskedColumns {
    /// Those that scores have.
    fn of(scores: &[Column]) -> Self {
        let of_top_ids = Column::named(scores, TEACHER_LOGPROBS_OF_TOP_IDS).is_some();
        Self { top: top_width(scores), of_top_ids }
    }

    /// The bytes of the scores of a turn.
    fn bytes(self, turn: &Turn) -> usize {
        let top_ids = top_ids(turn).filter(|_| self.of_top_ids).map_or(0, |ids| ids.data.len());
        turn.response.len() * (4 + 8 * self.top as usize) + top_ids
    }
}

/// What the turns of a row that are to be scored need of the teacher.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Demand {
    /// The bytes of the scores.
    pub(super) bytes: usize,
    /// The number of likeliest tokens at a token, at most.
    pub(super) top: u32,
    /// Whether the logprobs of the student's likeliest tokens are asked.
    pub(super) of_top_ids: bool,
    /// The greatest id that the teacher gets.
    pub(super) greatest: u32,
}

impl Demand {
    /// `None` if no turn is to be scored.
    pub(super) fn of(row: &Row, wanted: Wanted) -> Option<Self> {
        let mut demand: Option<Self> = None;
        for turn in row.trained() {
            let Some(asked) = wanted.columns(turn, row.scores(turn).map(|scores| &**scores)) else { continue };
            let AskedColumns { top, of_top_ids } = asked;
            let candidates = top_ids(turn).filter(|_| of_top_ids).and_then(Column::rows).unwrap_or_default();
            let greatest = candidates.into_iter().flat_map(ids).max().unwrap_or_default();
            demand.get_or_insert_default().add(Self { bytes: asked.bytes(turn), top, of_top_ids, greatest });
        }
        let mut demand = demand?;
        let path = row.path();
        let tokens = path.steps.iter().flat_map(|step| step.turn.prompt.iter().chain(&*step.turn.response));
        demand.greatest = demand.greatest.max(tokens.copied().max().unwrap_or_default());
        Some(demand)
    }

    /// Adds that of another row.
    pub(super) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.top = self.top.max(other.top);
        self.of_top_ids |= other.of_top_ids;
        self.greatest = self.greatest.max(other.greatest);
    }
}

/// The ids of the student's likeliest tokens at each sampled one, if the turn has them.
pub(super) fn top_ids(turn: &Turn) -> Option<&Column> {
    let column = Column::named(&turn.about.columns, TOP_COLUMNS[0])?;
    let is_whole = column.number == NumberType::U32
        && column.tokens == (0..i32::try_from(turn.response.len()).ok()?)
        && column.rows().is_some();
    is_whole.then_some(column)
}

/// The epochs that the student's weights have now for a turn with this adapter.
pub(super) fn epochs(policy: &Policy, adapter: Option<Arc<str>>) -> WeightEpochs {
    WeightEpochs { base: policy.epoch(), adapter: adapter.map(|name| policy.requested_adapter(name).epoch) }
}

/// The adapter that sampled a turn.
pub(super) fn adapter(turn: &Turn) -> Option<Arc<str>> {
    turn.about.policy.first()?.adapter.as_ref().map(|adapter| Arc::clone(&adapter.name))
}

/// The number of the teacher's likeliest tokens that scores have at each sampled one.
fn top_width(scores: &[Column]) -> u32 {
    match Column::named(scores, TEACHER_TOP_COLUMNS[0]).map(|column| &column.shape) {
        Some(Shape::Fixed(dimensions)) => dimensions.iter().product(),
        Some(Shape::Ragged) | None => 0,
    }
}

/// A path that is to be scored, or its turns with one of several adapters.
#[derive(Debug)]
pub(super) struct Job {
    /// The tokens of the whole path.
    ids: Arc<[u32]>,
    turns: Vec<AskedTurn>,
    /// The number of likeliest tokens of its requests: the most that a turn asks.
    top: u32,
    /// The adapter of its turns.
    adapter: Option<Arc<str>>,
    /// The number of entries of the teacher's vocabulary, if it is known.
    vocab_size: Option<u32>,
}

/// A turn that is asked.
#[derive(Debug)]
struct AskedTurn {
    id: u32,
    uid: Uid,
    /// Its sampled tokens in the path.
    tokens: Range<usize>,
    /// The number of the teacher's likeliest tokens.
    top: u32,
    /// The ids of the student's likeliest tokens, if their logprobs are asked.
    top_ids: Option<Column>,
    found: TokenScores,
}

/// Consecutive tokens that one request asks, and the candidates of all of them in ascending order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Window {
    tokens: Range<usize>,
    candidates: Vec<u32>,
}

impl Job {
    /// The trained turns of a row that lack scores, for a teacher whose vocabulary has this size: a job for each adapter. Turns without a
    /// token before them get no logprob.
    pub(super) fn all(row: &Row, wanted: Wanted, vocab_size: Option<u32>) -> Vec<Self> {
        let path = row.path();
        let tokens = path.steps.iter().flat_map(|step| step.turn.prompt.iter().chain(&*step.turn.response));
        let ids: Arc<[u32]> = tokens.copied().collect();
        let mut end = 0;
        let mut jobs: Vec<Self> = Vec::new();
        for step in &path.steps {
            let start = end + step.turn.prompt.len();
            end = start + step.turn.response.len();
            let tokens = start..end;
            // the first token of a path has no logprob
            let is_asked = step.trained && start > 0 && !tokens.is_empty();
            if is_asked && let Some(asked) = wanted.columns(&step.turn, step.scores.as_deref()) {
                let adapter = adapter(&step.turn).filter(|_| wanted.is_self);
                let at = jobs.iter().position(|job| job.adapter == adapter).unwrap_or_else(|| {
                    jobs.push(Self { ids: Arc::clone(&ids), turns: Vec::new(), top: 0, adapter, vocab_size });
                    jobs.len() - 1
                });
                let job = &mut jobs[at];
                job.top = job.top.max(asked.top);
                job.turns.push(AskedTurn::new(&step.turn, tokens, asked));
            }
        }
        jobs
    }

    /// The adapter of its turns.
    pub(super) fn adapter(&self) -> Option<Arc<str>> {
        self.adapter.clone()
    }

    /// The bytes that the jobs of a row take: the path, and the scores twice, as they are found and as columns.
    pub(super) fn bytes_of(jobs: &[Self]) -> usize {
        jobs.first().map_or(0, |job| 4 * job.ids.len()) + jobs.iter().map(Self::bytes).sum::<usize>()
    }

    /// The bytes of its scores, as they are found and as columns.
    pub(super) fn bytes(&self) -> usize {
        let of_turn = |turn: &AskedTurn| {
            let top_ids = turn.top_ids.as_ref().map_or(0, |ids| ids.data.len());
            // the candidates of the windows are at most those ids
            turn.tokens.len() * (4 + 8 * turn.top as usize) * 2 + 3 * top_ids
        };
        self.turns.iter().map(of_turn).sum()
    }

    /// The windows of its requests, in the order of the path, so that the engine finds the tokens before each in its cache.
    pub(super) fn windows(&self) -> Vec<Window> {
        windows(&self.turns, self.top as usize, MOST_LOGPROBS)
    }

    /// The request of a window.
    pub(super) fn query<'a>(&'a self, window: &'a Window) -> ScoreQuery<'a> {
        let Window { tokens, candidates } = window;
        let adapter = self.adapter.as_deref();
        let (ids, first) = (&self.ids[..tokens.end], tokens.start);
        ScoreQuery { ids, first, top: self.top, candidates, adapter, vocab_size: self.vocab_size }
    }

    /// Adds the reply to the request of a window. Windows must be added in their order.
    pub(super) fn add(&mut self, window: &Window, scores: &TokenScores) {
        let (top, width) = (self.top as usize, window.candidates.len());
        let from = self.turns.partition_point(|turn| turn.tokens.end <= window.tokens.start);
        for turn in &mut self.turns[from..] {
            let within = turn.tokens.start.max(window.tokens.start)..turn.tokens.end.min(window.tokens.end);
            if within.is_empty() {
                break;
            }
            let at = within.start - window.tokens.start..within.end - window.tokens.start;
            turn.found.logprobs.extend_from_slice(&scores.logprobs[at.clone()]);
            for first in at.clone().map(|token| token * top) {
                let likeliest = first..first + turn.top as usize;
                turn.found.top_ids.extend_from_slice(&scores.top_ids[likeliest.clone()]);
                turn.found.top_logprobs.extend_from_slice(&scores.top_logprobs[likeliest]);
            }
            let rows = turn.top_ids.as_ref().and_then(Column::rows).unwrap_or_default();
            let rows = rows.into_iter().skip(within.start - turn.tokens.start);
            for (token, row) in at.zip(rows) {
                for id in ids(row) {
                    let candidate = window.candidates.binary_search(&id).expect("a window has the ids of its tokens");
                    turn.found.candidates.push(scores.candidates[token * width + candidate]);
                }
            }
        }
    }

    /// The scores of its turns, once all windows are added, by these weights.
    pub(super) fn into_scores(self, weights: Option<WeightEpochs>) -> Vec<ScoredTurn> {
        self.turns.into_iter().map(|turn| turn.into_scores(weights)).collect()
    }
}

impl AskedTurn {
    fn new(turn: &Turn, tokens: Range<usize>, asked: AskedColumns) -> Self {
        let AskedColumns { top, of_top_ids } = asked;
        let top_ids = top_ids(turn).filter(|_| of_top_ids).cloned();
        Self { id: turn.id, uid: turn.about.uid, tokens, top, top_ids, found: TokenScores::default() }
    }

    fn into_scores(self, weights: Option<WeightEpochs>) -> ScoredTurn {
        let TokenScores { logprobs, top_ids, top_logprobs, candidates, .. } = self.found;
        let mut columns = Vec::new();
        if self.top > 0 {
            let counts = vec![self.top; logprobs.len()];
            columns.extend(top_columns(TEACHER_TOP_COLUMNS, &counts, &top_ids, &top_logprobs).into_iter().flatten());
        }
        if let Some(ids) = self.top_ids {
            let heads = ids.data.len() - size_of_val(&*candidates);
            let nats = candidates.iter().flat_map(|nats| nats.to_le_bytes());
            let data: Vec<u8> = ids.data[..heads].iter().copied().chain(nats).collect();
            let name = TEACHER_LOGPROBS_OF_TOP_IDS.into();
            columns.push(Column { name, number: NumberType::F32, data: data.into(), ..ids });
        }
        ScoredTurn { turn: self.id, uid: self.uid, weights, logprobs: logprobs.into(), columns }
    }
}

/// The ids of a row of a column of `u32`.
fn ids(row: &[u8]) -> impl Iterator<Item = u32> {
    row.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id))
}

/// The windows of turns, each of at most `most` logprobs, or of one token.
fn windows(turns: &[AskedTurn], top: usize, most: usize) -> Vec<Window> {
    let mut windows = Vec::new();
    let (mut tokens, mut candidates) = (0..0, BTreeSet::new());
    let window = |tokens: &Range<usize>, candidates: &mut BTreeSet<u32>| Window {
        tokens: tokens.clone(),
        candidates: std::mem::take(candidates).into_iter().collect(),
    };
    for turn in turns {
        let rows = turn.top_ids.as_ref().and_then(Column::rows).unwrap_or_default();
        for (at, token) in turn.tokens.clone().enumerate() {
            let row = rows.get(at).copied().unwrap_or_default();
            if !tokens.is_empty() {
                let added = ids(row).filter(|id| !candidates.contains(id)).count();
                // tokens of prompts between turns are in the reply as well
                if (token + 1 - tokens.start) * (1 + top + candidates.len() + added) > most {
                    windows.push(window(&tokens, &mut candidates));
                    tokens = 0..0;
                }
            }
            tokens = if tokens.is_empty() { token } else { tokens.start }..token + 1;
            candidates.extend(ids(row));
        }
    }
    if !tokens.is_empty() {
        windows.push(window(&tokens, &mut candidates));
    }
    windows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::session::TurnMetadata;

    /// A turn with these tokens, at each of which the student's likeliest tokens are given.
    fn asked(tokens: Range<usize>, rows: &[Vec<u32>], top: u32) -> AskedTurn {
        let counts: Vec<u32> = rows.iter().map(|row| u32::try_from(row.len()).unwrap()).collect();
        let ids = rows.concat();
        let columns = top_columns(TOP_COLUMNS, &counts, &ids, &vec![-1.0; ids.len()]);
        let top_ids = columns.map(|[ids, _]| ids);
        AskedTurn { id: 0, uid: Uid::unique(), tokens, top, top_ids, found: TokenScores::default() }
    }

    /// The reply of a teacher whose logprob of token `id` at `position` is a number of both.
    fn reply(query: ScoreQuery<'_>) -> TokenScores {
        let logprob = |position: usize, id: u32| -(position as f32) - id as f32 / 1024.0;
        let positions = || query.first..query.ids.len();
        let of = |ids: &dyn Fn(usize) -> Vec<u32>| -> Vec<f32> {
            positions().flat_map(|at| ids(at).into_iter().map(move |id| logprob(at, id))).collect()
        };
        let top = |_| (0..query.top).collect::<Vec<u32>>();
        TokenScores {
            logprobs: of(&|at| vec![query.ids[at]]),
            top_ids: positions().flat_map(top).collect(),
            top_logprobs: of(&top),
            candidates: of(&|_| query.candidates.to_vec()),
            label: None,
        }
    }

    fn rows() -> impl Strategy<Value = Vec<(usize, Vec<Vec<u32>>)>> {
        let row = prop::collection::vec(0..40_u32, 0..4);
        prop::collection::vec((1..4_usize, prop::collection::vec(row, 1..6)), 1..5)
    }

    proptest! {
        #[test]
        fn windows_cover_each_token_once_and_are_bounded(turns in rows(), top in 0..3_u32, most in 1..60_usize) {
            let mut start = 0;
            let turns: Vec<AskedTurn> = turns.iter().map(|(prompt, rows)| {
                let tokens = start + prompt..start + prompt + rows.len();
                start = tokens.end;
                // turns ask for different numbers
                asked(tokens, rows, top.min(u32::try_from(rows.len()).unwrap() - 1))
            }).collect();
            let top = turns.iter().map(|turn| turn.top).max().unwrap();
            let found = windows(&turns, top as usize, most);
            prop_assert!(found.is_sorted_by(|one, next| one.tokens.end <= next.tokens.start));
            for turn in &turns {
                let rows = turn.top_ids.as_ref().and_then(Column::rows).unwrap_or_default();
                for (at, token) in turn.tokens.clone().enumerate() {
                    let holding: Vec<&Window> = found.iter().filter(|window| window.tokens.contains(&token)).collect();
                    prop_assert_eq!(holding.len(), 1);
                    let row = rows.get(at).copied().unwrap_or_default();
                    prop_assert!(ids(row).all(|id| holding[0].candidates.binary_search(&id).is_ok()));
                }
            }
            for window in &found {
                let logprobs = window.tokens.len() * (1 + top as usize + window.candidates.len());
                prop_assert!(logprobs <= most || window.tokens.len() == 1, "{window:?}");
            }
            // the scores are the same as those of one request for everything
            let path: Vec<u32> = (0..u32::try_from(start).unwrap()).collect();
            let mut job = Job { ids: path.clone().into(), turns, top, adapter: None, vocab_size: None };
            for window in &found {
                let scores = reply(job.query(window));
                job.add(window, &scores);
            }
            for turn in &job.turns {
                let exact = |at: usize, id: u32| -(at as f32) - id as f32 / 1024.0;
                let logprobs: Vec<f32> = turn.tokens.clone().map(|at| exact(at, path[at])).collect();
                prop_assert_eq!(&turn.found.logprobs, &logprobs);
                let tops: Vec<f32> = turn.tokens.clone().flat_map(|at| (0..turn.top).map(move |id| exact(at, id))).collect();
                prop_assert_eq!(&turn.found.top_logprobs, &tops);
                let rows = turn.top_ids.as_ref().and_then(Column::rows).unwrap_or_default();
                let of_top: Vec<f32> =
                    turn.tokens.clone().zip(rows).flat_map(|(at, row)| ids(row).map(move |id| exact(at, id))).collect();
                prop_assert_eq!(&turn.found.candidates, &of_top);
            }
            let asked: Vec<(Option<Column>, u32)> = job.turns.iter().map(|turn| (turn.top_ids.clone(), turn.top)).collect();
            for (scored, (ids, top)) in job.into_scores(None).into_iter().zip(asked) {
                let of_top = Column::named(&scored.columns, TEACHER_LOGPROBS_OF_TOP_IDS);
                prop_assert_eq!(of_top.map(|column| &column.shape), ids.as_ref().map(|ids| &ids.shape));
                prop_assert!(of_top.is_none_or(|column| column.rows().is_some()));
                prop_assert_eq!(top_width(&scored.columns), top);
            }
        }
    }

    #[test]
    fn stored_columns_are_asked_with_those_that_lack() {
        let top = |width: u32| {
            let ids: Vec<u32> = (0..2 * width).collect();
            top_columns(TEACHER_TOP_COLUMNS, &[width, width], &ids, &vec![-1.0; ids.len()]).unwrap()
        };
        let of_top = Column { name: TEACHER_LOGPROBS_OF_TOP_IDS.into(), ..top(1)[1].clone() };
        let about = TurnMetadata {
            columns: top_columns(TOP_COLUMNS, &[1, 1], &[4, 5], &[-1.0, -1.0]).unwrap().into(),
            ..TurnMetadata::default()
        };
        let turn = Turn {
            id: 0,
            parent: None,
            prompt: [1].into(),
            response: [2, 3].into(),
            logprobs: [-1.0; 2].into(),
            entropy: [0.5; 2].into(),
            about,
        };
        let wanted = |top: u32, of_top_ids: bool| Wanted { again: false, top, of_top_ids, is_self: false };
        let columns = |wanted: Wanted, stored: &[&[Column]]| {
            let stored = stored.concat();
            wanted.columns(&turn, Some(&stored)).map(|AskedColumns { top, of_top_ids }| (top, of_top_ids))
        };
        let (three, of_top) = (&top(3)[..], std::slice::from_ref(&of_top));
        assert_eq!(columns(wanted(0, false), &[]), None);
        assert_eq!(columns(wanted(3, true), &[three, of_top]), None);
        assert_eq!(columns(wanted(2, false), &[three, of_top]), None, "fewer likeliest tokens do not replace more");
        assert_eq!(columns(wanted(4, false), &[three, of_top]), Some((4, true)));
        assert_eq!(columns(wanted(0, true), &[three]), Some((3, true)));
        let again = Wanted { again: true, ..wanted(2, false) };
        assert_eq!(columns(again, &[three, of_top]), Some((2, false)), "only what is asked");
        let bare = Turn { about: TurnMetadata::default(), ..turn.clone() };
        assert_eq!(wanted(0, true).columns(&bare, Some(&[])), None, "its student's likeliest tokens are not known");
        assert_eq!(wanted(0, true).columns(&bare, None), Some(AskedColumns::default()));
    }
}
