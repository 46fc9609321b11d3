// SPDX-License-Identifier: Apache-2.0
//! Scores of a teacher: `POST /v1/teacher-scores`, exports with them, and the advantages of `distill`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use serde_json::{Value, json};
use tokentap::config::Format;
use tokentap::demo::{Engine, EngineOptions, Position, SamplingParams};
use tokentap::serve::connection::Phase;
use tokentap::serve::grpc::pb::{ExportRequest, SamplesRequest, export_reply, samples_reply};
use tokio::sync::watch;

use crate::chat::Chat;
use crate::crash::StandaloneEngine;
use crate::grpc::client::trajectories;
use crate::support::binary::output;
use crate::support::client::{Answer, get, post};
use crate::support::demo::{Demo, all_numbers, assert_close, ids};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Upstream, json_message};

/// A second demo engine, whose weights are those of version 1.
struct Teacher {
    engine: Arc<Engine>,
    addr: SocketAddr,
    _stop: watch::Sender<Phase>,
}

impl Teacher {
    async fn start() -> Self {
        let (stop, stopped) = watch::channel(Phase::Serving);
        let engine = Engine::new(EngineOptions::default());
        let (addr, _) = tokentap::cli::demo::engine(Arc::clone(&engine), stopped).await.unwrap();
        update(addr).await;
        Self { engine, addr, _stop: stop }
    }

    /// The logprobs of these tokens after `before`, in nats at temperature 1.
    fn logprobs(&self, before: &[u32], sampled: &[u32]) -> Vec<f64> {
        truth(&self.engine, before, sampled, 1)
    }
}

/// The logprobs of tokens under the weights of a version.
fn truth(engine: &Engine, before: &[u32], sampled: &[u32], version: u64) -> Vec<f64> {
    let params = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
    let mut known = before.to_vec();
    let next = |id: &u32| {
        let logprob = engine.distribution(Position::from(&known[..]), &params, version)[*id as usize].ln();
        known.push(*id);
        logprob
    };
    sampled.iter().map(next).collect()
}

