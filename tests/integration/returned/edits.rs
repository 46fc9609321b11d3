// SPDX-License-Identifier: Apache-2.0
//! The cause of a call names what its client edited, whatever was edited before, in every mode of thinking.

use serde_json::{Value, json};

use super::super::chat::Chat;
use super::{APIS, Agent, Api, OSLO, call};

/// The part of the conversation that a call edits, in the order of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Edit {
    System,
    FirstUser,
    FirstReply,
    LongerToolResult,
    ShorterToolResult,
    LaterReply,
    LaterUser,
    LatestReply,
    /// The messages before the later user message are left out.
    LeftOut,
}

use Edit::{
    FirstReply, FirstUser, LaterReply, LaterUser, LatestReply, LeftOut, LongerToolResult, ShorterToolResult, System,
};

const EDITS: [Edit; 9] =
    [System, FirstUser, FirstReply, LongerToolResult, ShorterToolResult, LaterReply, LaterUser, LatestReply, LeftOut];

/// APIs, and values of `enable_thinking`.
const SETTINGS: [(Api, Option<bool>); 5] = [
    (Api::Chat, None),
    (Api::Chat, Some(true)),
    (Api::Chat, Some(false)),
    (Api::Messages, Some(false)),
    (Api::Responses, Some(true)),
];

impl Edit {
    /// The cause of a call that makes this edit, if the messages before it are those of the session's first path.
    fn cause(self) -> &'static str {
        match self {
            System => "system_changed",
            FirstUser | LongerToolResult | LaterUser => "history_edited",
            ShorterToolResult => "tool_result_cleared",
            FirstReply | LaterReply | LatestReply => "response_edited",
            LeftOut => "compacted",
        }
    }

    /// The same for a call that makes it in a path that began with the edit `before`.
    fn cause_after(self, before: Self) -> &'static str {
        match self {
            // the path has the reply in its prompt, and did not sample it
            FirstReply | LaterReply | LatestReply if before < self => "history_edited",
            // the result is longer than the one in the path
            ShorterToolResult if before == self => "history_edited",
            _ => self.cause(),
        }
    }
}

/// A conversation with a tool call, whose last message is a question.
struct Conversation<'a> {
    agent: Agent<'a>,
    thinking: Option<bool>,
    /// The number of edits.
    edits: usize,
}

impl<'a> Conversation<'a> {
    /// Samples three replies. With `equal_replies`, all texts are the same.
    async fn of(chat: &'a Chat, api: Api, thinking: Option<bool>, (name, equal_replies): (&str, bool)) -> Self {
        let session = format!("{name}-{thinking:?}").replace(['(', ')'], ".");
        let mut agent = Agent::new(chat, api, &session);
        if let Some(thinking) = thinking {
            agent.body["chat_template_kwargs"] = json!({ "enable_thinking": thinking });
        }
        let mut conversation = Self { agent, thinking, edits: 0 };
        conversation.set_system("Be brief.");
        let replies = [call("weather", OSLO), "It rains.".to_owned(), "It still rains.".to_owned()];
        for (at, reply) in replies.iter().enumerate() {
            let reply = if equal_replies && at > 0 { "Done." } else { reply };
            conversation.say_and_append(reply).await;
        }
        conversation
    }

    /// Samples a reply.
    async fn say(&self, text: &str) -> Value {
        let thought = if self.thinking == Some(true) { "Hm.\n</think>\n\n" } else { "" };
        self.agent.say(&format!("{thought}{text}")).await
    }

    async fn say_and_append(&mut self, text: &str) {
        let reply = self.say(text).await;
        let api = self.agent.api;
        self.agent.append(api.returned(&reply));
        self.agent.append(api.next(&reply));
    }

    fn set_system(&mut self, text: &str) {
        match self.agent.api {
            Api::Chat => {
                let messages = self.agent.body["messages"].as_array_mut().unwrap();
                messages.retain(|message| message["role"] != "system");
                messages.insert(0, json!({"role": "system", "content": text}));
            }
            Api::Messages => self.agent.body["system"] = json!(text),
            Api::Responses => self.agent.body["instructions"] = json!(text),
        }
    }

