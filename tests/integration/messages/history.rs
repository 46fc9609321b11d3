// SPDX-License-Identifier: Apache-2.0
//! The calls of an agent's loop extend the recorded turns.

use serde_json::{Value, json};

use super::super::support::client::get;
use super::{assistant, call, request, result, start, text, tools, user};

fn cache(mut block: Value) -> Value {
    block["cache_control"] = json!({"type": "ephemeral"});
    block
}

#[tokio::test]
async fn loop_of_an_agent_is_one_path() {
    let chat = start().await;
    let reminder = "Today is a working day.";
    let mut body = request(&[
        user(json!([cache(text("Write a poem about Oslo."))])),
        json!({"role": "system", "content": [cache(text(reminder))]}),
    ]);
    body["system"] = json!([text("x-anthropic-billing-header: cc_version=1"), cache(text("You write poems."))]);
    body["tools"] = tools();
    body["thinking"] = json!({"type": "adaptive"});
    let thinks = |text: &str| format!("<think>\nLook first.\n</think>\n\n{text}<|im_end|>");
    let mut replies = Vec::new();
    for turn in 0..6 {
        let say = match turn % 3 {
            0 => thinks(&call(r#"{"city": "Oslo"}"#)),
            1 => format!("{}\n{}<|im_end|>", call(r#"{"city": "Oslo"}"#), call(r#"{"city": "Bergen"}"#)),
            _ => thinks("It rains."),
        };
        let reply = chat.say(&body, &say).await;
        let results = |at: usize| {
            json!([
                {"type": "tool_result", "tool_use_id": reply["content"][at]["id"], "content": "rain", "is_error": true},
                text("Go on."),
            ])
        };
        let next = match turn % 3 {
            0 => {
                assert_eq!(reply["content"][0]["thinking"], "Look first.", "{reply}");
                assert_eq!(reply["stop_reason"], "tool_use", "{reply}");
                user(results(1))
            }
            1 => user(json!([result(&reply, 0, "rain"), result(&reply, 1, json!([text("sun"), text("wind")]))])),
            _ => user("And now?"),
        };
        // what clients change: the list becomes a string, the cache breakpoint moves, the attribution changes
        body["messages"][0] = user("Write a poem about Oslo.");
        body["messages"][1] = json!({"role": "system", "content": reminder});
        body["system"][0] = text(&format!("x-anthropic-billing-header: cc_version=1; call={turn}"));
        let list = body["messages"].as_array_mut().unwrap();
        list.extend([assistant(&reply), next]);
        replies.push(reply);
    }
    let turns = chat.turns().await;
    let causes: Vec<&Value> = turns.iter().map(|turn| &turn["cause"]).collect();
    assert_eq!(causes, ["first", "extends", "extends", "extends", "extends", "extends"]);
    assert!(turns.iter().all(|turn| turn["fault"].is_null() && turn["context_retokenised"] == false), "{turns:?}");
    let prompt = chat.decode(&chat.journal()[0].prompt);
    assert!(prompt.starts_with("<|im_start|>system\n") && prompt.contains("You write poems."), "{prompt}");
    assert!(!prompt.contains("billing"), "{prompt}");
    let shown = prompt.find(reminder).unwrap();
    assert!(shown > prompt.find("Write a poem").unwrap(), "the reminder is where the client put it: {prompt}");
    let ids: std::collections::HashSet<&str> = replies.iter().map(|reply| reply["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), replies.len(), "clients join messages with the same id");
}

#[tokio::test]
async fn turn_key_recognises_arguments_that_clients_cannot_repeat() {
    for (arguments, returned, is_recognised) in [
        // not JSON
        (r#"{"city": Oslo}"#, json!({}), true),
        // JavaScript rounds it
        (r#"{"city": 9007199254740993}"#, json!({"city": 9_007_199_254_740_992_u64}), true),
        (r#"{"city": 1e16, "b": -0.0}"#, json!({"city": 10_000_000_000_000_000_u64, "b": 0}), true),
        // changed by the client
        (r#"{"city": "Oslo"}"#, json!({"city": "Bergen"}), false),
        (r#"{"city": Oslo}"#, json!({"city": "Bergen"}), false),
        (r#"{"city": "a", "n": 9007199254740993}"#, json!({"city": "/etc", "n": 1}), false),
    ] {
        let chat = start().await;
        let mut body = request(&[user("Oslo?")]);
        body["tools"] = tools();
        let reply = chat.say(&body, &format!("{}<|im_end|>", call(arguments))).await;
        let mut message = assistant(&reply);
        message["content"][0]["input"] = returned;
        let list = body["messages"].as_array_mut().unwrap();
        list.extend([message, user(json!([result(&reply, 0, "rain")]))]);
        let mut forged = body.clone();
        for path in ["/messages/1/content/0/id", "/messages/2/content/0/tool_use_id"] {
            *forged.pointer_mut(path).unwrap() = json!("call_000000000000000000000000");
        }
        chat.say(&forged, "It rains.<|im_end|>").await;
        chat.say(&body, "It rains.<|im_end|>").await;
        let turns = chat.turns().await;
        assert_eq!(turns[1]["parent"], Value::Null, "{arguments}: {turns:?}");
        assert_eq!(turns[2]["parent"], if is_recognised { json!(0) } else { Value::Null }, "{arguments}: {turns:?}");
    }
}

#[tokio::test]
async fn key_of_another_session_is_ignored() {
    let mut chat = start().await;
    let mut body = request(&[user("Oslo?")]);
    body["tools"] = tools();
    let reply = chat.say(&body, &format!("{}<|im_end|>", call(r#"{"city": Oslo}"#))).await;
    let list = body["messages"].as_array_mut().unwrap();
    list.extend([assistant(&reply), user(json!([result(&reply, 0, "rain")]))]);
    chat.path = "/sessions/other/v1/messages".to_owned();
    chat.say(&body, "It rains.<|im_end|>").await;
    let shown = get(chat.demo.proxy.control, "/v1/sessions/other").await.json();
    assert_eq!(shown["list"][0]["foreign_assistant_text"], true, "{shown}");
}

#[tokio::test]
async fn counted_tokens_are_those_of_the_prompt() {
    let mut chat = start().await;
    let mut body = request(&[user("Oslo?")]);
    body["tools"] = tools();
    body["system"] = json!("Be brief.");
    let reply = chat.say(&body, "<think>\nHm.\n</think>\n\nIt rains.<|im_end|>").await;
    body["messages"].as_array_mut().unwrap().extend([assistant(&reply), user("And Bergen?")]);
    let mut count = body.clone();
    count.as_object_mut().unwrap().remove("max_tokens");
    chat.path = "/sessions/s/v1/messages/count_tokens?beta=true".to_owned();
    let counted = chat.post(&count).await;
    assert_eq!(counted.status, 200, "{}", counted.text());
    let asked = chat.journal().len();
    chat.path = super::PATH.to_owned();
    let reply = chat.say(&body, "Sun.<|im_end|>").await;
    assert_eq!(chat.journal().len(), asked + 1, "counting generates nothing");
    let prompt = chat.last().prompt.len();
    assert_eq!(counted.json(), json!({ "input_tokens": prompt }));
    let usage = &reply["usage"];
    let input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(input, prompt as u64, "{usage}");
    let session = get(chat.demo.proxy.control, "/v1/sessions/s").await.json();
    assert_eq!(session["incomplete"], false, "{session}");
}

#[tokio::test]
async fn summary_without_its_analysis_and_without_tools_is_a_compaction() {
    let chat = start().await;
    let mut body = request(&[user("Look at Oslo.")]);
    body["tools"] = tools();
    for task in ["Go on.", "Summarise."] {
        let reply = chat.say(&body, "It rains.<|im_end|>").await;
        body["messages"].as_array_mut().unwrap().extend([assistant(&reply), user(task)]);
    }
    // Codex asks for the summary without tools
    body.as_object_mut().unwrap().remove("tools");
    let summary = "Oslo was looked at, and it rained there for a week.";
    chat.say(&body, &format!("<analysis>Long.</analysis>\n<summary>\n{summary}\n</summary><|im_end|>")).await;
    let mut next = request(&[user(format!("Summary:\n{summary}\nGo on."))]);
    next["tools"] = tools();
    chat.say(&next, "Yes.<|im_end|>").await;
    let causes: Vec<Value> = chat.turns().await.into_iter().map(|turn| turn["cause"].clone()).collect();
    assert_eq!(causes, ["first", "extends", "tools_changed", "compacted"]);
}

#[tokio::test]
async fn changes_of_the_history_have_causes() {
    let chat = start().await;
    let mut body = request(&[user("Look at Oslo.")]);
    body["system"] = json!("You are an agent.");
    body["tools"] = tools();
    for say in
        [call(r#"{"city": "Oslo"}"#), call("{}"), "It rains in Oslo, and it has rained there for a week.".to_owned()]
    {
        let reply = chat.say(&body, &format!("{say}<|im_end|>")).await;
        let next = match reply["stop_reason"].as_str() {
            Some("tool_use") => user(json!([result(&reply, 0, "rain and wind and rain")])),
            _ => user("Go on."),
        };
        body["messages"].as_array_mut().unwrap().extend([assistant(&reply), next]);
    }
    let with = |path: &str, value: Value| {
        let mut changed = body.clone();
        *changed.pointer_mut(path).unwrap() = value;
        changed
    };
    let mut one_tool = tools();
    one_tool.as_array_mut().unwrap().truncate(1);
    let mut title = request(&[user("Look at Oslo.")]);
    title["system"] = json!("Write a title.");
    let summary = "Before: It rains in Oslo, and it has rained there for a week. Go on.";
    for (name, call, cause) in [
        ("cleared result", with("/messages/2/content/0/content", json!("-")), "tool_result_cleared"),
        ("other tools", with("/tools", one_tool), "tools_changed"),
        ("other system prompt", with("/system", json!("You are another agent.")), "system_changed"),
        ("edited message", with("/messages/0/content", json!("Look at Bergen.")), "history_edited"),
        ("compaction", with("/messages", json!([user(summary)])), "compacted"),
        ("title", title, "system_changed"),
        ("continued", body.clone(), "extends"),
    ] {
        chat.say(&call, "Yes.<|im_end|>").await;
        let turn = chat.turns().await.pop().unwrap();
        assert_eq!((&turn["cause"], &turn["context_retokenised"]), (&json!(cause), &json!(false)), "{name}");
    }
    let mut sub_agent = request(&[user("Find the file.")]);
    sub_agent["system"] = json!("You are a sub-agent.");
    chat.say(&sub_agent, "Yes.<|im_end|>").await;
    assert_eq!(chat.turns().await.last().unwrap()["cause"], "new_conversation");
}

/// The client drops thoughts.
fn without_thinking(mut message: Value) -> Value {
    message["content"].as_array_mut().unwrap().retain(|block| block["type"] != "thinking");
    message
}

#[tokio::test]
async fn reply_with_the_text_of_another_turn_is_not_confused_with_it() {
    let chat = start().await;
    let mut body = request(&[user("One?")]);
    let list = |body: &mut Value, more: [Value; 2]| body["messages"].as_array_mut().unwrap().extend(more);
    for thought in ["first", "second"] {
        let reply = chat.say(&body, &format!("<think>\n{thought} thought\n</think>\n\nDone.<|im_end|>")).await;
        list(&mut body, [without_thinking(assistant(&reply)), user("Go on.")]);
    }
    body["messages"][0] = user("Uno?");
    chat.say(&body, "Yes.<|im_end|>").await;
    let prompt = chat.decode(&chat.last().prompt);
    assert!(!prompt.contains("thought"), "which reply has which thought is not known: {prompt}");
    assert_eq!(chat.turns().await.last().unwrap()["context_retokenised"], true);
}

#[tokio::test]
async fn tokens_of_a_turn_follow_the_generation_prompt_that_it_was_sampled_after() {
    let chat = start().await;
    let mut body = request(&[user("One?")]);
    let reply = chat.say(&body, "Hm.\n</think>\n\nTwo.<|im_end|>").await;
    body["messages"].as_array_mut().unwrap().extend([assistant(&reply), user("Three?")]);
    body["messages"][0] = user("Uno?");
    body["thinking"] = json!({"type": "disabled"});
    chat.say(&body, "Four.<|im_end|>").await;
    let prompt = chat.decode(&chat.last().prompt);
    let closed = "<think>\n\n</think>\n\n";
    assert_eq!(prompt.matches(closed).count(), 1, "{prompt}");
    assert!(prompt.ends_with(closed), "{prompt}");
}

#[tokio::test]
async fn repeated_message_takes_the_tokens_of_its_turn_once() {
    let chat = start().await;
    let thought = "rain ".repeat(400);
    let body = request(&[user("One?")]);
    let reply = chat.say(&body, &format!("<think>\n{thought}\n</think>\n\nOK.<|im_end|>")).await;
    let repeated = [user("Uno?"), without_thinking(assistant(&reply))];
    let mut list: Vec<Value> = std::iter::repeat_n(repeated, 50).flatten().collect();
    list.push(user("Go on."));
    chat.say(&request(&list), "Yes.<|im_end|>").await;
    let prompt = chat.last().prompt.len();
    assert!(prompt < 2 * chat.journal()[0].output().len() + 50 * 40, "{prompt} tokens");
}

#[tokio::test]
async fn streamed_reply_with_two_thoughts_is_continued() {
    let chat = start().await;
    let mut body = request(&[user("One?")]);
    let say = "<think>\nA.\n</think>\n\nI look.\n<think>\nB.\n</think>\n\nDone.<|im_end|>";
    let streamed = super::streams::accumulate(&super::events(&chat, &body, say).await);
    let kinds: Vec<&str> =
        streamed["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "text", "thinking", "text"], "{streamed}");
    body["messages"].as_array_mut().unwrap().extend([assistant(&streamed), user("Two?")]);
    chat.say(&body, "Yes.<|im_end|>").await;
    assert_eq!(chat.turns().await[1]["cause"], "extends");
}

#[tokio::test]
async fn only_the_line_of_the_attribution_is_left_out() {
    let chat = start().await;
    for system in [
        json!("x-anthropic-billing-header: cc=1;\nNever delete files."),
        json!([text("x-anthropic-billing-header: cc=2;\nNever delete files.")]),
        json!([text("x-anthropic-billing-header: cc=3;"), text("Never delete files.")]),
    ] {
        let mut body = request(&[user("One?")]);
        body["system"] = system;
        chat.say(&body, "Yes.<|im_end|>").await;
        let prompt = chat.decode(&chat.last().prompt);
        assert!(prompt.starts_with("<|im_start|>system\nNever delete files.<|im_end|>\n"), "{prompt}");
    }
}
