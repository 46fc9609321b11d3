// SPDX-License-Identifier: Apache-2.0
//! Chats that SGLang's own endpoint serves, replayed from recordings: the ids that it reports become turns, and the client gets them only
//! if it requested them.

use serde_json::{Value, json};
use tokentap::chat::model::Chats;
use tokentap::demo::{EngineOptions, Model, Streaming};
use tokentap::tokenizer::Renderer;

use super::super::support::binary::{Binary, output};
use super::super::support::client::{Answer, Connection, get, post, request, written};
use super::super::support::demo::Demo;
use super::super::support::fixture::Fixture;
use super::super::support::manual_upstream::{END, ManualUpstream, STREAM, chunk, soon};
use super::super::support::proxy::Proxy;
use super::super::support::upstream::{
    EngineProfile, FakeReply, Upstream, UpstreamRequest, json_message, message, stream, torn_stream,
};

const PATH: &str = "/sessions/s/v1/chat/completions";
const UNCAPTURED: &str = "tokentap_uncaptured_generations_total{endpoint=\"/v1/chat/completions\"}";
const NAMES: [&str; 3] = ["x-sglext-return-input-ids", "x-sglext-return-output-ids", "x-sglext-ids-framed"];

/// A recorded reply in which the engine reports its ids.
struct RecordedReply {
    reply: String,
    input: Vec<u32>,
    output: Vec<u32>,
    id: Value,
}

impl RecordedReply {
    fn named(name: &str) -> Self {
        let fixture = Fixture::named(&format!("sglang-0.5.23/default/{name}"));
        let object = fixture.objects().pop().unwrap();
        let ids = |value: &Value| serde_json::from_value(value.clone()).unwrap();
        Self {
            input: ids(&object["sglext"]["input_ids"]),
            output: ids(&object["sglext"]["output_ids"][0]),
            id: object["id"].clone(),
            reply: String::from_utf8(fixture.reply).unwrap(),
        }
    }

    fn whole() -> Self {
        Self::named("chat-sglext-ids")
    }

    fn streamed() -> Self {
        Self::named("chat-stream-sglext-ids")
    }

    /// The reply without ids.
    fn bare(&self) -> String {
        let at = self.reply.find(",\"sglext\":").unwrap();
        if !self.is_stream() {
            return format!("{}}}", &self.reply[..at]);
        }
        let start = self.reply[..at].rfind("data: ").unwrap();
        let end = at + self.reply[at..].find("\n\n").unwrap() + 2;
        [&self.reply[..start], &self.reply[end..]].concat()
    }

    /// The stream with its ids in a separate event.
    fn framed(&self) -> String {
        let at = self.reply.find(",\"sglext\":").unwrap();
        let start = self.reply[..at].rfind("data: ").unwrap();
        format!("{}event: sglext_ids\n{}", &self.reply[..start], &self.reply[start..])
    }

    fn is_stream(&self) -> bool {
        self.reply.starts_with("data:")
    }

    /// Sends the reply, a stream in pieces of 97 bytes.
    fn fake_reply(&self, reply: &str) -> FakeReply {
        match self.is_stream() {
            true => stream(&reply.as_bytes().chunks(97).collect::<Vec<_>>()),
            false => json_message(200, reply.as_bytes()),
        }
    }
}

/// A conversation.
fn body() -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8, "temperature": 1})
}

