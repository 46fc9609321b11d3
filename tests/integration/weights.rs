// SPDX-License-Identifier: Apache-2.0
//! Weight updates and pauses: the policy of each token, as the engine reports it and as tokentap counts it.

mod live;

use serde_json::Value;

use crate::support::client::{Answer, Connection, get, post, request, written};
use crate::support::fixture::Fixture;
use crate::support::manual_upstream::{Call, END, ManualUpstream, STREAM, chunk, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

/// A tokentap and an engine whose recorded replies the test sends.
struct Stage {
    upstream: ManualUpstream,
    proxy: Proxy,
}

/// A recorded call that is running.
struct Running {
    fixture: Fixture,
    call: Call,
    client: tokio::task::JoinHandle<Answer>,
}

impl Stage {
    async fn start() -> Self {
        let upstream = ManualUpstream::start().await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        Self { upstream, proxy }
    }

    async fn epoch(&self) -> u64 {
        epoch(&self.proxy).await
    }

    /// Sends a recorded call: trainers' calls to the control port, others to the data port.
    async fn ask(&mut self, case: &str) -> Running {
        let fixture = Fixture::named(&format!("sglang-0.5.23/weights/{case}"));
        let trainers = fixture.method == "POST" && !fixture.is_generate();
        let addr = if trainers { self.proxy.control } else { self.proxy.data };
        let (session, recorded) = (case.to_owned(), fixture.clone());
        let client = tokio::spawn(async move {
            // the second header marks requests for model information, so that the fake does not answer them for the probe
            let headers = [("x-session-id", session.as_str()), ("x-recording", &session)];
            request(addr, &recorded.method, &recorded.path, &headers, &recorded.body).await
        });
        let call = self.upstream.next().await;
        assert_eq!(call.asked.path, fixture.path, "{case} arrives");
        Running { fixture, call, client }
    }

    /// Sends a recorded call and its recorded reply.
    async fn play(&mut self, case: &str) -> Answer {
        self.ask(case).await.answered().await
    }

    /// The spans of a session of one turn, and the turn.
    async fn recorded(&self, case: &str) -> (Vec<Span>, Value) {
        let trajectories = get(self.proxy.control, &format!("/v1/sessions/{case}/trajectories")).await.json();
        let rows = trajectories["trajectories"].as_array().unwrap();
        assert_eq!((rows.len(), rows[0]["turns"].as_array().unwrap().len()), (1, 1), "{trajectories}");
        (spans(&rows[0]), rows[0].clone())
    }
}

impl Running {
    fn engines(&self) -> Vec<(String, u64, u64)> {
        let meta = &self.fixture.objects().pop().unwrap()["meta_info"];
        let version = |span: &Value| {
            let version = span["version"].as_str().unwrap().to_owned();
            (version, span["start"].as_u64().unwrap(), span["end"].as_u64().unwrap())
        };
        meta["weight_versions"].as_array().unwrap().iter().map(version).collect()
    }

    /// Sends the recorded reply.
    async fn answered(mut self) -> Answer {
        let headers: Vec<(&str, &str)> = self
            .fixture
            .reply_headers
            .iter()
            .filter(|(key, _)| !["connection", "transfer-encoding", "content-length", "date"].contains(&&**key))
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        if !self.fixture.is_generate() {
            let length = self.fixture.body.len();
            if length > 0 {
                let body = self.call.body_until(|body| body.len() >= length).await;
                assert_eq!(body, self.fixture.body, "the body of a trainer is forwarded unchanged");
            }
        }
        self.call.reply(&message(self.fixture.status, &headers, &self.fixture.reply)).await;
        let answer = self.client.await.unwrap();
        assert_eq!(answer.status, self.fixture.status);
        if !self.fixture.is_generate() {
            assert_eq!(answer.body, self.fixture.reply, "{}: the recorded reply", self.fixture.name);
        }
        answer
    }
}

/// Part of a response, in tokens of the response.
#[derive(Debug, PartialEq)]
struct Span {
    version: String,
    start: u64,
    end: u64,
    epoch: u64,
}

/// The spans of a row's only turn, which must be certain.
fn spans(row: &Value) -> Vec<Span> {
    let segments = row["segments"].as_array().unwrap();
    let response = segments.iter().find(|segment| segment["kind"] == "response").unwrap();
    let at = response["start"].as_u64().unwrap();
    let span = |span: &Value| {
        assert_eq!(span["until"], Value::Null, "it is certain: {span}");
        let place = |key: &str| span[key].as_u64().unwrap() - at;
        let version = span["weight_version"].as_str().unwrap().to_owned();
        Span { version, start: place("start"), end: place("end"), epoch: span["epoch"].as_u64().unwrap() }
    };
    row["policy"].as_array().unwrap().iter().map(span).collect()
}

async fn epoch(proxy: &Proxy) -> u64 {
    get(proxy.control, "/v1/policy").await.json()["epoch"].as_u64().unwrap()
}

fn one(version: &str, end: u64, epoch: u64) -> Vec<Span> {
    vec![Span { version: version.to_owned(), start: 0, end, epoch }]
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_updates_give_the_spans_of_the_engine() {
    let mut stage = Stage::start().await;
    let start = stage.epoch().await;
    stage.play("w-01-before").await;
    assert_eq!(stage.recorded("w-01-before").await.0, one("default", 6, start));
    stage.play("w-02-update-bad-path").await;
    assert_eq!(stage.epoch().await, start, "a failed update changes nothing");
    // tokentap did not see the update to v1, only its label
    stage.play("w-05-after").await;
    assert_eq!(stage.recorded("w-05-after").await.0, one("v1", 2, start + 1));
    stage.play("w-06-model-info").await;
    assert_eq!(stage.epoch().await, start + 1, "one new epoch");
    stage.play("w-07-update-version").await;
    assert_eq!(stage.epoch().await, start + 2);
    stage.play("w-08-after-version").await;
    assert_eq!(stage.recorded("w-08-after-version").await.0, one("v2", 2, start + 2));

    // an update waits for running requests, whose tokens are all of the old policy
    let generation = stage.ask("w-09-generate-across-update").await;
    let update = stage.ask("w-09-update-during").await;
    assert_eq!(generation.engines(), [("v2".to_owned(), 0, 300)]);
    generation.answered().await;
    assert_eq!(stage.epoch().await, start + 2, "an unanswered update does not count");
    update.answered().await;
    assert_eq!(stage.recorded("w-09-generate-across-update").await.0, one("v2", 300, start + 2));
    assert_eq!(stage.epoch().await, start + 3);
    stage.play("w-09b-model-info").await;

    // an update that aborts running requests
    let generation = stage.ask("w-10-abortall-generate-across-update").await;
    let update = stage.ask("w-10-abortall-update-during").await;
    assert_eq!(generation.engines(), [("v3-09".to_owned(), 0, 94)]);
    generation.answered().await;
    update.answered().await;
    let (spans, row) = stage.recorded("w-10-abortall-generate-across-update").await;
    assert_eq!(spans, one("v3-09", 94, start + 3));
    assert_untrained(&row, "aborted");
    assert_eq!(stage.epoch().await, start + 4);

    stage.play("w-11b-pause").await;
    assert_eq!(stage.epoch().await, start + 4, "a pause changes no weights");
    stage.play("w-11c-update").await;
    assert_eq!(stage.epoch().await, start + 5);
    let generation = stage.ask("w-12a-generate-pause-abort").await;
    let pause = stage.ask("w-12b-pause-abort").await;
    assert_eq!(generation.engines(), [("v4".to_owned(), 0, 85)]);
    generation.answered().await;
    pause.answered().await;
    stage.play("w-12c-continue").await;
    let (spans, row) = stage.recorded("w-12a-generate-pause-abort").await;
    assert_eq!(spans, one("v4", 85, start + 5));
    assert_untrained(&row, "aborted");

    across_a_pause(&mut stage, start + 5).await;
    assert_eq!(stage.epoch().await, start + 6);
    stage.play("w-15-back").await;
    assert_eq!(stage.recorded("w-15-back").await.0, one("v5", 6, start + 6));
}

/// A stream that is paused while weights change: one turn, two policies.
async fn across_a_pause(stage: &mut Stage, before: u64) {
    let mut generation = stage.ask("w-13a-generate-retract").await;
    assert_eq!(generation.engines(), [("v4".to_owned(), 0, 79), ("v5".to_owned(), 79, 120)]);
    let reply = generation.fixture.reply.clone();
    let events: Vec<&[u8]> = reply.split_inclusive(|byte| *byte == b'\n').collect();
    generation.call.send(STREAM).await;
    let of_v5 = events.iter().position(|event| memchr::memmem::find(event, b"\"weight_version\":\"v5\"").is_some());
    let (old, new) = events.split_at(of_v5.expect("later events are of the new policy"));
    for event in old {
        generation.call.send(&chunk(event)).await;
    }
    for case in ["w-13b-pause-retract", "w-13c-update", "w-13d-continue"] {
        stage.play(case).await;
    }
    for event in new {
        generation.call.send(&chunk(event)).await;
    }
    generation.call.reply(END).await;
    let answer = generation.client.await.unwrap();
    assert!(answer.complete && answer.body.ends_with(b"data: [DONE]\n\n"), "the stream is complete");
    let (spans, row) = stage.recorded("w-13a-generate-retract").await;
    let [old, new] = [("v4", 0, 79, before), ("v5", 79, 120, before + 1)].map(|(version, start, end, epoch)| Span {
        version: version.to_owned(),
        start,
        end,
        epoch,
    });
    assert_eq!(spans, [old, new]);
    // the fake has no tokenizer, so the prompt is unknown
    assert_eq!(row["flags"], serde_json::json!(["crosses_versions", "prompt_unknown"]));
}

/// A call of a trainer that the engine answers with 200.
async fn succeed(stage: &mut Stage, path: &'static str) {
    let client = tokio::spawn(post(stage.proxy.control, path, b"{}"));
    stage.upstream.next().await.ok().await;
    assert_eq!(client.await.unwrap().status, 200, "{path}");
}

#[tokio::test(flavor = "multi_thread")]
async fn update_with_a_lost_call_ends_with_an_epoch() {
    let mut stage = Stage::start().await;
    let mut now = stage.epoch().await;
    let (begin, load, end) = ("/begin_weight_update", "/update_weights_from_tensor", "/end_weight_update");
    for lost in [begin, load, end] {
        for by_client in [false, true] {
            if lost != begin {
                succeed(&mut stage, begin).await;
                assert_eq!(stage.epoch().await, now, "an update that has begun");
            }
            let mut client = Connection::open(stage.proxy.control).await;
            client.send(&written(stage.proxy.control, "POST", lost, &[], b"{}")).await;
            let call = stage.upstream.next().await;
            // the engine closes the connection, or the trainer gives up
            if by_client {
                drop(client);
                soon("the call is cancelled", async { while stage.epoch().await == now {} }).await;
            } else {
                drop(call);
                assert_eq!(soon("an error", client.answer()).await.status, 502, "{lost}");
            }
            now += 1;
            assert_eq!(stage.epoch().await, now, "{lost}, by_client {by_client}: the update has ended");
            // calls outside an update count by themselves
            for path in [load, end] {
                succeed(&mut stage, path).await;
                now += 1;
                assert_eq!(stage.epoch().await, now, "{path} after a lost {lost}");
            }
        }
    }
}

fn assert_untrained(row: &Value, fault: &str) {
    assert_eq!((&row["turns"][0]["trained"], &row["turns"][0]["fault"]), (&Value::Bool(false), &fault.into()), "{row}");
    assert!(row["loss_mask"].as_array().unwrap().iter().all(|mask| *mask == 0), "no token is trained");
}
