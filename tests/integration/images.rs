// SPDX-License-Identifier: Apache-2.0
//! Calls of Messages and Responses with an image: the engine's chat endpoint serves them, and the ids that it reports become turns.

use serde_json::{Value, json};
use tokentap::chat::model::Chats;
use tokentap::demo::Model;
use tokentap::tokenizer::Renderer;

use super::chat::TOKENIZER;
use super::support::client::{Answer, Connection, get, post, request, written};
use super::support::manual_upstream::{ManualUpstream, soon};
use super::support::proxy::Proxy;
use super::support::upstream::{EngineProfile, FakeReply, Upstream, UpstreamRequest, json_message, message};

const CHAT: &str = "/v1/chat/completions";

/// The image of the requests, and the same image as the engine gets it.
const DATA: &str = "iVBORw0KGgo=";

/// The APIs under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Messages,
    Responses,
}

use Dialect::{Messages, Responses};

impl Dialect {
    fn path(self) -> &'static str {
        match self {
            Messages => "/v1/messages",
            Responses => "/v1/responses",
        }
    }

    /// A request of a user with a text, an image and another text.
    fn request(self) -> Value {
        match self {
            Messages => json!({"model": "claude", "max_tokens": 64, "stop_sequences": ["END"], "messages": [
                {"role": "user", "content": [{"type": "text", "text": "What is on "}, self.image(), {"type": "text", "text": "?"}]},
            ]}),
            Responses => json!({"model": "gpt", "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "What is on "}, self.image(), {"type": "input_text", "text": "?"}]},
            ]}),
        }
    }

    fn image(self) -> Value {
        let url = format!("data:image/png;base64,{DATA}");
        match self {
            Messages => {
                json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}, "cache_control": {"type": "ephemeral"}})
            }
            Responses => json!({"type": "input_image", "image_url": url, "detail": "original"}),
        }
    }

    /// The text and the calls of a reply.
    fn read(self, reply: &Value) -> (String, Vec<(String, Value)>) {
        let items = match self {
            Messages => &reply["content"],
            Responses => &reply["output"],
        };
        let (mut said, mut calls) = (String::new(), Vec::new());
        for item in items.as_array().unwrap() {
            match item["type"].as_str().unwrap() {
                "text" => said += item["text"].as_str().unwrap(),
                "message" => said += item["content"][0]["text"].as_str().unwrap(),
                "tool_use" => calls.push((item["name"].as_str().unwrap().to_owned(), item["input"].clone())),
                "function_call" => calls.push((
                    item["name"].as_str().unwrap().to_owned(),
                    serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap(),
                )),
                kind => panic!("{kind}"),
            }
        }
        (said, calls)
    }

    /// The reply, whole or built from the events of a stream.
    fn reply(self, answer: &Answer) -> Value {
        assert_eq!((answer.status, answer.complete), (200, true), "{}", answer.text());
        let text = answer.text();
        if !text.starts_with("event: ") {
            return answer.json();
        }
        match self {
            Messages => super::messages::accumulate(&text),
            Responses => super::responses::accumulate(&text),
        }
    }

    /// Appends a reply, and what the client says next.
    fn append(self, body: &mut Value, reply: &Value, next: Value) {
        match self {
            Messages => {
                let assistant = json!({"role": "assistant", "content": reply["content"]});
                body["messages"].as_array_mut().unwrap().extend([assistant, next]);
            }
            Responses => {
                let list = body["input"].as_array_mut().unwrap();
                list.extend(reply["output"].as_array().unwrap().iter().cloned().chain([next]));
            }
        }
    }

    /// The result of the only call of a reply: an image.
    fn image_result(self, reply: &Value) -> Value {
        match self {
            Messages => {
                let call = reply["content"].as_array().unwrap().iter().find(|block| block["type"] == "tool_use");
                let url = json!({"type": "image", "source": {"type": "url", "url": "https://host/b.png"}});
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.unwrap()["id"], "content": [url]}]})
            }
            Responses => {
                let call = reply["output"].as_array().unwrap().iter().find(|item| item["type"] == "function_call");
                let url = json!({"type": "input_image", "image_url": "https://host/b.png"});
                json!({"type": "function_call_output", "call_id": call.unwrap()["call_id"], "output": [url]})
            }
        }
    }

    fn tools(self) -> Value {
        let parameters = json!({"type": "object", "properties": {"path": {"type": "string"}}});
        match self {
            Messages => json!([{"name": "look", "input_schema": parameters}]),
            Responses => json!([{"type": "function", "name": "look", "parameters": parameters}]),
        }
    }
}