    /// Makes an edit with a text that no earlier edit has.
    fn edit(&mut self, edit: Edit) {
        self.edits += 1;
        let text = format!("{edit:?} {}", self.edits);
        let api = self.agent.api;
        if edit == System {
            return self.set_system(&text);
        }
        let history = self.agent.body[api.history()].as_array_mut().unwrap();
        let is_text = |message: &Value, role: &str| {
            message["role"] == role
                && message["tool_calls"].is_null()
                && !message["content"].to_string().contains("\"tool_")
        };
        let find = |role: &str, count: usize| {
            let found = history.iter().enumerate().filter(|(_, message)| is_text(message, role));
            found.map(|(at, _)| at).nth(count).unwrap()
        };
        match edit {
            System => unreachable!("it is no message in all APIs"),
            FirstUser | LaterUser => {
                let at = find("user", usize::from(edit == LaterUser));
                history[at] = api.user(&text);
            }
            LaterReply | LatestReply => {
                let at = find("assistant", usize::from(edit == LatestReply));
                history[at] = json!({"role": "assistant", "content": text});
            }
            LeftOut => {
                let (first, later) = (find("user", 0), find("user", 1));
                history.drain(first..later);
            }
            FirstReply => {
                let is_call = |message: &Value| message.to_string().contains(r#""weather""#);
                let at = history.iter().position(is_call).unwrap();
                api.rewrite_call(&mut history[at..=at], "weather", &json!({ "city": text }));
                // the template shows the reasoning of an edited reply only until the next question
                history[at].as_object_mut().unwrap().remove("reasoning_content");
                if let Some(at) = history.iter().position(|item| item["type"] == "reasoning") {
                    history.remove(at);
                }
            }
            LongerToolResult | ShorterToolResult => {
                // each is longer than all before it, also if it is shorter than the result that the client got
                let length = self.edits / 4;
                let text = match edit {
                    ShorterToolResult => format!("[{}]", "x".repeat(length)),
                    _ => text.repeat(8 + length),
                };
                let is_result = |message: &&mut Value| {
                    ["tool_call_id", "output"].iter().any(|name| !message[*name].is_null())
                        || message["content"][0]["type"] == "tool_result"
                };
                let result = history.iter_mut().find(is_result).unwrap();
                match api {
                    Api::Chat => result["content"] = json!(text),
                    Api::Messages => result["content"][0]["content"] = json!(text),
                    Api::Responses => result["output"] = json!(text),
                }
            }
        }
    }

    /// Makes a call with an edit that is not kept; returns its cause.
    async fn cause_of(&mut self, edit: Edit) -> String {
        let before = self.agent.body.clone();
        self.edit(edit);
        self.say("Done.").await;
        self.agent.body = before;
        self.last_cause().await
    }

    async fn last_cause(&self) -> String {
        self.agent.turns().await.pop().unwrap()["cause"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cause_names_the_edit_whatever_was_edited_before() {
    let chat = Chat::start(&[]).await;
    let mut wrong = Vec::new();
    for (api, thinking) in SETTINGS {
        let mut check = |what: String, found: String, expected: &str| {
            if found != expected {
                wrong.push(format!("{api:?} {thinking:?} {what}: {found}, not {expected}"));
            }
        };
        for edit in EDITS {
            let mut fresh = Conversation::of(&chat, api, thinking, (&format!("fresh-{edit:?}"), false)).await;
            check(format!("{edit:?}"), fresh.cause_of(edit).await, edit.cause());
        }
        for equal in [false, true] {
            let mut edited = Conversation::of(&chat, api, thinking, (&format!("edited-{equal}"), equal)).await;
            for edit in EDITS.iter().chain(EDITS[..EDITS.len() - 1].iter().rev()) {
                check(format!("{edit:?} after others, {equal}"), edited.cause_of(*edit).await, edit.cause());
            }
        }
        for before in EDITS.into_iter().filter(|before| *before != LeftOut) {
            let mut path = Conversation::of(&chat, api, thinking, (&format!("path-{before:?}"), false)).await;
            path.edit(before);
            path.say_and_append("It rained.").await;
            check(format!("{before:?}"), path.last_cause().await, before.cause());
            for edit in EDITS {
                let found = path.cause_of(edit).await;
                check(format!("{edit:?} in the path of {before:?}"), found, edit.cause_after(before));
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn equal_replies_are_told_apart_by_their_places() {
    let chat = Chat::start(&[]).await;
    for api in APIS {
        let mut agent = Agent::new(&chat, api, "equal");
        for _ in 0..2 {
            let reply = agent.say("Done.").await;
            agent.append([api.returned(&reply), api.next(&reply)].concat());
        }
        let history = agent.body[api.history()].clone();
        agent.body[api.history()][1] = json!({"role": "assistant", "content": "Not yet."});
        agent.say("Done.").await;
        agent.body[api.history()] = history;
        agent.body[api.history()][0] = api.user("Bergen?");
        agent.say("Done.").await;
        let turns = agent.turns().await;
        let facts: Vec<_> = turns.iter().map(|turn| (turn["cause"].as_str().unwrap(), &turn["predecessor"])).collect();
        let none = &Value::Null;
        let expected = [("first", none), ("extends", none), ("response_edited", none), ("history_edited", &json!(1))];
        assert_eq!(facts, expected, "{api:?}: {turns:#?}");
    }
}
