// SPDX-License-Identifier: Apache-2.0
//! One trajectory as JSON: an entry of `GET /v1/sessions/{id}/trajectories`, a line of `GET /v1/trajectories`.

use super::per_token::{PerToken, numbers};
use super::text::Text;
use super::{Annotate, PathColumn, facts, images};
use crate::session::{EntropyMethod, FORWARDED_REASON, Fault, Labels, Path, Segment, Step, TurnMetadata};

/// Appends the entry of this path to `out`: one object on one line.
///
/// All positions count tokens of the whole path. `token_ids`, `loss_mask`, `logprobs` and `entropy` have one item per token, null for a
/// missing number. Sampled tokens that are not trained in this row keep their numbers; only their mask is 0.
pub(crate) fn write(path: &Path, annotate: Option<&Annotate>, out: &mut Vec<u8>) {
    let mut text = Text::default();
    text.object(|text| {
        text.key("session").string(&path.session);
        text.key("version").integer(path.version);
        text.key("leaf").integer(path.leaf().id);
        segments(path, text);
        PerToken::Ids { pad: 0 }.list(path.segments(), "0", text.key("token_ids"));
        PerToken::Mask.list(path.segments(), "0", text.key("loss_mask"));
        floats(path, PerToken::Logprobs, text.key("logprobs"));
        floats(path, PerToken::Entropy, text.key("entropy"));
        policy(path, text);
        columns(path, text);
        outcome(path, true, annotate, text);
    });
    out.append(&mut text.into_bytes());
}

/// Writes the pictures of a path, how it ended, its turns, and the annotations. `extras` may be as large as all tokens; if it is false, those of the turns
/// are left out.
pub(super) fn outcome(path: &Path, extras: bool, annotate: Option<&Annotate>, text: &mut Text) {
    images::describe(path, text);
    text.key("finish_reason").maybe_string(path.leaf().about.finish.as_deref());
    text.key("flags").strings(facts::flags(path));
    text.key("reward").value(facts::raw_reward(path));
    if !path.tags.is_empty() {
        text.key("tags").value(&path.tags.json());
    }
    text.key("turns").array(|list| path.steps.iter().for_each(|step| list.object(|text| turn(step, extras, text))));
    for (name, value) in annotate.iter().flat_map(|annotate| annotate(path).members()) {
        text.key(name).foreign(&value);
    }
}

/// The segments with the positions at which they begin.
pub(super) fn placed(path: &Path) -> impl Iterator<Item = (usize, Segment<'_>)> {
    path.segments().scan(0, |at, segment| {
        let start = *at;
        *at += segment.ids.len();
        Some((start, segment))
    })
}

pub(super) fn segments(path: &Path, text: &mut Text) {
    text.key("segments").array(|list| {
        for (start, segment) in placed(path) {
            list.object(|text| {
                text.key("turn").integer(segment.turn.id);
                text.key("kind").string(if segment.is_response { "response" } else { "prompt" });
                text.key("start").integer(start);
                text.key("end").integer(start + segment.ids.len());
                text.key("loss_mask").integer(u8::from(segment.trained));
            });
        }
    });
}

fn floats(path: &Path, column: PerToken<'_>, text: &mut Text) {
    text.array(|list| {
        for segment in path.segments() {
            match numbers(column, &segment) {
                Some(numbers) => list.floats(numbers),
                None => list.repeat("null", segment.ids.len()),
            }
        }
    });
}

pub(super) fn policy(path: &Path, text: &mut Text) {
    text.key("policy").array(|list| {
        for (start, segment) in placed(path).filter(|(_, segment)| segment.is_response) {
            for span in &segment.turn.about.policy {
                list.object(|text| {
                    text.key("start").integer(start + span.start as usize);
                    text.key("end").integer(start + span.end as usize);
                    text.key("epoch").integer(span.epoch);
                    if !span.is_certain() {
                        text.key("until").integer(span.until);
                    }
                    text.key("weight_version").maybe_string(span.weight_version.as_deref());
                    text.key("version").maybe_string(span.version.as_deref());
                    if let Some(process) = span.process {
                        text.key("process").string(&process.to_string());
                    }
                    if let Some(adapter) = &span.adapter {
                        text.key("adapter").string(&adapter.name);
                        text.key("adapter_epoch").integer(adapter.epoch);
                        if adapter.epoch != adapter.until {
                            text.key("adapter_until").integer(adapter.until);
                        }
                        text.key("adapter_version").maybe_string(adapter.version.as_deref());
                    }
                });
            }
        }
    });
}

