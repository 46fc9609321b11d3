// SPDX-License-Identifier: Apache-2.0
//! Replies that clients change before they return them: the call extends the recorded tokens, and its turn lists the changes.

mod edits;
mod options;

use serde_json::{Value, json};

use tokentap::chat::model::Chats;

use super::chat::{Chat, TOKENIZER, with_say};
use super::support::proxy::Proxy;
use super::support::upstream::{EngineProfile, FakeReply, Upstream, UpstreamRequest, json_message};

/// The APIs that have conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
    Chat,
    Messages,
    Responses,
}

const APIS: [Api; 3] = [Api::Chat, Api::Messages, Api::Responses];

const OSLO: &str = r#"{"city": "Oslo"}"#;

/// Arguments that are not JSON.
const MALFORMED: &str = r#"{"city": Oslo}"#;

/// The text of a reply that calls the tool `name`.
fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

impl Api {
    fn path(self, session: &str) -> String {
        let path = match self {
            Self::Chat => "chat/completions",
            Self::Messages => "messages",
            Self::Responses => "responses",
        };
        format!("/sessions/{session}/v1/{path}")
    }

    /// The member with the history.
    fn history(self) -> &'static str {
        if self == Self::Responses { "input" } else { "messages" }
    }

    /// A request with a user message and the tools `weather` and `forecast`.
    fn request(self) -> Value {
        let schema = json!({
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}},
            "required": ["city"],
        });
        let tool = |name: &str| match self {
            Self::Chat => json!({"type": "function", "function": {"name": name, "parameters": schema}}),
            Self::Messages => json!({"name": name, "input_schema": schema}),
            Self::Responses => json!({"type": "function", "name": name, "parameters": schema}),
        };
        let mut body = json!({"model": "m", "max_tokens": 512, "tools": [tool("weather"), tool("forecast")]});
        body[self.history()] = json!([self.user("Oslo?")]);
        body
    }

    fn user(self, text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    /// The messages or items of a reply, as a client stores them.
    fn returned(self, reply: &Value) -> Vec<Value> {
        match self {
            Self::Chat => vec![reply["choices"][0]["message"].clone()],
            Self::Messages => vec![json!({"role": "assistant", "content": reply["content"]})],
            Self::Responses => reply["output"].as_array().unwrap().clone(),
        }
    }

    /// The messages after a reply: the results of its calls, or a question.
    fn next(self, reply: &Value) -> Vec<Value> {
        let result = |(at, id): (usize, &Value)| match self {
            Self::Chat => json!({"role": "tool", "tool_call_id": id, "content": format!("rain {at}")}),
            Self::Messages => json!({"type": "tool_result", "tool_use_id": id, "content": format!("rain {at}")}),
            Self::Responses => json!({"type": "function_call_output", "call_id": id, "output": format!("rain {at}")}),
        };
        let ids = self.call_ids(reply);
        let results: Vec<Value> = ids.iter().enumerate().map(result).collect();
        match self {
            _ if results.is_empty() => vec![self.user("And now?")],
            Self::Messages => vec![json!({"role": "user", "content": results})],
            _ => results,
        }
    }

    fn call_ids(self, reply: &Value) -> Vec<Value> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        match self {
            Self::Chat => list(&reply["choices"][0]["message"]["tool_calls"]).iter().map(|c| c["id"].clone()).collect(),
            Self::Messages => {
                let calls = list(&reply["content"]).into_iter().filter(|block| block["type"] == "tool_use");
                calls.map(|block| block["id"].clone()).collect()
            }
            Self::Responses => {
                let calls = list(&reply["output"]).into_iter().filter(|item| item["type"] == "function_call");
                calls.map(|item| item["call_id"].clone()).collect()
            }
        }
    }

    /// Replaces the name and the arguments of the first call.
    fn rewrite_call(self, returned: &mut [Value], name: &str, arguments: &Value) {
        match self {
            Self::Chat => {
                returned[0]["tool_calls"][0]["function"] = json!({"name": name, "arguments": arguments.to_string()});
            }
            Self::Messages => {
                let blocks = returned[0]["content"].as_array_mut().unwrap();
                let block = blocks.iter_mut().find(|block| block["type"] == "tool_use").unwrap();
                (block["name"], block["input"]) = (json!(name), arguments.clone());
            }
            Self::Responses => {
                let item = returned.iter_mut().find(|item| item["type"] == "function_call").unwrap();
                (item["name"], item["arguments"]) = (json!(name), json!(arguments.to_string()));
            }
        }
    }

    /// Replaces the text; without one, the client leaves it out.
    fn replace_text(self, returned: &mut Vec<Value>, text: Option<&str>) {
        match self {
            Self::Chat => returned[0]["content"] = text.into(),
            Self::Messages => {
                let blocks = returned[0]["content"].as_array_mut().unwrap();
                match text {
                    None => blocks.retain(|block| block["type"] != "text"),
                    Some(text) => {
                        blocks.iter_mut().find(|block| block["type"] == "text").unwrap()["text"] = json!(text);
                    }
                }
            }
            Self::Responses => match text {
                None => returned.retain(|item| item["type"] != "message"),
                Some(text) => {
                    let item = returned.iter_mut().find(|item| item["type"] == "message").unwrap();
                    item["content"][0]["text"] = json!(text);
                }
            },
        }
    }
}

