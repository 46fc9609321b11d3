// SPDX-License-Identifier: Apache-2.0
//! Chat replies, non-streaming and streamed.

use serde_json::{Value, json};

use super::{Chat, messages, tools, with_say};
use crate::support;
use crate::support::client::request;

/// The concatenated deltas of a stream.
#[derive(Debug, Default, PartialEq)]
struct StreamedReply {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
    finish: Vec<String>,
    chunks: usize,
}

fn assemble(events: &[Value]) -> StreamedReply {
    let mut whole = StreamedReply::default();
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
async fn stream_equals_the_non_streaming_reply() {
    let chat = Chat::start(&[]).await;
    let say = "<think>\nHm, 🌧️ perhaps.\n</think>\n\nLet me look: é 🙂.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Tromsø\"}}\n</tool_call><|im_end|>";
    let body = json!({"messages": messages(&[("user", "Weather?")]), "tools": tools(), "max_tokens": 400});
    let whole = chat.say(&body, say).await;
    let mut streamed = with_say(&body, say);
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let answer = chat.post(&streamed).await;
    assert!(answer.complete && answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    let events = answer.events();
    let joined = assemble(&events);
    let message = &whole["choices"][0]["message"];
    assert_eq!(joined.content, message["content"].as_str().unwrap());
    assert_eq!(joined.reasoning, message["reasoning_content"].as_str().unwrap());
    assert_eq!(joined.calls.len(), 1);
    assert_eq!(joined.calls[0].1, message["tool_calls"][0]["function"]["arguments"].as_str().unwrap());
    assert_eq!(joined.finish, ["tool_calls"]);
    assert!(joined.chunks > 10, "it has many chunks");
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    assert_eq!(message["content"], "Let me look: é 🙂.");
    streamed["stream_reasoning"] = json!(false);
    let events = chat.post(&streamed).await.events();
    let thoughts: Vec<&Value> = events
        .iter()
        .map(|event| &event["choices"][0]["delta"]["reasoning_content"])
        .filter(|it| it.is_string())
        .collect();
    assert_eq!(thoughts, [&message["reasoning_content"]], "the reasoning is one delta");
    assert_eq!(assemble(&events).content, joined.content);
}

#[tokio::test]
async fn stop_strings_end_streams_and_replies_alike() {
    let chat = Chat::start(&[]).await;
    for (say, stop, expected) in [
        ("One, two, three and four<|im_end|>", json!([" three"]), "One, two,"),
        ("One, two, three and four<|im_end|>", json!("four"), "One, two, three and "),
        ("One, twothree and threefour<|im_end|>", json!(["threex", "threef"]), "One, twothree and "),
        ("thr<|im_end|>", json!(["three"]), "thr"),
    ] {
        let body = json!({"messages": messages(&[("user", "Count.")]), "stop": stop});
        let whole = chat.say(&body, say).await;
        assert_eq!(whole["choices"][0]["message"]["content"], expected);
        let mut streamed = with_say(&body, say);
        streamed["stream"] = json!(true);
        let joined = assemble(&chat.post(&streamed).await.events());
        assert_eq!(joined.content, expected, "{stop}");
        assert_eq!(joined.finish, ["stop"]);
    }
}

#[tokio::test]
async fn tokens_of_logprobs_are_their_ids_if_requested() {
    let chat = Chat::start(&[]).await;
    let body = json!({
        "messages": messages(&[("user", "Count.")]), "logprobs": true, "top_logprobs": 2, "max_tokens": 5,
        "temperature": 0, "return_token_ids": true, "return_tokens_as_token_ids": true,
    });
    let named = |entries: &serde_json::Value| -> Vec<String> {
        entries.as_array().unwrap().iter().map(|entry| entry["token"].as_str().unwrap().to_owned()).collect()
    };
    let choice = chat.post(&body).await.json()["choices"][0].clone();
    let sampled = chat.last().output();
    let ids: Vec<String> = sampled.iter().map(|id| format!("token_id:{id}")).collect();
    let content = &choice["logprobs"]["content"];
    assert_eq!(named(content), ids);
    for (entry, id) in content.as_array().unwrap().iter().zip(&sampled) {
        let bytes: Vec<u8> = serde_json::from_value(entry["bytes"].clone()).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), chat.decode(&[*id]), "the bytes are those of the text, as in vLLM");
        assert!(named(&entry["top_logprobs"]).contains(&format!("token_id:{id}")), "greedy: {entry}");
    }
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = chat.post(&streamed).await.events();
    let lists = events.iter().map(|event| &event["choices"][0]["logprobs"]["content"]).filter(|list| list.is_array());
    assert_eq!(lists.flat_map(named).collect::<Vec<_>>(), ids, "a stream has the same names");
}

