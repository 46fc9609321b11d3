//! One conversation after the other: what is continued is one row.

use serde_json::{Value, json};
use tokentap::demo::{Dialect, End, EngineOptions, Streaming};

use super::lab::{Agent, Lab, length};

/// The answers of a tool.
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
async fn five_turns_with_tools_are_one_row_of_exactly_what_was_given_and_sampled() {
    let lab = Lab::exact(EngineOptions::default()).await;
    let mut agent = Agent::new(&lab, "five-turns", "What did the keeper write?");
    five_turns(&mut agent).await;
    let audit = lab.audit("five-turns").await;
    assert_eq!(audit.causes(), ["first", "extends", "extends", "extends_length", "extends"]);
    assert_eq!((audit.samples.len(), audit.refused.len()), (1, 0), "a line has one end");
    let row = &audit.samples[0];
    assert_eq!(row["token_ids"], json!(agent.tokens), "the row is what the agent has in mind");
    assert_eq!((&row["leaf"], &row["flags"]), (&json!(4), &json!(["extends_length"])));
    let parents = audit.each("parent");
    assert_eq!(parents, [json!(null), json!(0), json!(1), json!(2), json!(3)]);
    let ends: Vec<Option<End>> = lab.journal().iter().map(|entry| entry.end).collect();
    assert_eq!(ends[..4], [Some(End::Stop), Some(End::Stop), Some(End::Length), Some(End::Stop)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_every_kind_leave_the_same_rows_as_replies_that_come_whole() {
    let plain = EngineOptions::default();
    let kinds = [
        plain.clone(),
        EngineOptions { streaming: Streaming::Incremental, ..plain.clone() },
        EngineOptions { dialect: Dialect::Sglang056, ..plain.clone() },
    ];
    for options in kinds {
        let mut rows = Vec::new();
        for stream in [true, false] {
            let lab = Lab::exact(options.clone()).await;
            let mut agent = Agent::new(&lab, "talk", "What did the keeper write?");
            agent.stream = stream;
            five_turns(&mut agent).await;
            let audit = lab.audit("talk").await;
            assert_eq!(audit.samples.len(), 1, "{options:?}");
            assert_eq!(audit.samples[0]["token_ids"], json!(agent.tokens), "{options:?}");
            let events = lab.heard("talk").iter().map(|said| said.metas.len()).max().unwrap();
            assert_eq!(events > 1, stream, "a stream comes in pieces");
            let lists = ["token_ids", "loss_mask", "logprobs", "entropy"].map(|name| audit.samples[0][name].clone());
            rows.push((lists, audit.causes()));
        }
        assert_eq!(rows[0], rows[1], "{options:?}: the same seed, the same row");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_twenty_logprobs_every_entropy_lies_within_what_is_certain() {
    let lab = Lab::start(EngineOptions::default(), &["--top-logprobs", "20"]).await;
    let mut agent = Agent::new(&lab, "bounded", "Which way did the wind go?");
    for result in RESULTS {
        let mut body = agent.body(&json!({"max_new_tokens": 12, "temperature": 0.8, "ignore_eos": true}));
        body["entropy_options"] = json!({"bounds": true});
        let said = lab.ask("bounded", &body).await;
        assert_eq!(said.meta["output_token_entropy_upper"].as_array().unwrap().len(), 12, "bounds came");
        agent.tokens.extend(said.output);
        agent.observe(result);
    }
    let audit = lab.audit("bounded").await;
    assert_eq!(audit.samples.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sub_agent_has_a_row_of_its_own_and_the_main_line_goes_on() {
    let lab = Lab::exact(EngineOptions::default()).await;
    let mut main = Agent::new(&lab, "team", "What did the keeper write about the weather of March?");
    main.act(&main.stops(6)).await;
    let mut sub = Agent::blank(&lab, "team");
    sub.read("Lamp lit at 18:04, out at 06:39. Visibility good");
    sub.act(&sub.stops(4)).await;
    sub.observe("go on");
    sub.act(&sub.stops(5)).await;
    main.observe("the sub-agent says: good");
    main.act(&main.stops(3)).await;
    let audit = lab.audit("team").await;
    assert_eq!(audit.causes(), ["first", "new_conversation", "extends", "extends"]);
    assert_eq!(audit.each("parent"), [json!(null), json!(null), json!(1), json!(0)]);
    assert_eq!(audit.samples.len(), 2);
    assert_eq!(audit.row(2)["token_ids"], json!(sub.tokens));
    assert_eq!(audit.row(3)["token_ids"], json!(main.tokens));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_by_length_is_gone_on_with_or_extended_and_the_row_says_which() {
    let lab = Lab::exact(EngineOptions::default()).await;
    let mut agent = Agent::new(&lab, "long", "Tell me about the harbour");
    agent.act(&length(5)).await;
    agent.act(&length(7)).await;
    let resumed = lab.audit("long").await;
    assert_eq!(resumed.causes(), ["first", "resumes"]);
    assert_eq!(resumed.samples[0]["flags"], json!([]), "the policy went on by itself");
    agent.observe("enough");
    agent.act(&agent.stops(2)).await;
    let audit = lab.audit("long").await;
    assert_eq!(audit.causes(), ["first", "resumes", "extends_length"]);
    assert_eq!(audit.samples.len(), 1);
    assert_eq!(audit.samples[0]["flags"], json!(["extends_length"]), "the end of the turn was the agent's");
    let inserted = audit.samples[0]["segments"][2]["start"].as_u64().unwrap() as usize + 7;
    assert_eq!(audit.samples[0]["token_ids"][inserted], lab.demo.engine.model().eos());
    assert_eq!(audit.samples[0]["loss_mask"][inserted], 0, "what the agent put in is not trained");
}
