// SPDX-License-Identifier: Apache-2.0
//! Random behaviour of agent harnesses, compared with a model of what must be recorded.

use std::collections::HashSet;

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use super::super::chat::Chat;
use super::super::support::client::get;
use super::{assistant, call, request, start, text, tools, user};

/// What a harness does next.
#[derive(Debug, Clone)]
enum Action {
    /// Continues a line of the conversation. The model replies with a call, two calls, or a text, with or without a thought.
    Continue { line: Index, reply: u8, thinks: bool },
    /// Clears an earlier tool result of a line, then continues it.
    Clear { line: Index, result: Index },
    /// Starts a sub-agent.
    SubAgent,
    /// Asks for a title, without tools.
    Title,
    /// Replaces a line by a summary.
    Compact { line: Index },
    /// Changes the tools, then continues a line.
    ChangeTools { line: Index },
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (any::<Index>(), 0..3_u8, any::<bool>()).prop_map(|(line, reply, thinks)| Action::Continue { line, reply, thinks }),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(line, result)| Action::Clear { line, result }),
        1 => Just(Action::SubAgent),
        1 => Just(Action::Title),
        1 => any::<Index>().prop_map(|line| Action::Compact { line }),
        1 => any::<Index>().prop_map(|line| Action::ChangeTools { line }),
    ]
}

/// A line of a conversation, as the harness keeps it.
#[derive(Debug, Clone)]
struct Line {
    body: Value,
    /// The sampled tokens of its replies, in order.
    outputs: Vec<Vec<u32>>,
    /// The tokens with which the next prompt begins, unless the harness changes what it sent before.
    extends: Vec<u32>,
}

impl Line {
    fn new(system: &str, task: &str) -> Self {
        let mut body = request(&[user(task)]);
        body["system"] = json!(system);
        body["tools"] = tools();
        Self { body, outputs: Vec::new(), extends: Vec::new() }
    }

    /// Sends the line and checks its prompt. Appends the reply and the next message, as a client would.
    async fn send(&mut self, chat: &Chat, say: &str, keeps_thoughts: bool) {
        let reply = chat.say(&self.body, &format!("{say}<|im_end|>")).await;
        let entry = chat.last();
        assert!(entry.prompt.starts_with(&self.extends), "the turn before is not the start of the prompt");
        let mut rest = &entry.prompt[..];
        for output in &self.outputs {
            let at =
                rest.windows(output.len()).position(|ids| ids == output).expect("sampled tokens are in the prompt");
            rest = &rest[at + output.len()..];
        }
        self.outputs.push(entry.output());
        self.extends = [&entry.prompt[..], &entry.output()].concat();
        let mut message = assistant(&reply);
        let blocks = message["content"].as_array_mut().unwrap();
        let calls: Vec<Value> =
            blocks.iter().filter(|block| block["type"] == "tool_use").map(|block| block["id"].clone()).collect();
        if !keeps_thoughts {
            blocks.retain(|block| block["type"] != "thinking");
        }
        if blocks.is_empty() {
            blocks.push(text(""));
        }
        let results =
            calls.iter().map(|id| json!({"type": "tool_result", "tool_use_id": id, "content": "rain and wind"}));
        let next = if calls.is_empty() { user("Go on.") } else { user(results.collect::<Value>()) };
        self.body["messages"].as_array_mut().unwrap().extend([message, next]);
    }

    /// The positions of the tool results that are not cleared.
    fn results(&self) -> Vec<(usize, usize)> {
        let messages = self.body["messages"].as_array().unwrap().iter().enumerate();
        let blocks = messages.flat_map(|(at, message)| {
            let blocks = message["content"].as_array().cloned().unwrap_or_default();
            blocks.into_iter().enumerate().map(move |(block, value)| (at, block, value))
        });
        blocks.filter(|(.., value)| value["content"] == "rain and wind").map(|(at, block, _)| (at, block)).collect()
    }
}