/// A session of one API.
struct Agent<'a> {
    chat: &'a Chat,
    api: Api,
    session: String,
    body: Value,
}

impl<'a> Agent<'a> {
    fn new(chat: &'a Chat, api: Api, session: &str) -> Self {
        Self { chat, api, session: format!("{session}-{api:?}"), body: api.request() }
    }

    /// Requests a reply with this text and a stop token.
    async fn say(&self, text: &str) -> Value {
        let body = with_say(&self.body, &format!("{text}<|im_end|>"));
        let answer = self.chat.demo.post(&self.api.path(&self.session), &body).await;
        assert_eq!(answer.status, 200, "{}: {}", self.session, answer.text());
        answer.json()
    }

    fn append(&mut self, messages: impl IntoIterator<Item = Value>) {
        self.body[self.api.history()].as_array_mut().unwrap().extend(messages);
    }

    async fn turns(&self) -> Vec<Value> {
        let path = format!("/v1/sessions/{}", self.session);
        let shown = super::support::client::get(self.chat.demo.proxy.control, &path).await.json();
        shown["list"].as_array().unwrap().clone()
    }

    /// Samples `reply`, returns it as `change` makes it, and makes two more calls. Returns the second turn.
    async fn second_turn(&mut self, reply: &str, change: &dyn Fn(&mut Vec<Value>)) -> Value {
        let reply = self.say(reply).await;
        let mut returned = self.api.returned(&reply);
        change(&mut returned);
        let next = self.api.next(&reply);
        self.append(returned);
        self.append(next);
        let reply = self.say("It rains.").await;
        let (returned, next) = (self.api.returned(&reply), self.api.next(&reply));
        self.append(returned);
        self.append(next);
        self.say("Bye.").await;
        let turns = self.turns().await;
        let third = &turns[2];
        let facts = (&third["cause"], &third["parent"], &third["reply_changes"]);
        assert_eq!(facts, (&json!("extends"), &json!(1), &json!([])), "{}: {turns:#?}", self.session);
        turns[1].clone()
    }
}

/// Checks that the second call extends the first turn, and lists these changes.
async fn extends(chat: &Chat, name: &str, api: Api, reply: &str, change: &dyn Fn(&mut Vec<Value>), changes: &[&str]) {
    let mut agent = Agent::new(chat, api, name);
    let turn = agent.second_turn(reply, change).await;
    let flags = (&turn["foreign_assistant_text"], &turn["context_retokenised"]);
    assert_eq!(
        (&turn["cause"], &turn["parent"], flags, &turn["reply_changes"]),
        (&json!("extends"), &json!(0), (&json!(false), &json!(false)), &json!(changes)),
        "{name} {api:?}: {turn}"
    );
}