/// An engine that answers chats with `fake_reply`, and a tokentap that forwards chats to it.
async fn start(fake_reply: FakeReply, flags: &[&str]) -> (Upstream, Proxy) {
    let upstream = Upstream::start(EngineProfile::default(), move |asked: &UpstreamRequest| match &*asked.path {
        "/v1/chat/completions" => fake_reply.clone(),
        _ => native(asked),
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[&["--chat", "passthrough"], flags].concat()).await;
    (upstream, proxy)
}

/// Answers any prompt with four tokens.
fn native(asked: &UpstreamRequest) -> FakeReply {
    let body = asked.json();
    let logprobs = json!([[-0.5, 10, null], [-0.5, 10, null], [-0.5, 10, null], [-0.5, 10, null]]);
    let meta = json!({"id": body["rid"], "finish_reason": {"type": "length", "length": 4}, "completion_tokens": 4,
        "prompt_tokens": body["input_ids"].as_array().map(Vec::len), "output_token_logprobs": logprobs});
    json_message(200, json!({"text": "abcd", "output_ids": [10, 10, 10, 10], "meta_info": meta}).to_string().as_bytes())
}

/// A tokentap that renders chats itself.
async fn start_rendering(upstream: &Upstream) -> Proxy {
    let proxy = Proxy::probed(upstream.addr, &["--tokenizer", super::TOKENIZER]).await;
    let mut chats = proxy.parts.chats.clone();
    drop(chats.wait_for(|chats| matches!(&**chats, Chats::Rendered(_))).await.unwrap());
    proxy
}

async fn ask(proxy: &Proxy, headers: &[(&str, &str)], body: &Value) -> Answer {
    request(proxy.data, "POST", PATH, headers, body.to_string().as_bytes()).await
}

async fn session(proxy: &Proxy) -> Value {
    get(proxy.control, "/v1/sessions/s").await.json()
}

/// The tokens of a path: ids and loss mask.
async fn tokens(proxy: &Proxy, leaf: usize) -> (Value, Value) {
    let mut part = get(proxy.control, &format!("/v1/sessions/s/paths/{leaf}?from=0")).await.json();
    (part["token_ids"].take(), part["loss_mask"].take())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_decides_about_the_modalities_of_a_chat_that_it_renders() {
    let profile = EngineProfile { server_info: json!({"sampling_defaults": "openai"}), ..EngineProfile::default() };
    let upstream = Upstream::start(profile, |asked: &UpstreamRequest| match &*asked.path {
        "/v1/chat/completions" => json_message(200, br#"{"own":true}"#),
        _ => native(asked),
    })
    .await;
    let proxy = start_rendering(&upstream).await;
    let mut asked = body();
    asked["modalities"] = json!(["audio"]);
    let answer = post(proxy.data, "/v1/chat/completions", asked.to_string().as_bytes()).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    let sound = json!({"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AA=="}});
    asked["messages"][0]["content"] = json!([sound]);
    let answer = post(proxy.data, "/v1/chat/completions", asked.to_string().as_bytes()).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "{\"own\":true}"));
}

/// Which of the headers `NAMES` the last upstream request had.
fn requested_ids(upstream: &Upstream) -> [bool; 3] {
    let asked = upstream.asked().pop().unwrap();
    NAMES.map(|name| asked.header(name) == Some("1"))
}

