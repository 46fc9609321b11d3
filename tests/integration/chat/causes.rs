// SPDX-License-Identifier: Apache-2.0
//! The cause of a chat turn's place in its session, and the origin of the assistant text in its prompt.

use serde_json::{Value, json};

use super::super::support::client::get;
use super::{Chat, messages, tools, with_say};

/// One session of a chat.
struct Session<'a> {
    chat: &'a Chat,
    name: &'a str,
}

impl Session<'_> {
    /// Requests a reply with this text and a stop token; returns the message that the client keeps.
    async fn say(&self, body: &Value, text: &str) -> Value {
        let path = format!("/sessions/{}/v1/chat/completions", self.name);
        let answer = self.chat.demo.post(&path, &with_say(body, &format!("{text}<|im_end|>"))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["choices"][0]["message"].clone()
    }

    async fn turns(&self) -> Vec<Value> {
        let shown = get(self.chat.demo.proxy.control, &format!("/v1/sessions/{}", self.name)).await.json();
        shown["list"].as_array().unwrap().clone()
    }

    async fn causes(&self) -> Vec<String> {
        self.turns().await.iter().map(|turn| turn["cause"].as_str().unwrap().to_owned()).collect()
    }
}

fn conversation(messages: &[Value]) -> Value {
    json!({ "messages": messages })
}