/// Checks that the second call begins a branch with this cause.
async fn branches(chat: &Chat, name: &str, api: Api, reply: &str, change: &dyn Fn(&mut Vec<Value>)) {
    let mut agent = Agent::new(chat, api, name);
    let turn = agent.second_turn(reply, change).await;
    let is_text = turn["foreign_assistant_text"] == true || turn["context_retokenised"] == true;
    assert_eq!(
        (&turn["cause"], &turn["parent"], &turn["reply_changes"], is_text),
        (&json!("response_edited"), &Value::Null, &json!([]), true),
        "{name} {api:?}: {turn}"
    );
}

#[tokio::test]
async fn reply_that_is_returned_unchanged_has_no_changes() {
    let chat = Chat::start(&[]).await;
    let unchanged = |_: &mut Vec<Value>| {};
    let weather = call("weather", OSLO);
    for api in APIS {
        for (at, reply) in [
            "\n\n  It rains.  \n".to_owned(),
            "<think>\nHm.\n</think>\n\nIt rains.\n".to_owned(),
            format!("<think>\nHm.\n</think>\n\n{weather}"),
            format!("\nI look. \n{weather}\n{weather}"),
            format!("\n\n{weather}"),
        ]
        .iter()
        .enumerate()
        {
            extends(&chat, &format!("unchanged-{at}"), api, reply, &unchanged, &[]).await;
        }
    }
}

#[tokio::test]
async fn name_that_the_template_does_not_show_extends() {
    let chat = Chat::start(&[]).await;
    let named = |returned: &mut Vec<Value>| returned[0]["name"] = json!("counter");
    let named_call = |returned: &mut Vec<Value>| {
        let calls = returned[0]["tool_calls"].clone();
        returned[0] = json!({"role": "assistant", "name": "counter", "content": "", "tool_calls": calls});
    };
    extends(&chat, "name", Api::Chat, &call("weather", OSLO), &named_call, &["name_added"]).await;
    extends(&chat, "name-text", Api::Chat, "It rains.", &named, &["name_added"]).await;
    // without the ids of its calls, the text decides
    let renumbered = |returned: &mut Vec<Value>| {
        named(returned);
        returned[0]["tool_calls"][0]["id"] = json!("other");
    };
    extends(&chat, "name-renumbered", Api::Chat, &call("weather", OSLO), &renumbered, &["name_added"]).await;
}

#[tokio::test]
async fn malformed_call_in_the_notation_of_the_client_extends() {
    let chat = Chat::start(&[]).await;
    for api in APIS {
        let malformed = call("weather", MALFORMED);
        let rewritten = |name: &'static str, arguments: Value| {
            move |returned: &mut Vec<Value>| api.rewrite_call(returned, name, &arguments)
        };
        let unparsed = json!({"__unparsedToolInput": {"raw": MALFORMED, "len": MALFORMED.len()}});
        let invalid = json!({"tool": "weather", "error": "Invalid input for tool weather: JSON parsing failed"});
        let unknown = json!({"tool": "nosuch", "error": "Model tried to call unavailable tool 'nosuch'."});
        for (name, reply, change) in [
            ("empty", malformed.clone(), rewritten("weather", json!({}))),
            ("claude-code", malformed.clone(), rewritten("weather", unparsed)),
            ("opencode", malformed.clone(), rewritten("invalid", invalid)),
            ("opencode-unknown", call("nosuch", OSLO), rewritten("invalid", unknown)),
            ("raw", malformed, rewritten("weather", json!({"raw": MALFORMED}))),
        ] {
            extends(&chat, name, api, &reply, &change, &["call_rewritten"]).await;
        }
    }
}

#[tokio::test]
async fn outer_white_space_of_the_text_may_change() {
    let chat = Chat::start(&[]).await;
    for api in APIS {
        let text = |text: &'static str| move |returned: &mut Vec<Value>| api.replace_text(returned, Some(text));
        extends(&chat, "strip", api, "\n\n  Hello there.", &text("Hello there."), &["white_space"]).await;
        let thinks = "<think>\nHm.\n</think>\n\nHello there.";
        extends(&chat, "inspect", api, thinks, &text("\nHello there."), &["white_space"]).await;
        extends(&chat, "strip-end", api, "Hello there. \n", &text("Hello there."), &["white_space"]).await;
    }
}

