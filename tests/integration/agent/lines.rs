// SPDX-License-Identifier: Apache-2.0
//! Sequential turns: a continued conversation is one row.

use serde_json::{Value, json};
use tokentap::demo::{Dialect, End, EngineOptions, Streaming};

use super::harness::{Agent, Harness, length};

/// Results of a tool.
const RESULTS: [&str; 4] = [
    "{\"wind\": \"north-west\", \"force\": 4}",
    "{\"lamp\": \"lit at 18:02\"}",
    "no such ship",
    "{\"trawlers\": [\"two\", \"one\"]}",
];

/// Five turns that end in different ways at different temperatures, with a tool between them.
async fn five_turns(agent: &mut Agent<'_>) {
    let with = |mut sampling: Value, name: &str, value: Value| {
        sampling[name] = value;
        sampling
    };
    let turns = [
        with(agent.stops(5), "temperature", json!(0.7)),
        with(agent.stops(9), "top_p", json!(0.8)),
        with(length(6), "temperature", json!(1.3)),
        with(agent.stops(3), "temperature", json!(0)),
        json!({"max_new_tokens": 12, "temperature": 0.9, "frequency_penalty": 0.5}),
    ];
    for (at, sampling) in turns.iter().enumerate() {
        if at > 0 {
            agent.observe(RESULTS[at - 1]);
        }
        agent.act(sampling).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn five_turns_with_tools_are_one_row_of_the_given_and_sampled_tokens() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let mut agent = Agent::new(&harness, "five-turns", "What did the keeper write?");
    five_turns(&mut agent).await;
    let audit = harness.audit("five-turns").await;
    assert_eq!(audit.causes(), ["first", "extends", "extends", "extends_length", "extends"]);
    assert_eq!((audit.samples.len(), audit.refused.len()), (1, 0), "a conversation has one leaf");
    let row = &audit.samples[0];
    assert_eq!(row["token_ids"], json!(agent.tokens), "the row equals the agent's tokens");
    assert_eq!((&row["leaf"], &row["flags"]), (&json!(4), &json!(["extends_length"])));
    let parents = audit.each("parent");
    assert_eq!(parents, [json!(null), json!(0), json!(1), json!(2), json!(3)]);
    let ends: Vec<Option<End>> = harness.journal().iter().map(|entry| entry.end).collect();
    assert_eq!(ends[..4], [Some(End::Stop), Some(End::Stop), Some(End::Length), Some(End::Stop)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_non_streaming_replies_record_the_same_rows() {
    let plain = EngineOptions::default();
    let kinds = [
        plain.clone(),
        EngineOptions { streaming: Streaming::Incremental, ..plain.clone() },
        EngineOptions { dialect: Dialect::Sglang056, ..plain.clone() },
    ];
    for options in kinds {
        let mut rows = Vec::new();
        for stream in [true, false] {
            let harness = Harness::exact(options.clone()).await;
            let mut agent = Agent::new(&harness, "talk", "What did the keeper write?");
            agent.stream = stream;
            five_turns(&mut agent).await;
            let audit = harness.audit("talk").await;
            assert_eq!(audit.samples.len(), 1, "{options:?}");
            assert_eq!(audit.samples[0]["token_ids"], json!(agent.tokens), "{options:?}");
            let events = harness.replies("talk").iter().map(|reply| reply.metas.len()).max().unwrap();
            assert_eq!(events > 1, stream, "a stream has several events");
            let lists = ["token_ids", "loss_mask", "logprobs", "entropy"].map(|name| audit.samples[0][name].clone());
            rows.push((lists, audit.causes()));
        }
        assert_eq!(rows[0], rows[1], "{options:?}: the same seed, the same row");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn top_20_entropies_lie_within_their_bounds() {
    let harness = Harness::start(EngineOptions::default(), &["--top-logprobs", "20"]).await;
    let mut agent = Agent::new(&harness, "bounded", "Which way did the wind go?");
    for result in RESULTS {
        let mut body = agent.body(&json!({"max_new_tokens": 12, "temperature": 0.8, "ignore_eos": true}));
        body["entropy_options"] = json!({"bounds": true});
        let reply = harness.ask("bounded", &body).await;
        assert_eq!(reply.meta["output_token_entropy_upper"].as_array().unwrap().len(), 12, "the reply has bounds");
        agent.tokens.extend(reply.output);
        agent.observe(result);
    }
    let audit = harness.audit("bounded").await;
    assert_eq!(audit.samples.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agent_has_a_separate_row_and_the_main_conversation_continues() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let mut main = Agent::new(&harness, "team", "What did the keeper write about the weather of March?");
    main.act(&main.stops(6)).await;
    let mut sub = Agent::blank(&harness, "team");
    sub.read("Lamp lit at 18:04, out at 06:39. Visibility good");
    sub.act(&sub.stops(4)).await;
    sub.observe("go on");
    sub.act(&sub.stops(5)).await;
    main.observe("the sub-agent says: good");
    main.act(&main.stops(3)).await;
    let audit = harness.audit("team").await;
    assert_eq!(audit.causes(), ["first", "new_conversation", "extends", "extends"]);
    assert_eq!(audit.each("parent"), [json!(null), json!(null), json!(1), json!(0)]);
    assert_eq!(audit.samples.len(), 2);
    assert_eq!(audit.row(2)["token_ids"], json!(sub.tokens));
    assert_eq!(audit.row(3)["token_ids"], json!(main.tokens));
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_that_ended_by_length_is_resumed_or_extended_and_flagged() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let mut agent = Agent::new(&harness, "long", "Tell me about the harbour");
    agent.act(&length(5)).await;
    agent.act(&length(7)).await;
    let resumed = harness.audit("long").await;
    assert_eq!(resumed.causes(), ["first", "resumes"]);
    assert_eq!(resumed.samples[0]["flags"], json!([]), "the policy continued its own turn");
    agent.observe("enough");
    agent.act(&agent.stops(2)).await;
    let audit = harness.audit("long").await;
    assert_eq!(audit.causes(), ["first", "resumes", "extends_length"]);
    assert_eq!(audit.samples.len(), 1);
    assert_eq!(audit.samples[0]["flags"], json!(["extends_length"]), "the agent ended the turn");
    let inserted = audit.samples[0]["segments"][2]["start"].as_u64().unwrap() as usize + 7;
    assert_eq!(audit.samples[0]["token_ids"][inserted], harness.demo.engine.model().eos());
    assert_eq!(audit.samples[0]["loss_mask"][inserted], 0, "a token that the agent inserted is not trained");
}