/// Asserts that the generation was not captured and that the client got `reply`.
async fn assert_uncaptured(proxy: &Proxy, answer: &Answer, reply: &str) {
    assert_eq!((answer.status, answer.text().as_str()), (200, reply));
    let shown = session(proxy).await;
    assert_eq!((&shown["incomplete"], &shown["list"]), (&json!(true), &json!([])));
    assert_eq!(proxy.metric(UNCAPTURED).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_the_engine_reports_become_an_untrained_turn() {
    for recorded in [RecordedReply::whole(), RecordedReply::streamed()] {
        let framed = recorded.is_stream().then(|| recorded.framed());
        for reply in [Some(recorded.reply.clone()), framed].into_iter().flatten() {
            let (upstream, proxy) = start(recorded.fake_reply(&reply), &[]).await;
            let answer = ask(&proxy, &[("accept-encoding", "gzip")], &body()).await;
            assert_eq!((answer.status, answer.complete), (200, true));
            assert_eq!(answer.text(), recorded.bare(), "only members that were requested");
            assert_eq!(requested_ids(&upstream), [true; 3]);
            let asked = upstream.asked().pop().unwrap();
            assert_eq!((asked.json(), asked.header("accept-encoding")), (body(), None));

            let shown = session(&proxy).await;
            assert_eq!((&shown["incomplete"], &shown["faults"]), (&json!(false), &json!({"forwarded": 1})));
            let turn = &shown["list"][0];
            assert_eq!((&turn["fault"], &turn["finish_reason"]), (&json!("forwarded"), &json!("length")));
            assert_eq!((&turn["rid"], &turn["mean_entropy"]), (&recorded.id, &Value::Null));
            let ids = [&recorded.input[..], &recorded.output].concat();
            assert_eq!(tokens(&proxy, 0).await, (json!(ids), json!(vec![0; ids.len()])));
            assert_eq!(proxy.metric(UNCAPTURED).await, 0.0);
            assert_eq!(proxy.metric("tokentap_turns_total{outcome=\"forwarded\"}").await, 1.0);
            let sampling = get(proxy.control, "/v1/sessions/s/paths/0").await.json();
            assert_eq!(sampling["turns"][0]["sampling"], json!({"max_new_tokens": 8, "temperature": 1}));
            assert_eq!(sampling["turns"][0]["forwarded_reason"], "--chat passthrough");
            let refused = post(proxy.control, "/v1/samples", br#"{"sessions":["s"],"format":"jsonl"}"#).await;
            assert_eq!(refused.header("tokentap-refused"), Some(r#"{"forwarded":1}"#), "the leaf is refused");

            // a captured generation continues it
            let prompt = [&ids[..], &[5]].concat();
            let native = json!({"input_ids": prompt, "return_logprob": true, "sampling_params": {"max_new_tokens": 4}});
            let answer = post(proxy.data, "/sessions/s/generate", native.to_string().as_bytes()).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let row = get(proxy.control, "/v1/sessions/s/trajectories").await.json()["trajectories"][0].take();
            assert!(row["flags"].as_array().unwrap().contains(&json!("forwarded")), "{row}");
            let (all, mask) = tokens(&proxy, 1).await;
            assert_eq!(all, json!([&prompt[..], &[10; 4]].concat()));
            assert_eq!(mask, json!([vec![0; prompt.len()], vec![1; 4]].concat()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_requests_ids_gets_them_in_the_requested_form() {
    let member = |name: &str| {
        let mut body = body();
        body[name] = json!(true);
        body
    };
    let (input, output) = ("return_input_ids_in_sglext", "return_output_ids_in_sglext");
    let mut both = member(input);
    both[output] = json!(true);
    let yes = |at: usize| (NAMES[at], "1");
    for recorded in [RecordedReply::whole(), RecordedReply::streamed()] {
        let ids = |input: bool, output: bool| {
            let mut sglext = serde_json::Map::new();
            let mut put = |is: bool, name: &str, ids: Value| is.then(|| sglext.insert(name.to_owned(), ids));
            put(input, "input_ids", json!(recorded.input));
            put(output, "output_ids", json!([recorded.output]));
            Some(Value::Object(sglext))
        };
        for (headers, body, framed, expected) in [
            (&[][..], both.clone(), false, ids(true, true)),
            (&[], member(output), false, ids(false, true)),
            (&[yes(0)], body(), false, ids(true, false)),
            (&[yes(0), yes(1)], body(), false, ids(true, true)),
            (&[yes(2)], member(input), true, ids(true, false)),
            (&[yes(2)], body(), true, None),
        ] {
            let reply = if framed && recorded.is_stream() { recorded.framed() } else { recorded.reply.clone() };
            let (upstream, proxy) = start(recorded.fake_reply(&reply), &[]).await;
            let answer = ask(&proxy, headers, &body).await;
            let about = format!("{headers:?} {body}");
            let all = recorded.reply.rfind(",\"sglext\":").unwrap();
            let end = all + recorded.reply[all..].find("]]}").unwrap() + 3;
            let expected = match expected {
                Some(ids) => reply.replace(&recorded.reply[all..end], &format!(",\"sglext\":{ids}")),
                None => recorded.bare(),
            };
            assert_eq!(answer.text(), expected, "{about}");
            let wants = !expected.is_empty() && expected != recorded.bare();
            assert_eq!(requested_ids(&upstream), [true, true, framed || !wants], "{about}");
            assert_eq!(session(&proxy).await["list"][0]["sampled_tokens"], json!(recorded.output.len()), "{about}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_configured_to_return_ids_returns_them_to_clients() {
    let recorded = RecordedReply::whole();
    let reply = recorded.reply.clone();
    let profile = EngineProfile {
        server_info: json!({"return_input_ids": true, "return_output_ids": true}),
        ..EngineProfile::default()
    };
    let upstream = Upstream::start(profile, move |_| json_message(200, reply.as_bytes())).await;
    let proxy = Proxy::probed(upstream.addr, &["--chat", "passthrough"]).await;
    assert_eq!(ask(&proxy, &[], &body()).await.text(), recorded.reply);
    let turn = session(&proxy).await["list"][0].take();
    assert_eq!((&turn["fault"], &turn["labels"]["dialect"]), (&json!("forwarded"), &json!("chat")));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_sglext_members_are_kept() {
    let recorded = RecordedReply::streamed();
    let details = ",\"sglext\":{\"cached_tokens_details\":{\"device\":9},\"spec_tokens_details\":null";
    let reply = recorded.reply.replace(",\"sglext\":{\"input_ids\"", &format!("{details},\"input_ids\""));
    let (_upstream, proxy) = start(recorded.fake_reply(&reply), &[]).await;
    let at = reply.find(",\"input_ids\"").unwrap();
    let end = reply.find("]]}").unwrap() + 2;
    assert_eq!(ask(&proxy, &[], &body()).await.text(), [&reply[..at], &reply[end..]].concat());
    assert_eq!(session(&proxy).await["turns"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_choice_is_a_turn() {
    let choice = |index: usize, reason: &str| json!({"index": index, "message": {}, "finish_reason": reason});
    let reply = json!({"id": "r", "choices": [choice(1, "tool_calls"), choice(0, "length")],
        "metadata": {"weight_version": "w2", "weight_versions":
            [{"version": "w1", "start": 0, "end": 1}, {"version": "w2", "start": 1, "end": 2}]},
        "sglext": {"input_ids": [1, 2], "output_ids": [[3, 4], [5]]}});
    let (_upstream, proxy) = start(json_message(200, reply.to_string().as_bytes()), &[]).await;
    let mut two = body();
    two["n"] = json!(2);
    let mut bare = reply.clone();
    bare.as_object_mut().unwrap().remove("sglext");
    assert_eq!(ask(&proxy, &[], &two).await.json(), bare);
    let list = session(&proxy).await["list"].take();
    let summary = |at: usize| [&list[at]["finish_reason"], &list[at]["cause"], &list[at]["sampled_tokens"]];
    assert_eq!(summary(0), [&json!("length"), &json!("first"), &json!(2)]);
    assert_eq!(summary(1), [&json!("stop"), &json!("sample"), &json!(1)]);
    assert_eq!(tokens(&proxy, 1).await.0, json!([1, 2, 5]));
    let policy = get(proxy.control, "/v1/sessions/s/paths/0").await.json()["policy"].take();
    let labels: Vec<&Value> = policy.as_array().unwrap().iter().map(|span| &span["weight_version"]).collect();
    assert_eq!(labels, [&json!("w1"), &json!("w2")], "{policy}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_without_ids_passes_unchanged_and_marks_the_session_incomplete() {
    for recorded in [RecordedReply::whole(), RecordedReply::streamed()] {
        let other = recorded.reply.replace("_ids\":", "\":");
        for reply in [recorded.bare(), other] {
            let (_upstream, proxy) = start(recorded.fake_reply(&reply), &[]).await;
            let answer = ask(&proxy, &[], &body()).await;
            assert!(answer.complete, "{reply}");
            assert_uncaptured(&proxy, &answer, &reply).await;
        }
        let none = recorded.reply.replace("\"input_ids\":[", "\"input_ids\":[-1,");
        let (_upstream, proxy) = start(recorded.fake_reply(&none), &[]).await;
        assert_uncaptured(&proxy, &ask(&proxy, &[], &body()).await, &recorded.bare()).await;
        let (_upstream, proxy) = start(recorded.fake_reply(&recorded.reply), &["limit:max-reply-bytes", "100"]).await;
        assert_uncaptured(&proxy, &ask(&proxy, &[], &body()).await, &recorded.reply).await;
    }
    let (_upstream, proxy) = start(json_message(200, b"not JSON"), &[]).await;
    assert_uncaptured(&proxy, &ask(&proxy, &[], &body()).await, "not JSON").await;
    let packed = FakeReply::KeepAlive(vec![message(200, &[("content-encoding", "gzip")], b"\x1f\x8b")]);
    let (_upstream, proxy) = start(packed, &[]).await;
    assert_eq!(ask(&proxy, &[], &body()).await.body, b"\x1f\x8b");
    assert_eq!(proxy.metric(UNCAPTURED).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_error_passes_and_records_nothing() {
    let (_upstream, proxy) = start(json_message(400, b"{\"message\":\"no\"}"), &[]).await;
    let answer = ask(&proxy, &[], &body()).await;
    assert_eq!((answer.status, answer.text().as_str()), (400, "{\"message\":\"no\"}"));
    assert_eq!(get(proxy.control, "/v1/sessions/s").await.status, 404);
    assert_eq!(proxy.metric(UNCAPTURED).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_stream_is_a_turn_only_after_the_ids() {
    let recorded = RecordedReply::streamed();
    let framed = recorded.framed();
    let ids = framed.find("event: ").unwrap();
    let done = framed.find("data: [DONE]").unwrap();
    for (end, turns) in [(10, 0), (ids - 400, 0), (ids, 0), (ids + 40, 0), (done, 1), (done + 5, 1)] {
        let (_upstream, proxy) = start(torn_stream(&[&framed.as_bytes()[..end]]), &[]).await;
        let answer = ask(&proxy, &[], &body()).await;
        let expected =
            if turns == 1 { [&framed[..ids], &framed[done..end]].concat() } else { framed[..end].to_owned() };
        assert_eq!(
            (answer.text(), answer.complete),
            (expected, false),
            "{end}: the client's stream is truncated as well"
        );
        let shown = session(&proxy).await;
        assert_eq!((&shown["turns"], &shown["incomplete"]), (&json!(turns), &json!(turns == 0)), "{end}");
        assert_eq!(proxy.metric(UNCAPTURED).await, f64::from(1 - turns), "{end}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_client_leaves_a_turn_only_after_every_finish_reason() {
    let recorded = RecordedReply::streamed();
    let framed = recorded.framed();
    let (ids, done) = (framed.find("event: ").unwrap(), framed.find("data: [DONE]").unwrap());
    let finish = framed[..ids].trim_end().rfind("data: ").unwrap();
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["--chat", "passthrough"]).await;
    for (name, leaves_early) in [("early", true), ("late", false)] {
        let mut client = Connection::open(proxy.data).await;
        let path = format!("/sessions/{name}/v1/chat/completions");
        client.send(&written(proxy.data, "POST", &path, &[], body().to_string().as_bytes())).await;
        let mut call = upstream.next().await;
        call.send(STREAM).await;
        call.send(&chunk(&framed.as_bytes()[..finish])).await;
        let has = |text: &'static str| move |read: &[u8]| memchr::memmem::find(read, text.as_bytes()).is_some();
        assert!(client.read_until(has("offee")).await, "content is forwarded at once");
        if leaves_early {
            drop(client);
            call.closed().await;
            let abort = upstream.next().await;
            assert_eq!(abort.aborted(), recorded.id.as_str().unwrap(), "the id of the first event");
            abort.ok().await;
            continue;
        }
        call.send(&chunk(&framed.as_bytes()[finish..ids])).await;
        let ended = has("\"finish_reason\":\"length\"");
        let meanwhile = async {
            for _ in 0..50 {
                get(proxy.control, "/livez").await;
            }
        };
        tokio::select! {
            biased;
            _ = client.read_until(ended) => panic!("the finish reason must be held back until the ids arrive"),
            () = meanwhile => {}
        }
        call.send(&chunk(&framed.as_bytes()[ids..done])).await;
        assert!(client.read_until(ended).await, "the finish reason is forwarded before `[DONE]` arrives");
        let shown = get(proxy.control, "/v1/sessions/late").await.json();
        assert_eq!(shown["turns"], 1, "the turn is recorded before the client has the finish reason");
        drop(client);
    }
    soon("the early disconnect is counted", async { while proxy.metric(UNCAPTURED).await < 1.0 {} }).await;
    assert_eq!(get(proxy.control, "/v1/sessions/early").await.json()["incomplete"], true);
    assert_eq!(get(proxy.control, "/v1/sessions/late").await.json()["incomplete"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_joins_the_chat_that_runs() {
    for recorded in [RecordedReply::whole(), RecordedReply::streamed()] {
        let mut upstream = ManualUpstream::start().await;
        let proxy = Proxy::probed(upstream.addr, &["--chat", "passthrough"]).await;
        let send = async |headers: &[(&str, &str)]| {
            let mut client = Connection::open(proxy.data).await;
            client.send(&written(proxy.data, "POST", PATH, headers, body().to_string().as_bytes())).await;
            client
        };
        let mut first = send(&[]).await;
        let mut call = upstream.next().await;
        let retry = [("x-stainless-retry-count", "1")];
        let mut second = send(&retry).await;
        let joined = async { while proxy.metric("tokentap_retries_total{outcome=\"joined\"}").await != 1.0 {} };
        soon("the retry joins the call", joined).await;
        // a client that reads the ids gets another reply
        let other = send(&[retry[0], (NAMES[1], "1")]).await;
        upstream.next().await.reset();
        drop(other);
        if recorded.is_stream() {
            call.send(STREAM).await;
            call.send(&chunk(recorded.reply.as_bytes())).await;
            call.reply(END).await;
        } else {
            call.reply(&message(200, &[("content-type", "application/json")], recorded.reply.as_bytes())).await;
        }
        for answer in [first.answer().await, second.answer().await] {
            assert_eq!((answer.status, answer.complete, answer.text()), (200, true, recorded.bare()));
        }
        assert_eq!(session(&proxy).await["turns"], 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn delivered_reply_survives_a_crash() {
    for recorded in [RecordedReply::whole(), RecordedReply::streamed()] {
        let reply = recorded.fake_reply(&recorded.reply);
        let upstream = Upstream::start(EngineProfile::default(), move |_| reply.clone()).await;
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        let binary = Binary::with_flags(upstream.addr, &["--chat", "passthrough", "--data-dir", dir]).await;
        let mut client = Connection::open(binary.data).await;
        client.send(&written(binary.data, "POST", PATH, &[], body().to_string().as_bytes())).await;
        let ended = |read: &[u8]| memchr::memmem::find(read, b"\"finish_reason\":\"length\"").is_some();
        assert!(client.read_until(ended).await);
        binary.kill();
        let binary = Binary::with_flags(upstream.addr, &["--chat", "passthrough", "--data-dir", dir]).await;
        let shown = get(binary.control, "/v1/sessions/s").await.json();
        assert_eq!(shown["list"][0]["sampled_tokens"], json!(recorded.output.len()), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn image_chat_is_forwarded_while_other_chats_are_rendered() {
    let recorded = RecordedReply::whole();
    let reply = recorded.fake_reply(&recorded.reply);
    let profile = EngineProfile { server_info: json!({"sampling_defaults": "openai"}), ..EngineProfile::default() };
    let upstream = Upstream::start(profile, move |asked: &UpstreamRequest| match &*asked.path {
        "/v1/chat/completions" => reply.clone(),
        _ => native(asked),
    })
    .await;
    let proxy = start_rendering(&upstream).await;
    let image =
        json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]});
    assert_eq!(ask(&proxy, &[], &image).await.text(), recorded.bare());
    assert_eq!(ask(&proxy, &[], &body()).await.status, 200);
    let list = session(&proxy).await["list"].take();
    assert_eq!((&list[0]["fault"], &list[1]["fault"]), (&json!("forwarded"), &Value::Null), "{list}");
    let path = get(proxy.control, "/v1/sessions/s/paths/0").await.json();
    assert_eq!(path["turns"][0]["forwarded_reason"], "a picture that is not in the request as base64", "{path}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rendered_call_keeps_the_tokens_of_a_forwarded_turn() {
    let renderer = Renderer::new(Model::folder());
    let encode = |text: &str| renderer.tokenizer().encode(text).unwrap();
    let prompt = encode("<|im_start|>user\nIs it lit?<|im_end|>\n<|im_start|>assistant\n");
    // ids that the tokenizer would not produce
    let output = [encode("The"), encode(" la"), encode("mp."), vec![renderer.end_of_turn().unwrap()]].concat();
    assert_ne!(output[..output.len() - 1], encode("The lamp."));
    let reply = json!({"id": "r", "object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": "The lamp."}}], "sglext": {"input_ids": prompt, "output_ids": [output]}});
    let profile = EngineProfile { server_info: json!({"sampling_defaults": "openai"}), ..EngineProfile::default() };
    let upstream = Upstream::start(profile, move |asked: &UpstreamRequest| match &*asked.path {
        "/v1/chat/completions" => json_message(200, reply.to_string().as_bytes()),
        _ => native(asked),
    })
    .await;
    let proxy = start_rendering(&upstream).await;
    let mut body =
        json!({"messages": [{"role": "user", "content": "Is it lit?"}], "return_cached_tokens_details": true});
    assert_eq!(ask(&proxy, &[], &body).await.status, 200);
    body = json!({"messages": [{"role": "user", "content": "Is it lit?"}, {"role": "assistant", "content": "The lamp."},
        {"role": "user", "content": "Since when?"}]});
    assert_eq!(ask(&proxy, &[], &body).await.status, 200);
    let sent = upstream.asked().pop().unwrap().json()["input_ids"].take();
    let known: Vec<Value> = prompt.iter().chain(&output).map(|id| json!(id)).collect();
    assert!(sent.as_array().unwrap().starts_with(&known), "{sent} begins with {known:?}");
    let list = session(&proxy).await["list"].take();
    assert_eq!((&list[1]["cause"], &list[1]["context_retokenised"]), (&json!("extends"), &json!(false)), "{list}");
}

#[tokio::test(flavor = "multi_thread")]
async fn oversize_body_passes_uncaptured() {
    let recorded = RecordedReply::whole();
    let (_upstream, proxy) = start(recorded.fake_reply(&recorded.reply), &["--max-request-bytes", "300"]).await;
    let answer = ask(&proxy, &[], &body()).await;
    assert_eq!((answer.text(), answer.header("x-tokentap-session")), (recorded.bare(), Some("s")));
    let mut long = body();
    long["messages"][0]["content"] = json!("x".repeat(400));
    assert_eq!(ask(&proxy, &[], &long).await.text(), recorded.reply);
    let shown = session(&proxy).await;
    assert_eq!((&shown["turns"], &shown["incomplete"], proxy.metric(UNCAPTURED).await), (&json!(1), &json!(true), 1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_not_requested_without_a_session_or_recording() {
    let recorded = RecordedReply::whole();
    for (flags, path) in [(&[][..], "/v1/chat/completions"), (&["--record", "false"], PATH)] {
        let (upstream, proxy) = start(recorded.fake_reply(&recorded.reply), flags).await;
        let answer = post(proxy.data, path, body().to_string().as_bytes()).await;
        assert_eq!(answer.text(), recorded.reply);
        assert_eq!(requested_ids(&upstream), [false; 3]);
        assert_eq!(proxy.metric(UNCAPTURED).await, 1.0);
    }
}

#[tokio::test]
async fn readyz_and_check_report_that_ids_are_recorded() {
    let options = EngineOptions { streaming: Streaming::Incremental, ..EngineOptions::default() };
    let demo = Demo::start(options, &["--chat", "passthrough"]).await;
    let line = "--chat passthrough; a session records the ids that the engine reports";
    // the route of chats is decided after the probe
    let reported = async { while !get(demo.proxy.control, "/readyz").await.text().contains(line) {} };
    soon("/readyz reports it", reported).await;
    let report = output(&["check", "--upstream", &format!("http://{}", demo.direct), "--chat", "passthrough"]).await;
    let report = String::from_utf8(report.stdout).unwrap();
    assert!(report.contains("a session records the ids that the engine reports"), "{report}");
}