#[tokio::test]
async fn logprobs_are_those_of_the_native_reply() {
    let chat = Chat::start(&[]).await;
    let body = json!({
        "messages": messages(&[("user", "Count.")]), "logprobs": true, "top_logprobs": 3, "max_tokens": 5,
        "temperature": 0.7, "return_meta_info": true, "return_token_ids": true,
    });
    let reply = chat.post(&body).await.json();
    let choice = &reply["choices"][0];
    let ids: Vec<u64> = choice["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert_eq!(choice["response_token_ids"], choice["token_ids"]);
    assert_eq!(
        (&reply["prompt_token_ids"], &choice["prompt_token_ids"]),
        (&json!(chat.last().prompt), &json!(chat.last().prompt))
    );
    let sampled: Vec<u64> = chat.last().output().into_iter().map(u64::from).collect();
    assert_eq!(ids, sampled);
    let content = choice["logprobs"]["content"].as_array().unwrap();
    let native = choice["meta_info"]["output_token_logprobs"].as_array().unwrap();
    assert_eq!((content.len(), native.len()), (ids.len(), ids.len()));
    for (at, entry) in content.iter().enumerate() {
        assert_eq!(entry["logprob"], native[at][0]);
        assert_eq!(entry["token"], chat.decode(&[u32::try_from(ids[at]).unwrap()]));
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 3);
        let bytes: Vec<u8> = serde_json::from_value(entry["bytes"].clone()).unwrap();
        assert!(!bytes.is_empty());
    }
    let entropies = choice["meta_info"]["output_token_entropy"].as_array().unwrap();
    assert_eq!(entropies.len(), ids.len());
    // a stream has the same values in its deltas
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = chat.post(&streamed).await.events();
    let rows: usize =
        events.iter().map(|event| event["choices"][0]["logprobs"]["content"].as_array().map_or(0, Vec::len)).sum();
    assert_eq!(rows, chat.last().output().len());
    let of = |name: &str| -> Vec<Value> {
        events.iter().flat_map(|event| event["choices"][0][name].as_array().cloned().unwrap_or_default()).collect()
    };
    assert_eq!(json!(of("token_ids")), json!(chat.last().output()));
    assert_eq!(of("response_token_ids"), of("token_ids"));
    assert_eq!(events[0]["prompt_token_ids"], json!(chat.last().prompt));
    assert_eq!(json!(of("prompt_token_ids")), json!(chat.last().prompt));
    assert!(events.iter().any(|event| event["choices"][0]["meta_info"]["output_token_entropy"].is_array()));
}

