// SPDX-License-Identifier: Apache-2.0
//! Conversations in one session: later prompts keep the sampled tokens unchanged.

use serde_json::{Value, json};

use super::{Chat, messages, tools};

const CALL: &str = "<think>\nThe tool knows.\n</think>\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call><|im_end|>";

/// Appends the reply as a client would, and the next message.
fn append_turn(conversation: &mut Value, reply: &Value, next: Value) {
    let list = conversation.as_array_mut().unwrap();
    list.push(reply["choices"][0]["message"].clone());
    list.push(next);
}

#[tokio::test]
async fn twenty_turns_with_tools_are_one_sequence_of_tokens() {
    let chat = Chat::start(&[]).await;
    let mut body = json!({
        "model": "demo",
        "messages": messages(&[("system", "Be brief."), ("user", "How is the weather in Oslo?")]),
        "tools": tools(),
    });
    for turn in 0..20 {
        if turn % 2 == 0 {
            let reply = chat.say(&body, CALL).await;
            let choice = &reply["choices"][0];
            assert_eq!(choice["finish_reason"], "tool_calls", "{reply}");
            assert_eq!(choice["message"]["reasoning_content"], "The tool knows.");
            let call = &choice["message"]["tool_calls"][0];
            assert_eq!(call["function"]["arguments"], "{\"city\": \"Oslo\"}");
            let answer = json!({"role": "tool", "tool_call_id": call["id"], "content": format!("rain {turn}")});
            append_turn(&mut body["messages"], &reply, answer);
        } else {
            let reply = chat.say(&body, "It rains.<|im_end|>").await;
            assert_eq!(reply["choices"][0]["message"]["content"], "It rains.", "{reply}");
            append_turn(&mut body["messages"], &reply, json!({"role": "user", "content": format!("And now, {turn}?")}));
        }
    }
    let journal = chat.journal();
    assert_eq!(journal.len(), 20);
    for pair in journal.windows(2) {
        let before = [&pair[0].prompt[..], &pair[0].output()].concat();
        assert!(pair[1].prompt.starts_with(&before), "the previous turn is a prefix of the next prompt");
        let new = chat.decode(&pair[1].prompt[before.len()..]);
        assert!(new.starts_with("\n<|im_start|>user\n") && new.ends_with("<|im_start|>assistant\n"), "{new:?}");
    }
    let turns = chat.turns().await;
    assert_eq!(turns.len(), 20);
    for (at, turn) in turns.iter().enumerate() {
        assert_eq!(turn["cause"], if at == 0 { "first" } else { "extends" });
        assert_eq!(turn["fault"], Value::Null);
        assert_eq!(turn["context_retokenised"], false);
    }
}

#[tokio::test]
async fn replies_after_an_edit_keep_their_sampled_tokens() {
    let chat = Chat::start(&[]).await;
    let mut list = messages(&[("system", "Be brief."), ("user", "Oslo?")]);
    for turn in 0..6 {
        let body = json!({"messages": list, "tools": tools()});
        let reply =
            chat.say(&body, if turn % 2 == 0 { CALL } else { "<think>\nSo.\n</think>\n\nIt rains.<|im_end|>" }).await;
        let mut message = reply["choices"][0]["message"].clone();
        // the client drops the thought, so that its text alone cannot restore the tokens
        message.as_object_mut().unwrap().remove("reasoning_content");
        let call = message["tool_calls"][0]["id"].clone();
        let list = list.as_array_mut().unwrap();
        list.push(message);
        list.push(match turn % 2 {
            0 => json!({"role": "tool", "tool_call_id": call, "content": format!("rain {turn}")}),
            _ => json!({"role": "user", "content": format!("And now, {turn}?")}),
        });
    }
    list[3]["content"] = json!("-");
    let body = json!({"messages": list, "tools": tools()});
    chat.say(&body, "It rains.<|im_end|>").await;

    let journal = chat.journal();
    let mut rest = &chat.last().prompt[..];
    for earlier in &journal[..6] {
        let output = earlier.output();
        let at =
            rest.windows(output.len()).position(|ids| ids == output).expect("the sampled tokens are in the prompt");
        rest = &rest[at + output.len()..];
    }
    assert_eq!(chat.decode(rest), "\n<|im_start|>user\nAnd now, 5?<|im_end|>\n<|im_start|>assistant\n");
    let turns = chat.turns().await;
    assert_eq!((&turns[6]["cause"], &turns[6]["context_retokenised"]), (&json!("tool_result_cleared"), &json!(false)));
    assert_eq!(chat.demo.proxy.metric("tokentap_chat_prompts_total{how=\"spliced\"}").await, 1.0);
}

#[tokio::test]
async fn without_a_session_assistant_text_is_retokenised_and_flagged() {
    let mut chat = Chat::start(&[]).await;
    chat.path = "/v1/chat/completions".into();
    let mut body = json!({"messages": messages(&[("user", "Say something.")])});
    let reply = chat.say(&body, "Some thing.<|im_end|>").await;
    append_turn(&mut body["messages"], &reply, json!({"role": "user", "content": "More."}));
    let answer = chat.post(&super::with_say(&body, "No.<|im_end|>")).await;
    let session = answer.header("x-tokentap-session").unwrap().to_owned();
    let shown =
        super::super::support::client::get(chat.demo.proxy.control, &format!("/v1/sessions/{session}")).await.json();
    assert_eq!(shown["list"][0]["foreign_assistant_text"], true, "{shown}");
    assert_eq!(chat.decode(&chat.last().prompt).matches("Some thing.").count(), 1);
}
