// SPDX-License-Identifier: Apache-2.0
//! Converts sessions, turns and paths to messages.

use std::collections::BTreeMap;
use std::ops::Range;

use super::pb;
use crate::columns::{Column, Shape};
use crate::export::{Annotate, PathColumn, flags, image_settings};
use crate::session::{
    EntropyMethod, EvictedSession, ExcludedLeaf, Fault, Labels, ListedSession, Path, PathImage, SamplingSources,
    Session, Snapshot, Span, Tags, Turn, TurnMetadata,
};

/// Converts to the integer type of the messages.
pub(super) fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

pub(super) fn counts<'a>(counted: impl IntoIterator<Item = (&'a str, usize)>) -> BTreeMap<String, u64> {
    counted.into_iter().map(|(name, count)| (name.to_owned(), wide(count))).collect()
}

fn text(text: Option<&str>) -> Option<String> {
    text.map(str::to_owned)
}

pub(super) fn summary(session: &Session) -> pb::SessionSummary {
    let summary = session.summary();
    pb::SessionSummary {
        session: session.id.to_string(),
        created_ms: summary.created_ms,
        turns: wide(summary.turns),
        sampled_tokens: wide(summary.sampled_tokens),
        faults: counts(summary.faults),
        causes: counts(summary.causes),
        frozen_versions: wide(summary.frozen),
        done: summary.done,
        incomplete: summary.incomplete,
        running: summary.running,
        bytes: summary.bytes,
        used_ms: None,
        unread: false,
        tags: tags(&summary.tags),
        reward: summary.reward,
        mean_entropy: summary.totals.entropy.mean(),
        high_entropy_share: summary.totals.entropy.high_share(),
        rows: wide(summary.rows),
        trained_tokens: summary.trained_tokens,
        finish_reason: text(summary.finish.as_deref()),
        policy: summary.policy,
        flags: summary.totals.flags().map(str::to_owned).collect(),
    }
}