/// An engine that can report ids on request.
fn profile() -> EngineProfile {
    let server_info = json!({"sampling_defaults": "openai", "return_input_ids": false, "return_output_ids": false});
    EngineProfile { server_info, ..EngineProfile::default() }
}

fn renderer() -> Renderer {
    Renderer::new(Model::folder())
}

fn encode(text: &str) -> Vec<u32> {
    renderer().tokenizer().encode(text).unwrap()
}

/// The ids of the prompt that the engine reports. The template of the demo shows no image.
fn prompt(turn: usize) -> Vec<u32> {
    encode(&format!("<|im_start|>user\nimage {turn}<|im_end|>\n<|im_start|>assistant\n"))
}

/// The ids of a sampled text, split as the tokenizer would not split it. Tags stay tokens.
fn sampled(text: &str) -> Vec<u32> {
    let (start, end) = text.split_at(text.find(' ').map_or(0, |at| at + 1));
    [encode(start), encode(end), vec![renderer().end_of_turn().unwrap()]].concat()
}

/// The reply of the engine's chat endpoint. Its text is not used.
fn chat_reply(turn: usize, text: &str) -> Value {
    json!({"id": format!("r{turn}"), "object": "chat.completion",
        "choices": [{"index": 0, "finish_reason": "stop", "matched_stop": null, "message": {"role": "assistant", "content": "-"}}],
        "usage": {"prompt_tokens": prompt(turn).len(), "prompt_tokens_details": {"cached_tokens": 3}},
        "sglext": {"input_ids": prompt(turn), "output_ids": [sampled(text)]}})
}

/// An engine that says these texts one after the other, and a tokentap that renders chats itself.
async fn start(profile: EngineProfile, says: &'static [&'static str]) -> (Upstream, Proxy) {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let upstream = Upstream::start(profile, move |asked: &UpstreamRequest| match &*asked.path {
        CHAT => {
            let turn = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let mut reply = chat_reply(turn, says[turn]);
            reply["id"] = asked.json()["rid"].take();
            json_message(200, reply.to_string().as_bytes())
        }
        _ => own(),
    })
    .await;
    let proxy = rendering(&upstream).await;
    (upstream, proxy)
}

