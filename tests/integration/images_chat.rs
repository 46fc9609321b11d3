// SPDX-License-Identifier: Apache-2.0
//! Conversations with pictures: prompts are built from tokens with one placeholder for each picture, and turns are trained.

use serde_json::{Value, json};
use tokentap::images::ImagePlaceholder;
use tokentap::tokenizer::Renderer;

use super::support::binary::Binary;
use super::support::client::{Answer, Connection, get, post, written};
use super::support::manual_upstream::soon;
use super::support::upstream::EngineProfile;
use super::support::vision::{
    END, Expansion, PAD, START, Vision, data_uri, expanded, folder, sampled, sampled_text, tokens_of,
};

const PREFIX: &str = "data:image/png;base64,";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Chat,
    Messages,
    Responses,
}

use Dialect::{Chat, Messages, Responses};

impl Dialect {
    fn path(self) -> &'static str {
        match self {
            Chat => "/v1/chat/completions",
            Messages => "/v1/messages",
            Responses => "/v1/responses",
        }
    }

    fn list(self) -> &'static str {
        if self == Responses { "input" } else { "messages" }
    }

    /// A request without messages.
    fn request(self, stream: bool) -> Value {
        let mut body = json!({"model": "tiny", "stream": stream});
        body[self.list()] = json!([]);
        if self == Messages {
            body["max_tokens"] = json!(64);
        }
        body
    }

    /// A picture as a part.
    fn picture(self, uri: &str) -> Value {
        match self {
            Chat => json!({"type": "image_url", "image_url": {"url": uri}}),
            Responses => json!({"type": "input_image", "image_url": uri}),
            Messages => match uri.strip_prefix(PREFIX) {
                Some(data) => {
                    json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})
                }
                None => json!({"type": "image", "source": {"type": "url", "url": uri}}),
            },
        }
    }

    /// A message of the user with a picture between two texts.
    fn user(self, before: &str, uri: &str, after: &str) -> Value {
        let kind = if self == Responses { "input_text" } else { "text" };
        let text = |text: &str| json!({"type": kind, "text": text});
        json!({"role": "user", "content": [text(before), self.picture(uri), text(after)]})
    }

    fn push(self, body: &mut Value, message: Value) {
        body[self.list()].as_array_mut().unwrap().push(message);
    }

    /// Appends the reply of an answer, whole or streamed.
    fn push_reply(self, body: &mut Value, answer: &Answer) {
        assert_eq!((answer.status, answer.complete), (200, true), "{}", answer.text());
        let text = answer.text();
        let streams = body["stream"] == true;
        match self {
            Chat => {
                let said = match streams {
                    true => streamed_text(&text),
                    false => answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned(),
                };
                self.push(body, json!({"role": "assistant", "content": said}));
            }
            Messages => {
                let reply = if streams { super::messages::accumulate(&text) } else { answer.json() };
                self.push(body, json!({"role": "assistant", "content": reply["content"]}));
            }
            Responses => {
                let reply = if streams { super::responses::accumulate(&text) } else { answer.json() };
                for item in reply["output"].as_array().unwrap() {
                    self.push(body, item.clone());
                }
            }
        }
    }
}

/// The text of the chunks of a chat.
fn streamed_text(stream: &str) -> String {
    let chunks = stream.lines().filter_map(|line| line.strip_prefix("data: ")?.parse::<Value>().ok());
    let text = |chunk: Value| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned());
    chunks.filter_map(text).collect()
}

async fn ask(vision: &Vision, dialect: Dialect, body: &Value) -> Answer {
    post(vision.proxy.data, &format!("/sessions/s{}", dialect.path()), body.to_string().as_bytes()).await
}

async fn rows(vision: &Vision) -> Vec<Value> {
    let reply = get(vision.proxy.control, "/v1/sessions/s/trajectories").await.json();
    reply["trajectories"].as_array().unwrap_or_else(|| panic!("{reply}")).clone()
}

fn member<'a>(row: &'a Value, name: &str) -> Vec<&'a Value> {
    row["turns"].as_array().unwrap().iter().map(|turn| &turn[name]).collect()
}

/// The ids of a text of the prompts.
fn encode(text: &str) -> Vec<u32> {
    Renderer::open(&folder()).unwrap().tokenizer().encode(text).unwrap()
}

/// Each API, whole and streamed.
fn cases() -> impl Iterator<Item = (Dialect, bool)> {
    [Chat, Messages, Responses].into_iter().flat_map(|dialect| [false, true].map(|streams| (dialect, streams)))
}