#[tokio::test]
async fn sglext_ids_have_the_format_of_the_engine() {
    let chat = Chat::start(&[]).await;
    let mut body =
        json!({"messages": messages(&[("user", "Count.")]), "n": 2, "max_tokens": 5, "return_token_ids": true});
    body["return_input_ids_in_sglext"] = json!(true);
    body["return_output_ids_in_sglext"] = json!(true);
    let reply = chat.post(&body).await.json();
    let ids = |at: usize| &reply["choices"][at]["token_ids"];
    assert_eq!(reply["sglext"], json!({"input_ids": chat.last().prompt, "output_ids": [ids(0), ids(1)]}));
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    body["return_input_ids_in_sglext"] = json!(false);
    for framed in [false, true] {
        let headers: &[(&str, &str)] = if framed { &[("x-sglext-ids-framed", "1")] } else { &[] };
        let answer = request(chat.demo.proxy.data, "POST", &chat.path, headers, body.to_string().as_bytes()).await;
        let text = answer.text();
        assert_eq!(text.contains("event: sglext_ids\ndata: {"), framed);
        let text = text.replace("event: sglext_ids\n", "");
        let events: Vec<Value> = support::client::events(text.as_bytes())
            .iter()
            .map(|event| serde_json::from_slice(event).unwrap())
            .collect();
        let mut sampled: [Vec<Value>; 2] = Default::default();
        for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
            let ids = choice["token_ids"].as_array().cloned().unwrap_or_default();
            sampled[choice["index"].as_u64().unwrap() as usize].extend(ids);
        }
        // the event before the usage, which is last
        let event = &events[events.len() - 2];
        assert_eq!((&event["choices"], &event["sglext"]), (&json!([]), &json!({"output_ids": sampled})));
    }
}

#[tokio::test]
async fn unrequested_members_are_absent() {
    let chat = Chat::start(&[]).await;
    let reply = chat.say(&json!({"model": "m", "messages": messages(&[("user", "x")])}), "y<|im_end|>").await;
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&reply), ["choices", "created", "id", "metadata", "model", "object", "usage"]);
    assert_eq!(names(&reply["choices"][0]), ["finish_reason", "index", "logprobs", "matched_stop", "message"]);
    assert_eq!((&reply["model"], &reply["object"]), (&json!("m"), &json!("chat.completion")));
    assert_eq!(reply["choices"][0]["matched_stop"], 1019);
    let usage = &reply["usage"];
    assert_eq!(
        usage["total_tokens"],
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap()
    );
    assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64());
}

#[tokio::test]
async fn cumulative_stream_is_sent_as_deltas() {
    let options = tokentap::demo::EngineOptions::default();
    let chat = Chat::with(options, &[]).await;
    let say = "One, two, three.<|im_end|>";
    let mut body = with_say(&json!({"messages": messages(&[("user", "Count.")]), "n": 2}), say);
    body["stream"] = json!(true);
    let events = chat.post(&body).await.events();
    for index in 0..2 {
        let own: Vec<Value> = events.iter().filter(|event| event["choices"][0]["index"] == index).cloned().collect();
        assert_eq!(assemble(&own).content, "One, two, three.");
    }
}

#[tokio::test]
async fn forced_tool_calls_are_parsed_from_a_json_list() {
    let chat = Chat::start(&[]).await;
    let say = "<think>\nI must.\n</think>\n\n[{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}, {\"name\": \"weather\", \"parameters\": {}}]<|im_end|>";
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "weather"}})] {
        let body = json!({"messages": messages(&[("user", "x")]), "tools": tools(), "tool_choice": choice});
        let whole = chat.say(&body, say).await;
        let message = &whole["choices"][0]["message"];
        assert_eq!((&message["content"], &message["reasoning_content"]), (&json!(""), &json!("I must.")));
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Oslo\"}");
        assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
        let mut streamed = with_say(&body, say);
        streamed["stream"] = json!(true);
        let joined = assemble(&chat.post(&streamed).await.events());
        assert_eq!(joined.reasoning, "I must.");
        let weather = |arguments: &str| ("weather".to_owned(), arguments.to_owned());
        assert_eq!(joined.calls, [weather("{\"city\": \"Oslo\"}"), weather("{}")]);
        assert_eq!(joined.content, "");
        // output that is not a list of calls is text
        let text = chat.say(&body, "[1, 2<|im_end|>").await;
        assert_eq!(text["choices"][0]["message"]["content"], "[1, 2");
        // the forced turn is continued like any other
        let mut next = body.clone();
        next.as_object_mut().unwrap().remove("tool_choice");
        let list = next["messages"].as_array_mut().unwrap();
        list.push(message.clone());
        list.push(json!({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain"}));
        chat.say(&next, "Rain.<|im_end|>").await;
        assert_eq!(chat.turns().await.last().unwrap()["context_retokenised"], false);
    }
}
