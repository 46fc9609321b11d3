//! Some rows as one record batch.
//!
//! A column and its field are written together, so the schema is that of no rows. All positions count tokens of the whole path;
//! `token_ids`, `loss_mask`, `logprobs` and `entropy` have one item for each of them, as in an entry of `jsonl`.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BooleanArray, Float32Array, Float64Array, ListArray, RecordBatch, StringArray, StructArray,
    UInt8Array, UInt32Array, UInt64Array, builder::Float32Builder,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::Field;

use crate::trajectory::export::column::{Column, numbers};
use crate::trajectory::export::{entry, facts};
use crate::trajectory::{Fault, Path, Segment, Span, Step};

type Named = (Field, ArrayRef);

/// These rows, one a trajectory.
pub(super) fn batch(rows: &[Path]) -> RecordBatch {
    let mut columns = whole(rows);
    columns.extend(tokens(rows));
    columns.extend([required("segments", segments(rows)), required("policy", policy(rows))]);
    columns.extend(ends(rows));
    columns.push(required("turns", turns(rows)));
    RecordBatch::from(structs(columns))
}

/// What names a row.
fn whole(rows: &[Path]) -> Vec<Named> {
    vec![
        required("session", StringArray::from_iter_values(rows.iter().map(|row| &*row.session))),
        required("version", UInt32Array::from_iter_values(rows.iter().map(|row| row.version))),
        required("leaf", UInt32Array::from_iter_values(rows.iter().map(|row| row.leaf().id))),
    ]
}

/// What stands at each token.
fn tokens(rows: &[Path]) -> [Named; 6] {
    let count = rows.iter().map(Path::len).sum();
    let (mut ids, mut mask) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for segment in rows.iter().flat_map(Path::segments) {
        ids.extend_from_slice(segment.ids);
        mask.resize(ids.len(), u8::from(segment.trained));
    }
    let each = || rows.iter().map(Path::len);
    let floats = |column| list(each(), floats(rows, count, column), true);
    let lengths = |length: fn(&Path) -> usize| UInt32Array::from_iter_values(rows.iter().map(length).map(position));
    [
        required("token_ids", list(each(), UInt32Array::from(ids), false)),
        required("loss_mask", list(each(), UInt8Array::from(mask), false)),
        required("logprobs", floats(Column::Logprobs)),
        required("entropy", floats(Column::Entropy)),
        required("prompt_length", lengths(Path::prompt_len)),
        required("response_length", lengths(Path::response_len)),
    ]
}

/// Null where there is no number; what is not finite is none.
fn floats(rows: &[Path], count: usize, column: Column) -> Float32Array {
    let mut items = Float32Builder::with_capacity(count);
    for segment in rows.iter().flat_map(Path::segments) {
        match numbers(column, &segment) {
            Some(numbers) => items.extend(numbers.iter().map(|number| number.is_finite().then_some(*number))),
            None => items.append_nulls(segment.ids.len()),
        }
    }
    items.finish()
}

