//! Converts a path to a `Sample` message.

use super::pb;
use super::session::{policy_span, turn, wide};
use crate::export::{Annotate, PathColumn, flags};
use crate::session::Path;

/// Converts a path and the statistics that `annotate` computes from it. Each array has one item per token.
pub(super) fn sample(path: &Path, annotate: &Annotate) -> pb::Sample {
    let length = path.len();
    let leaf = path.leaf();
    let mut sample = pb::Sample {
        session: path.session.to_string(),
        version: path.version,
        leaf: leaf.id,
        token_ids: Vec::with_capacity(length),
        loss_mask: Vec::with_capacity(length),
        logprobs: Vec::with_capacity(length),
        entropy: Vec::with_capacity(length),
        finish_reason: leaf.about.finish.as_deref().map(str::to_owned),
        flags: flags(path).into_iter().map(str::to_owned).collect(),
        reward: path.reward.as_ref().map(ToString::to_string),
        turns: path
            .steps
            .iter()
            .map(|step| pb::Turn { policy: Vec::new(), columns: Vec::new(), ..turn(&step.turn) })
            .collect(),
        computed: annotate(path).members().into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        columns: PathColumn::all(path).iter().map(column).collect(),
        ..pb::Sample::default()
    };
    for segment in path.segments() {
        let start = sample.token_ids.len();
        sample.token_ids.extend_from_slice(segment.ids);
        let end = sample.token_ids.len();
        sample.loss_mask.resize(end, segment.trained);
        add(&mut sample.logprobs, segment.logprobs, end);
        add(&mut sample.entropy, segment.entropy, end);
        if segment.is_response {
            sample.policy.extend(segment.turn.about.policy.iter().map(|span| policy_span(span, start)));
        }
        sample.segments.push(pb::Segment {
            turn: segment.turn.id,
            response: segment.is_response,
            start: wide(start),
            end: wide(end),
            trained: segment.trained,
        });
    }
    sample
}

/// Converts a column of a path.
fn column(column: &PathColumn<'_>) -> pb::Column {
    let position = |at: usize| i64::try_from(at).unwrap_or(i64::MAX);
    let ranges = column.tokens.iter();
    pb::Column {
        name: column.name.to_owned(),
        r#type: column.number.name().to_owned(),
        tokens: ranges.map(|range| pb::TokenRange { start: position(range.start), end: position(range.end) }).collect(),
        ragged: column.dimensions().is_none(),
        shape: column.dimensions().unwrap_or_default().to_vec(),
        data: column.data().into(),
    }
}

/// Appends the numbers of a segment that ends at `end`, or NaN for each token if it has none.
fn add(column: &mut Vec<f32>, numbers: &[f32], end: usize) {
    if column.len() + numbers.len() == end {
        column.extend_from_slice(numbers);
    } else {
        column.resize(end, f32::NAN);
    }
}