async fn run(actions: &[Action]) {
    let chat = start().await;
    let mut lines = vec![Line::new("You are an agent.", "Look at Oslo.")];
    for (step, action) in actions.iter().enumerate() {
        let count = lines.len();
        match action {
            Action::Continue { line, reply, thinks } => {
                let thought = if *thinks { "<think>\nHm.\n</think>\n\n" } else { "" };
                let city = format!(r#"{{"city": "place {step}"}}"#);
                let said = match reply {
                    0 => call(&city),
                    1 => format!("{}\n{}", call(&city), call("{}")),
                    _ => format!("It rains on day {step}."),
                };
                lines[line.index(count)].send(&chat, &format!("{thought}{said}"), step % 2 == 0).await;
            }
            Action::Clear { line, result } => {
                let line = &mut lines[line.index(count)];
                let results = line.results();
                if let Some((message, block)) = (!results.is_empty()).then(|| results[result.index(results.len())]) {
                    line.body["messages"][message]["content"][block]["content"] = json!("-");
                    // the last message was not sent before
                    if message + 1 < line.body["messages"].as_array().unwrap().len() {
                        line.extends.clear();
                    }
                    line.send(&chat, &format!("Cleared {step}."), true).await;
                }
            }
            Action::SubAgent => {
                let mut line = Line::new("You are a sub-agent.", &format!("Task {step}."));
                line.send(&chat, "I look.", true).await;
                lines.push(line);
            }
            Action::Title => {
                let mut line = Line::new("Write a title.", &format!("Title {step}."));
                line.body.as_object_mut().unwrap().remove("tools");
                line.send(&chat, "Oslo", true).await;
            }
            Action::Compact { line } => {
                let line = &mut lines[line.index(count)];
                let summary = format!("We looked at Oslo, and it rained there, step {step}.");
                *line = Line::new("You are an agent.", &format!("Before: {summary} Go on."));
                line.send(&chat, "I go on.", true).await;
            }
            Action::ChangeTools { line } => {
                let line = &mut lines[line.index(count)];
                let mut changed = tools();
                changed.as_array_mut().unwrap().truncate(1);
                changed[0]["description"] = json!(format!("Version {step}"));
                line.body["tools"] = changed;
                line.extends.clear();
                line.send(&chat, &format!("Other tools {step}."), true).await;
            }
        }
    }
    check_export(&chat).await;
}

/// Each sampled token is trained exactly once, after the tokens that the engine had before it.
async fn check_export(chat: &Chat) {
    let journal = chat.journal();
    if journal.is_empty() {
        return;
    }
    let exported = get(chat.demo.proxy.control, "/v1/sessions/s/trajectories").await.json();
    let mut trained = Vec::new();
    for row in exported["trajectories"].as_array().unwrap() {
        let ids: Vec<u32> = serde_json::from_value(row["token_ids"].clone()).unwrap();
        for segment in row["segments"].as_array().unwrap().iter().filter(|segment| segment["loss_mask"] == 1) {
            let [start, end] = ["start", "end"].map(|name| usize::try_from(segment[name].as_u64().unwrap()).unwrap());
            trained.push((ids[..start].to_vec(), ids[start..end].to_vec()));
        }
        assert!(!row["flags"].as_array().unwrap().contains(&json!("context_retokenised")), "{}", row["flags"]);
    }
    let mut sampled: Vec<_> = journal.iter().map(|entry| (entry.prompt.clone(), entry.output())).collect();
    trained.sort();
    sampled.sort();
    assert_eq!(trained.len(), trained.iter().collect::<HashSet<_>>().len(), "a token is trained twice");
    assert!(trained == sampled, "the trained tokens are not the sampled ones");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 40, ..ProptestConfig::default() })]
    #[test]
    fn harnesses_leave_exact_trajectories(actions in prop::collection::vec(action(), 1..12)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(&actions));
    }
}
