// SPDX-License-Identifier: Apache-2.0
//! Replays exchanges recorded from real servers through tokentap: the client gets the recorded bytes plus the entropy members, without
//! the members that tokentap forced.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::support::client::{Answer, request};
use crate::support::fixture::Fixture;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Upstream, message};

/// The header with the name of the recording; tokentap forwards headers.
const WHICH: &str = "x-recording";

fn profile(server: &str, incremental: bool) -> EngineProfile {
    EngineProfile {
        flat: server == "sglang-0.5.23",
        jax: server == "sglang-jax",
        streaming: if incremental { "incremental" } else { "cumulative" },
        ..EngineProfile::default()
    }
}

/// A replaying upstream with a tokentap in front of it.
pub(crate) struct Replay {
    pub(crate) upstream: Upstream,
    pub(crate) proxy: Proxy,
}

impl Replay {
    pub(crate) async fn start(server: &str, incremental: bool, flags: &[&str]) -> Self {
        let recordings: HashMap<String, Fixture> =
            Fixture::all().into_iter().map(|fixture| (fixture.name.clone(), fixture)).collect();
        let upstream = Upstream::start(profile(server, incremental), move |asked| {
            let recording = &recordings[asked.header(WHICH).expect("the header is forwarded")];
            let headers: Vec<(&str, &str)> = recording
                .reply_headers
                .iter()
                .filter(|(key, _)| !["connection", "transfer-encoding", "content-length"].contains(&key.as_str()))
                .map(|(key, value)| (key.as_str(), value.as_str()))
                .collect();
            if !recording.is_stream() {
                return FakeReply::KeepAlive(vec![message(recording.status, &headers, &recording.reply)]);
            }
            let mut headers = headers;
            headers.push(("transfer-encoding", "chunked"));
            let mut reply = vec![message(recording.status, &headers, b"")];
            // pieces of odd sizes, so that events are split at arbitrary bytes
            for piece in recording.reply.chunks(1_337) {
                reply.push([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
            }
            reply.push(b"0\r\n\r\n".to_vec());
            FakeReply::KeepAlive(reply)
        })
        .await;
        let proxy = Proxy::probed(upstream.addr, flags).await;
        Self { upstream, proxy }
    }

    pub(crate) async fn ask(&self, fixture: &Fixture, body: &[u8]) -> Answer {
        let mut headers: Vec<(&str, &str)> =
            fixture.headers.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        headers.push((WHICH, &fixture.name));
        request(self.proxy.data, &fixture.method, &fixture.path, &headers, body).await
    }
}

/// The recordings of a server, either of the incremental set or of the others.
pub(crate) fn recordings(server: &str, incremental: bool) -> Vec<Fixture> {
    let is_incremental = |fixture: &Fixture| fixture.name.contains("/incremental/");
    Fixture::all()
        .into_iter()
        .filter(|fixture| fixture.server() == server && is_incremental(fixture) == incremental)
        .collect()
}

const SERVERS: [(&str, bool); 4] =
    [("sglang-0.5.23", false), ("sglang-0.5.23", true), ("sglang-0.5.6.post2", false), ("sglang-jax", false)];

/// Removes a member that tokentap appended. Its value must have no nested bracket of the same kind.
fn without(mut text: Vec<u8>, key: &str, close: u8) -> Vec<u8> {
    let key = format!(",\"{key}\":");
    while let Some(start) = memchr::memmem::find(&text, key.as_bytes()) {
        let length = text[start + key.len()..].iter().position(|byte| *byte == close).unwrap();
        text.drain(start..=start + key.len() + length);
    }
    text
}

fn without_entropy(text: &[u8]) -> Vec<u8> {
    without(without(text.to_vec(), "output_token_entropy", b']'), "entropy_info", b'}')
}

/// Whether the guard rejects the request before it reaches the engine.
fn is_guarded(fixture: &Fixture) -> bool {
    let body = fixture.request();
    let empty = |value: &Value| value == "" || value.as_array().is_some_and(|list| list.contains(&json!("")));
    let k = body["top_logprobs_num"].as_i64().unwrap_or(0);
    let rids =
        body["rid"].as_array().map(|rids| rids.iter().collect::<std::collections::HashSet<_>>().len() < rids.len());
    empty(&body["text"]) || k > 1024 || rids == Some(true) || fixture.name.contains("token-ids-logprob-oov")
}

#[tokio::test(flavor = "multi_thread")]
async fn recordings_are_replayed_with_entropy_members_added() {
    for (server, incremental) in SERVERS {
        let replay = Arc::new(Replay::start(server, incremental, &["--allow-control", "--chat", "passthrough"]).await);
        let mut generations = 0;
        for fixture in recordings(server, incremental) {
            if fixture.method == "HEAD" || fixture.is_generate() && is_guarded(&fixture) {
                continue;
            }
            let answer = replay.ask(&fixture, &fixture.body).await;
            let name = &fixture.name;
            assert_eq!(answer.status, fixture.status, "{name}: {}", answer.text());
            assert!(answer.complete, "{name} is complete");
            let own = ["date", "connection", "content-length", "transfer-encoding", "location"];
            for (key, value) in fixture.reply_headers.iter().filter(|(key, _)| !own.contains(&key.as_str())) {
                assert_eq!(answer.header(key), Some(value.as_str()), "{name}: {key}");
            }
            // tokentap rewrites the redirect to its own address
            let location = fixture.reply_headers.iter().find(|(key, _)| key == "location");
            let path = location.and_then(|(_, to)| to.parse::<http::Uri>().ok());
            assert_eq!(answer.header("location"), path.as_ref().map(http::Uri::path), "{name}");
            let plain = without_entropy(&answer.body);
            assert_eq!(String::from_utf8_lossy(&plain), String::from_utf8_lossy(&fixture.reply), "{name}");
            if fixture.is_success() && fixture.objects().iter().any(|object| !object["meta_info"].is_null()) {
                assert!(answer.body.len() > plain.len(), "{name} has entropy members");
                generations += 1;
            }
        }
        assert!(generations >= 5, "{server}: {generations} generations");
    }
}

/// The members of a JSON object in order, each value unparsed.
#[derive(Debug)]
struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> serde::Deserialize<'de> for Members {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Members;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

impl Members {
    fn print(&self) -> String {
        let members: Vec<String> = self
            .0
            .iter()
            .map(|(key, value)| format!("{}:{}", serde_json::to_string(key).unwrap(), value.get()))
            .collect();
        format!("{{{}}}", members.join(","))
    }
}

/// The recorded object without its logprob members. SGLang prints compact JSON, so the rest can be reassembled exactly.
fn without_logprobs(object: &str, keep: &dyn Fn(&str) -> bool) -> String {
    let mut members: Members = serde_json::from_str(object).unwrap();
    for (key, value) in &mut members.0 {
        if key == "meta_info" {
            let mut meta: Members = serde_json::from_str(value.get()).unwrap();
            meta.0.retain(|(key, _)| keep(key));
            *value = RawValue::from_string(meta.print()).unwrap();
        }
    }
    members.print()
}

fn whole_without(fixture: &Fixture, keep: &dyn Fn(&str) -> bool) -> String {
    let text = String::from_utf8(fixture.reply.clone()).unwrap();
    if fixture.is_stream() {
        let event = |event: &str| match event.strip_prefix("data: ") {
            Some(data) if data.starts_with('{') => format!("data: {}", without_logprobs(data, keep)),
            _ => event.to_owned(),
        };
        return text.split("\n\n").map(event).collect::<Vec<_>>().join("\n\n");
    }
    if text.starts_with('[') {
        let items: Vec<Box<RawValue>> = serde_json::from_str(&text).unwrap();
        let items: Vec<String> = items.iter().map(|item| without_logprobs(item.get(), keep)).collect();
        return format!("[{}]", items.join(","));
    }
    without_logprobs(&text, keep)
}

fn is_logprob_member(key: &str) -> bool {
    let rest = key.strip_prefix("input_").or_else(|| key.strip_prefix("output_"));
    rest.is_some_and(|rest| {
        ["token_logprobs", "top_logprobs", "token_ids_logprobs"].iter().any(|name| rest.starts_with(name))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_logprobs_are_removed_from_recordings() {
    let mut checked = 0;
    for (server, incremental) in SERVERS {
        let flags: &[&str] = if server == "sglang-jax" { &["--entropy", "always"] } else { &[] };
        let replay = Replay::start(server, incremental, flags).await;
        for fixture in recordings(server, incremental) {
            let mut body = fixture.request();
            let has_rows =
                fixture.is_success() && String::from_utf8_lossy(&fixture.reply).contains("\"output_top_logprobs");
            if !has_rows || body["return_logprob"] != true || server == "sglang-jax" && fixture.is_stream() {
                continue;
            }
            let object = body.as_object_mut().unwrap();
            object.retain(|key, _| !key.contains("logprob"));
            object.insert("logprob_start_len".into(), json!(0));
            object.insert("token_ids_logprob".into(), json!([1, 2]));
            let before = replay.upstream.asked().len();
            let answer = replay.ask(&fixture, body.to_string().as_bytes()).await;
            let expected = whole_without(&fixture, &|key| !is_logprob_member(key));
            let name = &fixture.name;
            assert_eq!(String::from_utf8_lossy(&without_entropy(&answer.body)), expected, "{name}");
            let measured = answer.text().contains("\"source\":\"top_k\"");
            assert!(
                measured || body["sampling_params"]["max_new_tokens"] == 0,
                "{name} was measured: {}",
                answer.text()
            );

            let asked = replay.upstream.asked()[before..].to_vec();
            assert_eq!(asked.len(), 1, "{name} was asked once");
            let upstream = asked[0].json();
            assert_eq!(upstream["return_logprob"], true, "{name}");
            assert_eq!(upstream["top_logprobs_num"], 20, "{name}");
            assert_eq!(upstream["logprob_start_len"], -1, "{name}: a member without effect does not take effect");
            assert_eq!(upstream["token_ids_logprob"], Value::Null, "{name}");
            let flat = server == "sglang-0.5.23" && !fixture.is_stream();
            assert_eq!(upstream["return_flat_raw_top_logprobs_b64"] == true, flat, "{name}");
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked} recordings");
}

#[tokio::test(flavor = "multi_thread")]
async fn smaller_top_k_is_cut_from_the_forced_rows() {
    let mut checked = 0;
    for (server, incremental) in [("sglang-0.5.23", false), ("sglang-0.5.23", true), ("sglang-0.5.6.post2", false)] {
        let replay = Replay::start(server, incremental, &[]).await;
        for fixture in recordings(server, incremental) {
            let mut body = fixture.request();
            if !fixture.is_success() || body["top_logprobs_num"].as_u64().is_none_or(|k| k <= 2) {
                continue;
            }
            if body["logprob_start_len"].as_i64().unwrap_or(-1) >= 0 {
                continue; // the prompt shares this k, so the client's k is sent and nothing is cut
            }
            body["top_logprobs_num"] = json!(2);
            let answer = replay.ask(&fixture, body.to_string().as_bytes()).await;
            let objects = if fixture.is_stream() {
                answer.events()
            } else {
                answer.json().as_array().cloned().unwrap_or_else(|| vec![answer.json()])
            };
            for (ours, recorded) in objects.iter().zip(fixture.objects()) {
                let mut expected = recorded["meta_info"].clone();
                for side in ["input_top_logprobs", "output_top_logprobs"] {
                    for row in expected.get_mut(side).and_then(Value::as_array_mut).into_iter().flatten() {
                        if let Some(row) = row.as_array_mut() {
                            row.truncate(2);
                        }
                    }
                    if let Some([rows, k]) = expected[format!("{side}_shape")].as_array().map(Vec::as_slice) {
                        let (rows, k) = (rows.clone(), k.as_u64().unwrap() as usize);
                        expected[format!("{side}_shape")] = json!([rows, 2]);
                        for list in ["val_flat", "idx_flat"] {
                            let key = format!("{side}_{list}");
                            if let Some(values) = expected[&key].as_array() {
                                expected[&key] = values.chunks(k).flat_map(|row| row[..2].to_vec()).collect();
                            }
                            let key = format!("{key}_b64");
                            if let Some(text) = expected[&key].as_str() {
                                let raw = base64_simd::STANDARD.decode_to_vec(text).unwrap();
                                let kept: Vec<u8> = raw.chunks(k * 4).flat_map(|row| row[..8].to_vec()).collect();
                                expected[&key] = json!(base64_simd::STANDARD.encode_to_string(kept));
                            }
                        }
                    }
                }
                let mut got = ours["meta_info"].clone();
                got.as_object_mut().unwrap().retain(|key, _| !key.contains("entropy"));
                assert_eq!(got, expected, "{}", fixture.name);
            }
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked} recordings");
}