fn system(text: &str) -> Value {
    json!({"role": "system", "content": text})
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// Runs a conversation of two turns in the session `name`, then a third call; returns the cause and the predecessor of the
/// third turn.
async fn third_turn(chat: &Chat, name: &str, call: &Value) -> (String, Value) {
    let session = Session { chat, name };
    session.say(&conversation(&[system("Be brief."), user("One?")]), "Two.").await;
    session.say(&conversation(&[system("Be brief."), user("One?"), assistant("Two."), user("Three?")]), "Four.").await;
    session.say(call, "Six.").await;
    let causes = session.causes().await;
    assert_eq!(causes[..2], ["first", "extends"], "{name}");
    (causes[2].clone(), session.turns().await[2]["predecessor"].clone())
}

#[tokio::test]
async fn cause_names_the_change_of_the_client() {
    let chat = Chat::start(&[]).await;
    let brief = || system("Be brief.");
    let history = [brief(), user("One?"), assistant("Two."), user("Three?"), assistant("Four."), user("Five?")];
    let changed = |at: usize, message: Value| {
        let mut messages = history.clone();
        messages[at] = message;
        conversation(&messages)
    };
    let mut with_tools = conversation(&history);
    with_tools["tools"] = tools();
    for (name, call, cause) in [
        ("extends", conversation(&history), "extends"),
        ("sample", conversation(&history[..4]), "sample"),
        ("forks", conversation(&[brief(), user("One?"), assistant("Two."), user("Seven?")]), "forks"),
        ("forks-at-the-root", conversation(&[brief(), user("One?"), user("Or rather, two?")]), "forks"),
        ("system", changed(0, system("Be verbose.")), "system_changed"),
        ("no-system", conversation(&history[1..]), "system_changed"),
        ("tools", with_tools, "tools_changed"),
        ("new", conversation(&[brief(), user("Seven?")]), "new_conversation"),
        ("other", conversation(&[system("You are a sub-agent."), user("Seven?")]), "new_conversation"),
        ("first-user", changed(1, user("Uno?")), "history_edited"),
        ("second-user", changed(3, user("Tres?")), "history_edited"),
        ("first-reply", changed(2, assistant("Deux.")), "response_edited"),
        ("second-reply", changed(4, assistant("Quatre.")), "response_edited"),
        ("dropped", conversation(&[brief(), user("Three?"), assistant("Four."), user("Five?")]), "compacted"),
    ] {
        // the conversation that the client changed ended with the second turn
        let is_change = matches!(cause, "system_changed" | "tools_changed" | "history_edited" | "compacted");
        let predecessor = if is_change { json!(1) } else { Value::Null };
        assert_eq!(third_turn(&chat, name, &call).await, (cause.to_owned(), predecessor), "{name}");
    }
}

#[tokio::test]
async fn same_messages_with_other_tools_or_thinking_have_separate_causes() {
    let chat = Chat::start(&[]).await;
    let question = |members: Value| {
        let mut call = conversation(&[system("Be brief."), user("One?")]);
        call["tools"] = tools();
        call.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        call
    };
    let thinking = |is_on: bool| question(json!({"chat_template_kwargs": {"enable_thinking": is_on}}));
    let without_calls = || question(json!({"tool_choice": "none"}));
    for (name, calls, cause, predecessor) in [
        ("tools-shown", [without_calls(), question(json!({}))], "tools_changed", json!(0)),
        ("tools-hidden", [question(json!({})), without_calls()], "tools_changed", json!(0)),
        ("thinking-off", [question(json!({})), thinking(false)], "forks", Value::Null),
        ("thinking-on-and-off", [thinking(true), thinking(false)], "forks", Value::Null),
    ] {
        let session = Session { chat: &chat, name };
        for call in &calls {
            session.say(call, "Two.").await;
        }
        let turns = session.turns().await;
        assert_eq!((&turns[1]["cause"], &turns[1]["predecessor"]), (&json!(cause), &predecessor), "{name}");
    }
}

#[tokio::test]
async fn removed_tools_and_cleared_tool_results_have_separate_causes() {
    let chat = Chat::start(&[]).await;
    let session = Session { chat: &chat, name: "tools" };
    let mut body = conversation(&[user("Oslo?")]);
    body["tools"] = tools();
    let call = r#"<tool_call>
{"name": "weather", "arguments": {"city": "Oslo"}}
</tool_call>"#;
    let reply = session.say(&body, call).await;
    let answer = |text: &str| json!({"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": text});
    let long = "Rain all day, and in the evening still more rain.";
    let history = [user("Oslo?"), reply.clone(), answer(long)];
    body["messages"] = json!(history);
    session.say(&body, "It rains.").await;
    let after =
        |result: &str| json!([user("Oslo?"), reply.clone(), answer(result), assistant("It rains."), user("Thanks!")]);
    for (messages, cause, predecessor) in [
        (after("[cleared]"), "tool_result_cleared", 1),
        // the turn that sampled the reply after the result
        (after("Sunshine all day, and in the evening still more sunshine."), "history_edited", 1),
    ] {
        body["messages"] = messages;
        session.say(&body, "Bye.").await;
        let last = session.turns().await.pop().unwrap();
        assert_eq!((&last["cause"], &last["predecessor"]), (&json!(cause), &json!(predecessor)));
    }
    session.say(&conversation(&[user("Oslo?")]), "Where?").await;
    assert_eq!(session.causes().await.last().unwrap(), "tools_changed", "the list was removed");
}

#[tokio::test]
async fn history_replaced_by_its_summary_is_compacted_and_parallel_conversations_are_new() {
    let chat = Chat::start(&[]).await;
    let session = Session { chat: &chat, name: "compacted" };
    let mut list = vec![system("Be brief."), user("One?")];
    for (reply, next) in [("Two.", "Three?"), ("Four.", "Summarise what we said.")] {
        session.say(&conversation(&list), reply).await;
        list.extend([assistant(reply), user(next)]);
    }
    let summary = "We counted from one to four, and every number was right.";
    session.say(&conversation(&list), summary).await;
    let prompt = format!("This is what came before:\n{summary}\nGo on.");
    session.say(&conversation(&[system("Be brief."), user(&prompt)]), "Five.").await;
    let causes = session.causes().await;
    assert_eq!(causes, ["first", "extends", "extends", "compacted"]);
    assert_eq!(session.turns().await[3]["predecessor"], 2, "the turn that sampled the summary");
    // a sub-agent that quotes its caller is not a compaction
    let task = format!("Your caller says: {summary}");
    session.say(&conversation(&[system("You are a sub-agent."), user(&task)]), "Five.").await;
    assert_eq!(session.causes().await[4], "new_conversation");

    let parallel = Session { chat: &chat, name: "parallel" };
    let rules = "You are an agent with a long list of rules. ".repeat(8);
    for at in 0..8 {
        parallel.say(&conversation(&[system(&rules), user(&format!("Task {at}."))]), "Done.").await;
    }
    let causes = parallel.causes().await;
    assert_eq!(causes[0], "first");
    assert!(causes[1..].iter().all(|cause| cause == "new_conversation"), "{causes:?}");
}

#[tokio::test]
async fn unsampled_assistant_text_is_flagged_as_foreign() {
    let chat = Chat::start(&[]).await;
    let flags = |turn: &Value| (turn["context_retokenised"].clone(), turn["foreign_assistant_text"].clone());
    let shots = [user("1?"), assistant("A greeting."), user("2?")];
    let prefill = json!({"messages": [user("2?"), assistant("It is")], "continue_final_message": true});
    for (name, call) in [("shots", conversation(&shots)), ("prefill", prefill)] {
        let session = Session { chat: &chat, name };
        session.say(&call, "Two.").await;
        assert_eq!(flags(&session.turns().await[0]), (json!(false), json!(true)), "{name}");
        let rows = get(chat.demo.proxy.control, &format!("/v1/sessions/{name}/trajectories")).await.json();
        assert_eq!(rows["trajectories"][0]["flags"], json!(["foreign_assistant_text"]), "{name}: {rows}");
    }
    // the next turn adds only sampled assistant text, which keeps its tokens
    let session = Session { chat: &chat, name: "shots" };
    let mut list = shots.to_vec();
    list.extend([assistant("Two."), user("3?")]);
    session.say(&conversation(&list), "Three.").await;
    assert_eq!(flags(&session.turns().await[1]), (json!(false), json!(false)));
    // another system prompt: the greeting is rendered as text, and the sampled reply keeps its tokens
    list.insert(0, system("Be brief."));
    session.say(&conversation(&list), "Three.").await;
    assert_eq!(flags(&session.turns().await[2]), (json!(false), json!(true)));
    let greeted = messages(&[("user", "1?"), ("assistant", "A greeting."), ("user", "4?")]);
    session.say(&json!({ "messages": greeted }), "Four.").await;
    assert_eq!(flags(&session.turns().await[3]), (json!(false), json!(true)));
}
