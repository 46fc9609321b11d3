// SPDX-License-Identifier: Apache-2.0
//! An example with a value in every column, and record batches as JSON.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int8Type, Int32Type, Int64Type};
use arrow_array::{Array, RecordBatch, StructArray};
use arrow_schema::DataType;
use bytes::Bytes;
use serde_json::{Value, json as value};

use crate::columns::{Column, ColumnFault, NumberType, Shape};
use crate::export::fixture::{add_picture, batch, rows_of, turns};
use crate::export::{Batch, ExcludedLeaf};
use crate::images::Image;
use crate::session::{
    AdapterSpan, Cause, Chat, Dialect, EntropyMethod, Labels, ReplyChange, ReplyChanges, RequestClass, Tags,
};

fn column(name: &str, number: NumberType, tokens: Range<i32>, shape: Shape, data: &'static [u8]) -> Column {
    Column { name: name.into(), number, tokens, shape, data: Bytes::from_static(data) }
}

/// The two rows of the conversation, and a leaf that was refused before.
pub(crate) fn rich() -> Batch {
    let mut turns = turns();
    turns[0].logprobs[0] = f32::NAN;
    turns[0].about.started_ms = 5;
    add_picture(&mut turns[0], Image::new(b"BM first"[..].into()), 1..3);
    turns[0].about.columns =
        vec![column("routed_experts", NumberType::U8, -3..1, Shape::Fixed([2].into()), &[0, 1, 2, 3, 4, 5, 6, 7])];
    let process = Some("0123456789abcdef".parse().unwrap());
    turns.iter_mut().flat_map(|turn| &mut turn.about.policy).for_each(|span| span.process = process);
    let about = &mut turns[1].about;
    about.rid = Some("r".into());
    about.cause = Cause::ExtendsLength;
    about.measured = Some(Arc::new(EntropyMethod {
        source: "top_k".into(),
        estimator: "estimate".into(),
        temperature: Some(0.7),
        top_k: Some(20),
        reason: Some("r".into()),
    }));
    about.supersedes = vec![0];
    about.predecessor = Some(0);
    let mut reply_changes = ReplyChanges::default();
    reply_changes.extend([ReplyChange::TextLeftOut]);
    about.chat = Some(Box::new(Chat { reply_changes, ..Chat::default() }));
    about.extras = [("routed_experts".into(), "[[1]]".into()), ("odd".into(), "NaN".into())].into();
    about.missing_columns = [("hidden_states".into(), ColumnFault::Length)].into();
    about.columns = vec![
        column("routed_experts", NumberType::U8, 0..2, Shape::Fixed([2].into()), &[8, 9, 10, 11]),
        column(
            "sampling_mask",
            NumberType::U32,
            0..3,
            Shape::Ragged,
            &[1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0],
        ),
    ];
    about.sampling = Some(r#"{"temperature": 0.7}"#.into());
    (about.started_ms, about.first_ms, about.elapsed_ms, about.cached_tokens) = (100, Some(6), 7, Some(4));
    about.lora_path = Some("a".into());
    let adapter = AdapterSpan { name: "a".into(), epoch: 3, until: 4, version: Some("v".into()) };
    about.policy[1].adapter = Some(Box::new(adapter));
    about.labels = Some(Arc::new(Labels {
        dialect: Some(Dialect::Messages),
        client: Some("claude-cli/2.1.330".into()),
        request_class: Some(RequestClass::Main),
        after_compaction: true,
        ..Labels::default()
    }));
    turns[2].entropy = Box::default();
    let mut rows = rows_of(turns);
    rows[1].reward = Some(Arc::new(value!({"style": 3})));
    rows.iter_mut().for_each(|row| row.incomplete = true);
    rows.iter_mut().for_each(|row| row.tags = Tags::parse_list(b"step=17,task=x").expect("they are valid"));
    rows.iter_mut().for_each(|row| row.steps[0].reward = Some(Arc::new(value!(0.25))));
    rows[1].steps[1].reward = Some(Arc::new(value!({"style": 4})));
    let mut batch = batch(rows);
    batch.refused.push(ExcludedLeaf { session: "t".into(), leaf: 7, reason: "aborted" });
    batch
}

/// The expected rows of that batch.
pub(crate) const ROWS: &str = r#"[
  {
    "schema_version": 2, "row_key": "00000000000000000000000000000001", "session": "s", "version": 0, "leaf": 1, "labels": null,
    "tags": "{\"step\":\"17\",\"task\":\"x\"}",
    "token_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9], "loss_mask": [0, 0, 0, 1, 1, 0, 1, 1, 1],
    "logprobs": [null, null, null, null, -1.0, null, -0.5, -1.0, -1.5],
    "entropy": [null, null, null, 0.25, 0.5, null, 0.25, 0.5, 0.75],
    "prompt_length": 3, "response_length": 6,
    "segments": [
      {"turn": 0, "kind": "prompt", "start": 0, "end": 3, "loss_mask": 0}, {"turn": 0, "kind": "response", "start": 3, "end": 5, "loss_mask": 1},
      {"turn": 1, "kind": "prompt", "start": 5, "end": 6, "loss_mask": 0}, {"turn": 1, "kind": "response", "start": 6, "end": 9, "loss_mask": 1}
    ],
    "policy": [
      {"start": 3, "end": 5, "epoch": 1, "until": 1, "weight_version": "w1", "version": "10", "process": "0123456789abcdef", "adapter": null, "adapter_epoch": null, "adapter_until": null, "adapter_version": null},
      {"start": 6, "end": 7, "epoch": 11, "until": 11, "weight_version": null, "version": null, "process": "0123456789abcdef", "adapter": null, "adapter_epoch": null, "adapter_until": null, "adapter_version": null},
      {"start": 7, "end": 9, "epoch": 12, "until": 13, "weight_version": "w2", "version": null, "process": "0123456789abcdef", "adapter": "a", "adapter_epoch": 3, "adapter_until": 4, "adapter_version": "v"}
    ],
    "columns": [
      {"name": "routed_experts", "type": "u8", "tokens": [{"start": 0, "end": 4}, {"start": 6, "end": 8}], "shape": [2], "data": "AAECAwQFBgcICQoL"},
      {"name": "sampling_mask", "type": "u32", "tokens": [{"start": 6, "end": 9}], "shape": null, "data": "AQAAAAAAAAABAAAABwAAAAkAAAA="}
    ],
    "images": [
      {"sha256": "aac20c13d41b7d6ed15b10fc19b44037320e9e200d269e824e083fa6b6795080", "media_type": "image/bmp", "bytes": 8, "start": 1, "end": 3, "turn": 0, "available": true}
    ],
    "image_settings": "{\"processor\":{}}", "image_data": null,
    "finish_reason": "length", "flags": ["incomplete", "crosses_versions", "policy_uncertain", "mixed_adapters", "extends_length", "column_missing"],
    "reward": 1.5, "reward_json": "1.5", "incomplete": true, "model": "m", "started_ms": 5, "elapsed_ms": 102,
    "advantages": null, "think_entropy_mean": null, "think_token_count": null, "think_closed": null, "high_entropy_share": null,
    "prompt_text": null, "response_text": null,
    "turns": [
      {
        "id": 0, "parent": null, "rid": null, "index": 0, "cause": "first", "predecessor": null, "reply_changes": [], "finish_reason": "stop", "fault": null,
        "trained": true, "reward": 0.25, "reward_json": "0.25", "supersedes": [], "entropy_source": null, "entropy_estimator": null, "entropy_top_k": null, "entropy_reason": null,
        "temperature": null, "sampling": null, "sampling_sources": null,
        "model": "m", "lora_path": null, "started_ms": 5, "first_ms": null, "elapsed_ms": 0, "cached_tokens": null, "labels": null, "missing_columns": [], "extras": null
      },
      {
        "id": 1, "parent": 0, "rid": "r", "index": 0, "cause": "extends_length", "predecessor": 0, "reply_changes": ["text_left_out"], "finish_reason": "length",
        "fault": null, "trained": true, "reward": null, "reward_json": null, "supersedes": [0], "entropy_source": "top_k", "entropy_estimator": "estimate",
        "entropy_top_k": 20, "entropy_reason": "r", "temperature": 0.7,
        "sampling": "{\"temperature\": 0.7}", "sampling_sources": null, "model": "m", "lora_path": "a", "started_ms": 100, "first_ms": 6, "elapsed_ms": 7,
        "cached_tokens": 4,
        "labels": {
          "dialect": "messages", "client": "claude-cli/2.1.330", "agent": null, "agent_type": null, "parent_agent": null,
          "thread": null, "request_class": "main", "effort": null, "attribution": null, "after_compaction": true
        },
        "missing_columns": [{"name": "hidden_states", "reason": "length"}],
        "extras": "{\"odd\":\"NaN\",\"routed_experts\":[[1]]}"
      }
    ]
  },
  {
    "schema_version": 2, "row_key": "00000000000000000000000000000002", "session": "s", "version": 0, "leaf": 2, "labels": null,
    "tags": "{\"step\":\"17\",\"task\":\"x\"}",
    "token_ids": [1, 2, 3, 4, 5, 10, 11], "loss_mask": [0, 0, 0, 0, 0, 0, 1],
    "logprobs": [null, null, null, null, -1.0, null, -0.5],
    "entropy": [null, null, null, 0.25, 0.5, null, null],
    "prompt_length": 3, "response_length": 4,
    "segments": [
      {"turn": 0, "kind": "prompt", "start": 0, "end": 3, "loss_mask": 0}, {"turn": 0, "kind": "response", "start": 3, "end": 5, "loss_mask": 0},
      {"turn": 2, "kind": "prompt", "start": 5, "end": 6, "loss_mask": 0}, {"turn": 2, "kind": "response", "start": 6, "end": 7, "loss_mask": 1}
    ],
    "policy": [
      {"start": 3, "end": 5, "epoch": 1, "until": 1, "weight_version": "w1", "version": "10", "process": "0123456789abcdef", "adapter": null, "adapter_epoch": null, "adapter_until": null, "adapter_version": null},
      {"start": 6, "end": 7, "epoch": 12, "until": 12, "weight_version": null, "version": null, "process": "0123456789abcdef", "adapter": null, "adapter_epoch": null, "adapter_until": null, "adapter_version": null}
    ],
    "columns": [{"name": "routed_experts", "type": "u8", "tokens": [{"start": 0, "end": 4}], "shape": [2], "data": "AAECAwQFBgc="}],
    "images": [
      {"sha256": "aac20c13d41b7d6ed15b10fc19b44037320e9e200d269e824e083fa6b6795080", "media_type": "image/bmp", "bytes": 8, "start": 1, "end": 3, "turn": 0, "available": true}
    ],
    "image_settings": "{\"processor\":{}}", "image_data": null,
    "finish_reason": "stop", "flags": ["incomplete", "crosses_versions", "column_missing"],
    "reward": null, "reward_json": "{\"style\":3}", "incomplete": true, "model": "m", "started_ms": 5, "elapsed_ms": 0,
    "advantages": null, "think_entropy_mean": null, "think_token_count": null, "think_closed": null, "high_entropy_share": null,
    "prompt_text": null, "response_text": null,
    "turns": [
      {
        "id": 0, "parent": null, "rid": null, "index": 0, "cause": "first", "predecessor": null, "reply_changes": [], "finish_reason": "stop", "fault": null,
        "trained": false, "reward": 0.25, "reward_json": "0.25", "supersedes": [], "entropy_source": null, "entropy_estimator": null, "entropy_top_k": null, "entropy_reason": null,
        "temperature": null, "sampling": null, "sampling_sources": null,
        "model": "m", "lora_path": null, "started_ms": 5, "first_ms": null, "elapsed_ms": 0, "cached_tokens": null, "labels": null, "missing_columns": [], "extras": null
      },
      {
        "id": 2, "parent": 0, "rid": null, "index": 0, "cause": "first", "predecessor": null, "reply_changes": [], "finish_reason": "stop", "fault": null,
        "trained": true, "reward": null, "reward_json": "{\"style\":4}", "supersedes": [], "entropy_source": null, "entropy_estimator": null, "entropy_top_k": null, "entropy_reason": null,
        "temperature": null, "sampling": null, "sampling_sources": null,
        "model": "m", "lora_path": null, "started_ms": 0, "first_ms": null, "elapsed_ms": 0, "cached_tokens": null, "labels": null, "missing_columns": [], "extras": null
      }
    ]
  }
]"#;

/// The rows of a record batch.
pub(crate) fn json(record: RecordBatch) -> Value {
    items(&StructArray::from(record))
}

fn items(array: &dyn Array) -> Value {
    (0..array.len()).map(|at| item(array, at)).collect()
}

fn item(array: &dyn Array, at: usize) -> Value {
    if array.is_null(at) {
        return Value::Null;
    }
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value(at).into(),
        DataType::Binary => base64_simd::STANDARD.encode_to_string(array.as_binary::<i32>().value(at)).into(),
        DataType::Boolean => array.as_boolean().value(at).into(),
        DataType::Int8 => array.as_primitive::<Int8Type>().value(at).into(),
        DataType::Int32 => array.as_primitive::<Int32Type>().value(at).into(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(at).into(),
        DataType::Float32 => array.as_primitive::<Float32Type>().value(at).into(),
        DataType::Float64 => array.as_primitive::<Float64Type>().value(at).into(),
        DataType::List(_) => items(&array.as_list::<i32>().value(at)),
        DataType::Struct(fields) => {
            let members = fields.iter().zip(array.as_struct().columns());
            members.map(|(field, column)| (field.name().clone(), item(column, at))).collect()
        }
        other => panic!("no column is {other}"),
    }
}