#[tokio::test]
async fn text_beside_calls_may_be_left_out() {
    let chat = Chat::start(&[]).await;
    let reply = format!("I look.\n{}\n{}", call("weather", OSLO), call("forecast", OSLO));
    for api in APIS {
        let left_out = |returned: &mut Vec<Value>| api.replace_text(returned, None);
        extends(&chat, "left-out", api, &reply, &left_out, &["text_left_out"]).await;
    }
    // without a key, other calls with the same arguments could be meant
    let renumbered = |returned: &mut Vec<Value>| {
        returned[0]["content"] = Value::Null;
        returned[0]["tool_calls"][0]["id"] = json!("call-0");
        returned[0]["tool_calls"][1]["id"] = json!("call-1");
    };
    branches(&chat, "left-out-renumbered", Api::Chat, &reply, &renumbered).await;
}

#[tokio::test]
async fn ids_of_nine_characters_are_keys_unless_the_model_wrote_them() {
    let chat = Chat::start(&["--tool-call-parser", "mistral"]).await;
    let left_out = |returned: &mut Vec<Value>| returned[0]["content"] = Value::Null;
    let ours = format!("I look.[TOOL_CALLS]weather[ARGS]{OSLO}");
    extends(&chat, "mistral", Api::Chat, &ours, &left_out, &["text_left_out"]).await;
    let of_model = format!("I look.[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{OSLO}");
    branches(&chat, "mistral-model", Api::Chat, &of_model, &left_out).await;
}

#[tokio::test]
async fn argument_that_is_null_may_be_left_out() {
    let chat = Chat::start(&[]).await;
    for api in APIS {
        let reply = call("weather", r#"{"city": "Oslo", "days": null}"#);
        let without = |returned: &mut Vec<Value>| api.rewrite_call(returned, "weather", &json!({"city": "Oslo"}));
        extends(&chat, "null", api, &reply, &without, &["call_rewritten"]).await;
    }
}

#[tokio::test]
async fn message_with_the_text_of_the_reasoning_is_part_of_the_reply() {
    let chat = Chat::start(&[]).await;
    let reply = format!("<think>\nI look first.\n</think>\n\n{}", call("weather", OSLO));
    let message = json!({
        "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look first."}],
    });
    let before_call = |returned: &mut Vec<Value>| {
        let at = returned.iter().position(|item| item["type"] == "function_call").unwrap();
        returned.insert(at, message.clone());
    };
    let replaces_reasoning = |returned: &mut Vec<Value>| {
        before_call(returned);
        returned.retain(|item| item["type"] != "reasoning");
    };
    extends(&chat, "copilot", Api::Responses, &reply, &before_call, &["reasoning_as_text"]).await;
    extends(&chat, "copilot-alone", Api::Responses, &reply, &replaces_reasoning, &["reasoning_as_text"]).await;
    let as_content = |returned: &mut Vec<Value>| returned[0]["content"] = json!("I look first.");
    extends(&chat, "copilot", Api::Chat, &reply, &as_content, &["reasoning_as_text"]).await;
    let as_block = |returned: &mut Vec<Value>| {
        let blocks = returned[0]["content"].as_array_mut().unwrap();
        blocks.retain(|block| block["type"] != "thinking");
        blocks.insert(0, json!({"type": "text", "text": "I look first."}));
    };
    extends(&chat, "copilot", Api::Messages, &reply, &as_block, &["reasoning_as_text"]).await;
}

#[tokio::test]
async fn reasoning_in_a_text_with_a_literal_think_end_is_that_of_the_reply() {
    let chat = Chat::start(&[]).await;
    let reply = "<think>\nI look first.\n</think>\n\nWrite </think> after it.";
    let joins = |text: &'static str| {
        move |returned: &mut Vec<Value>| {
            let message = returned[0].as_object_mut().unwrap();
            message.remove("reasoning_content");
            message.insert("content".to_owned(), json!(text));
        }
    };
    let same = joins("<think>\nI look first.\n</think>\n\nWrite </think> after it.");
    extends(&chat, "joined", Api::Chat, reply, &same, &[]).await;
    let other = joins("<think>\nI look first.\n</think>\n\nDrop </think> after it.");
    branches(&chat, "edited", Api::Chat, reply, &other).await;
}

