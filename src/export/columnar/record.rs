// SPDX-License-Identifier: Apache-2.0
//! The schema of `jsonl`, `arrow` and `parquet`, and rows as a record batch.
//!
//! Each column is defined together with its field, so the schema is that of a batch without rows. `docs/reference/export-schema.md`
//! explains each column, and a test compares. All positions count tokens of the whole path; `token_ids`, `loss_mask`, `logprobs` and
//! `entropy` have one item per token. Integers are int64, except in the two long lists, which have the types of Hugging Face's
//! tokenizers.

use std::sync::Arc;

use arrow_array::{
    Array, BinaryArray, BooleanArray, Float32Array, Float64Array, Int8Array, Int32Array, Int64Array, ListArray,
    RecordBatch, StringArray, builder::Float32Builder,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::Field;

use super::arrays::{Named, counts, integers, list, maybe_counts, optional, position, required, structs, texts};
use super::turn_list::{ClientJson, turns};
use super::{ComputedColumns, SCHEMA_VERSION};
use crate::export::per_token::{PerToken, numbers};
use crate::export::row_text::RowText;
use crate::export::{ExportImages, PathColumn, entry, facts, images};
use crate::session::{AdapterSpan, Path, PathImage, Segment, Span, TokenAdvantages};

/// The limit of the data of a row's token columns, in bytes.
const MAX_COLUMNS: usize = 256 << 20;

/// The record batch of these rows.
pub(super) fn batch(rows: &[Path], computed: &ComputedColumns) -> RecordBatch {
    let chosen: Vec<ClientJson> = rows.iter().map(ClientJson::new).collect();
    let joined: Vec<RowColumns> = rows.iter().map(|row| RowColumns::within(row, MAX_COLUMNS)).collect();
    let texts: Vec<RowText> = rows.iter().map(|row| RowText::decode(row, computed.decoder.as_ref())).collect();
    let mut columns = whole(rows);
    columns.extend(tokens(rows));
    columns.extend([required("segments", segments(rows)), required("policy", policy(rows))]);
    columns.push(required("columns", token_columns(&joined)));
    columns.extend(image_columns(rows, computed.images));
    let omitted = chosen.iter().zip(&joined).zip(&texts);
    let omitted =
        omitted.map(|((chosen, joined), text)| chosen.flags().chain(joined.flag()).chain(text.flag()).collect());
    columns.extend(ends(rows, omitted.collect()));
    columns.push(optional("advantages", advantages(rows)));
    columns.extend(computed_columns(rows, computed));
    columns.extend(text_columns(&texts));
    columns.push(required("turns", turns(rows, &chosen)));
    RecordBatch::from(structs(columns))
}

/// The columns that identify a row.
fn whole(rows: &[Path]) -> Vec<Named> {
    vec![
        required("schema_version", rows.iter().map(|_| Some(SCHEMA_VERSION)).collect::<Int64Array>()),
        required("row_key", StringArray::from_iter_values(rows.iter().map(facts::row_key))),
        required("session", StringArray::from_iter_values(rows.iter().map(|row| &*row.session))),
        required("version", integers(rows.iter().map(|row| row.version))),
        required("leaf", integers(rows.iter().map(|row| row.leaf().id))),
        // reserved since the first version of the schema
        texts("labels", rows.iter().map(|_| None)),
        optional("tags", rows.iter().map(tags).collect::<StringArray>()),
    ]
}

/// The tags of the session as JSON text.
fn tags(row: &Path) -> Option<String> {
    (!row.tags.is_empty()).then(|| row.tags.json().to_string())
}

/// The columns with one item per token, and the lengths.
fn tokens(rows: &[Path]) -> [Named; 6] {
    let count = rows.iter().map(Path::len).sum();
    let (mut ids, mut mask) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for segment in rows.iter().flat_map(Path::segments) {
        // rows with larger ids are refused
        ids.extend(segment.ids.iter().map(|id| id.cast_signed()));
        mask.resize(ids.len(), i8::from(segment.trained));
    }
    let each = || rows.iter().map(Path::len);
    let floats = |column| list(each(), floats(rows, count, column), true);
    let lengths = |length: fn(&Path) -> usize| rows.iter().map(length).map(position).collect::<Vec<i64>>();
    [
        required("token_ids", list(each(), Int32Array::from(ids), false)),
        required("loss_mask", list(each(), Int8Array::from(mask), false)),
        required("logprobs", floats(PerToken::Logprobs)),
        required("entropy", floats(PerToken::Entropy)),
        required("prompt_length", Int64Array::from(lengths(Path::prompt_len))),
        required("response_length", Int64Array::from(lengths(Path::response_len))),
    ]
}

/// A column of numbers; null for a missing number and one that is not finite.
fn floats(rows: &[Path], count: usize, column: PerToken<'_>) -> Float32Array {
    let mut items = Float32Builder::with_capacity(count);
    for segment in rows.iter().flat_map(Path::segments) {
        match numbers(column, &segment) {
            Some(numbers) => items.extend(numbers.iter().map(|number| number.is_finite().then_some(*number))),
            None => items.append_nulls(segment.ids.len()),
        }
    }
    items.finish()
}

/// The advantage of each token; null for a row without an advantage.
fn advantages(rows: &[Path]) -> ListArray {
    let (mut items, mut lengths) = (Float32Builder::new(), Vec::with_capacity(rows.len()));
    for row in rows {
        let advantages = row.marks.advantages.as_ref();
        lengths.push(if advantages.is_some() { row.len() } else { 0 });
        for segment in advantages.iter().flat_map(|_| row.segments()) {
            match advantages.filter(|_| segment.trained).map(|all| all.of(segment.turn)) {
                None => items.append_value_n(0.0, segment.ids.len()),
                Some(TokenAdvantages::Same(advantage)) => items.append_value_n(advantage, segment.ids.len()),
                Some(TokenAdvantages::Each(advantages)) => items.append_slice(advantages),
            }
        }
    }
    let items = items.finish();
    let field = Field::new_list_field(items.data_type().clone(), false);
    let present: NullBuffer = rows.iter().map(|row| row.marks.advantages.is_some()).collect();
    ListArray::new(field.into(), OffsetBuffer::from_lengths(lengths), Arc::new(items), Some(present))
}

fn segments(rows: &[Path]) -> ListArray {
    let all: Vec<(usize, Segment<'_>)> = rows.iter().flat_map(entry::placed).collect();
    let kind = |segment: &Segment<'_>| if segment.is_response { "response" } else { "prompt" };
    let items = structs(vec![
        required("turn", integers(all.iter().map(|(_, segment)| segment.turn.id))),
        required("kind", StringArray::from_iter_values(all.iter().map(|(_, segment)| kind(segment)))),
        required("start", integers(all.iter().map(|(start, _)| position(*start)))),
        required("end", integers(all.iter().map(|(start, segment)| position(start + segment.ids.len())))),
        required("loss_mask", all.iter().map(|(_, segment)| Some(i8::from(segment.trained))).collect::<Int8Array>()),
    ]);
    list(rows.iter().map(|row| row.segments().count()), items, false)
}

/// The spans of a row, each with the position of its response.
fn spans(row: &Path) -> impl Iterator<Item = (i64, &Span)> {
    let responses = entry::placed(row).filter(|(_, segment)| segment.is_response);
    responses.flat_map(|(start, segment)| segment.turn.about.policy.iter().map(move |span| (position(start), span)))
}

fn policy(rows: &[Path]) -> ListArray {
    let all: Vec<(i64, &Span)> = rows.iter().flat_map(spans).collect();
    let positions = |of: fn(&Span) -> u32| integers(all.iter().map(|(at, span)| at + i64::from(of(span))));
    let epochs = |of: fn(&Span) -> u64| counts(all.iter().map(|(_, span)| of(span)));
    let adapters = || all.iter().map(|(_, span)| span.adapter.as_deref());
    let adapter_epochs = |of: fn(&AdapterSpan) -> u64| {
        let epochs = adapters().map(|adapter| adapter.map(|adapter| i64::try_from(of(adapter)).unwrap_or(i64::MAX)));
        epochs.collect::<Int64Array>()
    };
    let processes = all.iter().map(|(_, span)| span.process.map(|process| process.to_string()));
    let items = structs(vec![
        required("start", positions(|span| span.start)),
        required("end", positions(|span| span.end)),
        required("epoch", epochs(|span| span.epoch)),
        required("until", epochs(|span| span.until)),
        texts("weight_version", all.iter().map(|(_, span)| span.weight_version.as_deref())),
        texts("version", all.iter().map(|(_, span)| span.version.as_deref())),
        optional("process", processes.collect::<StringArray>()),
        texts("adapter", adapters().map(|adapter| adapter.map(|adapter| &*adapter.name))),
        optional("adapter_epoch", adapter_epochs(|adapter| adapter.epoch)),
        optional("adapter_until", adapter_epochs(|adapter| adapter.until)),
        texts("adapter_version", adapters().map(|adapter| adapter?.version.as_deref())),
    ]);
    list(rows.iter().map(|row| spans(row).count()), items, false)
}

/// The token columns of a row.
struct RowColumns<'a> {
    columns: Vec<PathColumn<'a>>,
    /// Whether the columns are too large to be written.
    omits: bool,
}

impl<'a> RowColumns<'a> {
    fn within(row: &'a Path, most: usize) -> Self {
        let columns = PathColumn::all(row);
        let omits = columns.iter().map(PathColumn::bytes).sum::<usize>() > most;
        Self { columns: if omits { Vec::new() } else { columns }, omits }
    }

    fn flag(&self) -> Option<&'static str> {
        self.omits.then_some("columns_omitted")
    }
}

