// SPDX-License-Identifier: Apache-2.0
//! The token columns of a sequence that has not finished.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::columns::{COLUMNS, Column, ColumnFault, TOP_COLUMNS, TurnTokens, top_columns};
use crate::engine::plan::{ColumnPlan, ColumnPlans, ItemPlan};
use crate::logprobs::Rows;
use crate::session::RecordedPrefix;

/// Collects the token columns of one sequence.
#[derive(Debug, Default)]
pub(super) struct ColumnBuilder {
    plans: ColumnPlans,
    /// By their positions in the table: JSON text.
    payloads: [Payload; COLUMNS.len()],
    top: Option<TopTokens>,
}

/// The text of a payload so far.
#[derive(Debug, Default)]
enum Payload {
    #[default]
    Absent,
    /// A part of an event, or of a reply.
    Slice(Bytes),
    /// The joined lists of several events.
    Joined(String),
}

/// The likeliest tokens of each sampled one.
#[derive(Debug, Default)]
struct TopTokens {
    /// The most that are recorded of a token.
    most: usize,
    /// They were requested from the engine.
    is_requested: bool,
    counts: Vec<u32>,
    ids: Vec<u32>,
    logprobs: Vec<f32>,
}

/// What the columns of a finished turn depend on besides their payloads and the tokens.
pub(super) struct ColumnFacts<'a> {
    /// The first token of each column of the table, where the request chooses it and it can be read.
    pub(super) starts: &'a [Option<usize>],
    /// The reply was cut off, so that an absent payload may have been in the part that did not arrive.
    pub(super) is_cut: bool,
    /// What earlier turns have of the column of this name.
    pub(super) recorded: &'a dyn Fn(&str) -> RecordedPrefix,
}

/// The columns of a turn.
#[derive(Debug, Default)]
pub(super) struct BuiltColumns {
    pub(super) columns: Vec<Column>,
    /// The columns that it lacks, or of which it lacks tokens, and why.
    pub(super) missing: BTreeMap<Box<str>, ColumnFault>,
    /// Payloads that the client requested and that cannot be read as columns: member and JSON text.
    pub(super) unread: Vec<(&'static str, String)>,
}

impl ColumnBuilder {
    /// A builder for a sequence with this plan, if it may have columns. At most `top_k` of the likeliest tokens are recorded; `None` if they
    /// are not wanted.
    pub(super) fn for_item(item: &ItemPlan, top_k: Option<u32>) -> Option<Self> {
        if top_k.is_none() && item.columns == ColumnPlans::default() {
            return None;
        }
        let top = |most| TopTokens { most: most as usize, is_requested: item.k > 0, ..TopTokens::default() };
        Some(Self { plans: item.columns, top: top_k.map(top), ..Self::default() })
    }

    /// Adds the payload of the column at `at`. It continues the earlier list, which is not empty, if it `grows`, and else replaces it.
    pub(super) fn add_payload(&mut self, at: usize, payload: Bytes, grows: bool) {
        let known = &mut self.payloads[at];
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let mut joined = match std::mem::take(known) {
            Payload::Slice(earlier) if grows => text(&earlier),
            Payload::Joined(earlier) if grows => earlier,
            _ => {
                *known = Payload::Slice(payload);
                return;
            }
        };
        // in place: a long stream must not copy the whole list for each event
        joined.pop();
        joined.push(',');
        joined.push_str(text(&payload).get(1..).unwrap_or_default());
        *known = Payload::Joined(joined);
    }

    /// Adds the rows of `new` sampled tokens, the first of `rows`.
    pub(super) fn add_top(&mut self, rows: &Rows, new: usize) {
        let Some(top) = &mut self.top else { return };
        for at in 0..new {
            let (ids, logprobs) = if at < rows.len() { (rows.ids(at), rows.row(at)) } else { (&[][..], &[][..]) };
            let count = ids.len().min(logprobs.len()).min(top.most);
            top.counts.push(u32::try_from(count).unwrap_or(u32::MAX));
            top.ids.extend_from_slice(&ids[..count]);
            top.logprobs.extend_from_slice(&logprobs[..count]);
        }
    }