fn tags(tags: &Tags) -> BTreeMap<String, String> {
    tags.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

pub(super) fn listed_session(listed: &ListedSession) -> pb::SessionSummary {
    let unread = || pb::SessionSummary { session: listed.name.to_string(), unread: true, ..Default::default() };
    let known = listed.session.as_ref().map_or_else(unread, |session| summary(session));
    pb::SessionSummary { used_ms: listed.used_ms, ..known }
}

pub(super) fn evicted(gone: &EvictedSession) -> pb::Evicted {
    pb::Evicted { session: gone.session.to_string(), reason: gone.reason.to_owned(), at_ms: gone.at_ms }
}

/// Converts a session and its turns, without the large members of the turns.
pub(super) fn session(session: &Session, snapshot: &Snapshot) -> pb::Session {
    let light = |turn: pb::Turn| pb::Turn { extras: BTreeMap::new(), columns: Vec::new(), ..turn };
    pb::Session {
        summary: Some(summary(session)),
        version: snapshot.version,
        frozen: snapshot.is_frozen,
        turns: snapshot.turns().iter().map(|known| light(turn(known))).collect(),
    }
}

/// Converts a turn. Its policy spans count from its first sampled token.
fn turn(turn: &Turn) -> pb::Turn {
    let Turn { id, parent, prompt, response, about, .. } = turn;
    let TurnMetadata { rid, index, cause, finish, fault, supersedes, policy, measured: how, sampling, .. } = about;
    pb::Turn {
        id: *id,
        parent: *parent,
        cause: cause.name().to_owned(),
        predecessor: about.predecessor,
        fault: text(fault.map(Fault::name)),
        finish_reason: text(finish.as_deref()),
        rid: text(rid.as_deref()),
        index: *index,
        prompt_tokens: wide(prompt.len()),
        sampled_tokens: wide(response.len()),
        supersedes: supersedes.clone(),
        measured: how.as_deref().map(measured),
        policy: policy.iter().map(|span| policy_span(span, 0)).collect(),
        sampling: text(sampling.as_deref()),
        sampling_sources: about.sampling_sources().map(SamplingSources::json),
        model: about.model.to_string(),
        lora_path: text(about.lora_path.as_deref()),
        started_ms: about.started_ms,
        first_ms: about.first_ms,
        elapsed_ms: about.elapsed_ms,
        cached_tokens: about.cached_tokens,
        foreign_assistant_text: about.chat.as_ref().is_some_and(|chat| chat.foreign_text),
        context_retokenised: about.chat.as_ref().is_some_and(|chat| chat.retokenised),
        inserted_end_of_turn: about.chat.as_ref().map_or(0, |chat| chat.inserted_end_of_turn),
        reply_changes: about.reply_changes().names().map(str::to_owned).collect(),
        labels: about.labels.as_deref().map(labels),
        extras: about.extras.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        columns: about.columns.iter().map(column).collect(),
        missing_columns: about
            .missing_columns
            .iter()
            .map(|(name, fault)| (name.to_string(), fault.name().to_owned()))
            .collect(),
        reward: None,
    }
}

/// Converts a column of a turn.
fn column(column: &Column) -> pb::Column {
    let Range { start, end } = column.tokens;
    pb::Column {
        name: column.name.to_string(),
        r#type: column.number.name().to_owned(),
        tokens: vec![pb::TokenRange { start: start.into(), end: end.into() }],
        ragged: column.shape == Shape::Ragged,
        shape: if let Shape::Fixed(dimensions) = &column.shape { dimensions.to_vec() } else { Vec::new() },
        data: column.data.clone(),
    }
}

fn labels(labels: &Labels) -> pb::Labels {
    let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
    pb::Labels {
        dialect: labels.dialect.map(|dialect| dialect.name().to_owned()),
        client: text(&labels.client),
        agent: text(&labels.agent),
        agent_type: text(&labels.agent_type),
        parent_agent: text(&labels.parent_agent),
        thread: text(&labels.thread),
        request_class: labels.request_class.map(|class| class.name().to_owned()),
        after_compaction: labels.after_compaction,
        effort: text(&labels.effort),
        attribution: text(&labels.attribution),
    }
}

/// Converts a leaf that is not exported.
pub(super) fn refused(excluded: &ExcludedLeaf) -> pb::Refused {
    pb::Refused { session: excluded.session.to_string(), leaf: excluded.leaf, reason: excluded.reason.to_owned() }
}

/// Converts a turn with its tokens.
pub(super) fn ended_turn(session: &str, ended: &Turn) -> pb::EndedTurn {
    pb::EndedTurn {
        session: session.to_owned(),
        turn: Some(turn(ended)),
        prompt: ended.prompt.to_vec(),
        response: ended.response.to_vec(),
        logprobs: ended.logprobs.to_vec(),
        entropy: ended.entropy.to_vec(),
        images: ended.images(0).map(|image| path_image(&image)).collect(),
        image_settings: text(ended.about.images.as_ref().and_then(|images| images.settings.as_deref())),
    }
}

/// Converts a span of a response that begins at token `start`.
fn policy_span(span: &Span, start: usize) -> pb::PolicySpan {
    let start = wide(start);
    let adapter = span.adapter.as_deref();
    pb::PolicySpan {
        start: start + u64::from(span.start),
        end: start + u64::from(span.end),
        epoch: span.epoch,
        until: (!span.is_certain()).then_some(span.until),
        weight_version: text(span.weight_version.as_deref()),
        version: text(span.version.as_deref()),
        process: span.process.map(|process| process.to_string()),
        adapter: adapter.map(|adapter| adapter.name.to_string()),
        adapter_epoch: adapter.map(|adapter| adapter.epoch),
        adapter_until: adapter.filter(|adapter| adapter.epoch != adapter.until).map(|adapter| adapter.until),
        adapter_version: adapter.and_then(|adapter| text(adapter.version.as_deref())),
    }
}

fn measured(how: &EntropyMethod) -> pb::Measured {
    pb::Measured {
        source: how.source.to_string(),
        estimator: how.estimator.to_string(),
        temperature: how.temperature,
        top_k: how.top_k,
        reason: text(how.reason.as_deref()),
    }
}

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
            .map(|step| {
                let reward = step.reward.as_ref().map(ToString::to_string);
                pb::Turn { policy: Vec::new(), columns: Vec::new(), reward, ..turn(&step.turn) }
            })
            .collect(),
        computed: annotate(path).members().into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        columns: PathColumn::all(path).iter().map(path_column).collect(),
        images: path.images().map(|image| path_image(&image)).collect(),
        image_settings: text(image_settings(path).map(|settings| &**settings)),
        tags: tags(&path.tags),
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

/// Converts a picture of a path.
fn path_image(PathImage { turn, tokens, image, .. }: &PathImage<'_>) -> pb::PathImage {
    pb::PathImage {
        turn: *turn,
        start: wide(tokens.start),
        end: wide(tokens.end),
        sha256: image.digest.to_string(),
        media_type: image.media_type.name().to_owned(),
        bytes: image.size,
        available: image.bytes.is_some(),
    }
}

/// Converts a column of a path.
fn path_column(column: &PathColumn<'_>) -> pb::Column {
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
