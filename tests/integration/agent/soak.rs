// SPDX-License-Identifier: Apache-2.0
//! Concurrent agents that take random actions: every export must be correct.

use std::sync::Arc;

use serde_json::{Value, json};
use tokentap::demo::{Dialect, EngineOptions, Streaming};
use tokio::task::JoinSet;

use super::harness::{Agent, Harness, length};
use crate::support::client::{Connection, written};

/// A deterministic generator of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    fn sampling(&mut self, agent: &Agent<'_>) -> Value {
        let tokens = 1 + self.below(7);
        let mut sampling = match self.below(4) {
            0 => length(tokens),
            1 => agent.stops(tokens),
            2 => json!({"max_new_tokens": 12, "stop": [" the", "."]}),
            _ => json!({"max_new_tokens": 12}),
        };
        match self.below(5) {
            0 => sampling["temperature"] = json!(0),
            1 => (sampling["temperature"], sampling["top_k"]) = (json!(0.7), json!(1)),
            2 => (sampling["temperature"], sampling["top_p"]) = (json!(1.4), json!(0.9)),
            3 => (sampling["temperature"], sampling["min_p"]) = (json!(0.6), json!(0.1)),
            _ => {}
        }
        sampling
    }
}

/// Runs ten random steps of one agent.
async fn run_agent(harness: &Harness, session: &str, seed: u64) {
    let mut random = Random(seed);
    let mut agent = Agent::new(harness, session, "What did the keeper write?");
    let mut checkpoints = vec![agent.tokens.clone()];
    for step in 0..10 {
        agent.stream = random.below(2) == 0;
        let sampling = random.sampling(&agent);
        match random.below(9) {
            0 => {
                let mut body = agent.body(&sampling);
                body["sampling_params"]["n"] = json!(2 + random.below(2));
                let replies = harness.call(session, &body).await;
                agent.tokens.extend_from_slice(&replies[random.below(replies.len())].output);
            }
            1 => {
                let index = random.below(checkpoints.len());
                agent.tokens.clone_from(&checkpoints[index]);
                agent.act(&sampling).await;
            }
            2 => {
                let at = 3 + random.below(agent.tokens.len() - 3);
                agent.tokens[at] = 40 + random.below(800) as u32;
                agent.act(&sampling).await;
            }
            3 => {
                agent.tokens.truncate(4 + random.below(agent.tokens.len() - 4));
                agent.act(&sampling).await;
            }
            4 => {
                let mut body = agent.body(&json!({"max_new_tokens": 300, "ignore_eos": true}));
                body["stream"] = json!(true);
                let addr = harness.demo.proxy.data;
                let mut client = Connection::open(addr).await;
                let headers = [("x-session-id", session)];
                client.send(&written(addr, "POST", "/generate", &headers, body.to_string().as_bytes())).await;
                let events = 1 + random.below(3);
                let some = |read: &[u8]| memchr::memmem::find_iter(read, b"data: ").count() > events;
                assert!(client.read_until(some).await, "{session}: the stream begins");
            }
            5 => {
                let bodies = (0..3).map(|branch| {
                    let mut body = agent.body(&sampling);
                    let more = harness.demo.encode(&format!(" {branch}"));
                    body["input_ids"] = json!([&agent.tokens[..], &more].concat());
                    body
                });
                let reply = harness.call_all(session, bodies.collect()).await.remove(0).remove(0);
                agent.tokens =
                    reply.body["input_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
                agent.tokens.extend(reply.output);
            }
            6 => {
                let body = json!({"input_ids": [agent.tokens], "stream": agent.stream, "sampling_params": sampling});
                let reply = harness.ask(session, &body).await;
                agent.tokens.extend(reply.output);
            }
            _ => {
                agent.act(&sampling).await;
            }
        }
        checkpoints.push(agent.tokens.clone());
        if random.below(3) > 0 {
            agent.observe(&format!("result {step}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_agents_have_each_delivered_token_trained_once() {
    let kinds = [
        EngineOptions::default(),
        EngineOptions { streaming: Streaming::Incremental, original_logprob: true, ..EngineOptions::default() },
        EngineOptions { dialect: Dialect::Sglang056, ..EngineOptions::default() },
    ];
    for (kind, options) in kinds.into_iter().enumerate() {
        // slow enough for a client to leave before the end
        let harness = Arc::new(
            Harness::exact(EngineOptions { token_delay: Some(std::time::Duration::from_millis(1)), ..options }).await,
        );
        let mut agents = JoinSet::new();
        for at in 0..4 {
            let harness = Arc::clone(&harness);
            agents.spawn(async move {
                let session = format!("soak-{kind}-{at}");
                run_agent(&harness, &session, 1000 * kind as u64 + at).await;
                session
            });
        }
        for session in agents.join_all().await {
            harness.until(&session, "no call is running", |seen| seen["running"] == 0).await;
            let audit = harness.audit(&session).await;
            assert!(audit.turns.len() >= 10, "{session}: {} turns", audit.turns.len());
        }
    }
}