fn segments(rows: &[Path]) -> ListArray {
    let all: Vec<(usize, Segment<'_>)> = rows.iter().flat_map(entry::placed).collect();
    let ends = all.iter().map(|(start, segment)| position(start + segment.ids.len()));
    let items = structs(vec![
        required("turn", UInt32Array::from_iter_values(all.iter().map(|(_, segment)| segment.turn.id))),
        required("is_response", all.iter().map(|(_, segment)| Some(segment.is_response)).collect::<BooleanArray>()),
        required("start", UInt32Array::from_iter_values(all.iter().map(|(start, _)| position(*start)))),
        required("end", UInt32Array::from_iter_values(ends)),
    ]);
    list(rows.iter().map(|row| row.segments().count()), items, false)
}

/// The spans of a row, each with the position of the response that it is of.
fn spans(row: &Path) -> impl Iterator<Item = (u32, &Span)> {
    let responses = entry::placed(row).filter(|(_, segment)| segment.is_response);
    responses.flat_map(|(start, segment)| segment.turn.about.policy.iter().map(move |span| (position(start), span)))
}

fn policy(rows: &[Path]) -> ListArray {
    let all: Vec<(u32, &Span)> = rows.iter().flat_map(spans).collect();
    let positions = |of: fn(&Span) -> u32| UInt32Array::from_iter_values(all.iter().map(|(at, span)| at + of(span)));
    let epochs = |of: fn(&Span) -> u64| UInt64Array::from_iter_values(all.iter().map(|(_, span)| of(span)));
    let items = structs(vec![
        required("start", positions(|span| span.start)),
        required("end", positions(|span| span.end)),
        required("epoch", epochs(|span| span.epoch)),
        required("until", epochs(|span| span.until)),
        texts("weight_version", all.iter().map(|(_, span)| span.weight_version.as_deref())),
        texts("version", all.iter().map(|(_, span)| span.version.as_deref())),
    ]);
    list(rows.iter().map(|row| spans(row).count()), items, false)
}

/// How a row ended, and what is to be known of it.
fn ends(rows: &[Path]) -> Vec<Named> {
    let flags: Vec<Vec<&str>> = rows.iter().map(facts::flags).collect();
    let items = StringArray::from_iter_values(flags.iter().flatten());
    let rewards = rows.iter().map(|row| row.reward.as_ref().map(ToString::to_string));
    let first = |row: &Path| row.steps.first().map_or(0, |step| step.turn.about.started_ms);
    let last = |row: &Path| row.leaf().about.started_ms.saturating_add(row.leaf().about.elapsed_ms);
    let elapsed = rows.iter().map(|row| last(row).saturating_sub(first(row)));
    vec![
        texts("finish_reason", rows.iter().map(|row| row.leaf().about.finish.as_deref())),
        required("flags", list(flags.iter().map(Vec::len), items, false)),
        optional("reward", rows.iter().map(|row| facts::reward(row.reward.as_ref())).collect::<Float64Array>()),
        optional("reward_json", rewards.collect::<StringArray>()),
        required("incomplete", rows.iter().map(|row| Some(row.incomplete)).collect::<BooleanArray>()),
        required("model", StringArray::from_iter_values(rows.iter().map(|row| &*row.leaf().about.model))),
        required("started_ms", UInt64Array::from_iter_values(rows.iter().map(first))),
        required("elapsed_ms", UInt64Array::from_iter_values(elapsed)),
    ]
}

/// What is known of each call. Its `extras` are not here: they may be far larger than the tokens, and `jsonl` has them.
fn turns(rows: &[Path]) -> ListArray {
    let all: Vec<&Step> = rows.iter().flat_map(|row| &row.steps).collect();
    let about = || all.iter().map(|step| &step.turn.about);
    let measured = || about().map(|about| about.measured.as_ref());
    let items = structs(vec![
        required("id", UInt32Array::from_iter_values(all.iter().map(|step| step.turn.id))),
        optional("parent", all.iter().map(|step| step.turn.parent).collect::<UInt32Array>()),
        texts("rid", about().map(|about| about.rid.as_deref())),
        required("index", UInt32Array::from_iter_values(about().map(|about| about.index))),
        required("cause", StringArray::from_iter_values(about().map(|about| about.cause.name()))),
        texts("finish_reason", about().map(|about| about.finish.as_deref())),
        texts("fault", about().map(|about| about.fault.map(Fault::name))),
        required("trained", all.iter().map(|step| Some(step.trained)).collect::<BooleanArray>()),
        texts("entropy_source", measured().map(|how| how.map(|how| &*how.source))),
        texts("entropy_estimator", measured().map(|how| how.map(|how| &*how.estimator))),
        optional("temperature", measured().map(|how| how.and_then(|how| how.temperature)).collect::<Float64Array>()),
        texts("sampling", about().map(|about| about.sampling.as_deref())),
        required("model", StringArray::from_iter_values(about().map(|about| &*about.model))),
        required("started_ms", UInt64Array::from_iter_values(about().map(|about| about.started_ms))),
        optional("first_ms", about().map(|about| about.first_ms).collect::<UInt64Array>()),
        required("elapsed_ms", UInt64Array::from_iter_values(about().map(|about| about.elapsed_ms))),
        optional("cached_tokens", about().map(|about| about.cached_tokens).collect::<UInt64Array>()),
    ]);
    list(rows.iter().map(|row| row.steps.len()), items, false)
}

fn required(name: &str, array: impl Array + 'static) -> Named {
    (Field::new(name, array.data_type().clone(), false), Arc::new(array))
}

fn optional(name: &str, array: impl Array + 'static) -> Named {
    (Field::new(name, array.data_type().clone(), true), Arc::new(array))
}

/// Texts, or null.
fn texts<'a>(name: &str, texts: impl Iterator<Item = Option<&'a str>>) -> Named {
    optional(name, texts.collect::<StringArray>())
}

fn structs(columns: Vec<Named>) -> StructArray {
    let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = columns.into_iter().unzip();
    StructArray::new(fields.into(), arrays, None)
}

/// Lists of so many of these items each.
fn list(lengths: impl Iterator<Item = usize>, items: impl Array + 'static, nullable: bool) -> ListArray {
    let field = Field::new_list_field(items.data_type().clone(), nullable);
    ListArray::new(field.into(), OffsetBuffer::from_lengths(lengths), Arc::new(items), None)
}

/// A count of tokens; no context is longer.
fn position(at: usize) -> u32 {
    u32::try_from(at).expect("a path has fewer than four billion tokens")
}
