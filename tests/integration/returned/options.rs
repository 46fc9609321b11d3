// SPDX-License-Identifier: Apache-2.0
//! Options of the template are compared by the text that they render.

use serde_json::{Value, json};

use super::super::chat::Chat;
use super::{Agent, Api, call};

/// Makes a call, another one with the members of `added`, and a third one; returns the second and the third turn.
async fn turns_after(chat: &Chat, name: &str, api: Api, added: &Value) -> [Value; 2] {
    let mut agent = Agent::new(chat, api, name);
    for (at, reply) in [call("weather", super::OSLO), "It rains.".to_owned(), "Bye.".to_owned()].iter().enumerate() {
        if at == 1 {
            agent.body.as_object_mut().unwrap().extend(added.as_object().unwrap().clone());
        }
        let reply = agent.say(reply).await;
        agent.append(api.returned(&reply));
        agent.append(api.next(&reply));
    }
    let turns = agent.turns().await;
    [turns[1].clone(), turns[2].clone()]
}

#[tokio::test]
async fn options_that_leave_the_history_as_it_was_extend() {
    let chat = Chat::start(&[]).await;
    for (name, api, added) in [
        ("vibe", Api::Messages, json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}})),
        ("thinking-off", Api::Messages, json!({"thinking": {"type": "disabled"}})),
        ("effort", Api::Chat, json!({"reasoning_effort": "high"})),
        ("unknown", Api::Chat, json!({"chat_template_kwargs": {"unknown": "x", "list": [1, 2]}})),
        ("thinking", Api::Chat, json!({"chat_template_kwargs": {"enable_thinking": true}})),
        ("effort", Api::Responses, json!({"reasoning": {"effort": "high"}})),
    ] {
        for turn in turns_after(&chat, name, api, &added).await {
            let flags = (&turn["foreign_assistant_text"], &turn["context_retokenised"]);
            assert_eq!((&turn["cause"], flags), (&json!("extends"), (&json!(false), &json!(false))), "{name} {api:?}");
        }
    }
}

/// The folder of a model whose template shows the effort in the system prompt, as gpt-oss does, and another option beside user messages.
fn folder_with_effort() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(format!("{}/{file}", super::super::chat::TOKENIZER), folder.path().join(file)).unwrap();
    }
    let template = std::fs::read_to_string(format!("{}/chat_template.jinja", super::super::chat::TOKENIZER)).unwrap();
    let effort = "{{- '<|im_start|>system\nReasoning: ' + (reasoning_effort or 'medium') + '<|im_end|>\n' -}}\n";
    let user = "message.role + '\n' + message.content + (' /brief' if message.role == 'user' and brief else '')";
    let template = template.replace(r"message.role + '\n' + message.content", &user.replace('\n', r"\n"));
    std::fs::write(folder.path().join("chat_template.jinja"), effort.replace('\n', r"\n") + "\n" + &template).unwrap();
    folder
}

#[tokio::test]
async fn option_that_changes_the_history_begins_a_branch() {
    let folder = folder_with_effort();
    let chat = Chat::start(&["--tokenizer", folder.path().to_str().unwrap()]).await;
    for (name, api, added, cause) in [
        ("effort", Api::Chat, json!({"reasoning_effort": "high"}), "history_edited"),
        ("effort", Api::Messages, json!({"output_config": {"effort": "high"}}), "history_edited"),
        ("effort", Api::Responses, json!({"reasoning": {"effort": "high"}}), "history_edited"),
        ("brief", Api::Chat, json!({"chat_template_kwargs": {"brief": true}}), "history_edited"),
        // the text is the same as without the option
        ("medium", Api::Chat, json!({"reasoning_effort": "medium"}), "extends"),
        ("not-brief", Api::Chat, json!({"chat_template_kwargs": {"brief": false, "unknown": 1}}), "extends"),
    ] {
        let [second, third] = turns_after(&chat, name, api, &added).await;
        assert_eq!((&second["cause"], &third["cause"]), (&json!(cause), &json!("extends")), "{name} {api:?}");
    }
    let prompt = chat.decode(&chat.last().prompt);
    assert!(prompt.contains("Reasoning: medium"), "{prompt}");
    let mut agent = Agent::new(&chat, Api::Chat, "first");
    agent.say("It rains.").await;
    agent.body["reasoning_effort"] = json!("high");
    agent.say("It rains.").await;
    let turn = &agent.turns().await[1];
    assert_eq!(
        (&turn["cause"], &turn["predecessor"]),
        (&json!("history_edited"), &json!(0)),
        "the user message is known"
    );
}
