// SPDX-License-Identifier: Apache-2.0
//! Compares Export and Samples with `/v1/samples`.

use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, SamplingParams};
use tokentap::export::Format;
use tokentap::serve::grpc::pb::{
    ExportHead, ExportReply, ExportRequest, Refused, Sample, SamplesReply, SamplesRequest, export_reply, samples_reply,
};
use tonic::{Code, Status, Streaming};

use super::client::{Trajectories, trajectories};
use super::listing::record_sessions;
use crate::support::client::{Answer, get, post};
use crate::support::demo::{Demo, assert_close};

/// The head of an export and its bytes.
async fn read_export(client: &mut Trajectories, asked: ExportRequest) -> Result<(ExportHead, Vec<u8>), Status> {
    let mut replies = client.export(asked).await?.into_inner();
    let Some(ExportReply { part: Some(export_reply::Part::Head(head)) }) = replies.message().await? else {
        panic!("the head comes first")
    };
    let mut bytes = Vec::new();
    while let Some(reply) = replies.message().await? {
        match reply.part {
            Some(export_reply::Part::Data(data)) => {
                assert!(data.len() <= 1 << 20, "a piece has at most 1 MiB");
                bytes.extend_from_slice(&data);
            }
            other => panic!("only data follows the head: {other:?}"),
        }
    }
    Ok((head, bytes))
}

