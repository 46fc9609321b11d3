//! What a teacher is asked about a path: requests of a bounded size, and the scores that their replies become.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::columns::{
    Column, NumberType, Shape, TEACHER_LOGPROBS, TEACHER_LOGPROBS_OF_TOP_IDS, TEACHER_TOP_COLUMNS, TOP_COLUMNS,
    top_columns,
};
use crate::engine::sglang::score::{ScoreQuery, TokenScores};
use crate::session::{Row, ScoredTurn, Step, Turn, Uid};

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

impl Wanted {
    /// Whether a turn that has these scores lacks some of it.
    pub(super) fn lacks(self, turn: &Turn, scores: Option<&[Column]>) -> bool {
        let Some(scores) = scores.filter(|_| !self.again) else { return true };
        top_width(scores) < self.top
            || self.of_top_ids
                && Column::named(scores, TEACHER_LOGPROBS_OF_TOP_IDS).is_none()
                && top_ids(turn).is_some()
    }

    /// The bytes of the scores of the turns of a row that are to be scored.
    pub(super) fn bytes(self, row: &Row) -> usize {
        let of_turn = |turn: &Turn| {
            let top_ids = top_ids(turn).filter(|_| self.of_top_ids).map_or(0, |ids| ids.data.len());
            turn.response.len() * (4 + 8 * self.top as usize) + top_ids
        };
        let scores = |turn: &Turn| row.scores(turn).map(|scores| &**scores);
        row.trained().filter(|turn| self.lacks(turn, scores(turn))).map(|turn| of_turn(turn)).sum()
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

/// The adapter that sampled a turn.
fn adapter(turn: &Turn) -> Option<Arc<str>> {
    turn.about.policy.first()?.adapter.as_ref().map(|adapter| Arc::clone(&adapter.name))
}

/// The number of the teacher's likeliest tokens that scores have at each sampled one.
fn top_width(scores: &[Column]) -> u32 {
    match Column::named(scores, TEACHER_TOP_COLUMNS[0]).map(|column| &column.shape) {
        Some(Shape::Fixed(dimensions)) => dimensions.iter().product(),
        Some(Shape::Ragged) | None => 0,
    }
}

/// A path that is to be scored.
#[derive(Debug)]
pub(super) struct Job {
    /// The tokens up to the last sampled one that is asked.
    ids: Vec<u32>,
    turns: Vec<AskedTurn>,
    top: u32,
    /// The adapter of its turns.
    adapter: Option<Arc<str>>,
}

/// A turn that is asked.
#[derive(Debug)]
struct AskedTurn {
    id: u32,
    uid: Uid,
    /// Its sampled tokens in the path.
    tokens: Range<usize>,
    /// The ids of the student's likeliest tokens, if their logprobs are asked.
    top_ids: Option<Column>,
    /// The scores that the turn has and keeps.
    stored: Vec<Column>,
    found: TokenScores,
}

/// Consecutive tokens that one request asks, and the candidates of all of them in ascending order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Window {
    tokens: Range<usize>,
    candidates: Vec<u32>,
}

impl Job {
    /// The trained turns of a row that lack scores, and have the adapter of the first one. `None` if no token before them gives them a logprob.
    pub(super) fn new(row: &Row, wanted: Wanted) -> Option<Self> {
        let path = row.path();
        let mut job = Self { ids: Vec::with_capacity(path.len()), turns: Vec::new(), top: wanted.top, adapter: None };
        for step in &path.steps {
            job.ids.extend_from_slice(&step.turn.prompt);
            let start = job.ids.len();
            job.ids.extend_from_slice(&step.turn.response);
            let tokens = start..job.ids.len();
            // the first token of a path has no logprob
            let is_asked = step.trained && start > 0 && !tokens.is_empty();
            if is_asked && wanted.lacks(&step.turn, step.scores.as_deref()) {
                let adapter = adapter(&step.turn).filter(|_| wanted.is_self);
                if job.turns.is_empty() {
                    job.adapter = adapter;
                } else if job.adapter != adapter {
                    continue;
                }
                job.turns.push(AskedTurn::new(step, tokens, wanted));
            }
        }
        let end = job.turns.last().map(|turn| turn.tokens.end)?;
        job.ids.truncate(end);
        Some(job)
    }

    /// The bytes that it takes while it runs: the path, and the scores twice, as they are found and as columns.
    pub(super) fn bytes(&self) -> usize {
        let of_turn = |turn: &AskedTurn| {
            let top_ids = turn.top_ids.as_ref().map_or(0, |ids| ids.data.len());
            // the candidates of the windows are at most those ids
            turn.tokens.len() * (4 + 8 * self.top as usize) * 2 + 3 * top_ids
        };
        4 * self.ids.len() + self.turns.iter().map(of_turn).sum::<usize>()
    }

    /// The windows of its requests, in the order of the path, so that the engine finds the tokens before each in its cache.
    pub(super) fn windows(&self) -> Vec<Window> {
        windows(&self.turns, self.top as usize, MOST_LOGPROBS)
    }

    /// The request of a window.
    pub(super) fn query<'a>(&'a self, window: &'a Window) -> ScoreQuery<'a> {
        let Window { tokens, candidates } = window;
        let adapter = self.adapter.as_deref();
        ScoreQuery { ids: &self.ids[..tokens.end], first: tokens.start, top: self.top, candidates, adapter }
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
            turn.found.top_ids.extend_from_slice(&scores.top_ids[at.start * top..at.end * top]);
            turn.found.top_logprobs.extend_from_slice(&scores.top_logprobs[at.start * top..at.end * top]);
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

    /// The scores of its turns, once all windows are added.
    pub(super) fn into_scores(self) -> Vec<ScoredTurn> {
        let top = self.top;
        self.turns.into_iter().map(|turn| turn.into_scores(top)).collect()
    }
}

impl AskedTurn {
    fn new(step: &Step, tokens: Range<usize>, wanted: Wanted) -> Self {
        let turn = &step.turn;
        Self {
            id: turn.id,
            uid: turn.about.uid,
            tokens,
            top_ids: top_ids(turn).filter(|_| wanted.of_top_ids).cloned(),
            stored: step.scores.as_deref().filter(|_| !wanted.again).unwrap_or_default().to_vec(),
            found: TokenScores::default(),
        }
    }