/// The reply of the engine's own endpoints.
fn own() -> FakeReply {
    json_message(200, br#"{"own":true}"#)
}

async fn answering(fake_reply: FakeReply) -> (Upstream, Proxy) {
    let upstream = Upstream::start(profile(), move |asked: &UpstreamRequest| match &*asked.path {
        CHAT => fake_reply.clone(),
        _ => own(),
    })
    .await;
    let proxy = rendering(&upstream).await;
    (upstream, proxy)
}

async fn rendering(upstream: &Upstream) -> Proxy {
    let proxy = Proxy::probed(upstream.addr, &["--tokenizer", TOKENIZER]).await;
    wait_rendering(&proxy).await;
    proxy
}

async fn wait_rendering(proxy: &Proxy) {
    let mut chats = proxy.parts.chats.clone();
    drop(chats.wait_for(|chats| matches!(&**chats, Chats::Rendered(_))).await.unwrap());
}

async fn ask(proxy: &Proxy, dialect: Dialect, body: &Value) -> Answer {
    let path = format!("/sessions/s{}", dialect.path());
    request(proxy.data, "POST", &path, &[("accept-encoding", "gzip")], body.to_string().as_bytes()).await
}

async fn session(proxy: &Proxy) -> Value {
    get(proxy.control, "/v1/sessions/s").await.json()
}

/// Each API, with and without a stream.
fn cases() -> impl Iterator<Item = (Dialect, bool)> {
    [Messages, Responses].into_iter().flat_map(|dialect| [false, true].map(|streams| (dialect, streams)))
}

#[tokio::test(flavor = "multi_thread")]
async fn conversation_with_an_image_is_recorded_by_the_ids_of_the_engines_chat_endpoint() {
    const CALL: &str = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"path\": \"b\"}}\n</tool_call>";
    for (dialect, streams) in cases() {
        let about = format!("{dialect:?} {streams}");
        let (upstream, proxy) = start(profile(), &[CALL, "The lamp is lit.", "Since noon."]).await;
        let mut body = dialect.request();
        body["stream"] = json!(streams);
        body["tools"] = dialect.tools();
        let answer = ask(&proxy, dialect, &body).await;
        assert_eq!(answer.header("x-tokentap-session"), Some("s"), "{about}");
        let reply = dialect.reply(&answer);
        assert_eq!(dialect.read(&reply), (String::new(), vec![("look".to_owned(), json!({"path": "b"}))]), "{about}");
        let (usage, input) = (&reply["usage"], json!(prompt(0).len()));
        match dialect {
            Messages => {
                assert_eq!((&reply["stop_reason"], &usage["cache_read_input_tokens"]), (&json!("tool_use"), &json!(3)));
            }
            Responses => assert_eq!((&reply["status"], &usage["input_tokens"]), (&json!("completed"), &input)),
        }
        let asked = upstream.asked().pop().unwrap();
        assert_eq!((&*asked.path, asked.header("accept-encoding")), (CHAT, None), "{about}");
        let chat = asked.json();
        let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let text = |text: &str| json!({"type": "text", "text": text});
        let first = image(&format!("data:image/png;base64,{DATA}"));
        assert_eq!(chat["messages"], json!([{"role": "user", "content": [text("What is on "), first, text("?")]}]));
        assert_eq!((&chat["model"], &chat["stream"]), (&json!("tiny"), &Value::Null), "{about}");
        assert_eq!(chat["tools"][0]["function"]["name"], "look", "{about}");
        assert_eq!(
            (&chat["return_input_ids_in_sglext"], &chat["return_output_ids_in_sglext"]),
            (&json!(true), &json!(true))
        );
        match dialect {
            Messages => assert_eq!((&chat["max_completion_tokens"], &chat["stop"]), (&json!(64), &json!(["END"]))),
            Responses => assert_eq!(chat["max_completion_tokens"], Value::Null, "the rest of the context"),
        }

        // the image stays in the history, so the engine renders the next calls too
        dialect.append(&mut body, &reply, dialect.image_result(&reply));
        let reply = dialect.reply(&ask(&proxy, dialect, &body).await);
        assert_eq!(dialect.read(&reply).0, "The lamp is lit.", "{about}");
        let messages = upstream.asked().pop().unwrap().json()["messages"].take();
        assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], json!(r#"{"path": "b"}"#), "{about}");
        assert_eq!(
            (&messages[2]["role"], &messages[2]["content"]),
            (&json!("tool"), &json!([image("https://host/b.png")]))
        );
        dialect.append(&mut body, &reply, json!({"role": "user", "content": "Since when?"}));
        let reply = dialect.reply(&ask(&proxy, dialect, &body).await);
        assert_eq!(dialect.read(&reply).0, "Since noon.", "{about}");

        let shown = session(&proxy).await;
        assert_eq!((&shown["incomplete"], &shown["faults"]), (&json!(false), &json!({"forwarded": 3})), "{about}");
        let turn = proxy.parts.sessions.session("s").unwrap().turn(0).unwrap();
        let sources: Value = serde_json::from_str(&turn.about.sampling_sources().unwrap().json()).unwrap();
        assert_eq!(sources["top_p"], "default", "the engine got a value that the client did not set: {about}");
        let asked = upstream.asked();
        for (turn, said) in [CALL, "The lamp is lit.", "Since noon."].into_iter().enumerate() {
            let listed = &shown["list"][turn];
            let name = format!("{dialect:?}").to_lowercase();
            assert_eq!((&listed["rid"], &listed["labels"]["dialect"]), (&asked[turn].json()["rid"], &json!(name)));
            let part = get(proxy.control, &format!("/v1/sessions/s/paths/{turn}?from=0")).await.json();
            let ids = [prompt(turn), sampled(said)].concat();
            assert_eq!(part["token_ids"], json!(ids), "{about} {turn}");
            assert_eq!(part["loss_mask"], json!(vec![0; ids.len()]), "{about} {turn}");
        }
        let sampling = get(proxy.control, "/v1/sessions/s/paths/0").await.json()["turns"][0]["sampling"].take();
        assert_eq!(sampling["temperature"], json!(1), "{about}: {sampling}");
        let uncaptured = format!("tokentap_uncaptured_generations_total{{endpoint=\"{}\"}}", dialect.path());
        assert_eq!(proxy.metric(&uncaptured).await, 0.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_response_with_an_image_is_retrieved_and_continued() {
    for streams in [false, true] {
        let (upstream, proxy) = start(profile(), &["It is lit.", "Since noon."]).await;
        let mut body = Responses.request();
        body["stream"] = json!(streams);
        let reply = Responses.reply(&ask(&proxy, Responses, &body).await);
        assert_eq!(reply["store"], true);
        let path = format!("/sessions/s/v1/responses/{}", reply["id"].as_str().unwrap());
        let timeless = |mut response: Value| {
            response.as_object_mut().unwrap().retain(|name, _| !name.ends_with("_at"));
            response
        };
        assert_eq!(timeless(get(proxy.data, &path).await.json()), timeless(reply.clone()));

        let next = json!({"model": "gpt", "previous_response_id": reply["id"], "input": "Since when?"});
        let reply = Responses.reply(&ask(&proxy, Responses, &next).await);
        assert_eq!(Responses.read(&reply).0, "Since noon.");
        let messages = upstream.asked().pop().unwrap().json()["messages"].take();
        assert_eq!(messages[0]["content"][1]["type"], "image_url", "{messages}");
        assert_eq!(messages[1]["content"], "It is lit.", "{messages}");
        assert_eq!(messages[2]["content"], "Since when?", "{messages}");
        let shown = session(&proxy).await;
        assert_eq!((&shown["incomplete"], &shown["faults"]), (&json!(false), &json!({"forwarded": 2})));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_string_and_length_are_reported() {
    for (finish, matched, text, expected) in [
        ("stop", json!("END"), "It is lit.END", json!("stop_sequence")),
        ("length", Value::Null, "It is lit.", json!("max_tokens")),
    ] {
        let mut reply = chat_reply(0, text);
        reply["choices"][0]["finish_reason"] = json!(finish);
        reply["choices"][0]["matched_stop"] = matched.clone();
        reply["sglext"]["output_ids"] = json!([encode(text)]);
        let (_upstream, proxy) = answering(json_message(200, reply.to_string().as_bytes())).await;
        for streams in [false, true] {
            let mut body = Messages.request();
            body["stream"] = json!(streams);
            let message = Messages.reply(&ask(&proxy, Messages, &body).await);
            assert_eq!(Messages.read(&message).0, "It is lit.");
            assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&expected, &matched));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_ids_the_engines_own_endpoint_serves() {
    for dialect in [Messages, Responses] {
        let old = EngineProfile { server_info: json!({"sampling_defaults": "openai"}), ..EngineProfile::default() };
        let (upstream, proxy) = start(old, &[]).await;
        let body = dialect.request();
        assert_eq!(ask(&proxy, dialect, &body).await.text(), r#"{"own":true}"#);
        let asked = upstream.asked().pop().unwrap();
        assert_eq!((&*asked.path, asked.json()), (dialect.path(), body.clone()), "the request is unchanged");
        assert_eq!(session(&proxy).await["incomplete"], true);

        // no session, a count of tokens, an image in a file, and a reply without ids
        let mut reply = chat_reply(0, "x");
        reply.as_object_mut().unwrap().remove("sglext");
        let (upstream, proxy) = answering(json_message(200, reply.to_string().as_bytes())).await;
        let count = match dialect {
            Messages => "/v1/messages/count_tokens",
            Responses => "/v1/responses/input_tokens",
        };
        for path in [dialect.path().to_owned(), format!("/sessions/s{count}")] {
            assert_eq!(post(proxy.data, &path, body.to_string().as_bytes()).await.text(), r#"{"own":true}"#, "{path}");
        }
        let mut file = body.clone();
        match dialect {
            Messages => file["messages"][0]["content"][1]["source"] = json!({"type": "file", "file_id": "f"}),
            Responses => file["input"][0]["content"][1] = json!({"type": "input_image", "file_id": "f"}),
        }
        assert_eq!(ask(&proxy, dialect, &file).await.text(), r#"{"own":true}"#);
        assert!(upstream.asked().iter().all(|asked| asked.path != CHAT), "the chat endpoint was not asked");
        assert_eq!(ask(&proxy, dialect, &body).await.text(), r#"{"own":true}"#);
        let paths: Vec<String> = upstream.asked().into_iter().map(|asked| asked.path).collect();
        assert!(paths.ends_with(&[CHAT.to_owned(), dialect.path().to_owned()]), "{paths:?}");
        let mut stream = body.clone();
        stream["stream"] = json!(true);
        let answer = ask(&proxy, dialect, &stream).await;
        assert_eq!(answer.status, 502, "{}", answer.text());
        assert!(answer.text().contains("reported no token ids"), "{}", answer.text());
        assert_eq!(session(&proxy).await["incomplete"], true);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn error_of_the_engine_has_the_format_of_the_api() {
    let refusal = br#"{"object":"error","message":"cannot identify image file","type":"BadRequestError","code":400}"#;
    for (dialect, streams) in cases() {
        let (_upstream, proxy) = answering(json_message(400, refusal)).await;
        let mut body = dialect.request();
        body["stream"] = json!(streams);
        let answer = ask(&proxy, dialect, &body).await;
        let error = answer.json()["error"].take();
        assert_eq!((answer.status, &error["type"]), (400, &json!("invalid_request_error")), "{dialect:?} {streams}");
        assert_eq!(error["message"], "cannot identify image file");
        assert_eq!(get(proxy.control, "/v1/sessions/s").await.status, 404, "nothing was generated");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_begins_before_the_engine_has_replied() {
    for (dialect, first) in [(Messages, "message_start"), (Responses, "response.created")] {
        let mut upstream = ManualUpstream::start().await;
        upstream.replace(profile());
        let proxy = Proxy::probed(upstream.addr, &["--tokenizer", TOKENIZER]).await;
        wait_rendering(&proxy).await;
        let mut body = dialect.request();
        body["stream"] = json!(true);
        let body = body.to_string();
        let has = |text: &'static str| move |read: &[u8]| memchr::memmem::find(read, text.as_bytes()).is_some();
        let path = |name: &str| format!("/sessions/{name}{}", dialect.path());

        let mut client = Connection::open(proxy.data).await;
        client.send(&written(proxy.data, "POST", &path("s"), &[], body.as_bytes())).await;
        let mut call = upstream.next().await;
        call.body_until(has("sglext")).await;
        assert!(client.read_until(has(first)).await, "{dialect:?}");
        let json = [("content-type", "application/json")];
        call.reply(&message(200, &json, chat_reply(0, "It is lit.").to_string().as_bytes())).await;
        let answer = client.answer().await;
        assert_eq!(dialect.read(&dialect.reply(&answer)).0, "It is lit.");

        // an error after the first event
        let mut client = Connection::open(proxy.data).await;
        client.send(&written(proxy.data, "POST", &path("failed"), &[], body.as_bytes())).await;
        let mut call = upstream.next().await;
        call.body_until(has("sglext")).await;
        assert!(client.read_until(has(first)).await, "{dialect:?}");
        call.reply(&message(503, &json, br#"{"message":"full"}"#)).await;
        let answer = client.answer().await;
        assert!(answer.status == 200 && answer.text().contains("full"), "{}", answer.text());

        // a client that disconnects ends the call of the engine
        let mut client = Connection::open(proxy.data).await;
        client.send(&written(proxy.data, "POST", &path("left"), &[], body.as_bytes())).await;
        let mut call = upstream.next().await;
        call.body_until(has("sglext")).await;
        assert!(client.read_until(has(first)).await, "{dialect:?}");
        drop(client);
        call.closed().await;
        let is_incomplete =
            async { while get(proxy.control, "/v1/sessions/left").await.json()["incomplete"] != json!(true) {} };
        soon("the session is incomplete", is_incomplete).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_joins_the_call_that_runs() {
    for (dialect, streams) in cases() {
        let mut upstream = ManualUpstream::start().await;
        upstream.replace(profile());
        let proxy = Proxy::probed(upstream.addr, &["--tokenizer", TOKENIZER]).await;
        wait_rendering(&proxy).await;
        let mut body = dialect.request();
        body["stream"] = json!(streams);
        let body = body.to_string();
        let path = format!("/sessions/s{}", dialect.path());
        let send = async |headers: &[(&str, &str)]| {
            let mut client = Connection::open(proxy.data).await;
            client.send(&written(proxy.data, "POST", &path, headers, body.as_bytes())).await;
            client
        };
        let mut first = send(&[]).await;
        let mut call = upstream.next().await;
        let asked = call.body_until(|read| read.ends_with(b"}")).await;
        let asked: Value = serde_json::from_slice(asked).unwrap();
        let mut second = send(&[("x-stainless-retry-count", "1")]).await;
        let joined = async { while proxy.metric("tokentap_retries_total{outcome=\"joined\"}").await != 1.0 {} };
        soon("the retry joins the call", joined).await;
        let mut reply = chat_reply(0, "It is lit.");
        reply["id"] = asked["rid"].clone();
        call.reply(&message(200, &[("content-type", "application/json")], reply.to_string().as_bytes())).await;
        let [first, second] = [first.answer().await, second.answer().await];
        let replies = [dialect.reply(&first), dialect.reply(&second)];
        assert_eq!(replies.map(|reply| dialect.read(&reply).0), ["It is lit.", "It is lit."], "{dialect:?} {streams}");
        let shown = session(&proxy).await;
        assert_eq!((&shown["turns"], &shown["list"][0]["rid"]), (&json!(1), &asked["rid"]), "{dialect:?} {streams}");
    }
}
