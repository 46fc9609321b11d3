// SPDX-License-Identifier: Apache-2.0
//! Agents that rewrite their history: a change starts a branch, and no sampled token is lost or trained twice.

use serde_json::json;
use tokentap::demo::EngineOptions;

use super::audit::Audit;
use super::harness::{Agent, Harness};

/// Samples two turns, applies `edit` to the history, adds a tool result, and samples a third turn.
async fn sample_with_edit(edit: impl FnOnce(&mut Vec<u32>, &[usize; 4])) -> (Harness, Audit, Vec<u32>) {
    let harness = Harness::exact(EngineOptions::default()).await;
    let mut agent = Agent::new(&harness, "edited", "What did the keeper write about the stairs?");
    let first = agent.tokens.len();
    agent.act(&agent.stops(9)).await;
    let answered = agent.tokens.len();
    agent.observe("one hundred and eighteen");
    let second = agent.tokens.len();
    agent.act(&agent.stops(5)).await;
    edit(&mut agent.tokens, &[first, answered, second, second + 6]);
    agent.read("\n<|im_start|>tool\ncounted again<|im_end|>\n<|im_start|>assistant\n");
    agent.act(&agent.stops(4)).await;
    let audit = harness.audit("edited").await;
    let tokens = agent.tokens.clone();
    (harness, audit, tokens)
}

/// The changed history has its own row, and the old row is unchanged.
fn assert_branch(audit: &Audit, tokens: &[u32], cause: &str, parent: Option<u64>) {
    assert_eq!(audit.causes(), ["first", "extends", cause]);
    assert_eq!(audit.turns[2]["parent"], json!(parent), "{cause}");
    assert_eq!(audit.samples.len(), 2, "{cause}: both histories are rows");
    assert_eq!(audit.row(2)["token_ids"], json!(tokens), "{cause}: the row equals the agent's tokens");
    assert_eq!(audit.row(1)["turns"].as_array().unwrap().len(), 2, "{cause}: the old row is whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn edited_response_starts_a_branch() {
    // of the second turn
    let (_lab, audit, tokens) = sample_with_edit(|tokens, [_, _, second, _]| tokens[second + 2] ^= 1).await;
    assert_branch(&audit, &tokens, "response_edited", Some(0));
    // of the first turn: no turn before it is shared
    let (_lab, audit, tokens) = sample_with_edit(|tokens, [first, ..]| tokens[first + 2] ^= 1).await;
    assert_branch(&audit, &tokens, "response_edited", None);
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_stop_token_starts_a_branch() {
    let (_lab, audit, tokens) = sample_with_edit(|tokens, [.., end]| tokens[end - 1] = 100).await;
    assert_branch(&audit, &tokens, "stop_replaced", Some(0));
    let (_lab, audit, tokens) = sample_with_edit(|tokens, [_, answered, ..]| tokens[answered - 1] = 100).await;
    assert_branch(&audit, &tokens, "stop_replaced", None);
}

#[tokio::test(flavor = "multi_thread")]
async fn edited_prompt_starts_a_branch() {
    let (_lab, audit, tokens) = sample_with_edit(|tokens, [first, ..]| tokens[first - 2] ^= 1).await;
    assert_branch(&audit, &tokens, "history_edited", None);
    // of the observation: it continues the first turn, which has a continuation already
    let (_lab, audit, tokens) = sample_with_edit(|tokens, [_, _, second, _]| tokens[second - 2] ^= 1).await;
    assert_branch(&audit, &tokens, "forks", Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_history_starts_a_branch() {
    let (_lab, audit, tokens) = sample_with_edit(|tokens, [_, answered, ..]| tokens.truncate(*answered)).await;
    assert_branch(&audit, &tokens, "forks", Some(0));
    let harness = Harness::exact(EngineOptions::default()).await;
    let mut agent = Agent::new(&harness, "back", "What did the keeper write about the stairs?");
    agent.act(&agent.stops(6)).await;
    agent.tokens.truncate(agent.tokens.len() - 3);
    agent.act(&agent.stops(4)).await;
    let audit = harness.audit("back").await;
    assert_eq!(audit.causes(), ["first", "rolled_back"]);
    assert_eq!(audit.samples.len(), 2, "the engine sampled both");
}