fn token_columns(rows: &[RowColumns<'_>]) -> ListArray {
    let all: Vec<&PathColumn<'_>> = rows.iter().flat_map(|row| &row.columns).collect();
    let ranges = || all.iter().flat_map(|column| &column.tokens);
    let tokens = structs(vec![
        required("start", integers(ranges().map(|range| position(range.start)))),
        required("end", integers(ranges().map(|range| position(range.end)))),
    ]);
    let dimensions = || all.iter().map(|column| column.dimensions());
    let items = integers(dimensions().flatten().flatten().copied());
    let field = Field::new_list_field(items.data_type().clone(), false);
    let lengths = OffsetBuffer::from_lengths(dimensions().map(|dimensions| dimensions.map_or(0, <[u32]>::len)));
    let present: NullBuffer = dimensions().map(|dimensions| dimensions.is_some()).collect();
    let items = structs(vec![
        required("name", StringArray::from_iter_values(all.iter().map(|column| column.name))),
        required("type", StringArray::from_iter_values(all.iter().map(|column| column.number.name()))),
        required("tokens", list(all.iter().map(|column| column.tokens.len()), tokens, false)),
        optional("shape", ListArray::new(field.into(), lengths, Arc::new(items), Some(present))),
        required("data", BinaryArray::from_iter_values(all.iter().map(|column| column.data()))),
    ]);
    list(rows.iter().map(|row| row.columns.len()), items, false)
}

/// The pictures of each row, and their bytes if they are embedded.
fn image_columns(rows: &[Path], which: ExportImages) -> [Named; 3] {
    let all: Vec<PathImage<'_>> = rows.iter().flat_map(Path::images).collect();
    let texts = |of: fn(&PathImage<'_>) -> String| StringArray::from_iter_values(all.iter().map(of));
    let items = structs(vec![
        required("sha256", texts(|image| image.image.digest.to_string())),
        required("media_type", texts(|image| image.image.media_type.name().to_owned())),
        required("bytes", counts(all.iter().map(|image| image.image.size))),
        required("start", integers(all.iter().map(|image| position(image.tokens.start)))),
        required("end", integers(all.iter().map(|image| position(image.tokens.end)))),
        required("turn", integers(all.iter().map(|image| image.turn))),
        required("available", all.iter().map(|image| Some(image.image.bytes.is_some())).collect::<BooleanArray>()),
    ]);
    let lengths = || rows.iter().map(|row| row.images().count());
    let settings = rows.iter().map(|row| images::settings(row).map(|settings| &**settings));
    let embeds = which == ExportImages::Embed;
    // rows with pictures of unknown bytes are refused then
    let data =
        BinaryArray::from_iter_values(all.iter().filter(|_| embeds).filter_map(|image| image.image.bytes.as_deref()));
    let field = Field::new_list_field(data.data_type().clone(), false);
    let data_lengths = OffsetBuffer::from_lengths(lengths().map(|length| if embeds { length } else { 0 }));
    let present: NullBuffer = rows.iter().map(|_| embeds).collect();
    [
        required("images", list(lengths(), items, false)),
        self::texts("image_settings", settings),
        optional("image_data", ListArray::new(field.into(), data_lengths, Arc::new(data), Some(present))),
    ]
}

/// The columns about the end of a row and the row as a whole. `omitted` has the flags of the values that are left out of each row.
fn ends(rows: &[Path], omitted: Vec<Vec<&'static str>>) -> Vec<Named> {
    let flags = rows.iter().zip(omitted).map(|(row, omitted)| facts::flags(row).into_iter().chain(omitted));
    let flags: Vec<Vec<&str>> = flags.map(Iterator::collect).collect();
    let items = StringArray::from_iter_values(flags.iter().flatten());
    let rewards = rows.iter().map(|row| row.reward.as_ref().map(ToString::to_string));
    let first = |row: &Path| row.steps.first().map_or(0, |step| step.turn.about.started_ms);
    let last = |row: &Path| row.leaf().about.started_ms.saturating_add(row.leaf().about.elapsed_ms);
    let elapsed = rows.iter().map(|row| last(row).saturating_sub(first(row)));
    vec![
        self::texts("finish_reason", rows.iter().map(|row| row.leaf().about.finish.as_deref())),
        required("flags", list(flags.iter().map(Vec::len), items, false)),
        optional("reward", rows.iter().map(|row| facts::reward(row.reward.as_ref())).collect::<Float64Array>()),
        optional("reward_json", rewards.collect::<StringArray>()),
        required("incomplete", rows.iter().map(|row| Some(row.incomplete)).collect::<BooleanArray>()),
        required("model", StringArray::from_iter_values(rows.iter().map(|row| &*row.leaf().about.model))),
        required("started_ms", counts(rows.iter().map(first))),
        required("elapsed_ms", counts(elapsed)),
    ]
}

/// The columns that the caller computes; null without its function.
fn computed_columns(rows: &[Path], computed: &ComputedColumns) -> [Named; 4] {
    let thinking: Vec<_> =
        rows.iter().map(|row| computed.annotate.as_ref().map(|annotate| annotate(row)).unwrap_or_default()).collect();
    let finite = |number: Option<f64>| number.filter(|number| number.is_finite());
    let numbers = |of: fn(&crate::export::Thinking) -> Option<f64>| {
        thinking.iter().map(|thinking| finite(of(thinking))).collect::<Float64Array>()
    };
    [
        optional("think_entropy_mean", numbers(|thinking| thinking.entropy_mean)),
        optional("think_token_count", maybe_counts(thinking.iter().map(|thinking| thinking.tokens))),
        optional("think_closed", thinking.iter().map(|thinking| thinking.closed).collect::<BooleanArray>()),
        optional("high_entropy_share", numbers(|thinking| thinking.high_entropy_share)),
    ]
}

fn text_columns(rows: &[RowText]) -> [Named; 2] {
    let (prompts, responses) = (rows.iter().map(RowText::prompt), rows.iter().map(RowText::response));
    [texts("prompt_text", prompts), texts("response_text", responses)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{Column, NumberType, Shape};
    use crate::export::fixture::{rows_of, turns};

    #[test]
    fn flags_of_omitted_values_are_flags_of_the_row() {
        let row = rows_of(turns()).swap_remove(0);
        let record = ends(&[row], vec![vec!["extras_omitted"]]);
        let flags = &record.iter().find(|(field, _)| field.name() == "flags").expect("a column").1;
        assert!(format!("{flags:?}").contains("extras_omitted"));
    }

    #[test]
    fn token_columns_above_the_limit_are_omitted_from_the_whole_row() {
        let mut turns = turns();
        turns[1].about.columns = vec![Column {
            name: "c".into(),
            number: NumberType::U8,
            tokens: 0..3,
            shape: Shape::Fixed([2].into()),
            data: vec![7; 6].into(),
        }];
        let row = rows_of(turns).swap_remove(0);
        let within = |most| RowColumns::within(&row, most);
        assert_eq!((within(6).columns.len(), within(6).flag()), (1, None));
        assert_eq!((within(5).columns.len(), within(5).flag()), (0, Some("columns_omitted")));
    }
}
