//! What the client is told: whole and in pieces.

use serde_json::{Value, json};

use super::{Chat, messages, said, tools};

/// A streamed reply, put together again.
#[derive(Debug, Default, PartialEq)]
struct Together {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
    finish: Vec<String>,
    chunks: usize,
}

fn together(events: &[Value]) -> Together {
    let mut whole = Together::default();
    for event in events {
        for choice in event["choices"].as_array().unwrap() {
            let delta = &choice["delta"];
            whole.chunks += 1;
            whole.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
            whole.content += delta["content"].as_str().unwrap_or_default();
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                let at = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
                if at == whole.calls.len() {
                    whole.calls.push((call["function"]["name"].as_str().unwrap().into(), String::new()));
                }
                whole.calls[at].1 += call["function"]["arguments"].as_str().unwrap();
            }
            whole.finish.extend(choice["finish_reason"].as_str().map(str::to_owned));
        }
    }
    whole
}

#[tokio::test]
async fn a_stream_says_what_the_whole_reply_says() {
    let chat = Chat::start(&[]).await;
    let say = "<think>\nHm, 🌧️ perhaps.\n</think>\n\nLet me look: é 🙂.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Tromsø\"}}\n</tool_call><|im_end|>";
    let body = json!({"messages": messages(&[("user", "Weather?")]), "tools": tools(), "max_tokens": 400});
    let whole = chat.say(&body, say).await;
    let mut streamed = said(&body, say);
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let answer = chat.post(&streamed).await;
    assert!(answer.complete && answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    let events = answer.events();
    let spoken = together(&events);
    let message = &whole["choices"][0]["message"];
    assert_eq!(spoken.content, message["content"].as_str().unwrap());
    assert_eq!(spoken.reasoning, message["reasoning_content"].as_str().unwrap());
    assert_eq!(spoken.calls.len(), 1);
    assert_eq!(spoken.calls[0].1, message["tool_calls"][0]["function"]["arguments"].as_str().unwrap());
    assert_eq!(spoken.finish, ["tool_calls"]);
    assert!(spoken.chunks > 10, "it came in pieces");
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    assert_eq!(message["content"], "Let me look: é 🙂.");
}
