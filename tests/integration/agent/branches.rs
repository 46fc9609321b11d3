// SPDX-License-Identifier: Apache-2.0
//! Concurrent calls: branches, samples and batches, and unrelated sessions.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokentap::demo::EngineOptions;

use super::harness::{Agent, Harness, length};
use crate::support::client::post;

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_branches_share_a_prefix_that_is_trained_once() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let mut agent = Agent::new(&harness, "tree", "Where do the trawlers go?");
    agent.act(&agent.stops(5)).await;
    let prefix = agent.tokens.clone();
    let bodies: Vec<Value> = (0..4)
        .map(|at| {
            agent.tokens.clone_from(&prefix);
            agent.observe(&format!("harbour number {at}"));
            agent.body(&length(6 + at))
        })
        .collect();
    let replies = harness.call_all("tree", bodies).await;
    let audit = harness.audit("tree").await;
    let mut causes = audit.causes();
    causes[1..].sort();
    assert_eq!(causes, ["first", "extends", "forks", "forks", "forks"]);
    assert_eq!(audit.each("parent")[1..], [json!(0), json!(0), json!(0), json!(0)]);
    assert_eq!(audit.samples.len(), 4, "four leaves");
    let trained = audit.samples.iter().filter(|row| row["turns"][0]["trained"] == true).count();
    assert_eq!(trained, 1, "the shared prefix is trained in one row");
    assert_eq!(audit.samples[0]["turns"][0]["trained"], true, "in the earliest row");
    for (at, reply) in replies.iter().enumerate() {
        assert_eq!(reply[0].output.len(), 6 + at, "each call got its own reply");
    }
    let longest = json!({"sessions": ["tree"], "format": "jsonl", "include_branches": false}).to_string();
    let line = post(harness.demo.proxy.control, "/v1/samples", longest.as_bytes()).await.json();
    assert_eq!(line["leaf"], audit.turn(&replies[3][0].rid)["turn"], "without branches the longest path is exported");
    let trained: u32 = super::audit::integers(&line["loss_mask"]).iter().sum();
    assert_eq!(trained, 6 + 9, "and all of it is trained");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_samples_of_a_prompt_are_siblings_and_any_may_be_continued() {
    let harness = Harness::exact(EngineOptions::default()).await;
    for stream in [false, true] {
        let session = format!("three-{stream}");
        let mut agent = Agent::new(&harness, &session, "How many stairs are there?");
        agent.stream = stream;
        let mut sampling = agent.stops(7);
        sampling["n"] = json!(3);
        let replies = harness.call(&session, &agent.body(&sampling)).await;
        assert_eq!(replies.len(), 3);
        agent.tokens.extend_from_slice(&replies[1].output);
        agent.observe("one hundred and nineteen");
        agent.act(&agent.stops(4)).await;
        let audit = harness.audit(&session).await;
        let chosen = audit.turn(&replies[1].rid);
        assert_eq!(audit.causes(), ["first", "sample", "sample", "extends"]);
        assert_eq!(audit.turns[3]["parent"], chosen["turn"], "its parent is the continued sample");
        assert_eq!(audit.samples.len(), 3, "two samples are leaves, one is continued");
        let row = audit.row(3);
        assert_eq!(row["token_ids"], json!(agent.tokens));
        let indices: BTreeSet<u64> = audit.rows.iter().map(|row| row["turns"][0]["index"].as_u64().unwrap()).collect();
        assert_eq!(indices, BTreeSet::from([0, 1, 2]), "each turn has its sample index");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_of_three_prompts_has_three_roots() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let prompts = ["Lamp lit at 18:02", "Two trawlers passed before noon", "I counted them again today"];
    let prompts: Vec<Vec<u32>> = prompts.iter().map(|text| harness.demo.encode(text)).collect();
    for stream in [false, true] {
        let session = format!("batch-{stream}");
        let limits = [json!({"max_new_tokens": 4}), json!({"max_new_tokens": 6, "temperature": 0.5}), length(8)];
        let body = json!({"input_ids": prompts, "stream": stream, "sampling_params": limits});
        let replies = harness.call(&session, &body).await;
        let audit = harness.audit(&session).await;
        assert_eq!(audit.each("parent"), [Value::Null, Value::Null, Value::Null]);
        assert_eq!(audit.samples.len(), 3);
        for (at, reply) in replies.iter().enumerate() {
            assert_eq!(harness.entry(&reply.rid).prompt, prompts[at], "the rid is that of its prompt");
            let turn = audit.turn(&reply.rid)["turn"].as_u64().unwrap();
            let row = audit.row(turn);
            assert_eq!(row["token_ids"], json!([&prompts[at][..], &reply.output].concat()));
            assert_eq!(row["turns"][0]["sampling"], limits[at], "each with its own parameters");
            assert_eq!(row["turns"][0]["index"], at);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_identical_calls_at_once_are_eight_samples() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let agent = Agent::new(&harness, "eight", "Which ship came in?");
    let body = agent.body(&length(6));
    let replies = harness.call_all("eight", vec![body; 8]).await;
    let entries: Vec<_> = harness.journal();
    assert_eq!(entries.len(), 8, "the engine was asked eight times");
    assert!(entries.iter().all(|entry| entry.prompt == agent.tokens), "each time with the same prompt");
    let rids: BTreeSet<&str> = replies.iter().map(|reply| reply[0].rid.as_str()).collect();
    assert_eq!(rids.len(), 8, "each has its own rid");
    let audit = harness.audit("eight").await;
    assert_eq!(audit.turns.len(), 8);
    assert!(audit.each("parent").iter().all(Value::is_null), "siblings");
    assert_eq!(audit.causes()[1..], ["sample"; 7]);
    assert_eq!(audit.samples.len(), 8, "each is a row");
    let outputs: BTreeSet<Vec<u32>> = entries.iter().map(tokentap::demo::JournalEntry::output).collect();
    assert!(outputs.len() > 1, "they were drawn independently");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sessions_with_the_same_prompts_share_nothing() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let mut forests = Vec::new();
    for session in ["left", "right"] {
        let mut agent = Agent::new(&harness, session, "Is the lamp lit?");
        let seeded = |mut sampling: Value| {
            sampling["sampling_seed"] = json!(7);
            sampling
        };
        agent.act(&seeded(agent.stops(5))).await;
        let fork = agent.tokens.clone();
        for result in ["yes", "no"] {
            agent.tokens.clone_from(&fork);
            agent.observe(result);
            agent.act(&seeded(agent.stops(4))).await;
        }
        forests.push(harness.audit(session).await);
    }
    let [left, right] = &forests[..] else { panic!("there are two sessions") };
    let shape = |turns: &[Value]| -> Vec<Value> {
        let anonymous = |turn: &Value| {
            let mut turn = turn.clone();
            turn.as_object_mut().unwrap().remove("rid");
            turn
        };
        turns.iter().map(anonymous).collect()
    };
    assert_eq!(shape(&left.turns), shape(&right.turns), "the same forest");
    assert_eq!(left.row(1)["token_ids"], right.row(1)["token_ids"], "with the same tokens");
    let rids = |turns: &[Value]| -> BTreeSet<String> { turns.iter().map(|turn| turn["rid"].to_string()).collect() };
    assert!(rids(&left.turns).is_disjoint(&rids(&right.turns)), "with different rids");
    assert_eq!(left.turns[0]["cause"], right.turns[0]["cause"], "the sessions are independent");
    assert_eq!(harness.journal().len(), 6, "each was generated separately");
    let mut both = super::audit::samples(&harness, &["left", "right"]).await;
    for row in &mut both[left.samples.len()..] {
        assert_eq!(row["flags"].take(), json!(["repeats_sample"]), "the sampled tokens are those of the first session");
        row["flags"] = json!([]);
    }
    assert_eq!(both, [&left.samples[..], &right.samples].concat(), "the joint export concatenates both");
}