/// Writes the token columns, if the path has any.
fn columns(path: &Path, text: &mut Text) {
    let columns = PathColumn::all(path);
    if columns.is_empty() {
        return;
    }
    text.key("columns").array(|list| {
        for column in &columns {
            list.object(|text| {
                text.key("name").string(column.name);
                text.key("type").string(column.number.name());
                text.key("tokens").array(|list| {
                    for range in &column.tokens {
                        list.object(|text| {
                            text.key("start").integer(range.start);
                            text.key("end").integer(range.end);
                        });
                    }
                });
                match column.dimensions() {
                    Some(dimensions) => text.key("shape").array(|list| list.ids(dimensions)),
                    None => text.key("shape").literal("null"),
                }
                text.key("data").base64(&column.data());
            });
        }
    });
}

fn turn(step: &Step, extras: bool, text: &mut Text) {
    let (turn, about) = (&step.turn, &step.turn.about);
    text.key("id").integer(turn.id);
    text.key("parent").maybe(turn.parent);
    text.key("rid").maybe_string(about.rid.as_deref());
    text.key("index").integer(about.index);
    text.key("cause").string(about.cause.name());
    text.key("predecessor").maybe(about.predecessor);
    text.key("reply_changes").strings(about.reply_changes().names());
    text.key("finish_reason").maybe_string(about.finish.as_deref());
    text.key("fault").maybe_string(about.fault.map(Fault::name));
    text.key("trained").literal(if step.trained { "true" } else { "false" });
    if let Some(reward) = &step.reward {
        text.key("reward").value(reward);
    }
    text.key("supersedes").array(|list| list.ids(&about.supersedes));
    match &about.measured {
        Some(how) => text.key("measured").object(|text| measured(how, text)),
        None => text.key("measured").literal("null"),
    }
    match &about.sampling {
        Some(sampling) => text.key("sampling").foreign(sampling),
        None => text.key("sampling").literal("null"),
    }
    match about.sampling_sources() {
        Some(sources) => text.key("sampling_sources").foreign(&sources.json()),
        None => text.key("sampling_sources").literal("null"),
    }
    text.key("model").string(&about.model);
    text.key("lora_path").maybe_string(about.lora_path.as_deref());
    text.key("started_ms").integer(about.started_ms);
    text.key("first_ms").maybe(about.first_ms);
    text.key("elapsed_ms").integer(about.elapsed_ms);
    text.key("cached_tokens").maybe(about.cached_tokens);
    match &about.labels {
        Some(labels) => text.key("labels").object(|text| write_labels(labels, text)),
        None => text.key("labels").literal("null"),
    }
    if !about.missing_columns.is_empty() {
        text.key("missing_columns").array(|list| {
            for (name, fault) in &about.missing_columns {
                list.object(|text| {
                    text.key("name").string(name);
                    text.key("reason").string(fault.name());
                });
            }
        });
    }
    if extras {
        write_extras(about, text.key("extras"));
    } else if let Some(reason) = about.extras.get(FORWARDED_REASON) {
        text.key(FORWARDED_REASON).foreign(reason);
    }
}

/// Writes the labels that the turn has.
fn write_labels(labels: &Labels, text: &mut Text) {
    for (name, value) in labels.texts() {
        if let Some(value) = value {
            text.key(name).string(value);
        }
    }
    if labels.after_compaction {
        text.key("after_compaction").literal("true");
    }
}

/// Writes the members that a client requested as one JSON object.
pub(super) fn write_extras(about: &TurnMetadata, text: &mut Text) {
    text.object(|text| {
        for (name, value) in &about.extras {
            text.key(name).foreign(value);
        }
    });
}