    /// The columns of a turn with these tokens.
    pub(super) fn build(self, tokens: TurnTokens, facts: &ColumnFacts<'_>) -> BuiltColumns {
        let mut built = BuiltColumns::default();
        for (at, (payload, plan)) in self.payloads.into_iter().zip(self.plans).enumerate() {
            let source = &COLUMNS[at];
            let fault = match (payload, plan) {
                (Payload::Absent, ColumnPlan::Unwanted) => continue,
                (Payload::Absent, ColumnPlan::Missing(fault)) => fault,
                (Payload::Absent, _) if facts.is_cut => ColumnFault::CutOff,
                (Payload::Absent, _) => ColumnFault::NotReturned,
                (payload, plan) => {
                    let start = facts.starts.get(at).copied().flatten();
                    let is_own = plan == ColumnPlan::Forced;
                    // looked up only where it matters
                    let needs_earlier = start > Some(0) && (!is_own || tokens.experts.is_none());
                    let recorded =
                        if needs_earlier { (facts.recorded)(source.name) } else { RecordedPrefix::default() };
                    let turn = TurnTokens { start, earlier_values: recorded.values, ..tokens };
                    match source.read(payload.text(), turn) {
                        Ok(column) => {
                            built.columns.extend(column);
                            if is_own || start <= Some(recorded.covered) {
                                continue;
                            }
                            ColumnFault::ClientStart
                        }
                        Err(fault) => {
                            // what tokentap itself requested is of no use to the client
                            built.unread.extend((!is_own).then(|| (source.member, payload.text().to_owned())));
                            fault
                        }
                    }
                }
            };
            built.missing.insert(source.name.into(), fault);
        }
        if let Some(top) = self.top.filter(|_| tokens.sampled > 0) {
            let is_whole = top.counts.len() == tokens.sampled;
            match top_columns(TOP_COLUMNS, &top.counts, &top.ids, &top.logprobs).filter(|_| is_whole) {
                Some(columns) => built.columns.extend(columns),
                None => {
                    let fault = match top.is_requested {
                        false => ColumnFault::NotRequested,
                        true if is_whole => ColumnFault::NotReturned,
                        true => ColumnFault::Length,
                    };
                    built.missing.insert(TOP_COLUMNS[1].into(), fault);
                }
            }
        }
        built
    }
}

impl Payload {
    /// JSON text; empty if the bytes are not UTF-8.
    fn text(&self) -> &str {
        match self {
            Self::Absent => "",
            Self::Slice(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            Self::Joined(text) => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{ROUTED_EXPERTS_AT, SAMPLING_MASK_AT, Shape};

    fn with(plans: ColumnPlans) -> ColumnBuilder {
        ColumnBuilder { plans, ..ColumnBuilder::default() }
    }

    fn build(builder: ColumnBuilder, tokens: TurnTokens, starts: &[Option<usize>], is_cut: bool) -> BuiltColumns {
        let recorded = |_: &str| RecordedPrefix::default();
        builder.build(tokens, &ColumnFacts { starts, is_cut, recorded: &recorded })
    }

    fn sampled(count: usize) -> TurnTokens {
        TurnTokens { prompt: Some(3), sampled: count, ..TurnTokens::default() }
    }

    #[test]
    fn lists_of_an_incremental_stream_are_joined() {
        for parts in [&["[[1],[2, 3]]", "[ [4]]", "[[]]"][..], &["[[1]]", "[[2,3],[4]]", "[]", "[[]]"]] {
            let mut builder = with([ColumnPlan::Requested, ColumnPlan::Unwanted]);
            for part in parts.iter().filter(|part| **part != "[]") {
                builder.add_payload(SAMPLING_MASK_AT, Bytes::copy_from_slice(part.as_bytes()), true);
            }
            let built = build(builder, sampled(4), &[None, None], false);
            let [column] = &built.columns[..] else { panic!("{built:?}") };
            let lists: Vec<Vec<u8>> =
                column.rows().unwrap().iter().map(|row| row.chunks(4).map(|id| id[0]).collect()).collect();
            assert_eq!(lists, [vec![1], vec![2, 3], vec![4], vec![]], "{parts:?}");
        }
    }

    #[test]
    fn absent_column_has_a_reason() {
        let reason = |plan, is_cut| {
            let built = build(with([ColumnPlan::Unwanted, plan]), sampled(2), &[None, Some(0)], is_cut);
            built.missing.get("routed_experts").copied()
        };
        assert_eq!(reason(ColumnPlan::Unwanted, false), None);
        assert_eq!(reason(ColumnPlan::Forced, false), Some(ColumnFault::NotReturned));
        assert_eq!(reason(ColumnPlan::Requested, true), Some(ColumnFault::CutOff));
        assert_eq!(reason(ColumnPlan::Missing(ColumnFault::ReplyBudget), true), Some(ColumnFault::ReplyBudget));
    }

    #[test]
    fn unreadable_payload_is_kept_for_the_client_that_requested_it() {
        for (plan, unread) in [(ColumnPlan::Requested, 1), (ColumnPlan::Forced, 0), (ColumnPlan::Unwanted, 1)] {
            let mut builder = with([ColumnPlan::Unwanted, plan]);
            builder.add_payload(ROUTED_EXPERTS_AT, Bytes::from_static(b"\"AAA=\""), false);
            let built = build(builder, sampled(2), &[None, Some(0)], false);
            assert_eq!((built.unread.len(), built.missing["routed_experts"]), (unread, ColumnFault::Length));
        }
    }

    /// Prompt 3, sampled 2: 4 rows of one value, those of the first two tokens left out.
    #[test]
    fn tokens_that_the_start_of_the_client_leaves_out_have_a_reason() {
        let reason = |plan, covered| {
            let mut builder = with([ColumnPlan::Unwanted, plan]);
            builder.add_payload(ROUTED_EXPERTS_AT, Bytes::from_static(b"\"AQAAAAIAAAA=\""), false);
            let recorded = |_: &str| RecordedPrefix { tokens: 3, covered, values: Some(1) };
            let facts = ColumnFacts { starts: &[None, Some(2)], is_cut: false, recorded: &recorded };
            let built = builder.build(sampled(2), &facts);
            assert_eq!(built.columns[0].tokens, -1..1, "{plan:?}");
            built.missing.get("routed_experts").copied()
        };
        assert_eq!(reason(ColumnPlan::Requested, 0), Some(ColumnFault::ClientStart));
        assert_eq!(
            reason(ColumnPlan::Unwanted, 1),
            Some(ColumnFault::ClientStart),
            "the client asks, and not tokentap"
        );
        assert_eq!(reason(ColumnPlan::Requested, 2), None, "earlier turns have them");
        assert_eq!(reason(ColumnPlan::Forced, 0), None, "the reason of the earlier turn counts");
    }

    #[test]
    fn likeliest_tokens_are_fixed_columns_where_all_rows_are_equally_long() {
        let built = |rows: &[&[u32]], sampled_tokens| {
            let mut all = Rows::new();
            all.keep_ids(true);
            for row in rows {
                row.iter().for_each(|id| all.push_with_id(-(*id as f32), *id));
                all.end_row();
            }
            let top = TopTokens { most: 2, is_requested: true, ..TopTokens::default() };
            let mut builder = ColumnBuilder { top: Some(top), ..ColumnBuilder::default() };
            builder.add_top(&all, sampled_tokens);
            build(builder, sampled(sampled_tokens), &[], false)
        };
        let fixed = built(&[&[5, 6, 7], &[8, 9, 1]], 2);
        let [ids, logprobs] = &fixed.columns[..] else { panic!("{fixed:?}") };
        assert_eq!((&*ids.name, &*logprobs.name), ("top_ids", "top_logprobs"));
        assert_eq!((&ids.shape, ids.tokens.clone()), (&Shape::Fixed([2].into()), 0..2), "at most the setting");
        assert_eq!(ids.data.chunks(4).map(|id| id[0]).collect::<Vec<_>>(), [5, 6, 8, 9]);
        assert_eq!(logprobs.data[..4], (-5_f32).to_le_bytes());
        let ragged = built(&[&[5, 6, 7], &[], &[8]], 3);
        assert_eq!(ragged.columns[0].shape, Shape::Ragged);
        assert_eq!(ragged.columns[0].rows().unwrap().iter().map(|row| row.len()).collect::<Vec<_>>(), [8, 0, 4]);
        assert_eq!(built(&[&[], &[]], 2).missing["top_logprobs"], ColumnFault::NotReturned);
        assert_eq!(built(&[&[1]], 2).columns[0].shape, Shape::Ragged, "a token without a row");
    }
}
