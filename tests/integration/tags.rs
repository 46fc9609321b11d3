// SPDX-License-Identifier: Apache-2.0
//! Tags of sessions: set by calls and by the control port, kept, exported, and selected by.

use serde_json::{Value, json};
use tempfile::tempdir;
use tokentap::demo::EngineOptions;

use crate::support::binary::output;
use crate::support::client::{Answer, get, request};
use crate::support::demo::Demo;

const JSON: (&str, &str) = ("content-type", "application/json");

async fn demo(flags: &[&str]) -> Demo {
    Demo::start(EngineOptions::default(), &[&["--chat", "passthrough"], flags].concat()).await
}

async fn generate(demo: &Demo, target: &str, tags: Option<&str>, more: &Value) -> Answer {
    let mut body = json!({"input_ids": [299, 467], "sampling_params": {"max_new_tokens": 2, "ignore_eos": true}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let headers: Vec<_> = [JSON].into_iter().chain(tags.map(|tags| ("x-tokentap-tags", tags))).collect();
    request(demo.proxy.data, "POST", target, &headers, body.to_string().as_bytes()).await
}

async fn put(demo: &Demo, session: &str, tags: &Value) -> Answer {
    let target = format!("/v1/sessions/{session}/tags");
    request(demo.proxy.control, "PUT", &target, &[JSON], tags.to_string().as_bytes()).await
}

async fn tags(demo: &Demo, session: &str) -> Value {
    get(demo.proxy.control, &format!("/v1/sessions/{session}")).await.json()["tags"].clone()
}

async fn freeze(demo: &Demo, session: &str) {
    let frozen = request(demo.proxy.control, "POST", &format!("/v1/sessions/{session}/freeze"), &[], b"").await;
    assert_eq!(frozen.status, 200, "{}", frozen.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_tag_their_session() {
    let demo = demo(&[]).await;
    let body = json!({"session_tags": {"step": 16, "lr": 1e-6, "eval": true, "where": "body"}});
    let first =
        generate(&demo, "/sessions/s/generate?session_tags=step=17,where=query", Some("step=18,task=a%2Cb"), &body);
    assert_eq!(first.await.status, 200);
    let expected = json!({"step": "18", "task": "a,b", "lr": "1e-6", "eval": "true", "where": "query"});
    assert_eq!(tags(&demo, "s").await, expected, "header, query, body");
    assert_eq!(generate(&demo, "/sessions/s/generate", Some("step=19"), &json!({})).await.status, 200);
    assert_eq!(tags(&demo, "s").await["step"], "19", "later values replace");
    assert_eq!(tags(&demo, "s").await["where"], "query", "others stay");
    assert_eq!(generate(&demo, "/sessions/t/generate", None, &json!({})).await.status, 200);
    assert_eq!(tags(&demo, "t").await, Value::Null);
    let rows = get(demo.proxy.control, "/v1/sessions").await.json();
    assert_eq!(rows["sessions"][0]["tags"]["step"], "19");
}

#[tokio::test(flavor = "multi_thread")]
async fn space_of_a_query_may_be_a_plus() {
    let demo = demo(&[]).await;
    let path = "/sessions/s/generate?session_tags=task=big+bench,sum=1%2B1";
    assert_eq!(generate(&demo, path, None, &json!({})).await.status, 200);
    assert_eq!(tags(&demo, "s").await, json!({"task": "big bench", "sum": "1+1"}));
    for conditions in ["task%3Dbig+bench", "task+%3D+big%20bench", "sum=1%2B1"] {
        let rows = get(demo.proxy.control, &format!("/v1/sessions?where={conditions}")).await.json();
        assert_eq!(rows["sessions"].as_array().unwrap().len(), 1, "{conditions}: {rows}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_tags_are_refused_with_the_rule() {
    let demo = demo(&[]).await;
    for (target, header, body, message) in [
        ("/generate", Some("step"), json!({}), r#"the header x-tokentap-tags: "step" is not NAME=VALUE"#),
        (
            "/generate?session_tags=a%20b=1",
            None,
            json!({}),
            r#"the query member session_tags: "a b" cannot name a tag"#,
        ),
        ("/generate", None, json!({"session_tags": 7}), "the body member session_tags: tags are a JSON object"),
        ("/v1/chat/completions", Some("=1"), json!({"messages": []}), r#""" cannot name a tag"#),
    ] {
        let answer = generate(&demo, target, header, &body).await;
        assert_eq!(answer.status, 400, "{target}: {}", answer.text());
        let text = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(text.contains(message) && text.contains("at most 32 tags"), "{target}: {text}");
    }
    assert_eq!(generate(&demo, "/sessions/s/generate", None, &json!({})).await.status, 200);
    for bad in [json!([]), json!({"a": null}), json!({"a b": 1})] {
        let answer = put(&demo, "s", &bad).await;
        assert!(answer.status == 400 && answer.text().contains("at most 32 tags"), "{bad}: {}", answer.text());
    }
    let many: serde_json::Map<String, Value> = (0..32).map(|at| (format!("t{at}"), at.into())).collect();
    assert_eq!(put(&demo, "s", &many.into()).await.status, 200);
    let answer = generate(&demo, "/sessions/s/generate", Some("t0=x,u=1"), &json!({})).await;
    assert!(answer.status == 400 && answer.text().contains("has 32 tags"), "{}", answer.text());
    assert_eq!(put(&demo, "unknown", &json!({})).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_are_final_once_a_version_is_frozen() {
    let demo = demo(&[]).await;
    assert_eq!(generate(&demo, "/sessions/s/generate", Some("step=1,task=x"), &json!({})).await.status, 200);
    assert_eq!(put(&demo, "s", &json!({"step": 2})).await.json(), json!({"session": "s", "tags": {"step": "2"}}));
    assert_eq!(put(&demo, "s", &json!({})).await.json(), json!({"session": "s", "tags": {}}));
    assert_eq!(put(&demo, "s", &json!({"step": 2})).await.status, 200);
    freeze(&demo, "s").await;
    let finished = get(demo.proxy.control, "/v1/trajectories?limit=1").await.json();
    assert_eq!(
        (&finished["session"], &finished["tags"]),
        (&json!("s"), &json!({"step": "2"})),
        "also of finished paths"
    );
    assert_eq!(put(&demo, "s", &json!({"step": 2})).await.status, 200, "they do not change");
    let late = put(&demo, "s", &json!({"step": 3})).await;
    assert_eq!((late.status, &late.json()["error"]["code"]), (409, &json!("frozen")), "{}", late.text());
    let call = generate(&demo, "/sessions/s/generate", Some("step=3"), &json!({})).await;
    assert_eq!((call.status, &call.json()["error"]["code"]), (409, &json!("frozen")), "{}", call.text());
    assert!(call.text().contains("its tags are final"), "{}", call.text());
    let same = generate(&demo, "/sessions/s/generate", Some("step=2"), &json!({})).await;
    assert_eq!((same.status, tags(&demo, "s").await), (200, json!({"step": "2"})));
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_are_restored_exported_and_selected_by() {
    let dir = tempdir().unwrap();
    let data_dir = dir.path().join("log");
    let data = data_dir.to_str().unwrap();
    let demo = demo(&["--data-dir", data]).await;
    for (session, header) in [("a", Some("step=17,task=x")), ("b", Some("step=9")), ("c", None)] {
        assert_eq!(generate(&demo, &format!("/sessions/{session}/generate"), header, &json!({})).await.status, 200);
    }
    assert_eq!(generate(&demo, "/sessions/b/generate", None, &json!({"input_ids": [11]})).await.status, 200);
    assert_eq!(put(&demo, "b", &json!({"step": 18, "split": "test"})).await.status, 200);
    let listed = get(demo.proxy.control, "/v1/sessions/a/trajectories").await.json();
    assert_eq!(listed["trajectories"][0]["tags"], json!({"step": "17", "task": "x"}));
    let control = format!("http://{}", demo.proxy.control);
    let sources: [&[&str]; 2] = [&["--control", &control], &["--data-dir", data]];
    for source in sources {
        for (conditions, expected) in [
            ("step=17", vec![("a", json!({"step": "17", "task": "x"}))]),
            ("step>17", vec![("b", json!({"split": "test", "step": "18"}))]),
            ("turns=2,split=test", vec![("b", json!({"split": "test", "step": "18"}))]),
            ("session=c", vec![("c", Value::Null)]),
            ("step!=17,turns=1", vec![]),
        ] {
            let out = dir.path().join("rows.jsonl");
            let out = out.to_str().unwrap();
            let args = [&["export", "--format", "jsonl", "--out", out, "--where", conditions, "--no-branches"], source];
            let ended = output(&args.concat()).await;
            assert!(ended.status.success(), "{conditions}: {}", String::from_utf8_lossy(&ended.stderr));
            let rows: Vec<Value> =
                std::fs::read_to_string(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let found: Vec<(&str, Value)> = rows
                .iter()
                .map(|row| {
                    let tags = row["tags"].as_str().map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
                    (row["session"].as_str().unwrap(), tags)
                })
                .collect();
            assert_eq!(found, expected, "{source:?} {conditions}");
        }
        let bad = output(&[&["export", "--format", "jsonl", "--out", "-", "--where", "step"], source].concat()).await;
        let text = String::from_utf8_lossy(&bad.stderr).into_owned();
        assert!(!bad.status.success() && text.contains("--where: \"step\" is not a condition"), "{text}");
    }
}
