// SPDX-License-Identifier: Apache-2.0
//! A tokentap whose upstream is another tokentap.

use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, Streaming};

use super::support::binary::output;
use super::support::client::{Answer, post};
use super::support::demo::Demo;
use super::support::proxy::Proxy;

/// The members that tokentap adds, all of them requested.
const MEMBERS: [&str; 5] = [
    "output_token_entropy",
    "entropy_info",
    "output_token_entropy_lower",
    "output_token_entropy_upper",
    "output_token_stats",
];

async fn generate(proxy: &Proxy, body: &Value) -> Answer {
    let answer = post(proxy.data, "/generate", body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// The texts of the objects of a reply.
fn objects(answer: &Answer) -> Vec<String> {
    let text = answer.text();
    match text.starts_with("data: ") {
        true => text.split("\n\n").filter_map(|event| event.strip_prefix("data: {")).map(str::to_owned).collect(),
        false => vec![text],
    }
}

#[tokio::test]
async fn members_of_the_inner_tokentap_are_replaced_and_never_exact() {
    for streaming in [Streaming::Incremental, Streaming::Cumulative] {
        let demo = Demo::start(EngineOptions { streaming, ..EngineOptions::default() }, &["--entropy", "always"]).await;
        let outer = Proxy::probed(demo.proxy.data, &[]).await;
        for stream in [false, true] {
            let mut body = json!({"input_ids": [5, 6, 7], "stream": stream, "entropy_options": {"bounds": true, "stats": true},
                "sampling_params": {"max_new_tokens": 4, "ignore_eos": true, "sampling_seed": 7}});
            let answer = generate(&outer, &body).await;
            let objects = objects(&answer);
            let last = objects.last().unwrap();
            for name in MEMBERS {
                let key = format!("\"{name}\":");
                assert!(objects.iter().all(|object| object.matches(&key).count() <= 1), "{name}: {}", answer.text());
                assert_eq!(last.matches(&key).count(), 1, "{name}: {last}");
            }
            assert!(last.contains(r#""entropy_info":{"source":"top_k""#), "{last}");
            // the inner tokentap does not get the options, so these numbers are the outer one's
            assert!(!last.contains(r#""output_token_entropy_lower":[]"#), "{last}");
            body["return_entropy"] = json!(false);
            let text = generate(&outer, &body).await.text();
            assert!(!text.contains("entropy"), "the inner tokentap adds them to every reply: {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_names_the_other_tokentap() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let done = output(&["check", "--upstream", &format!("http://{}", demo.proxy.data)]).await;
    let text = String::from_utf8(done.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("warn  exact")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("another tokentap"), "{text}");
}
