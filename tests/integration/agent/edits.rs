//! Agents that rewrite their past: what they changed begins a branch, and nothing sampled is lost or trained twice.

use serde_json::json;
use tokentap::demo::EngineOptions;

use super::audit::Audit;
use super::lab::{Agent, Lab};

/// Two turns; then the history is changed, a tool answers, and a third is sampled.
async fn edited(edit: impl FnOnce(&mut Vec<u32>, &[usize; 4])) -> (Lab, Audit, Vec<u32>) {
    let lab = Lab::exact(EngineOptions::default()).await;
    let mut agent = Agent::new(&lab, "edited", "What did the keeper write about the stairs?");
    let first = agent.tokens.len();
    agent.act(&agent.stops(9)).await;
    let answered = agent.tokens.len();
    agent.observe("one hundred and eighteen");
    let second = agent.tokens.len();
    agent.act(&agent.stops(5)).await;
    edit(&mut agent.tokens, &[first, answered, second, second + 6]);
    agent.read("\n<|im_start|>tool\ncounted again<|im_end|>\n<|im_start|>assistant\n");
    agent.act(&agent.stops(4)).await;
    let audit = lab.audit("edited").await;
    let tokens = agent.tokens.clone();
    (lab, audit, tokens)
}

/// The changed history has its own row, and the old one stays what it was.
fn branched(audit: &Audit, tokens: &[u32], cause: &str, parent: Option<u64>) {
    assert_eq!(audit.causes(), ["first", "extends", cause]);
    assert_eq!(audit.turns[2]["parent"], json!(parent), "{cause}");
    assert_eq!(audit.samples.len(), 2, "{cause}: both histories are rows");
    assert_eq!(audit.row(2)["token_ids"], json!(tokens), "{cause}: the row is what the agent has in mind now");
    assert_eq!(audit.row(1)["turns"].as_array().unwrap().len(), 2, "{cause}: the old row is whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_response_is_a_branch() {
    // of the second turn
    let (_lab, audit, tokens) = edited(|tokens, [_, _, second, _]| tokens[second + 2] ^= 1).await;
    branched(&audit, &tokens, "response_edited", Some(0));
    // of the first, from which everything is new
    let (_lab, audit, tokens) = edited(|tokens, [first, ..]| tokens[first + 2] ^= 1).await;
    branched(&audit, &tokens, "response_edited", None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_stop_token_is_a_branch() {
    let (_lab, audit, tokens) = edited(|tokens, [.., end]| tokens[end - 1] = 100).await;
    branched(&audit, &tokens, "stop_replaced", Some(0));
    let (_lab, audit, tokens) = edited(|tokens, [_, answered, ..]| tokens[answered - 1] = 100).await;
    branched(&audit, &tokens, "stop_replaced", None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_prompt_is_a_branch() {
    let (_lab, audit, tokens) = edited(|tokens, [first, ..]| tokens[first - 2] ^= 1).await;
    branched(&audit, &tokens, "history_edited", None);
    // of the observation: it goes on behind the first turn, which was gone on with before
    let (_lab, audit, tokens) = edited(|tokens, [_, _, second, _]| tokens[second - 2] ^= 1).await;
    branched(&audit, &tokens, "forks", Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_is_cut_off_is_a_branch() {
    let (_lab, audit, tokens) = edited(|tokens, [_, answered, ..]| tokens.truncate(*answered)).await;
    branched(&audit, &tokens, "forks", Some(0));
    let lab = Lab::exact(EngineOptions::default()).await;
    let mut agent = Agent::new(&lab, "back", "What did the keeper write about the stairs?");
    agent.act(&agent.stops(6)).await;
    agent.tokens.truncate(agent.tokens.len() - 3);
    agent.act(&agent.stops(4)).await;
    let audit = lab.audit("back").await;
    assert_eq!(audit.causes(), ["first", "rolled_back"]);
    assert_eq!(audit.samples.len(), 2, "the engine sampled both");
}