#[tokio::test]
async fn edited_reply_begins_a_branch_although_it_keeps_its_key() {
    let chat = Chat::start(&[]).await;
    let malformed = call("weather", MALFORMED);
    let reply = format!("<think>\nHm.\n</think>\n\nI look.\n{}", call("weather", OSLO));
    for api in APIS {
        let text = |text: &'static str| move |returned: &mut Vec<Value>| api.replace_text(returned, Some(text));
        branches(&chat, "text", api, &reply, &text("I look away.")).await;
        branches(&chat, "shortened", api, &reply, &text("I")).await;
        for (name, reply, tool, arguments) in [
            ("arguments", &reply, "weather", json!({"city": "Bergen"})),
            ("left-out-argument", &reply, "weather", json!({})),
            ("tool", &reply, "forecast", json!({"city": "Oslo"})),
            ("other-tool", &reply, "forecast", json!({"city": "weather"})),
            ("unknown-tool", &reply, "invalid", json!({"city": "Oslo"})),
            ("repaired", &malformed, "weather", json!({"city": "Oslo"})),
        ] {
            let change = |returned: &mut Vec<Value>| api.rewrite_call(returned, tool, &arguments);
            branches(&chat, name, api, reply, &change).await;
        }
    }
}

#[tokio::test]
async fn dropped_parallel_call_begins_a_branch() {
    let chat = Chat::start(&[]).await;
    let reply = format!("{}\n{}", call("weather", OSLO), call("forecast", OSLO));
    let mut agent = Agent::new(&chat, Api::Chat, "gptme");
    let reply = agent.say(&reply).await;
    let mut returned = Api::Chat.returned(&reply);
    returned[0]["tool_calls"].as_array_mut().unwrap().truncate(1);
    let mut next = Api::Chat.next(&reply);
    next.truncate(1);
    agent.append(returned);
    agent.append(next);
    agent.say("It rains.").await;
    assert_eq!(agent.turns().await[1]["cause"], "response_edited");
}