    /// Its scores. Stored columns that were not asked are kept, and so are more likeliest tokens than were asked.
    fn into_scores(self, top: u32) -> ScoredTurn {
        let TokenScores { logprobs, top_ids, top_logprobs, candidates, .. } = self.found;
        let mut columns = Vec::new();
        if top > top_width(&self.stored) {
            let counts = vec![top; logprobs.len()];
            columns.extend(top_columns(TEACHER_TOP_COLUMNS, &counts, &top_ids, &top_logprobs).into_iter().flatten());
        }
        if let Some(ids) = self.top_ids {
            let heads = ids.data.len() - size_of_val(&*candidates);
            let nats = candidates.iter().flat_map(|nats| nats.to_le_bytes());
            let data: Vec<u8> = ids.data[..heads].iter().copied().chain(nats).collect();
            let name = TEACHER_LOGPROBS_OF_TOP_IDS.into();
            columns.push(Column { name, number: NumberType::F32, data: data.into(), ..ids });
        }
        for column in self.stored {
            if *column.name != *TEACHER_LOGPROBS && Column::named(&columns, &column.name).is_none() {
                columns.push(column);
            }
        }
        ScoredTurn { turn: self.id, uid: self.uid, logprobs: logprobs.into(), columns }
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

    /// A turn with these tokens, at each of which the student's likeliest tokens are given.
    fn asked(tokens: Range<usize>, rows: &[Vec<u32>]) -> AskedTurn {
        let counts: Vec<u32> = rows.iter().map(|row| u32::try_from(row.len()).unwrap()).collect();
        let ids = rows.concat();
        let columns = top_columns(TOP_COLUMNS, &counts, &ids, &vec![-1.0; ids.len()]);
        let top_ids = columns.map(|[ids, _]| ids);
        let (stored, found) = (Vec::new(), TokenScores::default());
        AskedTurn { id: 0, uid: Uid::unique(), tokens, top_ids, stored, found }
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
                asked(tokens, rows)
            }).collect();
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
            let mut job = Job { ids: path.clone(), turns, top, adapter: None };
            for window in &found {
                let scores = reply(job.query(window));
                job.add(window, &scores);
            }
            for turn in &job.turns {
                let exact = |at: usize, id: u32| -(at as f32) - id as f32 / 1024.0;
                let logprobs: Vec<f32> = turn.tokens.clone().map(|at| exact(at, path[at])).collect();
                prop_assert_eq!(&turn.found.logprobs, &logprobs);
                let tops: Vec<f32> = turn.tokens.clone().flat_map(|at| (0..top).map(move |id| exact(at, id))).collect();
                prop_assert_eq!(&turn.found.top_logprobs, &tops);
                let rows = turn.top_ids.as_ref().and_then(Column::rows).unwrap_or_default();
                let of_top: Vec<f32> =
                    turn.tokens.clone().zip(rows).flat_map(|(at, row)| ids(row).map(move |id| exact(at, id))).collect();
                prop_assert_eq!(&turn.found.candidates, &of_top);
            }
            let top_ids: Vec<Option<Column>> = job.turns.iter().map(|turn| turn.top_ids.clone()).collect();
            for (scored, ids) in job.into_scores().into_iter().zip(top_ids) {
                let of_top = Column::named(&scored.columns, TEACHER_LOGPROBS_OF_TOP_IDS);
                prop_assert_eq!(of_top.map(|column| &column.shape), ids.as_ref().map(|ids| &ids.shape));
                prop_assert!(of_top.is_none_or(|column| column.rows().is_some()));
                prop_assert_eq!(top_width(&scored.columns), top);
            }
        }
    }

    #[test]
    fn stored_columns_are_kept_and_not_narrowed() {
        let top = |width: u32| {
            let ids: Vec<u32> = (0..2 * width).collect();
            top_columns(TEACHER_TOP_COLUMNS, &[width, width], &ids, &vec![-1.0; ids.len()]).unwrap()
        };
        let of_top = Column { name: TEACHER_LOGPROBS_OF_TOP_IDS.into(), ..top(1)[1].clone() };
        let found = |width: u32| TokenScores {
            logprobs: vec![-1.0, -2.0],
            top_ids: vec![7; 2 * width as usize],
            top_logprobs: vec![-3.0; 2 * width as usize],
            candidates: Vec::new(),
            label: None,
        };
        let scored = |stored: &[Column], width: u32| {
            let turn = AskedTurn { stored: stored.to_vec(), found: found(width), ..asked(1..3, &[]) };
            turn.into_scores(width).columns
        };
        let stored = [&[Column::of_floats(TEACHER_LOGPROBS, &[-5.0, -5.0]), of_top.clone()], &top(3)[..]].concat();
        assert_eq!(scored(&stored, 0).len(), 3, "the logprobs are those found now");
        assert_eq!(scored(&stored, 2)[1..], top(3));
        assert_eq!((top_width(&scored(&stored, 4)), scored(&stored, 4).len()), (4, 3));
        assert_eq!(scored(&[], 0), []);
    }
}