async fn http(demo: &Demo, body: &Value) -> Answer {
    post(demo.proxy.control, "/v1/samples", body.to_string().as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn export_has_the_bytes_of_http() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    record_sessions(&demo).await;
    let mut client = trajectories(demo.proxy.control).await;
    for format in Format::all() {
        let padded = matches!(format, Format::Verl | Format::Areal | Format::Tunix);
        let asked = ExportRequest {
            sessions: vec!["b".into(), "a".into()],
            format: format.to_string(),
            pad_token_id: if padded { 7 } else { 0 },
            max_response_length: (*format == Format::Verl).then_some(64),
            ..ExportRequest::default()
        };
        let (head, bytes) = read_export(&mut client, asked).await.unwrap();
        let mut body = json!({"sessions": ["b", "a"], "format": format.to_string()});
        if padded {
            body["pad_token_id"] = json!(7);
        }
        if *format == Format::Verl {
            body["max_response_length"] = json!(64);
        }
        let answer = http(&demo, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(bytes == answer.body, "{}: the same bytes", format);
        assert!(!bytes.is_empty(), "{} is not empty", format);
        assert_eq!(Some(head.content_type.as_str()), answer.header("content-type"));
        assert_eq!(head.rows.to_string(), answer.header("tokentap-rows").unwrap());
        assert_eq!(json!(head.incomplete).to_string(), answer.header("tokentap-incomplete").unwrap());
        assert_eq!(json!(head.refused).to_string(), answer.header("tokentap-refused").unwrap());
        assert!(head.length.is_none_or(|length| length == bytes.len() as u64), "{head:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn export_of_conditions_has_the_rows_of_http() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    record_sessions(&demo).await;
    let mut client = trajectories(demo.proxy.control).await;
    let mut rows = Vec::new();
    for (sessions, conditions) in [
        (vec!["b"], "turns>0"),
        (vec![], "turns>0"),
        (vec![], "session=a"),
        (vec![], "turns>100"),
        (vec!["a"], "session=b"),
    ] {
        let asked = ExportRequest {
            sessions: sessions.iter().map(|&name| name.to_owned()).collect(),
            format: "jsonl".into(),
            r#where: Some(conditions.into()),
            ..ExportRequest::default()
        };
        let mut body = json!({"format": "jsonl", "where": conditions});
        if !sessions.is_empty() {
            body["sessions"] = json!(sessions);
        }
        let (head, bytes) = read_export(&mut client, asked).await.unwrap();
        assert!(bytes == http(&demo, &body).await.body, "{body}");
        rows.push(head.rows);
    }
    assert!(rows[1] > rows[0] && rows[1] > rows[2] && rows[2] > 0, "{rows:?}");
    assert_eq!(rows[3..], [0, 0]);
    let none = ExportRequest { format: "jsonl".into(), ..ExportRequest::default() };
    assert_eq!(read_export(&mut client, none).await.unwrap().0.rows, 0, "no sessions without a condition");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_export_has_the_error_of_http() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    record_sessions(&demo).await;
    let mut client = trajectories(demo.proxy.control).await;
    let plain = || ExportRequest { sessions: vec!["a".into()], format: "jsonl".into(), ..ExportRequest::default() };
    let cases = [
        (ExportRequest { format: "Verl".into(), ..plain() }, json!({"sessions": ["a"], "format": "Verl"})),
        (
            ExportRequest { sessions: vec!["a".into(); 2], ..plain() },
            json!({"sessions": ["a", "a"], "format": "jsonl"}),
        ),
        (
            ExportRequest { max_prompt_length: Some(0), ..plain() },
            json!({"sessions": ["a"], "format": "jsonl", "max_prompt_length": 0}),
        ),
        (
            ExportRequest { classes: vec!["title".into()], ..plain() },
            json!({"sessions": ["a"], "format": "jsonl", "classes": ["title"]}),
        ),
        (
            ExportRequest { exclude: vec!["bog".into()], ..plain() },
            json!({"sessions": ["a"], "format": "jsonl", "exclude": ["bog"]}),
        ),
        (
            ExportRequest { scores: Some("bog".into()), ..plain() },
            json!({"sessions": ["a"], "format": "jsonl", "scores": "bog"}),
        ),
        (
            ExportRequest { pad_token_id: 7, ..plain() },
            json!({"sessions": ["a"], "format": "jsonl", "pad_token_id": 7}),
        ),
        (ExportRequest { sessions: vec!["no".into()], ..plain() }, json!({"sessions": ["no"], "format": "jsonl"})),
        (
            ExportRequest { r#where: Some("turns".into()), ..plain() },
            json!({"sessions": ["a"], "format": "jsonl", "where": "turns"}),
        ),
        (ExportRequest { version: Some(3), ..plain() }, json!({"sessions": ["a"], "format": "jsonl", "version": 3})),
    ];
    for (asked, body) in cases {
        let status = read_export(&mut client, asked).await.expect_err("it cannot be exported");
        let answer = http(&demo, &body).await;
        assert_eq!(status.message(), answer.json()["error"]["message"].as_str().unwrap());
        assert_eq!(status.metadata().get("tokentap-http-status").unwrap(), answer.status.to_string().as_str());
        let code = if answer.status == 404 { Code::NotFound } else { Code::InvalidArgument };
        assert_eq!(status.code(), code, "{body}");
    }
}

async fn read_samples(mut replies: Streaming<SamplesReply>) -> (Vec<Sample>, Vec<Refused>) {
    let (mut samples, mut refused) = (Vec::new(), Vec::new());
    while let Some(reply) = replies.message().await.unwrap() {
        match reply.what.unwrap() {
            samples_reply::What::Sample(sample) => samples.push(sample),
            samples_reply::What::Refused(leaf) => refused.push(leaf),
        }
    }
    (samples, refused)
}

/// Numbers in JSON, with null for NaN; a float32 is exact in a double.
fn column(numbers: &[f32]) -> Value {
    numbers.iter().map(|number| if number.is_nan() { Value::Null } else { json!(f64::from(*number)) }).collect()
}

/// Numbers of a JSON list, rounded to float32, in which they were written.
fn narrow(list: &Value) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "the text is that of a float32")]
    let single = |number: &Value| number.as_f64().map_or(Value::Null, |number| json!(f64::from(number as f32)));
    list.as_array().unwrap().iter().map(single).collect()
}

/// A sample in the form of an entry of the trajectories, without its turns.
fn line(sample: &Sample) -> Value {
    let segment = |segment: &tokentap::serve::grpc::pb::Segment| {
        json!({
            "turn": segment.turn, "kind": if segment.response { "response" } else { "prompt" },
            "start": segment.start, "end": segment.end, "loss_mask": u8::from(segment.trained),
        })
    };
    let policy = |span: &tokentap::serve::grpc::pb::PolicySpan| {
        let mut entry = json!({
            "start": span.start, "end": span.end, "epoch": span.epoch,
            "weight_version": span.weight_version, "version": span.version,
        });
        if let Some(until) = span.until {
            entry["until"] = json!(until);
        }
        if let Some(process) = &span.process {
            entry["process"] = json!(process);
        }
        if let Some(adapter) = &span.adapter {
            entry["adapter"] = json!(adapter);
            entry["adapter_epoch"] = json!(span.adapter_epoch);
            entry["adapter_version"] = json!(span.adapter_version);
        }
        if let Some(until) = span.adapter_until {
            entry["adapter_until"] = json!(until);
        }
        entry
    };
    let mut entry = json!({
        "session": sample.session,
        "version": sample.version,
        "leaf": sample.leaf,
        "segments": sample.segments.iter().map(segment).collect::<Vec<_>>(),
        "token_ids": sample.token_ids,
        "loss_mask": sample.loss_mask.iter().map(|trained| u8::from(*trained)).collect::<Vec<_>>(),
        "logprobs": column(&sample.logprobs),
        "entropy": column(&sample.entropy),
        "policy": sample.policy.iter().map(policy).collect::<Vec<_>>(),
        "finish_reason": sample.finish_reason,
        "flags": sample.flags,
        "reward": sample.reward.as_ref().map(|text| serde_json::from_str::<Value>(text).unwrap()),
    });
    for (name, text) in &sample.computed {
        entry[name] = serde_json::from_str(text).unwrap();
    }
    entry
}

/// A turn in the form of that entry.
fn turn(turn: &tokentap::serve::grpc::pb::Turn, trained: bool) -> Value {
    let json = |text: &String| serde_json::from_str::<Value>(text).unwrap();
    let measured = turn.measured.as_ref().map(|how| {
        json!({
            "source": how.source, "estimator": how.estimator, "temperature": how.temperature, "top_k": how.top_k,
            "reason": how.reason,
        })
    });
    let extras: serde_json::Map<String, Value> =
        turn.extras.iter().map(|(name, text)| (name.clone(), json(text))).collect();
    let labels = turn.labels.as_ref().map(|labels| {
        let texts = [
            ("dialect", &labels.dialect),
            ("client", &labels.client),
            ("agent", &labels.agent),
            ("agent_type", &labels.agent_type),
            ("parent_agent", &labels.parent_agent),
            ("thread", &labels.thread),
            ("request_class", &labels.request_class),
            ("effort", &labels.effort),
            ("attribution", &labels.attribution),
        ];
        let texts = texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), json!(text.as_ref()?))));
        let after = labels.after_compaction.then(|| ("after_compaction".to_owned(), json!(true)));
        texts.chain(after).collect::<serde_json::Map<String, Value>>()
    });
    json!({
        "id": turn.id, "parent": turn.parent, "rid": turn.rid, "index": turn.index, "cause": turn.cause, "predecessor": turn.predecessor,
        "reply_changes": turn.reply_changes, "finish_reason": turn.finish_reason, "fault": turn.fault, "trained": trained, "supersedes": turn.supersedes,
        "measured": measured, "sampling": turn.sampling.as_ref().map(json),
        "sampling_sources": turn.sampling_sources.as_ref().map(json), "model": turn.model, "lora_path": turn.lora_path,
        "started_ms": turn.started_ms, "first_ms": turn.first_ms, "elapsed_ms": turn.elapsed_ms,
        "cached_tokens": turn.cached_tokens, "labels": labels, "extras": extras,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_equal_trajectories() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    record_sessions(&demo).await;
    // a second turn after the first, without entropies and with rows that the client requested
    let first: Vec<u32> = {
        let mut client = trajectories(demo.proxy.control).await;
        let asked = SamplesRequest { sessions: vec!["b".into()], ..SamplesRequest::default() };
        read_samples(client.samples(asked).await.unwrap().into_inner()).await.0[0].token_ids.clone()
    };
    let longer = [first, demo.encode(" is open")].concat();
    let body = json!({
        "input_ids": longer, "session_id": "b", "return_entropy": false, "return_logprob": true, "top_logprobs_num": 2,
        "sampling_params": {"max_new_tokens": 3},
    });
    demo.ask(&body).await;
    let reward = post(demo.proxy.control, "/v1/sessions/b/reward", br#"{"reward":{"score":0.5}}"#).await;
    assert_eq!(reward.status, 200, "{}", reward.text());
    // a turn that is not trained
    let cut = json!({"text": "The", "session_id": "a", "sampling_params": {"max_new_tokens": 0}});
    demo.post("/generate", &cut).await;

    let mut client = trajectories(demo.proxy.control).await;
    let asked = SamplesRequest { sessions: vec!["a".into(), "b".into()], ..SamplesRequest::default() };
    let (samples, refused) = read_samples(client.samples(asked).await.unwrap().into_inner()).await;
    let (mut entries, mut leaves) = (Vec::new(), Vec::new());
    for session in ["a", "b"] {
        let mut all = get(demo.proxy.control, &format!("/v1/sessions/{session}/trajectories")).await.json();
        let refused = all["refused"].take().as_array().unwrap().clone();
        let rows = all["trajectories"].as_array().unwrap().iter();
        entries.extend(rows.filter(|row| refused.iter().all(|leaf| leaf["leaf"] != row["leaf"])).cloned());
        leaves.extend(
            refused.into_iter().map(|leaf| json!({"session": session, "leaf": leaf["leaf"], "reason": leaf["reason"]})),
        );
    }
    assert_eq!((samples.len(), refused.len()), (entries.len(), leaves.len()));
    assert!(samples.len() >= 3 && !refused.is_empty(), "{entries:?}");
    for (sample, entry) in samples.iter().zip(entries) {
        let mut entry = entry;
        let turns = entry.as_object_mut().unwrap().remove("turns").unwrap();
        let trained = turns.as_array().unwrap().iter().map(|turn| turn["trained"] == true);
        let ours: Value = sample.turns.iter().zip(trained).map(|(own, trained)| turn(own, trained)).collect();
        assert_eq!(ours, turns);
        for name in ["logprobs", "entropy"] {
            entry[name] = narrow(&entry[name]);
        }
        assert_eq!(line(sample), entry);
        let length = sample.token_ids.len();
        let columns = [sample.loss_mask.len(), sample.logprobs.len(), sample.entropy.len()];
        assert_eq!(columns, [length; 3], "one item a token");
        assert!(sample.turns.iter().all(|turn| turn.policy.is_empty()), "policies are in the sample only");
    }
    for (ours, leaf) in refused.iter().zip(leaves) {
        let ours = json!({"session": ours.session, "leaf": ours.leaf, "reason": ours.reason});
        assert_eq!(ours, leaf);
    }
    let nan = samples.iter().flat_map(|sample| &sample.entropy).filter(|entropy| entropy.is_nan()).count();
    assert!(nan > 0, "null is NaN here");

    let one = SamplesRequest { sessions: vec!["a".into()], no_branches: true, ..SamplesRequest::default() };
    let (samples, _) = read_samples(client.samples(one).await.unwrap().into_inner()).await;
    assert_eq!(samples.len(), 1, "only the path with the most trained tokens");
}

#[tokio::test(flavor = "multi_thread")]
async fn entropies_of_samples_equal_those_of_the_engine() {
    // a mask small enough for top-20 to show everything makes every entropy exact
    let allowed = crate::support::demo::few_ids("The lamp was lit by the old door", true);
    let options = EngineOptions { allowed: Some(allowed), ..EngineOptions::default() };
    let demo = Demo::start(options, &[]).await;
    let params = SamplingParams { max_new_tokens: Some(24), temperature: 0.7, ..SamplingParams::default() };
    let body = json!({
        "text": "The lamp", "session_id": "exact", "sampling_params": crate::support::demo::sampling(&params),
    });
    demo.ask(&body).await;
    let mut client = trajectories(demo.proxy.control).await;
    let asked = SamplesRequest { sessions: vec!["exact".into()], ..SamplesRequest::default() };
    let (samples, _) = read_samples(client.samples(asked).await.unwrap().into_inner()).await;
    let sample = &samples[0];
    let start = sample.loss_mask.iter().position(|trained| *trained).unwrap();
    let (prompt, output) = sample.token_ids.split_at(start);
    let truth = demo.entropies(prompt, output, &params);
    let entropies: Vec<f64> = sample.entropy[start..].iter().map(|entropy| f64::from(*entropy)).collect();
    assert_close(&entropies, &truth, 1e-5, "entropies of a sample");
    let chosen: Vec<f64> =
        (0..output.len()).map(|at| demo.distribution(prompt, output, at, &params)[output[at] as usize].ln()).collect();
    let logprobs: Vec<f64> = sample.logprobs[start..].iter().map(|logprob| f64::from(*logprob)).collect();
    assert_close(&logprobs, &chosen, 1e-5, "logprobs of a sample");
    assert!(sample.logprobs[..start].iter().chain(&sample.entropy[..start]).all(|number| number.is_nan()));
}