#[tokio::test]
async fn key_of_another_turn_with_other_content_is_not_a_reply() {
    let chat = Chat::start(&[]).await;
    for api in APIS {
        let mut agent = Agent::new(&chat, api, "swapped");
        let first = agent.say(&call("weather", OSLO)).await;
        let (returned, next) = (api.returned(&first), api.next(&first));
        agent.append(returned.clone());
        agent.append(next);
        let second = agent.say(&format!("I look.\n{}", call("forecast", r#"{"city": "Bergen"}"#))).await;
        // the place of the second reply has the first one
        agent.append(returned);
        agent.append(api.next(&second));
        agent.say("It rains.").await;
        let turns = agent.turns().await;
        let turn = &turns[2];
        // items with one key are one reply, so in Responses the first reply has changed
        let parent = if api == Api::Responses { Value::Null } else { json!(0) };
        assert_eq!((&turn["parent"], &turn["reply_changes"]), (&parent, &json!([])), "{api:?}: {turns:#?}");
    }
}

#[tokio::test]
async fn changes_are_listed_after_a_change_of_the_history_too() {
    let chat = Chat::start(&[]).await;
    let mut agent = Agent::new(&chat, Api::Chat, "spliced");
    let reply = agent.say(&format!("I look.\n{}", call("weather", OSLO))).await;
    let mut returned = Api::Chat.returned(&reply);
    returned[0]["content"] = Value::Null;
    returned[0]["name"] = json!("counter");
    let sampled = chat.last().output();
    agent.append(returned);
    agent.append(Api::Chat.next(&reply));
    agent.body["messages"][0]["content"] = json!("Oslo, please.");
    agent.say("It rains.").await;
    let prompt = chat.last().prompt;
    assert!(prompt.windows(sampled.len()).any(|ids| ids == sampled), "the sampled tokens are in the prompt");
    let turn = &agent.turns().await[1];
    let facts = (&turn["cause"], &turn["foreign_assistant_text"], &turn["reply_changes"]);
    assert_eq!(facts, (&json!("history_edited"), &json!(false), &json!(["name_added", "text_left_out"])));
}

#[tokio::test]
async fn compaction_that_keeps_the_newest_reply_is_compacted() {
    let chat = Chat::start(&[]).await;
    for api in APIS {
        let mut agent = Agent::new(&chat, api, "compaction");
        let reply = agent.say(&call("weather", OSLO)).await;
        let newest = [api.returned(&reply), api.next(&reply)].concat();
        agent.append(newest.clone());
        agent.append([api.user("Summarise.")]);
        let summary = "The agent was asked about Oslo and looks at its weather.";
        agent.say(summary).await;
        agent.body[api.history()] = json!([api.user(&format!("This session continues another one:\n{summary}"))]);
        agent.append(newest);
        agent.say("It rains.").await;
        let turns = agent.turns().await;
        let turn = &turns[2];
        let flags = (&turn["foreign_assistant_text"], &turn["context_retokenised"]);
        assert_eq!(
            (&turn["cause"], &turn["predecessor"], flags),
            (&json!("compacted"), &json!(1), (&json!(false), &json!(false))),
            "{api:?}: {turns:#?}"
        );
    }
}

/// The reply of an engine that samples these ids.
fn sampled(asked: &UpstreamRequest, ids: &[u32]) -> FakeReply {
    let body = asked.json();
    let rows: Vec<Value> = ids.iter().map(|id| json!([-0.5, id, null])).collect();
    let top: Vec<Value> = ids.iter().map(|id| json!([[-0.5, id, null]])).collect();
    let meta = json!({
        "id": body["rid"], "finish_reason": {"type": "length", "length": ids.len()}, "completion_tokens": ids.len(),
        "prompt_tokens": body["input_ids"].as_array().map_or(3, Vec::len), "cached_tokens": 0, "weight_version": "default",
        "output_token_logprobs": rows, "output_top_logprobs": top,
    });
    json_message(200, json!({"text": "", "output_ids": ids, "meta_info": meta}).to_string().as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn call_after_a_reply_without_a_token_is_no_new_conversation() {
    let is_empty = |asked: &UpstreamRequest| asked.json()["sampling_params"]["max_new_tokens"] == 1;
    let reply = move |asked: &UpstreamRequest| sampled(asked, if is_empty(asked) { &[] } else { &[300, 301] });
    let profile = EngineProfile { server_info: json!({"sampling_defaults": "openai"}), ..EngineProfile::default() };
    let upstream = Upstream::start(profile, move |asked: &UpstreamRequest| reply(asked)).await;
    let proxy = Proxy::probed(upstream.addr, &["--tokenizer", TOKENIZER]).await;
    let mut chats = proxy.parts.chats.clone();
    drop(chats.wait_for(|chats| matches!(&**chats, Chats::Rendered(_))).await.unwrap());
    for api in APIS {
        let path = api.path(&format!("empty-{api:?}"));
        let limit = if api == Api::Responses { "max_output_tokens" } else { "max_tokens" };
        let mut body = api.request();
        body.as_object_mut().unwrap().remove("max_tokens");
        let say = async |body: &Value, limited: u32| {
            let mut body = body.clone();
            body[limit] = json!(limited);
            let answer = super::support::client::post(proxy.data, &path, body.to_string().as_bytes()).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.json()
        };
        say(&body, 1).await;
        say(&body, 1).await;
        say(&body, 2).await;
        let mut next = body.clone();
        let history = next[api.history()].as_array_mut().unwrap();
        history.extend([json!({"role": "assistant", "content": ""}), api.user("Oslo?")]);
        say(&next, 2).await;
        let path = format!("/v1/sessions/empty-{api:?}");
        let shown = super::support::client::get(proxy.control, &path).await.json();
        let turns = shown["list"].as_array().unwrap();
        let facts: Vec<(&str, &Value)> =
            turns.iter().map(|turn| (turn["cause"].as_str().unwrap(), &turn["parent"])).collect();
        assert_eq!(turns[0]["sampled_tokens"], 0);
        let none = &Value::Null;
        let expected = [("first", none), ("sample", none), ("sample", none), ("extends_length", &json!(1))];
        assert_eq!(facts, expected, "{api:?}: {turns:#?}");
    }
}