async fn update(addr: SocketAddr) {
    let answer = post(addr, "/update_weights_from_disk", br#"{"model_path":"other","flush_cache":true}"#).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn demo(teachers: &[String]) -> Demo {
    let flags: Vec<&str> = teachers.iter().flat_map(|teacher| ["--teacher", teacher]).collect();
    demo_with(&flags).await
}

async fn demo_with(flags: &[&str]) -> Demo {
    Demo::start(EngineOptions::default(), &[&["--chat", "passthrough"], flags].concat()).await
}

async fn control(demo: &Demo, path: &str, body: &Value) -> Answer {
    post(demo.proxy.control, path, body.to_string().as_bytes()).await
}

/// A turn of a session; returns its sampled tokens and their logprobs.
async fn turn(demo: &Demo, session: &str, prompt: &[u32], temperature: f64) -> (Vec<u32>, Vec<f64>) {
    let sampling = json!({"max_new_tokens": 6, "ignore_eos": true, "temperature": temperature});
    let body = json!({"input_ids": prompt, "sampling_params": sampling, "return_logprob": true});
    let answer = demo.post(&format!("/sessions/{session}/generate"), &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let reply = answer.json();
    let rows = reply["meta_info"]["output_token_logprobs"].as_array().unwrap();
    (ids(&reply), rows.iter().map(|row| row[0].as_f64().unwrap()).collect())
}

/// Two turns of a session: the tokens before each, the sampled ones, and the student's logprobs.
async fn conversation(demo: &Demo, session: &str) -> Vec<(Vec<u32>, Vec<u32>, Vec<f64>)> {
    let (mut known, mut turns) = (Vec::new(), Vec::new());
    for prompt in [&[299, 467][..], &[11, 12]] {
        known.extend_from_slice(prompt);
        let (sampled, logprobs) = turn(demo, session, &known, 1.0).await;
        turns.push((known.clone(), sampled.clone(), logprobs));
        known.extend(sampled);
    }
    turns
}

/// The teacher's logprobs in the first row of a `jsonl` export.
pub fn column(export: &Answer) -> Option<Vec<f64>> {
    let row: Value = serde_json::from_str(export.text().lines().next()?).unwrap();
    let column = row["columns"].as_array()?.iter().find(|column| column["name"] == "teacher_logprobs")?.clone();
    let data = base64_simd::STANDARD.decode_to_vec(column["data"].as_str()?).unwrap();
    Some(data.chunks_exact(4).map(|cell| f32::from_le_bytes(cell.try_into().unwrap()).into()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_are_the_logprobs_of_the_teacher() {
    let teacher = Teacher::start().await;
    let demo = demo(&[format!("big=http://{}", teacher.addr)]).await;
    let turns = conversation(&demo, "s").await;
    assert_eq!(control(&demo, "/v1/sessions/s/freeze", &json!({})).await.status, 200);
    let plain = json!({"sessions": ["s"], "format": "jsonl"});
    let before = control(&demo, "/v1/samples", &plain).await;
    let answer =
        control(&demo, "/v1/teacher-scores", &json!({"teacher": "big", "sessions": ["s"], "weights": true})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let found = answer.json();
    let row = &found["rows"][0];
    assert_eq!((&row["scored"], &row["skipped"], &row["incomparable"]), (&json!(12), &json!(0), &json!(0)), "{found}");
    let expected: Vec<f64> = turns.iter().flat_map(|(before, sampled, _)| teacher.logprobs(before, sampled)).collect();
    let scored = json!({"sessions": ["s"], "format": "jsonl", "scores": "big"});
    let with_scores = control(&demo, "/v1/samples", &scored).await;
    assert_close(&column(&with_scores).unwrap(), &expected, 1e-5, "the teacher's logprobs");
    // the statistics are those of float64
    let student: Vec<f64> = turns.iter().flat_map(|(_, _, logprobs)| logprobs.clone()).collect();
    let ratios: Vec<f64> = expected.iter().zip(&student).map(|(teacher, student)| teacher - student).collect();
    let mean = |of: &dyn Fn(f64) -> f64| ratios.iter().map(|ratio| of(*ratio)).sum::<f64>() / 12.0;
    let number = |name: &str| found["mismatch"][name].as_f64().unwrap();
    assert!(ratios.iter().any(|ratio| ratio.abs() > 0.1), "the teacher differs from the student: {ratios:?}");
    for (name, truth) in [
        ("k1", mean(&|ratio| -ratio)),
        ("k3", mean(&|ratio| ratio.exp() - 1.0 - ratio)),
        ("tis_mean", mean(&|ratio| ratio.exp().min(2.0))),
        ("max", ratios.iter().fold(0.0, |most, ratio| most.max(ratio.abs()))),
    ] {
        assert!((number(name) - truth).abs() < 1e-4 * truth.abs().max(1.0), "{name}: {} for {truth}", number(name));
    }
    let steps = get(demo.proxy.control, "/v1/steps?by=policy&scores=big").await.json();
    let of_step = &steps["steps"][0]["mismatch"];
    assert_eq!((&of_step["tokens"], &of_step["incomparable"], of_step.get("p99")), (&json!(12), &json!(0), None));
    for name in ["mean", "k1", "k3", "max", "above_limit", "tis_mean", "mis_masked"] {
        let (of_step, of_rows) = (of_step[name].as_f64().unwrap(), number(name));
        assert!((of_step - of_rows).abs() < 1e-9, "{name}: {of_step} and {of_rows}");
    }
    let unscored = get(demo.proxy.control, "/v1/steps?by=policy&scores=other").await.json();
    assert_eq!(unscored["steps"][0]["mismatch"]["mean"], Value::Null);
    let weights = row["weights"]["tis"].as_array().unwrap();
    assert_eq!(weights.len(), 16);
    assert_eq!(weights.iter().filter(|weight| weight.is_null()).count(), 4, "prompts have none");
    // distillation: the negative reverse KL divergence at each token
    let request =
        json!({"groups": [{"id": 1, "samples": [{"session": "s"}]}], "estimator": "distill", "teacher": "big"});
    let computed = control(&demo, "/v1/advantages", &request).await;
    assert_eq!(computed.status, 200, "{}", computed.text());
    let sample = &computed.json()["groups"][0]["samples"][0];
    let advantages: Vec<f64> = all_numbers(&sample["advantages"]);
    let padded: Vec<f64> = [&[0.0; 2], &ratios[..6], &[0.0; 2], &ratios[6..]].concat();
    assert_close(&advantages, &padded, 1e-5, "advantages");
    assert!((sample["reverse_kl"].as_f64().unwrap() - mean(&|ratio| -ratio)).abs() < 1e-5);
    let options = json!({"estimator": "distill", "teacher": "big"});
    let export = json!({"sessions": ["s"], "format": "verl", "advantages": options});
    let file = control(&demo, "/v1/samples", &export).await;
    let file = safetensors::SafeTensors::deserialize(&file.body).unwrap();
    let exported = file.tensor("advantages").unwrap();
    let exported: Vec<f64> =
        exported.data().chunks_exact(4).map(|cell| f32::from_le_bytes(cell.try_into().unwrap()).into()).collect();
    assert_close(&exported, &padded[2..], 1e-5, "advantages of verl");
    let slime = json!({"sessions": ["s"], "format": "slime", "scores": "big"});
    let slime = control(&demo, "/v1/samples", &slime).await.json();
    let listed = all_numbers(&slime["samples"][0]["teacher_log_probs"]);
    let expected: Vec<f64> = [&expected[..6], &[0.0; 2], &expected[6..]].concat();
    assert_close(&listed, &expected, 1e-5, "slime");
    // scores are beside the frozen version
    assert_eq!(control(&demo, "/v1/samples", &plain).await.body, before.body);
    let again = control(&demo, "/v1/teacher-scores", &json!({"teacher": "big", "sessions": ["s"]})).await.json();
    assert_eq!((&again["rows"][0]["scored"], &again["rows"][0]["skipped"]), (&json!(0), &json!(12)));
    assert_eq!(again["mismatch"], found["mismatch"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_and_trajectories_have_the_scores_of_exports() {
    let demo = demo(&[]).await;
    conversation(&demo, "s").await;
    let request = json!({"teacher": "self", "sessions": ["s"], "top_logprobs": 2});
    assert_eq!(control(&demo, "/v1/teacher-scores", &request).await.status, 200);
    let http = json!({"sessions": ["s"], "format": "jsonl", "scores": "self"});
    let file = control(&demo, "/v1/samples", &http).await;
    let row: Value = serde_json::from_str(file.text().lines().next().unwrap()).unwrap();
    let columns = row["columns"].as_array().unwrap();
    assert_eq!(columns.len(), 3, "{row}");
    let mut client = trajectories(demo.proxy.control).await;
    let sessions = vec!["s".to_owned()];
    let scores = Some("self".to_owned());
    let request = ExportRequest {
        sessions: sessions.clone(),
        format: "jsonl".into(),
        scores: scores.clone(),
        ..Default::default()
    };
    let mut replies = client.export(request).await.unwrap().into_inner();
    let mut bytes = Vec::new();
    while let Some(reply) = replies.message().await.unwrap() {
        if let Some(export_reply::Part::Data(data)) = reply.part {
            bytes.extend_from_slice(&data);
        }
    }
    assert!(bytes == file.body, "the bytes of HTTP");
    for (scores, expected) in [(scores, 3), (None, 0)] {
        let request = SamplesRequest { sessions: sessions.clone(), scores, ..Default::default() };
        let reply = client.samples(request).await.unwrap().into_inner().message().await.unwrap().unwrap();
        let Some(samples_reply::What::Sample(sample)) = reply.what else { panic!("a sample") };
        assert_eq!(sample.columns.len(), expected);
        for (column, exported) in sample.columns.iter().zip(columns) {
            let data = base64_simd::STANDARD.encode_to_string(&column.data);
            assert_eq!((json!(column.name), json!(data)), (exported["name"].clone(), exported["data"].clone()));
        }
    }
    let shown = async |path: &str| get(demo.proxy.control, path).await.json();
    let scored = shown("/v1/sessions/s/trajectories?scores=self").await;
    assert_eq!(scored["trajectories"][0]["columns"], row["columns"]);
    assert_eq!(shown("/v1/sessions/s/trajectories").await["trajectories"][0]["columns"], Value::Null);
}

/// An option changes the file of a format, or it is refused: none is ignored.
#[tokio::test(flavor = "multi_thread")]
async fn option_changes_the_file_or_is_refused() {
    // always in these formats
    let with_entropies = ["verl", "areal", "slime", "tunix", "strands", "rllm", "jsonl", "arrow", "parquet"];
    let demo = Chat::start(&[]).await.demo;
    conversation(&demo, "s").await;
    turn(&demo, "t", &[299, 467, 11], 1.0).await;
    for (session, reward) in [("s", 1), ("t", 0)] {
        assert_eq!(
            control(&demo, &format!("/v1/sessions/{session}/reward"), &json!({"reward": reward})).await.status,
            200
        );
    }
    let scored = control(&demo, "/v1/teacher-scores", &json!({"teacher": "self", "sessions": ["s", "t"]})).await;
    assert_eq!(scored.status, 200, "{}", scored.text());
    let (mut accepted, mut refused) = (0, 0);
    for format in Format::all() {
        let export = async |option: Option<(&str, Value)>| {
            let mut body = json!({"sessions": ["s", "t"], "format": format.to_string()});
            option.into_iter().for_each(|(name, value)| body[name] = value);
            control(&demo, "/v1/samples", &body).await
        };
        let plain = export(None).await;
        assert_eq!((plain.status, plain.header("tokentap-refused")), (200, Some("{}")), "{format}");
        for (option, value) in [
            ("text", json!(true)),
            ("advantages", json!({})),
            ("scores", json!("self")),
            ("entropies", json!(true)),
            ("pad_token_id", json!(7)),
            ("max_prompt_length", json!(9)),
            ("max_response_length", json!(30)),
        ] {
            let answer = export(Some((option, value))).await;
            if answer.status == 200 {
                let has_it = option == "entropies" && with_entropies.contains(&&*format.to_string());
                assert_eq!(answer.body == plain.body, has_it, "{format} ignores {option}");
                accepted += 1;
            } else {
                assert_eq!(answer.status, 400, "{format}, {option}: {}", answer.text());
                let message = format!("{option}: {format} does not use it, only ");
                assert!(answer.text().contains(&message), "{}", answer.text());
                refused += 1;
            }
        }
    }
    assert_eq!((accepted, refused), (36, 76), "formats and options");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_without_scores_are_counted_and_an_unknown_teacher_is_an_error() {
    let demo = demo(&[]).await;
    for session in ["s", "t"] {
        conversation(&demo, session).await;
    }
    let export = async |sessions: Value, scores: &str, exclude: Value| {
        let body = json!({"sessions": sessions, "format": "jsonl", "scores": scores, "exclude": exclude});
        control(&demo, "/v1/samples", &body).await
    };
    let scored = control(&demo, "/v1/teacher-scores", &json!({"teacher": "self", "sessions": ["s"]})).await;
    assert_eq!(scored.status, 200, "{}", scored.text());
    for answer in [
        export(json!(["s", "t"]), "bog", json!([])).await,
        export(json!(["t"]), "self", json!([])).await,
        get(demo.proxy.control, "/v1/sessions/s/trajectories?scores=bog").await,
    ] {
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!("missing_scores")));
        assert!(answer.text().contains("has scored none of these paths"), "{}", answer.text());
    }
    let both = export(json!(["s", "t"]), "self", json!([])).await;
    let counts = |answer: &Answer, name| answer.header(name).unwrap().to_owned();
    assert_eq!(both.text().lines().count(), 2);
    assert_eq!(counts(&both, "tokentap-incomplete"), r#"{"missing_scores":1}"#);
    let one = export(json!(["s", "t"]), "self", json!(["missing_scores"])).await;
    assert_eq!(one.text().lines().count(), 1);
    assert_eq!(
        (counts(&one, "tokentap-incomplete"), counts(&one, "tokentap-refused")),
        ("{}".into(), r#"{"missing_scores":1}"#.into())
    );
}

/// What is listed twice is a 400, and an unknown path a 404 that lists the known ones; wrong types name the member.
#[tokio::test(flavor = "multi_thread")]
async fn requests_name_the_wrong_member() {
    let demo = demo(&[]).await;
    conversation(&demo, "s").await;
    let row = |leaf: u32| json!({"session": "s", "leaf": leaf});
    let group = |samples: Value| json!({"groups": [{"id": "g", "samples": samples}]});
    for (path, body, status, code, part) in [
        (
            "teacher-scores",
            json!({"teacher": "self"}),
            400,
            "bad_request",
            "sessions: name sessions, or paths in `rows`",
        ),
        (
            "teacher-scores",
            json!({"teacher": "self", "sessions": ["s", "s"]}),
            400,
            "bad_request",
            "\\\"s\\\" is listed twice",
        ),
        ("teacher-scores", json!({"teacher": "self", "rows": [row(1), row(1)]}), 400, "bad_request", "rows: session"),
        ("teacher-scores", json!({"teacher": "self", "rows": [row(0)]}), 404, "not_found", "turn 0; they end in 1"),
        (
            "teacher-scores",
            json!({"teacher": "self", "rows": [{"session": "s", "leaf": 0.5}]}),
            400,
            "bad_request",
            "rows[0].leaf: must be an integer from 0 to 4294967295, not 0.5",
        ),
        ("teacher-scores", json!(["self", 1]), 400, "bad_request", "the body: must be an object, not a list"),
        (
            "samples",
            json!({"sessions": ["s", "s"], "format": "jsonl"}),
            400,
            "bad_request",
            "\\\"s\\\" is listed twice",
        ),
        (
            "samples",
            json!({"sessions": "s", "format": "jsonl"}),
            400,
            "bad_request",
            "sessions: must be a list, not the string",
        ),
        ("advantages", group(json!([row(1), row(1)])), 400, "missing_reward", "groups[0].samples[0]"),
        (
            "advantages",
            group(json!([{"session": "s", "reward": 1}, {"session": "s", "reward": 1}])),
            400,
            "bad_request",
            "groups[0].samples[1]: session",
        ),
        ("advantages", group(json!([{"session": "s", "leaf": 9, "reward": 1}])), 404, "not_found", "they end in 1"),
        ("advantages", json!({"groups": 1}), 400, "bad_request", "groups: must be a list, not 1"),
        ("advantages", json!({}), 400, "bad_request", "the body: missing field `groups`"),
        ("policy", json!({"version": 1, "adapter": 2}), 400, "bad_request", "adapter: must be a string, not 2"),
        ("sessions/s/reward", json!({"reward": 1, "turn": "x"}), 400, "bad_request", "turn: must be an integer from 0"),
    ] {
        let answer = control(&demo, &format!("/v1/{path}"), &body).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (status, &json!(code)),
            "{body}: {}",
            answer.text()
        );
        assert!(answer.text().contains(part), "{body}: {}", answer.text());
    }
}

/// The values of a column in the first row of a `jsonl` export, and their shape for each token.
pub fn values(export: &Answer, name: &str) -> Option<(Value, Vec<u8>)> {
    let row: Value = serde_json::from_str(export.text().lines().next()?).unwrap();
    let column = row["columns"].as_array()?.iter().find(|column| column["name"] == name)?.clone();
    Some((column["shape"].clone(), base64_simd::STANDARD.decode_to_vec(column["data"].as_str()?).unwrap()))
}

fn floats(data: &[u8]) -> Vec<f64> {
    data.chunks_exact(4).map(|cell| f32::from_le_bytes(cell.try_into().unwrap()).into()).collect()
}

fn u32s(data: &[u8]) -> Vec<u32> {
    data.chunks_exact(4).map(|cell| u32::from_le_bytes(cell.try_into().unwrap())).collect()
}

/// Checks that the ids are those of the largest logprobs of `all`, and that the logprobs are theirs.
fn assert_likeliest(ids: &[u32], logprobs: &[f64], all: &[f64], about: &str) {
    let truth: Vec<f64> = ids.iter().map(|id| all[*id as usize]).collect();
    assert_close(logprobs, &truth, 1e-5, about);
    let mut sorted = all.to_vec();
    sorted.sort_unstable_by(|one, other| other.total_cmp(one));
    assert_close(&truth, &sorted[..ids.len()], 1e-5, about);
}

#[tokio::test(flavor = "multi_thread")]
async fn likeliest_tokens_of_both_policies_are_columns() {
    let teacher = Teacher::start().await;
    let named = format!("big=http://{}", teacher.addr);
    let demo = demo_with(&["--teacher", &named, "--columns", "top_logprobs", "--top-logprobs", "4"]).await;
    let turns = conversation(&demo, "s").await;
    let score = async |options: Value| {
        let mut request = json!({"teacher": "big", "sessions": ["s"]});
        request.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let answer = control(&demo, "/v1/teacher-scores", &request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["rows"][0].clone()
    };
    let export =
        async || control(&demo, "/v1/samples", &json!({"sessions": ["s"], "format": "jsonl", "scores": "big"})).await;
    let bytes = async || get(demo.proxy.control, "/v1/sessions/s").await.json()["bytes"].as_u64().unwrap();
    let before = bytes().await;
    let row = score(json!({"top_logprobs": 3, "logprobs_of_top_ids": true})).await;
    assert_eq!((&row["scored"], &row["without_top_ids"]), (&json!(12), &json!(0)), "{row}");
    // the logprob, three ids and logprobs, and four logprobs of each token, and what each turn and column takes
    let (content, grown) = (12 * (4 + 3 * 8 + 4 * 4), bytes().await - before);
    assert!((content..content + 2 * 700).contains(&grown), "{grown} bytes for values of {content}");
    let exported = export().await;
    let (shape, ids) = values(&exported, "teacher_top_ids").unwrap();
    let (_, logprobs) = values(&exported, "teacher_top_logprobs").unwrap();
    let (student_shape, student) = values(&exported, "top_ids").unwrap();
    let (of_top_shape, of_top) = values(&exported, "teacher_logprobs_of_top_ids").unwrap();
    assert_eq!((&shape, &student_shape, &of_top_shape), (&json!([3]), &json!([4]), &json!([4])));
    let (ids, student, logprobs, of_top) = (u32s(&ids), u32s(&student), floats(&logprobs), floats(&of_top));
    let params = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
    let mut at = 0;
    for (before, sampled, _) in &turns {
        for token in 0..sampled.len() {
            let known = [before, &sampled[..token]].concat();
            let distribution = teacher.engine.distribution(Position::from(&known[..]), &params, 1);
            let all: Vec<f64> = distribution.iter().map(|probability| probability.ln()).collect();
            let (three, four) = (3 * at..3 * at + 3, 4 * at..4 * at + 4);
            assert_likeliest(&ids[three.clone()], &logprobs[three], &all, "the teacher's likeliest tokens");
            let truth: Vec<f64> = student[four.clone()].iter().map(|id| all[*id as usize]).collect();
            assert_close(&of_top[four], &truth, 1e-5, "the teacher's logprobs of the student's likeliest tokens");
            at += 1;
        }
    }
    assert_eq!((at, column(&exported).unwrap().len()), (12, 12));
    // what is stored is not asked again, and not narrowed
    for options in [json!({}), json!({"top_logprobs": 2}), json!({"top_logprobs": 3, "logprobs_of_top_ids": true})] {
        assert_eq!(score(options.clone()).await["scored"], 0, "{options}");
    }
    assert_eq!(score(json!({"top_logprobs": 5})).await["scored"], 12);
    let wider = export().await;
    assert_eq!(values(&wider, "teacher_top_ids").unwrap().0, json!([5]));
    assert_eq!(floats(&values(&wider, "teacher_logprobs_of_top_ids").unwrap().1), of_top, "it is kept");
    assert_eq!(score(json!({"again": true})).await["scored"], 12);
    let again = export().await;
    assert!(column(&again).is_some() && values(&again, "teacher_top_ids").is_none(), "all scores are replaced");
    for (options, part) in
        [(json!(1025), "at most 1024"), (json!(-1), "top_logprobs: must be an integer from 0 to 4294967295, not -1")]
    {
        let request = json!({"teacher": "big", "sessions": ["s"], "top_logprobs": options});
        let refused = control(&demo, "/v1/teacher-scores", &request).await;
        assert!(refused.status == 400 && refused.text().contains(part), "{}", refused.text());
    }
    let flags = ["--teacher", "big", "--top-logprobs", "2", "--logprobs-of-top-ids"];
    let (succeeded, _, error) = command(&demo, &flags).await;
    assert!(succeeded && error.contains("scored 12 tokens"), "{error}");
    assert_eq!(floats(&values(&export().await, "teacher_logprobs_of_top_ids").unwrap().1), of_top);
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_without_recorded_likeliest_tokens_are_counted() {
    let demo = demo(&[]).await;
    conversation(&demo, "s").await;
    let request = json!({"teacher": "self", "sessions": ["s"], "logprobs_of_top_ids": true});
    let row = control(&demo, "/v1/teacher-scores", &request).await.json()["rows"][0].clone();
    assert_eq!((&row["scored"], &row["without_top_ids"]), (&json!(12), &json!(12)), "{row}");
    let export = json!({"sessions": ["s"], "format": "jsonl", "scores": "self"});
    let exported = control(&demo, "/v1/samples", &export).await;
    assert!(column(&exported).is_some() && values(&exported, "teacher_logprobs_of_top_ids").is_none());
    let row = control(&demo, "/v1/teacher-scores", &request).await.json()["rows"][0].clone();
    assert_eq!(row["scored"], 0, "nothing is asked again");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_path_is_asked_in_parts() {
    let teacher = Teacher::start().await;
    let (addr, starts) = (teacher.addr, Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&starts);
    let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
    let counted = Upstream::start(profile, move |asked| {
        seen.lock().unwrap().extend(asked.json()["logprob_start_len"].as_u64());
        FakeReply::Forward(addr)
    })
    .await;
    let demo = demo(&[format!("t=http://{}", counted.addr)]).await;
    let sampling = json!({"max_new_tokens": 300, "ignore_eos": true, "temperature": 1});
    let answer =
        demo.post("/sessions/s/generate", &json!({"input_ids": [299, 467], "sampling_params": sampling})).await;
    let sampled = ids(&answer.json());
    let request = json!({"teacher": "t", "sessions": ["s"], "top_logprobs": 1000});
    let answer = control(&demo, "/v1/teacher-scores", &request).await;
    assert_eq!((answer.status, &answer.json()["rows"][0]["scored"]), (200, &json!(300)), "{}", answer.text());
    // 1,001 logprobs of a token, and 262,144 of a request
    assert_eq!(*starts.lock().unwrap(), [1, 262]);
    let export = json!({"sessions": ["s"], "format": "jsonl", "scores": "t"});
    let exported = control(&demo, "/v1/samples", &export).await;
    assert_close(&column(&exported).unwrap(), &teacher.logprobs(&[299, 467], &sampled), 1e-5, "both parts");
    assert_eq!(values(&exported, "teacher_top_logprobs").unwrap().1.len(), 300 * 1000 * 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn own_engine_has_a_mismatch_after_an_update_of_weights() {
    let demo = demo(&[]).await;
    let turns = conversation(&demo, "s").await;
    let request = json!({"teacher": "self", "sessions": ["s"]});
    let same = control(&demo, "/v1/teacher-scores", &request).await.json();
    assert_eq!((&same["mismatch"]["tokens"], &same["mismatch"]["mis_masked"]), (&json!(12), &json!(0.0)), "{same}");
    assert!(same["mismatch"]["max"].as_f64().unwrap() < 1e-5, "{same}");
    let check = |found: &Value, version| {
        let of_turn = |(before, sampled, logprobs): &(Vec<u32>, Vec<u32>, Vec<f64>)| {
            let scores = truth(&demo.engine, before, sampled, version);
            scores.iter().zip(logprobs).map(|(score, logprob)| score - logprob).collect::<Vec<_>>()
        };
        let ratios: Vec<f64> = turns.iter().flat_map(of_turn).collect();
        let mean = ratios.iter().sum::<f64>() / 12.0;
        assert_eq!(found["rows"][0]["scored"], 12, "{found}");
        assert!((found["mismatch"]["mean"].as_f64().unwrap() - mean).abs() < 1e-5, "{found}, not {mean}");
    };
    let mut request = request;
    // scores of earlier weights count as missing
    update(demo.proxy.control).await;
    check(&control(&demo, "/v1/teacher-scores", &request).await.json(), 1);
    assert_eq!(control(&demo, "/v1/teacher-scores", &request).await.json()["rows"][0]["scored"], 0, "it has scores");
    // of an update at the engine tokentap does not know
    update(demo.direct).await;
    assert_eq!(control(&demo, "/v1/teacher-scores", &request).await.json()["rows"][0]["scored"], 0);
    request["again"] = json!(true);
    check(&control(&demo, "/v1/teacher-scores", &request).await.json(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_at_another_temperature_are_not_compared() {
    let demo = demo(&[]).await;
    turn(&demo, "s", &[299, 467], 0.7).await;
    let found = control(&demo, "/v1/teacher-scores", &json!({"teacher": "self", "sessions": ["s"]})).await.json();
    let row = &found["rows"][0];
    assert_eq!((&row["scored"], &row["incomparable"], &row["mismatch"]["tokens"]), (&json!(6), &json!(6), &json!(0)));
    assert_eq!(row["mismatch"]["mean"], Value::Null);
    let request =
        json!({"groups": [{"id": 1, "samples": [{"session": "s"}]}], "estimator": "distill", "teacher": "self"});
    let refused = control(&demo, "/v1/advantages", &request).await;
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["code"]), (400, &json!("incomparable_turn")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("temperature 1"), "{error}");
}

/// A turn whose entropies the client does not want has no measured temperature.
#[tokio::test(flavor = "multi_thread")]
async fn unmeasured_tokens_are_compared_at_the_requested_temperature() {
    let demo = demo(&[]).await;
    for (session, temperature) in [("one", json!(1)), ("other", json!(0.7)), ("default", Value::Null)] {
        let mut sampling = json!({"max_new_tokens": 6, "ignore_eos": true});
        if !temperature.is_null() {
            sampling["temperature"] = temperature;
        }
        let body = json!({
            "input_ids": [299, 467], "sampling_params": sampling, "return_logprob": true, "return_entropy": false,
        });
        assert_eq!(demo.post(&format!("/sessions/{session}/generate"), &body).await.status, 200);
        let request = json!({"teacher": "self", "sessions": [session]});
        let found = control(&demo, "/v1/teacher-scores", &request).await.json();
        let (compared, incomparable) = if session == "one" { (6, 0) } else { (0, 6) };
        assert_eq!(found["rows"][0]["incomparable"], incomparable, "{session}: {found}");
        assert_eq!(found["mismatch"]["tokens"], compared, "{session}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_teachers_are_refused_before_the_first_path() {
    let teacher = Teacher::start().await;
    let scored = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&scored);
    // another vocabulary, as the probe reports it
    let large = Upstream::start(EngineProfile::default(), move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        json_message(500, b"{}")
    })
    .await;
    // the same vocabulary, but other ids of a text
    let (addr, count) = (teacher.addr, Arc::clone(&scored));
    let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
    let other = Upstream::start(profile, move |asked| match &*asked.path {
        "/tokenize" => json_message(200, br#"{"tokens":[1,2,3],"count":3,"max_model_len":4096}"#),
        "/generate" if asked.json()["return_logprob"] == true => {
            count.fetch_add(1, Ordering::Relaxed);
            FakeReply::Forward(addr)
        }
        _ => FakeReply::Forward(addr),
    })
    .await;
    let flags =
        [format!("large=http://{}", large.addr), format!("other=http://{},gone=http://127.0.0.1:1", other.addr)];
    let demo = demo(&flags).await;
    conversation(&demo, "s").await;
    for (name, status, code, part) in [
        ("large", 409, "teacher_mismatch", "151936 entries"),
        ("other", 409, "teacher_mismatch", "tokenizer"),
        ("gone", 502, "teacher_failed", "http://127.0.0.1:1"),
        ("absent", 404, "no_such_teacher", "gone, large, other, self"),
    ] {
        let answer = control(&demo, "/v1/teacher-scores", &json!({"teacher": name, "sessions": ["s"]})).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (status, &json!(code)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    }
    assert_eq!(scored.load(Ordering::Relaxed), 0, "no path was sent");
    let unscored =
        json!({"groups": [{"id": 1, "samples": [{"session": "s"}]}], "estimator": "distill", "teacher": "large"});
    let refused = control(&demo, "/v1/advantages", &unscored).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("missing_scores")));
}

/// Runs `tokentap score` and returns whether it succeeded, standard output and standard error.
async fn command(demo: &Demo, flags: &[&str]) -> (bool, String, String) {
    let control = format!("http://{}", demo.proxy.control);
    let ended = output(&[&["score", "--control", &control], flags].concat()).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ended.status.success(), text(&ended.stdout), text(&ended.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn command_scores_by_a_url_on_a_listed_host() {
    let teacher = Teacher::start().await;
    // an engine that wants a key, and no other
    let (addr, seen) = (teacher.addr, Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&seen);
    let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
    let guarded = Upstream::start(profile, move |asked| {
        count.fetch_add(1, Ordering::Relaxed);
        if asked.header("authorization") == Some("Bearer of-the-teacher") {
            FakeReply::Forward(addr)
        } else {
            json_message(401, b"{}")
        }
    })
    .await;
    let demo = demo_with(&["--teacher-host", "127.0.0.1", "--upstream-api-key", "of-the-student"]).await;
    let turns = conversation(&demo, "s").await;
    let url = format!("http://{}", guarded.addr);
    let (succeeded, _, error) = command(&demo, &["--teacher", &url]).await;
    assert!(!succeeded && error.contains("401"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    std::fs::write(&file, "of-the-teacher\n").unwrap();
    let key = format!("@{}", file.display());
    let (succeeded, stdout, error) = command(&demo, &["--teacher", &format!("{url}/"), "--teacher-key", &key]).await;
    assert!(succeeded && error.contains("scored 12 tokens of 1 sessions"), "{error}");
    let mismatch: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(mismatch["tokens"], 12);
    // the scores are kept under the URL
    let expected: Vec<f64> = turns.iter().flat_map(|(before, sampled, _)| teacher.logprobs(before, sampled)).collect();
    let export = control(&demo, "/v1/samples", &json!({"sessions": ["s"], "format": "jsonl", "scores": url})).await;
    assert_close(&column(&export).unwrap(), &expected, 1e-5, "the teacher's logprobs");
    // a host that is not listed is not asked, also not by another spelling
    let before = seen.load(Ordering::Relaxed);
    let port = guarded.addr.port();
    for (teacher, status, part) in [
        (format!("http://localhost:{port}"), 403, "--teacher-host"),
        (format!("http://[::1]:{port}"), 403, "--teacher-host"),
        (format!("http://2130706433:{port}"), 403, "--teacher-host"),
        (format!("http://127.0.0.1.evil.example:{port}"), 403, "--teacher-host"),
        (format!("http://127.0.0.1:{port}@evil.example"), 400, "without credentials"),
        (format!("http://evil.example\\@127.0.0.1:{port}"), 400, "without credentials"),
        (format!("http://evil.example#127.0.0.1:{port}"), 400, "without credentials"),
        (format!("https://127.0.0.1:{port}"), 400, "--upstream-ca"),
        (format!("ftp://127.0.0.1:{port}"), 400, "http://HOST:PORT"),
        (format!("http://127.0.0.1:{port}/{}", "x".repeat(300)), 400, "256 bytes"),
    ] {
        let answer = control(&demo, "/v1/teacher-scores", &json!({"teacher": teacher, "sessions": ["s"]})).await;
        assert!(answer.status == status && answer.text().contains(part), "{teacher}: {}", answer.text());
    }
    let named =
        control(&demo, "/v1/teacher-scores", &json!({"teacher": "self", "key": "secret", "sessions": ["s"]})).await;
    assert!(named.status == 400 && !named.text().contains("secret"), "{}", named.text());
    assert_eq!(seen.load(Ordering::Relaxed), before, "no request was sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn listed_port_is_the_only_one_of_its_host() {
    let (teacher, other) = (Teacher::start().await, Teacher::start().await);
    let demo = demo_with(&["--teacher-host", &format!("{},localhost", teacher.addr)]).await;
    conversation(&demo, "s").await;
    let score = async |teacher: String| {
        control(&demo, "/v1/teacher-scores", &json!({"teacher": teacher, "sessions": ["s"]})).await
    };
    let port = other.addr.port();
    for (url, status) in [
        (format!("http://{}", teacher.addr), 200),
        (format!("http://{}", other.addr), 403),
        ("http://127.0.0.1".to_owned(), 403),
        (format!("http://localhost:{port}"), 200),
    ] {
        let answer = score(url.clone()).await;
        assert_eq!(answer.status, status, "{url}: {}", answer.text());
    }
    let refused = output(&["serve", "--teacher-host", "http://a"]).await;
    assert_eq!(refused.status.code(), Some(64));
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("\"http://a\" is not HOST"), "{error}");
}

/// The scores of the first sampled tokens under the weights of a version: the likeliest ones, and those of the student's likeliest.
fn assert_one_state(engine: &Engine, export: &Answer, turns: &[(Vec<u32>, Vec<u32>, Vec<f64>)], version: u64) {
    let expected: Vec<f64> =
        turns.iter().flat_map(|(before, sampled, _)| truth(engine, before, sampled, version)).collect();
    assert_close(&column(export).unwrap(), &expected, 1e-5, "the sampled tokens");
    let contexts = turns
        .iter()
        .flat_map(|(before, sampled, _)| (0..sampled.len()).map(move |token| [before, &sampled[..token]].concat()));
    let params = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
    let all: Vec<Vec<f64>> = contexts
        .map(|known| {
            let distribution = engine.distribution(Position::from(&known[..]), &params, version);
            distribution.iter().map(|probability| probability.ln()).collect()
        })
        .collect();
    for (ids, logprobs) in [("teacher_top_ids", "teacher_top_logprobs"), ("top_ids", "teacher_logprobs_of_top_ids")] {
        let (ids, logprobs) = (u32s(&values(export, ids).unwrap().1), floats(&values(export, logprobs).unwrap().1));
        let width = ids.len() / all.len();
        let truth: Vec<f64> = ids.iter().enumerate().map(|(at, id)| all[at / width][*id as usize]).collect();
        assert_close(&logprobs, &truth, 1e-5, "the logprobs of further tokens");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn further_column_after_an_update_of_weights_is_of_the_same_weights_as_the_others() {
    let demo = demo_with(&["--columns", "top_logprobs", "--top-logprobs", "4"]).await;
    let turns = conversation(&demo, "s").await;
    let score = async |options: Value| {
        let mut request = json!({"teacher": "self", "sessions": ["s"]});
        request.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let answer = control(&demo, "/v1/teacher-scores", &request).await;
        assert_eq!((answer.status, &answer.json()["rows"][0]["scored"]), (200, &json!(12)), "{}", answer.text());
    };
    score(json!({"top_logprobs": 3})).await;
    update(demo.direct).await;
    score(json!({"logprobs_of_top_ids": true})).await;
    let export = control(&demo, "/v1/samples", &json!({"sessions": ["s"], "format": "jsonl", "scores": "self"})).await;
    assert_eq!(values(&export, "teacher_top_ids").unwrap().0, json!([3]), "the stored column is there");
    assert_one_state(&demo.engine, &export, &turns, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn columns_of_requests_at_the_same_time_are_all_kept() {
    let teacher = Teacher::start().await;
    let (addr, paths, both) = (teacher.addr, AtomicUsize::new(0), Barrier::new(2));
    let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
    let slow = Upstream::start(profile, move |asked| {
        let is_path = asked.json()["logprob_start_len"].is_number();
        if is_path && paths.fetch_add(1, Ordering::Relaxed) < 2 {
            // until the other request is here
            tokio::task::block_in_place(|| both.wait());
        }
        FakeReply::Forward(addr)
    })
    .await;
    let named = format!("t=http://{}", slow.addr);
    let demo = demo_with(&["--teacher", &named, "--columns", "top_logprobs", "--top-logprobs", "4"]).await;
    let turns = conversation(&demo, "s").await;
    let request = |option: &str, value: Value| json!({"teacher": "t", "sessions": ["s"], option: value});
    let (likeliest, of_student) = (request("top_logprobs", json!(3)), request("logprobs_of_top_ids", json!(true)));
    let (one, other) = tokio::join!(
        control(&demo, "/v1/teacher-scores", &likeliest),
        control(&demo, "/v1/teacher-scores", &of_student),
    );
    assert_eq!((one.status, other.status), (200, 200), "{} {}", one.text(), other.text());
    let export = control(&demo, "/v1/samples", &json!({"sessions": ["s"], "format": "jsonl", "scores": "t"})).await;
    assert_one_state(&teacher.engine, &export, &turns, 1);
    for request in [likeliest, of_student] {
        let again = control(&demo, "/v1/teacher-scores", &request).await.json();
        assert_eq!(again["rows"][0]["scored"], 0, "nothing is missing: {again}");
    }
}

/// The reply to a request for logprobs, in the form of SGLang.
fn scored(asked: &Value) -> Value {
    let ids = asked["input_ids"].as_array().unwrap();
    let start = usize::try_from(asked["logprob_start_len"].as_u64().unwrap()).unwrap();
    let entry = |(at, id): (usize, &Value)| json!([if at == 0 { Value::Null } else { json!(-1.5) }, id, null]);
    let entries: Vec<Value> = ids[start..].iter().enumerate().map(entry).collect();
    json!({"text": "", "meta_info": {"id": "r", "input_token_logprobs": entries}})
}

#[tokio::test(flavor = "multi_thread")]
async fn teacher_beyond_the_limits_of_a_reply_leaves_rows_unscored() {
    let teacher = Teacher::start().await;
    let (addr, mode) = (teacher.addr, Arc::new(AtomicUsize::new(0)));
    let chosen = Arc::clone(&mode);
    let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
    let strange = Upstream::start(profile, move |asked| {
        let request = asked.json();
        if !request["logprob_start_len"].is_number() {
            return FakeReply::Forward(addr);
        }
        let body = scored(&request).to_string();
        match chosen.load(Ordering::Relaxed) {
            0 => FakeReply::Silence,
            1 => json_message(200, format!("{body}{}", " ".repeat(1 << 20)).as_bytes()),
            _ => json_message(200, body.as_bytes()),
        }
    })
    .await;
    let demo = demo_with(&["--teacher", &format!("t=http://{}", strange.addr), "--upstream-timeout", "2s"]).await;
    conversation(&demo, "s").await;
    let request = json!({"teacher": "t", "sessions": ["s"]});
    for (number, part) in ["did not answer in time", "is larger than"].into_iter().enumerate() {
        mode.store(number, Ordering::Relaxed);
        let failed = control(&demo, "/v1/teacher-scores", &request).await;
        assert_eq!((failed.status, &failed.json()["error"]["code"]), (502, &json!("teacher_failed")));
        assert!(failed.text().contains(part), "{}", failed.text());
        let export = control(&demo, "/v1/samples", &json!({"sessions": ["s"], "format": "jsonl", "scores": "t"})).await;
        assert_eq!(column(&export), None, "the row has no scores");
    }
    mode.store(2, Ordering::Relaxed);
    let found = control(&demo, "/v1/teacher-scores", &request).await;
    assert_eq!((found.status, &found.json()["rows"][0]["scored"]), (200, &json!(12)), "{}", found.text());
}

/// An engine that reports the path of a folder of this machine, and no size of its vocabulary.
#[tokio::test(flavor = "multi_thread")]
async fn no_file_is_opened_at_the_path_that_a_teacher_reports() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), br#"{"vocab_size":7}"#).unwrap();
    let teacher = Teacher::start().await;
    let (addr, folder) = (teacher.addr, dir.path().to_str().unwrap().to_owned());
    let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
    let remote = Upstream::start(profile, move |asked| match &*asked.path {
        "/model_info" => json_message(200, json!({"model_path": folder, "is_generation": true}).to_string().as_bytes()),
        "/generate" if asked.json()["sampling_params"]["logit_bias"].is_object() => json_message(400, b"{}"),
        _ => FakeReply::Forward(addr),
    })
    .await;
    let demo = demo(&[format!("t=http://{}", remote.addr)]).await;
    conversation(&demo, "s").await;
    let answer = control(&demo, "/v1/teacher-scores", &json!({"teacher": "t", "sessions": ["s"]})).await;
    assert_eq!((answer.status, &answer.json()["rows"][0]["scored"]), (200, &json!(12)), "{}", answer.text());
}

/// The student's vocabulary is not known, so that its size cannot be compared with the teacher's.
#[tokio::test(flavor = "multi_thread")]
async fn ids_beyond_the_vocabulary_of_the_teacher_are_not_sent() {
    let teacher = Teacher::start().await;
    let (addr, paths) = (teacher.addr, Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&paths);
    let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
    let small = Upstream::start(profile, move |asked| {
        let request = asked.json();
        if request["sampling_params"]["logit_bias"].is_object() {
            let message = "token id 2000000000 in logit_bias must be in [0, 400)";
            return json_message(400, json!({"error": {"message": message}}).to_string().as_bytes());
        }
        count.fetch_add(usize::from(request["logprob_start_len"].is_number()), Ordering::Relaxed);
        FakeReply::Forward(addr)
    })
    .await;
    let student = Upstream::start(EngineProfile { vocab: None, ..EngineProfile::default() }, |asked| {
        let ids = asked.json()["input_ids"].as_array().cloned().unwrap_or_default();
        let meta = json!({
            "id": "r", "finish_reason": {"type": "stop"}, "prompt_tokens": ids.len(), "completion_tokens": 2,
            "output_token_logprobs": [[-0.5, 7, null], [-0.5, 8, null]],
        });
        json_message(200, json!({"text": "", "output_ids": [7, 8], "meta_info": meta}).to_string().as_bytes())
    })
    .await;
    let flags = ["--teacher", &format!("small=http://{}", small.addr), "--entropy", "off"];
    let proxy = Proxy::probed(student.addr, &flags).await;
    for (session, last, status) in [("within", 399, 200), ("beyond", 400, 409)] {
        let body = json!({"input_ids": [5, last], "sampling_params": {"temperature": 1}, "return_logprob": true});
        let path = format!("/sessions/{session}/generate");
        let answer = post(proxy.data, &path, body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let request = json!({"teacher": "small", "sessions": [session]}).to_string();
        let found = post(proxy.control, "/v1/teacher-scores", request.as_bytes()).await;
        assert_eq!(found.status, status, "{session}: {}", found.text());
        assert_eq!(paths.load(Ordering::Relaxed), 1, "{session}");
        if status == 409 {
            assert!(found.text().contains("400 entries, and the paths have token 400"), "{}", found.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_url_is_a_teacher_by_default() {
    let (teacher, demo) = (Teacher::start().await, demo(&[]).await);
    conversation(&demo, "s").await;
    let (succeeded, _, error) = command(&demo, &["--teacher", &format!("http://{}", teacher.addr)]).await;
    assert!(!succeeded && error.contains("403") && error.contains("--teacher-host"), "{error}");
    let (succeeded, stdout, error) = command(&demo, &["--teacher", "self"]).await;
    assert!(succeeded && stdout.contains("\"tokens\":12"), "{stdout}{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn teacher_that_dies_leaves_rows_unscored_and_the_request_resumes() {
    let teacher = Teacher::start().await;
    let (addr, asked) = (teacher.addr, Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&asked);
    let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
    // the third path and those after it get no answer, until the teacher is back
    let flaky = Upstream::start(profile, move |request| {
        let is_path = request.json()["logprob_start_len"].is_number();
        let number = if is_path { counter.fetch_add(1, Ordering::Relaxed) } else { 0 };
        if (2..30).contains(&number) { FakeReply::Close(Vec::new()) } else { FakeReply::Forward(addr) }
    })
    .await;
    let demo = demo(&[format!("t=http://{}", flaky.addr)]).await;
    let names: Vec<String> = (0..12).map(|number| format!("s{number}")).collect();
    for name in &names {
        turn(&demo, name, &[299, 467], 1.0).await;
    }
    let request = json!({"teacher": "t", "sessions": names});
    let failed = control(&demo, "/v1/teacher-scores", &request).await;
    assert_eq!((failed.status, &failed.json()["error"]["code"]), (502, &json!("teacher_failed")));
    assert!(failed.text().contains("2 of 12 paths are scored"), "{}", failed.text());
    // eight at once: no further path is begun after a failure
    assert!(asked.load(Ordering::Relaxed) <= 10, "{asked:?}");
    asked.store(30, Ordering::Relaxed);
    let found = control(&demo, "/v1/teacher-scores", &request).await.json();
    let counts = |name: &str| found["rows"].as_array().unwrap().iter().filter(|row| row[name] == 6).count();
    assert_eq!((counts("scored"), counts("skipped")), (10, 2), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_survive_a_restart() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let binary = alone.start_binary(&dir, &[]).await;
    let sampling = json!({"max_new_tokens": 6, "ignore_eos": true, "temperature": 1});
    let body = json!({"input_ids": [299, 467], "sampling_params": sampling});
    let answer = post(binary.data, "/sessions/s/generate", body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let request = json!({"teacher": "self", "sessions": ["s"], "top_logprobs": 3}).to_string();
    let first = post(binary.control, "/v1/teacher-scores", request.as_bytes()).await.json();
    assert_eq!(first["rows"][0]["scored"], 6, "{first}");
    let export = json!({"sessions": ["s"], "format": "jsonl", "scores": "self"}).to_string();
    let before = post(binary.control, "/v1/samples", export.as_bytes()).await;
    binary.kill();
    let binary = alone.start_binary(&dir, &[]).await;
    let after = post(binary.control, "/v1/samples", export.as_bytes()).await;
    assert_eq!((column(&after).unwrap().len(), column(&after)), (6, column(&before)));
    let (shape, likeliest) = values(&after, "teacher_top_logprobs").unwrap();
    assert_eq!((shape, likeliest.len()), (json!([3]), 6 * 3 * 4));
    assert_eq!(Some(likeliest), values(&before, "teacher_top_logprobs").map(|(_, data)| data));
}

/// A teacher of the same family has the tokenizer of the student, and pads its vocabulary to another size.
#[tokio::test(flavor = "multi_thread")]
async fn teacher_with_the_same_tokenizer_and_another_size_scores() {
    let teacher = Teacher::start().await;
    let addr = teacher.addr;
    let profile = EngineProfile { tokenizes: true, ..EngineProfile::default() };
    let padded = Upstream::start(profile, move |_| FakeReply::Forward(addr)).await;
    let demo = demo(&[format!("padded=http://{}", padded.addr)]).await;
    let turns = conversation(&demo, "s").await;
    let answer = control(&demo, "/v1/teacher-scores", &json!({"teacher": "padded", "sessions": ["s"]})).await;
    assert_eq!((answer.status, &answer.json()["rows"][0]["scored"]), (200, &json!(12)), "{}", answer.text());
    let export =
        control(&demo, "/v1/samples", &json!({"sessions": ["s"], "format": "jsonl", "scores": "padded"})).await;
    let expected: Vec<f64> = turns.iter().flat_map(|(before, sampled, _)| teacher.logprobs(before, sampled)).collect();
    assert_close(&column(&export).unwrap(), &expected, 1e-5, "the teacher's logprobs");
}

#[tokio::test(flavor = "multi_thread")]
async fn path_that_the_teacher_refuses_does_not_stop_the_others() {
    let teacher = Teacher::start().await;
    let addr = teacher.addr;
    let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
    let short = Upstream::start(profile, move |asked| {
        let is_long =
            &*asked.path == "/generate" && asked.json()["input_ids"].as_array().is_some_and(|ids| ids.len() > 10);
        if is_long {
            json_message(400, br#"{"error":{"message":"the input is longer than the model's context length"}}"#)
        } else {
            FakeReply::Forward(addr)
        }
    })
    .await;
    let demo = demo(&[format!("short=http://{}", short.addr)]).await;
    conversation(&demo, "a-long").await;
    turn(&demo, "b-short", &[299, 467], 1.0).await;
    let (succeeded, stdout, error) = command(&demo, &["--teacher", "short"]).await;
    assert!(!succeeded, "a path has no scores: {error}");
    for part in [
        "path 1 of session \"a-long\": the engine answered 400",
        "longer than the model's context length",
        "scored 6 tokens of 2 sessions",
        "short refused 1 of the paths",
    ] {
        assert!(error.contains(part), "{part:?} in {error}");
    }
    let mismatch: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(mismatch["tokens"], 6, "that of the other path");
    let sessions = json!(["a-long", "b-short"]);
    let again = control(&demo, "/v1/teacher-scores", &json!({"teacher": "short", "sessions": sessions})).await.json();
    let [long, other] = [&again["rows"][0], &again["rows"][1]];
    assert_eq!((&long["scored"], &long["skipped"]), (&json!(0), &json!(0)), "{again}");
    assert!(long["error"].as_str().unwrap().contains("400"), "{again}");
    assert_eq!((&other["skipped"], other.get("error")), (&json!(6), None), "{again}");
}