#[test]
fn folder_names_the_tokens_of_the_fake_engine() {
    let renderer = Renderer::open(&folder()).unwrap();
    let placeholder = ImagePlaceholder { id: PAD, frame: Some([START, END]) };
    assert_eq!(renderer.image_placeholder(), Ok(placeholder));
    assert_eq!(encode("<|vision_start|><|image_pad|><|vision_end|>"), [START, PAD, END]);
}

#[tokio::test(flavor = "multi_thread")]
async fn conversation_with_screenshots_is_one_trained_path() {
    for (dialect, stream) in cases() {
        let about = format!("{dialect:?} {stream}");
        let vision = Vision::rendering(EngineProfile::default(), &[]).await;
        let mut body = dialect.request(stream);
        let (mut text, mut pictures) = (String::new(), Vec::new());
        for turn in 0..4 {
            // the third turn repeats the picture of the first
            pictures.push(data_uri(&"x".repeat(turn % 2 + 1)));
            dialect.push(&mut body, dialect.user("see ", &pictures[turn], "?"));
            let answer = ask(&vision, dialect, &body).await;
            let sent = vision.generations().pop().unwrap();
            // the sampled tokens are those of their text here
            text +=
                "<|im_start|>user\nsee <|vision_start|><|image_pad|><|vision_end|>?<|im_end|>\n<|im_start|>assistant\n";
            assert_eq!(sent["image_data"], json!(pictures), "{about}");
            assert_eq!(sent["input_ids"], json!(encode(&text)), "{about}");
            dialect.push_reply(&mut body, &answer);
            text += &format!("{}<|im_end|>\n", sampled_text());
        }
        let rows = rows(&vision).await;
        assert_eq!(rows.len(), 1, "{about}: {rows:?}");
        let row = &rows[0];
        assert_eq!(json!(member(row, "fault")), json!([null, null, null, null]), "{about}");
        assert_eq!(json!(member(row, "cause")), json!(["first", "extends", "extends", "extends"]), "{about}");
        let sent: Vec<u32> = serde_json::from_value(vision.generations().pop().unwrap()["input_ids"].clone()).unwrap();
        let tokens = [expanded(&sent, &pictures), sampled(0).to_vec()].concat();
        assert_eq!(row["token_ids"], json!(tokens), "{about}");
        let spans: Vec<u64> = (row["images"].as_array().unwrap().iter())
            .map(|image| image["end"].as_u64().unwrap() - image["start"].as_u64().unwrap())
            .collect();
        assert_eq!(json!(spans), json!(pictures.iter().map(|uri| tokens_of(uri)).collect::<Vec<_>>()), "{about}");
        assert_eq!(row["loss_mask"].as_array().unwrap().iter().filter(|mask| **mask == 1).count(), 8, "{about}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_picture_begins_a_branch() {
    for dialect in [Chat, Messages, Responses] {
        let vision = Vision::rendering(EngineProfile::default(), &[]).await;
        let mut body = dialect.request(false);
        dialect.push(&mut body, dialect.user("see ", &data_uri("a"), "?"));
        let answer = ask(&vision, dialect, &body).await;
        dialect.push_reply(&mut body, &answer);
        dialect.push(&mut body, json!({"role": "user", "content": "and?"}));
        ask(&vision, dialect, &body).await;
        body[dialect.list()][0]["content"][1] = dialect.picture(&data_uri("b"));
        ask(&vision, dialect, &body).await;
        let rows = rows(&vision).await;
        assert_eq!(rows.len(), 2, "{dialect:?}: {rows:?}");
        assert_eq!(json!(member(&rows[0], "cause")), json!(["first", "extends"]), "{dialect:?}");
        assert_eq!(json!(member(&rows[1], "cause")), json!(["history_edited"]), "{dialect:?}");
        for row in &rows {
            assert!(member(row, "fault").iter().all(|fault| fault.is_null()), "{dialect:?}: {row}");
        }
        assert_ne!(rows[0]["images"][0]["sha256"], rows[1]["images"][0]["sha256"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_pictures_go_to_the_engines_chat_endpoint() {
    for (dialect, stream) in cases() {
        let about = format!("{dialect:?} {stream}");
        let vision = Vision::rendering(EngineProfile::default(), &[]).await;
        let mut body = dialect.request(stream);
        dialect.push(&mut body, dialect.user("see ", &data_uri("a"), "?"));
        vision.set(Expansion::Refuses);
        let answer = ask(&vision, dialect, &body).await;
        assert_eq!(answer.status, 200, "{about}: {}", answer.text());
        let paths = vision.paths();
        assert!(paths.ends_with(&["/generate".to_owned(), "/v1/chat/completions".to_owned()]), "{about}: {paths:?}");
        vision.set(Expansion::Exact);
        // the tokens of its prompt's picture are unknown, so the next call does not continue it
        dialect.push_reply(&mut body, &answer);
        dialect.push(&mut body, json!({"role": "user", "content": "and?"}));
        let answer = ask(&vision, dialect, &body).await;
        assert_eq!(answer.status, 200, "{about}: {}", answer.text());
        let shown = get(vision.proxy.control, "/v1/sessions/s").await.json();
        assert_eq!(shown["faults"], json!({"forwarded": 1}), "{about}: {shown}");
        let rows = rows(&vision).await;
        let last = rows.last().unwrap();
        assert_eq!(member(last, "fault").pop().unwrap(), &Value::Null, "{about}: {last}");
        assert_eq!(last["images"].as_array().unwrap().len(), 1, "{about}: {last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_pictures_of_a_call_without_a_session_go_to_its_own_endpoint() {
    for dialect in [Chat, Messages, Responses] {
        let vision = Vision::rendering(EngineProfile::default(), &[]).await;
        let mut body = dialect.request(false);
        dialect.push(&mut body, dialect.user("see ", &data_uri("a"), "?"));
        vision.set(Expansion::Refuses);
        let answer = post(vision.proxy.data, dialect.path(), body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{dialect:?}: {}", answer.text());
        assert_eq!(vision.paths().pop().unwrap(), dialect.path());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_with_a_picture_is_kept_alive_before_its_first_token() {
    for dialect in [Chat, Messages, Responses] {
        let vision = Vision::rendering(EngineProfile::default(), &["--sse-keepalive", "50ms"]).await;
        let mut body = dialect.request(true);
        dialect.push(&mut body, dialect.user("see ", &data_uri("a"), "?"));
        vision.set(Expansion::Hangs);
        let mut client = Connection::open(vision.proxy.data).await;
        let path = format!("/sessions/s{}", dialect.path());
        client.send(&written(vision.proxy.data, "POST", &path, &[], body.to_string().as_bytes())).await;
        let signs = [": keep-alive", "event: ping", "event: response.in_progress"];
        let is_alive = |seen: &[u8]| signs.iter().any(|sign| String::from_utf8_lossy(seen).contains(sign));
        assert!(soon("the stream is kept alive", client.read_until(is_alive)).await, "{dialect:?}");
        assert!(client.seen().starts_with(b"HTTP/1.1 200 "), "{dialect:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_to_a_picture_that_the_client_began_is_continued() {
    let vision = Vision::rendering(EngineProfile::default(), &[]).await;
    let mut body = Chat.request(false);
    Chat.push(&mut body, Chat.user("see ", &data_uri("a"), "?"));
    Chat.push(&mut body, json!({"role": "assistant", "content": "It is"}));
    body["continue_final_message"] = json!(true);
    let answer = ask(&vision, Chat, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let sent = vision.generations().pop().unwrap();
    let ids: Vec<u32> = serde_json::from_value(sent["input_ids"].clone()).unwrap();
    assert!(ids.ends_with(&encode("<|im_start|>assistant\nIt is")), "{ids:?}");
    assert_eq!(sent["image_data"], json!([data_uri("a")]));
    assert_eq!(member(&rows(&vision).await[0], "fault"), [&Value::Null]);
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_pictures_go_to_the_engines_chat_endpoint() {
    for dialect in [Chat, Messages, Responses] {
        let vision = Vision::rendering(EngineProfile::default(), &[]).await;
        let mut body = dialect.request(false);
        dialect.push(&mut body, dialect.user("see ", "https://host/a.png", "?"));
        let answer = ask(&vision, dialect, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(vision.paths().pop().unwrap(), "/v1/chat/completions", "{dialect:?}");
        let shown = get(vision.proxy.control, "/v1/sessions/s").await.json();
        assert_eq!(shown["faults"], json!({"forwarded": 1}), "{dialect:?}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_picture_gets_the_error_of_the_engine() {
    for (dialect, stream) in cases() {
        let vision = Vision::rendering(EngineProfile::default(), &[]).await;
        vision.set(Expansion::RefusesEverywhere);
        let mut body = dialect.request(stream);
        dialect.push(&mut body, dialect.user("see ", &data_uri("a"), "?"));
        let answer = ask(&vision, dialect, &body).await;
        assert_eq!(answer.status, 400, "{dialect:?} {stream}: {}", answer.text());
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("cannot identify"), "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn text_with_the_name_of_the_placeholder_is_refused() {
    for dialect in [Chat, Messages, Responses] {
        let vision = Vision::rendering(EngineProfile::default(), &[]).await;
        let mut body = dialect.request(false);
        dialect.push(&mut body, dialect.user("what is <|image_pad|> ", &data_uri("a"), "?"));
        let answer = ask(&vision, dialect, &body).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("<|image_pad|>"), "{message}");
        // without a picture it is text
        body = dialect.request(false);
        dialect.push(&mut body, json!({"role": "user", "content": "what is <|image_pad|>"}));
        assert_eq!(ask(&vision, dialect, &body).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_ids_of_a_chat_are_those_of_the_engine() {
    for stream in [false, true] {
        let vision = Vision::rendering(EngineProfile::default(), &[]).await;
        let mut body = Chat.request(stream);
        body["return_prompt_token_ids"] = json!(true);
        body["n"] = json!(2);
        Chat.push(&mut body, Chat.user("see ", &data_uri("a"), "?"));
        let answer = ask(&vision, Chat, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let sent = vision.generations().pop().unwrap();
        assert_eq!(sent["image_data"], json!([[data_uri("a")]]), "two samples are a batch of one prompt");
        let ids: Vec<u32> = serde_json::from_value(sent["input_ids"].clone()).unwrap();
        let echo = format!("\"prompt_token_ids\":{}", json!(expanded(&ids, &[data_uri("a")])));
        assert_eq!(answer.text().replace(' ', "").matches(&echo).count(), 2, "{}", answer.text());
        let rows = rows(&vision).await;
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| member(row, "fault")[0].is_null()), "{rows:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_that_changes_prompts_with_pictures_serves_them_itself() {
    for (expansion, reason) in [
        (Expansion::Retokenises, "changes a prompt"),
        (Expansion::Silent, "does not echo"),
        (Expansion::Refuses, "refuses"),
    ] {
        let vision = Vision::rendering_as(EngineProfile::default(), expansion, &[]).await;
        let answer = vision.model().images.answer();
        assert!(answer.as_ref().is_err_and(|error| error.contains(reason)), "{answer:?}");
        let mut body = Chat.request(false);
        Chat.push(&mut body, Chat.user("see ", &data_uri("a"), "?"));
        assert_eq!(ask(&vision, Chat, &body).await.status, 200);
        assert_eq!(vision.paths().pop().unwrap(), "/v1/chat/completions", "{expansion:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_tokentap_are_not_sent_to_the_engines_chat_endpoint() {
    for (dialect, stream) in cases() {
        let about = format!("{dialect:?} {stream}");
        let flags = ["--max-image-bytes", "100", "--image-timeout", "300ms"];
        let vision = Vision::rendering(EngineProfile::default(), &flags).await;
        let mut body = dialect.request(stream);
        dialect.push(&mut body, dialect.user("see ", &data_uri(&"x".repeat(100)), "?"));
        let answer = ask(&vision, dialect, &body).await;
        assert_eq!(answer.status, 400, "{about}: {}", answer.text());
        assert!(answer.text().contains("--max-image-bytes"), "{about}: {}", answer.text());
        // a value that crashes engines
        let mut body = dialect.request(stream);
        dialect.push(&mut body, dialect.user("see ", &data_uri("a"), "?"));
        body["top_k"] = json!(1_u64 << 40);
        let answer = ask(&vision, dialect, &body).await;
        assert_eq!(answer.status, 400, "{about}: {}", answer.text());
        assert!(answer.text().contains("top_k"), "{about}: {}", answer.text());
        // an engine that never answers
        body.as_object_mut().unwrap().remove("top_k");
        vision.set(Expansion::Hangs);
        let answer = ask(&vision, dialect, &body).await;
        assert!(answer.text().contains("--image-timeout"), "{about}: {}", answer.text());
        let asked = vision.engine.asked();
        assert!(asked.iter().all(|asked| asked.path != "/v1/chat/completions"), "{about}: {asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_response_of_a_refused_picture_is_continued() {
    let vision = Vision::rendering(EngineProfile::default(), &[]).await;
    vision.set(Expansion::Refuses);
    let mut body = Responses.request(false);
    Responses.push(&mut body, Responses.user("see ", &data_uri("a"), "?"));
    let answer = ask(&vision, Responses, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    vision.set(Expansion::Exact);
    let id = answer.json()["id"].clone();
    let next = json!({"model": "tiny", "previous_response_id": id, "input": "and?"});
    let answer = ask(&vision, Responses, &next).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(vision.generations().pop().unwrap()["image_data"], json!([data_uri("a")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn expanded_ids_of_a_chat_are_collapsed() {
    let vision = Vision::rendering(EngineProfile::default(), &[]).await;
    let mut body = Chat.request(false);
    Chat.push(&mut body, Chat.user("see ", &data_uri("a"), "?"));
    let ids = expanded(&encode("<|vision_start|><|image_pad|><|vision_end|>x"), &[data_uri("a")]);
    body["input_ids"] = json!(ids);
    assert_eq!(ask(&vision, Chat, &body).await.status, 200);
    let sent = vision.generations().pop().unwrap();
    assert_eq!(sent["input_ids"], json!(encode("<|vision_start|><|image_pad|><|vision_end|>x")));
    assert_eq!(member(&rows(&vision).await[0], "fault"), [&Value::Null]);
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_responses_take_each_picture_once() {
    const LONG: usize = 200_000;
    let vision = Vision::rendering(EngineProfile::default(), &[]).await;
    let [first, second] = ["a", "b"].map(|content| data_uri(&content.repeat(LONG)));
    let mut body = Responses.request(false);
    Responses.push(&mut body, Responses.user("see ", &first, "?"));
    let answer = ask(&vision, Responses, &body).await.json();
    let next =
        json!({"model": "tiny", "previous_response_id": answer["id"], "input": [Responses.user("and ", &second, "?")]});
    let answer = ask(&vision, Responses, &next).await.json();
    let bytes = vision.proxy.metric("tokentap_sessions_bytes").await;
    assert!((2.0 * LONG as f64..2.2 * LONG as f64).contains(&bytes), "{bytes} bytes");

    let id = answer["id"].as_str().unwrap();
    let items = get(vision.proxy.data, &format!("/sessions/s/v1/responses/{id}/input_items?order=asc")).await.json();
    let uris: Vec<&Value> =
        items["data"].as_array().unwrap().iter().filter_map(|item| item.pointer("/content/1/image_url")).collect();
    assert_eq!(uris, [&first, &second]);
    assert_eq!(
        get(vision.proxy.data, &format!("/sessions/s/v1/responses/{id}")).await.json()["output"],
        answer["output"]
    );

    let next = json!({"model": "tiny", "previous_response_id": id, "input": "and?"});
    let answer = ask(&vision, Responses, &next).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(vision.generations().pop().unwrap()["image_data"], json!([first, second]));
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_response_with_a_picture_is_read_and_continued_after_a_restart() {
    let vision = Vision::rendering(EngineProfile::default(), &[]).await;
    let (folder, tokenizer) = (tempfile::tempdir().unwrap(), folder());
    let flags = ["--data-dir", folder.path().to_str().unwrap(), "--tokenizer", tokenizer.to_str().unwrap()];
    let binary = Binary::with_flags(vision.engine.addr, &flags).await;
    let send = async |data, session: &str, body: &Value| {
        let answer = post(data, &format!("/sessions/{session}/v1/responses"), body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    };
    let mut body = Responses.request(false);
    Responses.push(&mut body, Responses.user("see ", &data_uri("a"), "?"));
    // the engine is asked with a picture in the background
    let is_built_from_tokens = async {
        for session in 0.. {
            send(binary.data, &format!("before-{session}"), &body).await;
            if vision.paths().pop().unwrap() == "/generate" {
                break;
            }
        }
    };
    soon("the prompt is built from tokens", is_built_from_tokens).await;
    let id = send(binary.data, "s", &body).await["id"].as_str().unwrap().to_owned();
    let shown = async |data| {
        let path = format!("/sessions/s/v1/responses/{id}");
        (get(data, &path).await.json(), get(data, &format!("{path}/input_items")).await.json())
    };
    let before = shown(binary.data).await;
    assert_eq!(before.1["data"][0]["content"][1]["image_url"], data_uri("a"));
    binary.kill();
    let binary = Binary::with_flags(vision.engine.addr, &flags).await;
    // before the tokenizer is read, the engine is asked
    let is_served = async {
        loop {
            let after = shown(binary.data).await;
            if after.0["id"] == before.0["id"] && after.1["object"] == "list" {
                break after;
            }
        }
    };
    assert_eq!(soon("stored responses are served", is_served).await, before);
    let next = json!({"model": "tiny", "previous_response_id": id, "input": "and?"});
    send(binary.data, "s", &next).await;
    let sent = vision.engine.asked().pop().unwrap();
    match &*sent.path {
        "/generate" => assert_eq!(sent.json()["image_data"], json!([data_uri("a")])),
        _ => assert!(sent.json().to_string().contains(&data_uri("a")), "{sent:?}"),
    }
    binary.kill();
}