fn measured(how: &EntropyMethod, text: &mut Text) {
    text.key("source").string(&how.source);
    text.key("estimator").string(&how.estimator);
    match how.temperature {
        Some(temperature) => text.key("temperature").float(temperature),
        None => text.key("temperature").literal("null"),
    }
    text.key("top_k").maybe(how.top_k);
    text.key("reason").maybe_string(how.reason.as_deref());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::export::fixture::{rows_of, settled, turns};
    use crate::session::{Cause, RequestClass, Turn};

    fn entries(turns: [Turn; 3]) -> Vec<Value> {
        let read = |path: &Path| {
            let mut line = Vec::new();
            write(path, None, &mut line);
            serde_json::from_slice(&line).unwrap()
        };
        settled(&rows_of(turns)).iter().map(read).collect()
    }

    #[test]
    fn entry_has_every_member() {
        let mut turns = turns();
        let about = &mut turns[1].about;
        about.rid = Some("r".into());
        about.cause = Cause::ExtendsLength;
        about.measured = Some(Arc::new(EntropyMethod {
            source: "top_k".into(),
            estimator: "estimate".into(),
            temperature: Some(0.7),
            top_k: Some(20),
            reason: None,
        }));
        about.sampling = Some(r#"{"temperature": 0.7, "stop": "\n"}"#.into());
        about.lora_path = Some("a".into());
        about.extras = [("routed_experts".into(), r#""AAA=""#.into()), ("odd".into(), "[NaN]".into())].into();
        (about.started_ms, about.first_ms, about.elapsed_ms) = (5, Some(6), 7);
        about.supersedes = vec![0];
        about.labels = Some(Arc::new(Labels {
            client: Some("c/1".into()),
            request_class: Some(RequestClass::Main),
            after_compaction: true,
            ..Labels::default()
        }));
        let entries = entries(turns);
        let blank = json!({
            "id": 0, "parent": null, "rid": null, "index": 0, "cause": "first", "predecessor": null, "reply_changes": [], "finish_reason": "stop", "fault": null,
            "trained": true, "supersedes": [], "measured": null, "sampling": null, "sampling_sources": null, "model": "m", "lora_path": null,
            "started_ms": 0, "first_ms": null, "elapsed_ms": 0, "cached_tokens": null, "labels": null, "extras": {},
        });
        assert_eq!(
            entries[0],
            json!({
                "session": "s", "version": 0, "leaf": 1,
                "segments": [
                    {"turn": 0, "kind": "prompt", "start": 0, "end": 3, "loss_mask": 0},
                    {"turn": 0, "kind": "response", "start": 3, "end": 5, "loss_mask": 1},
                    {"turn": 1, "kind": "prompt", "start": 5, "end": 6, "loss_mask": 0},
                    {"turn": 1, "kind": "response", "start": 6, "end": 9, "loss_mask": 1},
                ],
                "token_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9], "loss_mask": [0, 0, 0, 1, 1, 0, 1, 1, 1],
                "logprobs": [null, null, null, -0.5, -1.0, null, -0.5, -1.0, -1.5],
                "entropy": [null, null, null, 0.25, 0.5, null, 0.25, 0.5, 0.75],
                "policy": [
                    {"start": 3, "end": 5, "epoch": 1, "weight_version": "w1", "version": "10"},
                    {"start": 6, "end": 7, "epoch": 11, "weight_version": null, "version": null},
                    {"start": 7, "end": 9, "epoch": 12, "until": 13, "weight_version": "w2", "version": null},
                ],
                "finish_reason": "length", "flags": ["crosses_versions", "policy_uncertain", "extends_length"],
                "reward": 1.5,
                "turns": [blank, {
                    "id": 1, "parent": 0, "rid": "r", "index": 0, "cause": "extends_length", "predecessor": null, "reply_changes": [], "finish_reason": "length",
                    "fault": null, "trained": true, "supersedes": [0],
                    "measured": {"source": "top_k", "estimator": "estimate", "temperature": 0.7, "top_k": 20, "reason": null},
                    "sampling": {"temperature": 0.7, "stop": "\n"}, "sampling_sources": null, "model": "m", "lora_path": "a", "started_ms": 5, "first_ms": 6,
                    "elapsed_ms": 7, "cached_tokens": null,
                    "labels": {"client": "c/1", "request_class": "main", "after_compaction": true},
                    "extras": {"odd": "[NaN]", "routed_experts": "AAA="},
                }],
            })
        );
        assert_eq!(
            entries[1]["logprobs"],
            json!([null, null, null, -0.5, -1.0, null, -0.5]),
            "turns that are trained in another row keep their numbers"
        );
        assert_eq!(entries[1]["loss_mask"], json!([0, 0, 0, 0, 0, 0, 1]));
    }

    #[test]
    fn span_of_a_shared_session_has_its_process() {
        let mut turns = turns();
        turns[0].about.policy[0].process = Some("00000000000000aa".parse().unwrap());
        let policy = &entries(turns)[0]["policy"];
        assert_eq!(
            policy[0],
            json!({"start": 3, "end": 5, "epoch": 1, "weight_version": "w1", "version": "10", "process": "00000000000000aa"})
        );
        assert_eq!(policy[1].get("process"), None);
    }

    #[test]
    fn missing_numbers_are_null() {
        let mut turns = turns();
        turns[0].logprobs[0] = f32::NAN;
        turns[0].entropy = Box::default();
        turns[1].logprobs[2] = f32::NEG_INFINITY;
        let entry = &entries(turns)[0];
        assert_eq!(entry["logprobs"], json!([null, null, null, null, -1.0, null, -0.5, -1.0, null]));
        assert_eq!(entry["entropy"], json!([null, null, null, null, null, null, 0.25, 0.5, 0.75]));
    }
}
