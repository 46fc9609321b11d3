// SPDX-License-Identifier: Apache-2.0
//! Pictures of `/generate`: the prompt of a turn is what the engine echoes after expanding the placeholders, if that is what was sent.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokentap::serve::grpc::pb::watch_reply::What as WatchItem;
use tokentap::serve::grpc::pb::{PathImage, SamplesRequest, WatchRequest, samples_reply};
use tokentap::tokenizer::TextOrigin;

use super::grpc::client::trajectories;
use super::support::binary::Binary;
use super::support::client::{Answer, get, post};
use super::support::manual_upstream::soon;
use super::support::upstream::EngineProfile;
use super::support::vision::{END, Expansion, PAD, START, Vision, data_uri, expanded, png, sampled};

async fn ask(vision: &Vision, session: &str, body: &Value) -> Answer {
    let answer = post(vision.proxy.data, &format!("/sessions/{session}/generate"), body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// The trajectories of a session.
async fn rows(vision: &Vision, session: &str) -> Vec<Value> {
    let reply = get(vision.proxy.control, &format!("/v1/sessions/{session}/trajectories")).await.json();
    reply["trajectories"].as_array().unwrap_or_else(|| panic!("{reply}")).clone()
}

/// The only trajectory of a session.
async fn row(vision: &Vision, session: &str) -> Value {
    let mut rows = rows(vision, session).await;
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows.pop().unwrap()
}

/// The faults and the causes of the turns of a row.
fn turns(row: &Value) -> Vec<(Value, Value)> {
    row["turns"].as_array().unwrap().iter().map(|turn| (turn["fault"].clone(), turn["cause"].clone())).collect()
}

fn sha256(content: &str) -> String {
    Sha256::digest(png(content)).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A picture of a row.
fn shown(turn: u32, start: usize, content: &str) -> Value {
    let tokens = super::support::vision::tokens_of(&data_uri(content));
    json!({"turn": turn, "start": start, "end": start + tokens, "sha256": sha256(content), "media_type": "image/png",
        "bytes": png(content).len(), "available": true})
}

fn picture() -> [u32; 3] {
    [START, PAD, END]
}

/// The ids of a first prompt with a picture.
fn first() -> Vec<u32> {
    [&[1, 2][..], &picture(), &[3]].concat()
}

#[tokio::test]
async fn conversation_with_pictures_is_one_trained_path() {
    for (streaming, stream) in [("cumulative", false), ("cumulative", true), ("incremental", true)] {
        let vision = Vision::start(EngineProfile { streaming, ..EngineProfile::default() }, &[]).await;
        let (mut ids, mut pictures) = (first(), vec![data_uri("a")]);
        for turn in 0..3_u32 {
            ask(&vision, "s", &json!({"input_ids": ids, "image_data": pictures, "stream": stream})).await;
            ids.extend(sampled(0));
            ids.push(20 + turn);
            // the second turn has no new picture, and the third has a repeated one
            if turn == 1 {
                ids.extend(picture());
                ids.push(5);
                pictures.push(data_uri("a"));
            }
        }
        let row = row(&vision, "s").await;
        let faults = turns(&row);
        assert_eq!(json!(faults), json!([[null, "first"], [null, "extends"], [null, "extends"]]), "{streaming}");
        // the last prompt without its end, and the last response
        let sent = &ids[..ids.len() - 1];
        let tokens = expanded(sent, &pictures);
        assert_eq!(row["token_ids"], json!(tokens));
        let second = tokens.iter().rposition(|id| *id == START).unwrap() + 1;
        assert_eq!(row["images"], json!([shown(0, 3, "a"), shown(2, second, "a")]));
        let list = get(vision.proxy.control, "/v1/sessions/s").await.json()["list"].take();
        let before = list[0]["prompt_tokens"].as_u64().unwrap() + list[1]["prompt_tokens"].as_u64().unwrap() + 4;
        let starts: Vec<&Value> = list.as_array().unwrap().iter().map(|turn| &turn["images"][0]["start"]).collect();
        assert_eq!(json!(starts), json!([3, null, second as u64 - before]), "{list}");
        let mask: Vec<u32> =
            row["loss_mask"].as_array().unwrap().iter().map(|one| one.as_u64().unwrap() as u32).collect();
        assert_eq!(mask.iter().sum::<u32>(), 6, "two tokens of each turn");
        assert!(tokens.iter().zip(&mask).all(|(id, mask)| *id != PAD || *mask == 0), "pictures are not trained");
    }
}

#[tokio::test]
async fn forced_echo_is_removed_and_requested_echo_is_kept() {
    for stream in [false, true] {
        let vision = Vision::start(EngineProfile::default(), &[]).await;
        let body = json!({"input_ids": first(), "image_data": [data_uri("a")], "stream": stream});
        for extra in [json!({}), json!({"return_entropy": false})] {
            let mut body = body.clone();
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let answer = ask(&vision, "s", &body).await;
            assert!(!answer.text().contains("prompt_token_ids"), "{}", answer.text());
        }
        assert!(vision.generations().iter().all(|sent| sent["return_prompt_token_ids"] == true));
        let mut asked = body.clone();
        asked["return_prompt_token_ids"] = json!(true);
        let answer = ask(&vision, "s", &asked).await;
        let echo = json!(expanded(&first(), &[data_uri("a")])).to_string();
        assert!(answer.text().contains(&format!("\"prompt_token_ids\":{echo}")), "{}", answer.text());
        let rows = rows(&vision, "s").await;
        assert_eq!(rows.len(), 3, "three samples of one prompt");
        for (at, row) in rows.iter().enumerate() {
            assert_eq!((&turns(row)[0].0, &row["images"]), (&Value::Null, &json!([shown(at as u32, 3, "a")])), "{row}");
        }
    }
}

#[tokio::test]
async fn request_without_pictures_asks_for_no_echo() {
    let vision = Vision::start(EngineProfile::default(), &[]).await;
    for images in [json!(null), json!([]), json!([null])] {
        ask(&vision, "s", &json!({"input_ids": [1, 2], "image_data": images})).await;
    }
    assert!(vision.generations().iter().all(|sent| sent.get("return_prompt_token_ids").is_none()));
    for row in rows(&vision, "s").await {
        assert_eq!((turns(&row)[0].0.clone(), row.get("images")), (Value::Null, None));
    }
}

#[tokio::test]
async fn samples_and_batches_have_their_own_pictures() {
    for stream in [false, true] {
        let vision = Vision::start(EngineProfile::default(), &[]).await;
        let two = [first(), picture().to_vec()].concat();
        let nested = json!([[data_uri("a"), data_uri("bb")]]);
        ask(
            &vision,
            "n",
            &json!({"input_ids": two, "image_data": nested, "stream": stream, "sampling_params": {"n": 2}}),
        )
        .await;
        let of_n = rows(&vision, "n").await;
        assert_eq!(of_n.len(), 2);
        for (at, row) in of_n.iter().enumerate() {
            let tokens = [expanded(&two, &[data_uri("a"), data_uri("bb")]), sampled(at).to_vec()].concat();
            assert_eq!(row["token_ids"], json!(tokens));
            assert_eq!(row["images"].as_array().unwrap().len(), 2);
            assert!(turns(row)[0].0.is_null(), "{row}");
        }
        let batch = json!({"input_ids": [first(), [7, 8], first()], "image_data": [data_uri("a"), null, [data_uri("bb")]], "stream": stream});
        ask(&vision, "batch", &batch).await;
        let of_batch = rows(&vision, "batch").await;
        let images: Vec<Value> = of_batch.iter().map(|row| row["images"].clone()).collect();
        assert_eq!(images, [json!([shown(0, 3, "a")]), Value::Null, json!([shown(2, 3, "bb")])]);
        assert!(of_batch.iter().all(|row| turns(row)[0].0.is_null()), "{of_batch:?}");
    }
}

#[tokio::test]
async fn another_picture_with_the_same_ids_begins_a_branch() {
    let vision = Vision::start(EngineProfile::default(), &[]).await;
    assert_eq!(expanded(&first(), &[data_uri("a")]), expanded(&first(), &[data_uri("b")]));
    ask(&vision, "s", &json!({"input_ids": first(), "image_data": [data_uri("a")]})).await;
    let next = [first(), sampled(0).to_vec(), vec![4]].concat();
    ask(&vision, "s", &json!({"input_ids": next, "image_data": data_uri("a")})).await;
    ask(&vision, "s", &json!({"input_ids": next, "image_data": data_uri("b")})).await;
    // more turns than a session keeps without an index
    for turn in 0..20 {
        let next = [&next[..], &[30 + turn]].concat();
        ask(&vision, "s", &json!({"input_ids": next, "image_data": data_uri("b")})).await;
    }
    let rows = rows(&vision, "s").await;
    let digests =
        |row: &Value| row["images"].as_array().unwrap().iter().map(|image| image["sha256"].clone()).collect::<Vec<_>>();
    assert_eq!(json!(turns(&rows[0])), json!([[null, "first"], [null, "extends"]]));
    assert_eq!(digests(&rows[0]), [sha256("a")]);
    for row in &rows[1..] {
        assert_eq!(turns(row).len(), 1, "the other picture is in no turn of the first branch: {row}");
        assert_eq!(digests(row), [sha256("b")]);
    }
    assert_eq!(rows.len(), 22);
}

#[tokio::test]
async fn unconfirmed_expansion_is_not_trained() {
    let ids = first();
    let one = json!([data_uri("a")]);
    let twice = [first(), picture().to_vec()].concat();
    let bare = [1, 2, PAD, PAD, 3];
    for (expansion, body) in [
        (Expansion::Retokenises, json!({"input_ids": ids, "image_data": one})),
        (Expansion::Ignores, json!({"input_ids": ids, "image_data": one})),
        (Expansion::Miscounts, json!({"input_ids": ids, "image_data": one})),
        // counts differ
        (Expansion::Exact, json!({"input_ids": twice, "image_data": one})),
        (Expansion::Exact, json!({"input_ids": ids, "image_data": [data_uri("a"), data_uri("b")]})),
        // the client expanded the placeholder itself
        (Expansion::Ignores, json!({"input_ids": expanded(&ids, &[data_uri("a")]), "image_data": one})),
        (Expansion::Exact, json!({"input_ids": bare, "image_data": [data_uri("a"), data_uri("b")]})),
        (Expansion::Exact, json!({"text": "see", "image_data": one})),
    ] {
        for stream in [false, true] {
            let vision = Vision::start(EngineProfile::default(), &[]).await;
            vision.set(expansion);
            let mut body = body.clone();
            body["stream"] = json!(stream);
            ask(&vision, "s", &body).await;
            let reply = get(vision.proxy.control, "/v1/sessions/s").await.json();
            assert_eq!(reply["faults"], json!({"images_unverified": 1}), "{expansion:?} {body} {reply}");
        }
    }
}

#[tokio::test]
async fn prompt_that_is_not_echoed_is_unknown() {
    let vision = Vision::start(EngineProfile::default(), &[]).await;
    vision.set(Expansion::Silent);
    for media in [
        json!({"image_data": [data_uri("a")]}),
        json!({"image_data": ["https://host/a.png"]}),
        json!({"video_data": "x"}),
    ] {
        let mut body = json!({"input_ids": first()});
        body.as_object_mut().unwrap().extend(media.as_object().unwrap().clone());
        ask(&vision, "s", &body).await;
    }
    let reply = get(vision.proxy.control, "/v1/sessions/s").await.json();
    assert_eq!(reply["faults"], json!({"prompt_unknown": 1, "image_remote": 1, "media_unrecorded": 1}), "{reply}");
}

#[tokio::test]
async fn picture_that_may_change_is_not_trained() {
    for (media, fault) in [
        (json!({"image_data": ["https://host/a.png"]}), "image_remote"),
        (json!({"image_data": "/pictures/a.png"}), "image_remote"),
        (json!({"image_data": [{"format": "processor_output"}]}), "image_processed"),
        (json!({"video_data": ["https://host/a.mp4"]}), "media_unrecorded"),
        (json!({"audio_data": "x", "image_data": [data_uri("a")]}), "media_unrecorded"),
        (json!({"text": "see", "input_ids": null, "image_data": [data_uri("a")]}), "images_unverified"),
    ] {
        for stream in [false, true] {
            let vision = Vision::start(EngineProfile::default(), &[]).await;
            let mut body = json!({"input_ids": first(), "stream": stream});
            body.as_object_mut().unwrap().extend(media.as_object().unwrap().clone());
            ask(&vision, "s", &body).await;
            let reply = get(vision.proxy.control, "/v1/sessions/s").await.json();
            assert_eq!(reply["faults"], json!({ fault: 1 }), "{media} {reply}");
            let echoes = &vision.generations()[0]["return_prompt_token_ids"];
            assert_eq!(echoes.as_bool(), (!stream).then_some(true), "a stream repeats the echo in each event");
        }
    }
}

#[tokio::test]
async fn stream_echoes_the_prompts_of_a_batch_if_a_picture_can_be_recorded() {
    let vision = Vision::start(EngineProfile::default(), &[]).await;
    let images = json!([data_uri("a"), "https://host/a.png"]);
    ask(&vision, "s", &json!({"input_ids": [first(), first()], "image_data": images, "stream": true})).await;
    let reply = get(vision.proxy.control, "/v1/sessions/s").await.json();
    assert_eq!(reply["faults"], json!({"image_remote": 1}), "{reply}");
}

const LITTLE_ROOM: [&str; 4] = ["--max-bytes-in-flight", "1MiB", "--max-request-bytes", "256KiB"];

#[tokio::test]
async fn picture_of_all_prompts_is_decoded_once() {
    let vision = Vision::start(EngineProfile::default(), &LITTLE_ROOM).await;
    let prompts: Vec<Vec<u32>> = (0..30).map(|at| [&[at], &first()[..]].concat()).collect();
    let content = "a".repeat(40_000);
    ask(&vision, "s", &json!({"input_ids": prompts, "image_data": data_uri(&content)})).await;
    let rows = rows(&vision, "s").await;
    assert_eq!(rows.len(), 30);
    for row in rows {
        assert_eq!(
            (&turns(&row)[0].0, &row["images"]),
            (&Value::Null, &json!([shown(row["leaf"].as_u64().unwrap() as u32, 4, &content)]))
        );
    }
}

#[tokio::test]
async fn call_is_served_if_its_pictures_have_no_room() {
    let vision = Vision::start(EngineProfile::default(), &LITTLE_ROOM).await;
    let body = json!({"input_ids": first(), "image_data": [data_uri(&"a".repeat(180_000))]}).to_string();
    // a text with escapes is copied
    let body = body.replace("image/png", "image\\/png");
    let answer = post(vision.proxy.data, "/sessions/s/generate", body.as_bytes()).await;
    assert_eq!((answer.status, &answer.json()["output_ids"]), (200, &json!(sampled(0))), "{}", answer.text());
    let reply = get(vision.proxy.control, "/v1/sessions/s").await.json();
    assert_eq!(reply["faults"], json!({"images_too_large": 1}), "{reply}");
}

#[tokio::test]
async fn client_gets_the_echo_only_if_it_asks_for_it() {
    let nested = json!([[data_uri("a")]]);
    let calls = [
        json!({"input_ids": first(), "image_data": [data_uri("a")]}),
        json!({"input_ids": first(), "image_data": nested, "sampling_params": {"n": 2}}),
        json!({"input_ids": [first(), first()], "image_data": [data_uri("a"), data_uri("bb")]}),
    ];
    for flags in [&[][..], &["--entropy", "off"], &["--record", "false"], &["--entropy", "off", "--record", "false"]] {
        for (streaming, stream) in [("cumulative", false), ("cumulative", true), ("incremental", true)] {
            for expansion in [Expansion::Exact, Expansion::RefusesLogprobs] {
                let vision = Vision::start(EngineProfile { streaming, ..EngineProfile::default() }, flags).await;
                vision.set(expansion);
                for call in &calls {
                    for asks in [false, true] {
                        let mut body = call.clone();
                        body["stream"] = json!(stream);
                        if asks {
                            body["return_prompt_token_ids"] = json!(true);
                        }
                        let answer = ask(&vision, "s", &body).await;
                        let case = format!("{flags:?} {streaming} {expansion:?} {body} {}", answer.text());
                        assert_eq!(answer.text().contains("prompt_token_ids"), asks, "{case}");
                        assert!(answer.text().contains("output_ids"), "{case}");
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn retry_of_a_refused_request_has_no_echo() {
    let vision = Vision::start(EngineProfile::default(), &[]).await;
    vision.set(Expansion::RefusesLogprobs);
    ask(&vision, "s", &json!({"input_ids": first(), "image_data": [data_uri("a")]})).await;
    let echoes: Vec<bool> = vision.generations().iter().map(|sent| sent["return_prompt_token_ids"] == true).collect();
    assert_eq!(echoes, [true, false]);
    let reply = get(vision.proxy.control, "/v1/sessions/s").await.json();
    assert_eq!(reply["faults"], json!({"prompt_unknown": 1}), "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_survive_a_restart() {
    let vision = Vision::start(EngineProfile::default(), &[]).await;
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--data-dir", dir.path().to_str().unwrap()];
    let generate = async |data, ids: &[u32], pictures: &[String]| {
        let body = json!({"input_ids": ids, "image_data": pictures}).to_string();
        let answer = post(data, "/sessions/s/generate", body.as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    let shown = async |control| {
        let trajectories = get(control, "/v1/sessions/s/trajectories").await.text();
        let image = get(control, &format!("/v1/sessions/s/images/{}", sha256("a"))).await;
        (trajectories, image.status, image.body)
    };
    let binary = Binary::with_flags(vision.engine.addr, &flags).await;
    let mut ids = first();
    generate(binary.data, &ids, &[data_uri("a")]).await;
    let before = shown(binary.control).await;
    assert_eq!((before.1, &before.2), (200, &png("a")));
    binary.kill();
    let binary = Binary::with_flags(vision.engine.addr, &flags).await;
    assert_eq!(shown(binary.control).await, before);
    // the conversation goes on, with another picture and the first one once more
    ids.extend(sampled(0));
    ids.extend([picture(), picture()].concat());
    generate(binary.data, &ids, &[data_uri("a"), data_uri("bb"), data_uri("a")]).await;
    let reply = get(binary.control, "/v1/sessions/s/trajectories").await.json();
    let row = &reply["trajectories"][0];
    assert_eq!(json!(turns(row)), json!([[null, "first"], [null, "extends"]]));
    let digests: Vec<&Value> = row["images"].as_array().unwrap().iter().map(|image| &image["sha256"]).collect();
    assert_eq!(json!(digests), json!([sha256("a"), sha256("bb"), sha256("a")]));
    binary.kill();
}

#[tokio::test]
async fn bytes_of_a_picture_are_returned_as_an_attachment() {
    let vision = Vision::start(EngineProfile::default(), &[]).await;
    let path = |session: &str, digest: &Value| format!("/v1/sessions/{session}/images/{}", digest.as_str().unwrap());
    // what is no picture is not recognised, and not refused before the engine sees it; the declared type is ignored
    let svg = "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>";
    let (other, script) = ("application/octet-stream", "<script>alert(1)</script>");
    let mut last = Value::Null;
    for (at, (content, media_type)) in [
        ([b"\x89PNG\r\n\x1a\n", script.as_bytes()].concat(), "image/png"),
        ([b"\xff\xd8\xff", script.as_bytes()].concat(), "image/jpeg"),
        ([b"GIF89a", script.as_bytes()].concat(), "image/gif"),
        ([b"RIFF\0\0\0\0WEBP", script.as_bytes()].concat(), "image/webp"),
        ([b"BM", script.as_bytes()].concat(), "image/bmp"),
        (script.into(), other),
        ([b"<!--", png("a").as_slice()].concat(), other),
        (svg.into(), other),
    ]
    .into_iter()
    .enumerate()
    {
        let session = format!("s{at}");
        let uri = format!("data:image/svg+xml;base64,{}", base64_simd::STANDARD.encode_to_string(&content));
        ask(&vision, &session, &json!({"input_ids": first(), "image_data": [uri]})).await;
        let mut image = row(&vision, &session).await["images"][0].clone();
        assert_eq!(image["media_type"], media_type);
        let answer = get(vision.proxy.control, &path(&session, &image["sha256"])).await;
        assert_eq!((answer.status, &answer.body), (200, &content));
        for (name, value) in [
            ("content-type", media_type),
            ("x-content-type-options", "nosniff"),
            ("content-disposition", "attachment"),
            ("content-security-policy", "default-src 'none'; sandbox"),
            ("cache-control", "private"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{name} of {media_type}");
        }
        last = image["sha256"].clone();
        let of_session = get(vision.proxy.control, &format!("/v1/sessions/{session}")).await.json();
        image.as_object_mut().unwrap().remove("turn");
        assert_eq!(of_session["list"][0]["images"], json!([image]), "a first turn has the positions of its path");
    }
    for (session, digest, status, code) in [
        ("s0", json!(sha256("other")), 404, "no_such_image"),
        ("s0", last.clone(), 404, "no_such_image"),
        ("other", last.clone(), 404, "no_such_session"),
        ("s0", json!("a"), 400, "bad_request"),
    ] {
        let answer = get(vision.proxy.control, &path(session, &digest)).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (status, &json!(code)), "{session} {digest}");
    }
    let on_data_port = get(vision.proxy.data, &path("s0", &last)).await;
    assert_eq!(on_data_port.json()["success"], true, "the data port forwards it to the engine");
}

#[tokio::test]
async fn finished_path_has_its_pictures_over_http_and_grpc() {
    let vision = Vision::start(EngineProfile::default(), &[]).await;
    ask(&vision, "s", &json!({"input_ids": first(), "image_data": [data_uri("a")]})).await;
    post(vision.proxy.control, "/v1/sessions/s/freeze", b"").await;
    let line = get(vision.proxy.control, "/v1/trajectories").await.json();
    let shown = shown(0, 3, "a");
    assert_eq!(line["images"], json!([shown]));
    let mut client = trajectories(vision.proxy.control).await;
    let mut watching = client.watch(WatchRequest::default()).await.unwrap().into_inner();
    let reply = soon("a path", watching.message()).await.unwrap().unwrap();
    let Some(WatchItem::Path(path)) = reply.what else { panic!("{reply:?}") };
    let expected = PathImage {
        turn: 0,
        start: shown["start"].as_u64().unwrap(),
        end: shown["end"].as_u64().unwrap(),
        sha256: sha256("a"),
        media_type: "image/png".to_owned(),
        bytes: shown["bytes"].as_u64().unwrap(),
        available: true,
    };
    assert_eq!(path.images, [expected]);
}

/// The reply to an export of session `s`.
async fn export(vision: &Vision, mut options: Value) -> Answer {
    options["sessions"] = json!(["s"]);
    let answer = post(vision.proxy.control, "/v1/samples", options.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{options}: {}", answer.text());
    answer
}

/// A conversation with two pictures, the second one in a later turn, and its ids.
async fn converse(vision: &Vision) -> Vec<u32> {
    let mut ids = first();
    ask(vision, "s", &json!({"input_ids": ids, "image_data": [data_uri("a")]})).await;
    ids.extend(sampled(0));
    ids.extend(picture());
    let pictures = [data_uri("a"), data_uri("bb")];
    ask(vision, "s", &json!({"input_ids": ids, "image_data": pictures})).await;
    [expanded(&ids, &pictures), sampled(0).to_vec()].concat()
}

#[tokio::test]
async fn exported_row_has_its_pictures_and_their_bytes_on_request() {
    let vision = Vision::start(EngineProfile::default(), &[]).await;
    let tokens = converse(&vision).await;
    let second = tokens.iter().rposition(|id| *id == START).unwrap() + 1;
    let row = export(&vision, json!({"format": "jsonl"})).await.json();
    assert_eq!((&row["token_ids"], &row["image_data"]), (&json!(tokens), &Value::Null));
    assert_eq!(row["images"], json!([shown(0, 3, "a"), shown(1, second, "bb")]));
    for (at, id) in tokens.iter().enumerate() {
        let is_trained = row["loss_mask"][at] == 1;
        assert_eq!(is_trained, !row["logprobs"][at].is_null(), "logprobs are those of the trained tokens: {at}");
        assert!(*id != PAD || !is_trained, "pictures are not trained");
    }
    let embedded = export(&vision, json!({"format": "jsonl", "images": "embed"})).await.json();
    let data = ["a", "bb"].map(|content| base64_simd::STANDARD.encode_to_string(png(content)));
    assert_eq!((&embedded["image_data"], &embedded["images"]), (&json!(data), &row["images"]));
    let slime = export(&vision, json!({"format": "slime", "images": "embed"})).await.json();
    assert_eq!(slime["samples"][0]["multimodal_inputs"]["images"], json!([data_uri("a"), data_uri("bb")]));
    let table = export(&vision, json!({"format": "images"})).await;
    assert_eq!(
        (table.header("tokentap-rows"), table.header("content-type")),
        (Some("2"), Some("application/vnd.apache.parquet"))
    );
    for content in ["a", "bb"] {
        assert!(memchr::memmem::find(&table.body, &png(content)).is_some(), "{content}");
    }
}

#[tokio::test]
async fn format_without_a_place_for_pictures_refuses_their_rows() {
    let vision = Vision::start(EngineProfile::default(), &[]).await;
    converse(&vision).await;
    ask(&vision, "s", &json!({"input_ids": [7, 8], "sampling_params": {"temperature": 1}})).await;
    for format in ["tunix", "prime-rl", "miles"] {
        let answer = export(&vision, json!({"format": format})).await;
        let (rows, refused) = (answer.header("tokentap-rows"), answer.header("tokentap-refused"));
        assert_eq!((rows, refused), (Some("1"), Some(r#"{"images_unsupported":1}"#)), "{format}");
    }
    let body = json!({"sessions": ["s"], "format": "tunix", "images": "embed"}).to_string();
    let answer = post(vision.proxy.control, "/v1/samples", body.as_bytes()).await;
    assert_eq!(answer.status, 400);
    assert!(
        answer.text().contains("images: tunix does not use it, only verl, miles, areal, slime, jsonl"),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn embedded_pictures_of_a_row_take_memory_until_the_export_ends() {
    let vision = Vision::start(EngineProfile::default(), &[]).await;
    converse(&vision).await;
    let parts = &vision.proxy.parts;
    let limit = usize::try_from(parts.config.limits.max_bytes_in_flight).unwrap();
    let before = usize::try_from(parts.budget.taken()).unwrap();
    let memory = 4 * (png("a").len() + png("bb").len());
    for format in ["jsonl", "arrow", "parquet", "slime"] {
        let body = json!({"sessions": ["s"], "format": format, "images": "embed"}).to_string();
        let held = parts.budget.insist(limit - before - memory + 1);
        let refused = post(vision.proxy.control, "/v1/samples", body.as_bytes()).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("no_memory")), "{format}");
        assert!(refused.text().contains(&format!("takes {memory} bytes")), "{}", refused.text());
        assert_eq!(export(&vision, json!({"format": format})).await.status, 200, "references take none");
        assert_eq!(export(&vision, json!({"format": "verl", "images": "embed"})).await.status, 200, "nor do pieces");
        drop(held);
        assert_eq!(post(vision.proxy.control, "/v1/samples", body.as_bytes()).await.status, 200, "{format}");
    }
    let is_free = async {
        while parts.budget.taken() > before as u64 {
            tokio::task::yield_now().await;
        }
    };
    soon("the memory is free", is_free).await;
}

#[tokio::test]
async fn turn_has_the_settings_of_the_image_processor() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("preprocessor_config.json", r#"{"patch_size":16}"#), ("tokenizer.json", "{}")] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let config = json!({"mm_process_config": {"image": {"max_pixels": 7}}, "image_processor_backend": "auto"});
    let profile = EngineProfile { server_info: config, ..EngineProfile::default() };
    let vision = Vision::start(profile, &["--tokenizer", folder.path().to_str().unwrap()]).await;
    // decided after the settings are known
    vision.proxy.parts.chats.clone().changed().await.unwrap();
    converse(&vision).await;
    let settings = r#"{"processor":{"patch_size":16},"overrides":{"max_pixels":7},"backend":"auto"}"#;
    let expected: Value = serde_json::from_str(settings).unwrap();
    let of = |row: &Value| serde_json::from_str::<Value>(row["image_settings"].as_str().unwrap()).unwrap();
    assert_eq!(of(&row(&vision, "s").await), expected);
    assert_eq!(of(&export(&vision, json!({"format": "jsonl"})).await.json()), expected);

    // a request sets more
    let options = json!({"mm_processor_kwargs": {"max_pixels": 3}, "image_max_dynamic_patch": 2});
    let mut body = json!({"input_ids": first(), "image_data": [data_uri("a")]});
    body.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    ask(&vision, "t", &body).await;
    let mut more = expected;
    more["request"] = options;
    assert_eq!(of(&row(&vision, "t").await), more);

    // too long to be kept with each turn
    body["mm_processor_kwargs"] = json!({"text": "x".repeat(5_000)});
    ask(&vision, "long", &body).await;
    let mut unknown = more.clone();
    unknown["request"] = Value::Null;
    assert_eq!(of(&row(&vision, "long").await), unknown);

    // the same over gRPC
    let mut client = trajectories(vision.proxy.control).await;
    let asked = SamplesRequest { sessions: vec!["t".into()], ..SamplesRequest::default() };
    let reply = client.samples(asked).await.unwrap().into_inner().message().await.unwrap().unwrap();
    let Some(samples_reply::What::Sample(sample)) = reply.what else { panic!("{reply:?}") };
    let of = |settings: Option<String>| serde_json::from_str::<Value>(&settings.unwrap()).unwrap();
    assert_eq!(of(sample.image_settings), more);
}

#[tokio::test(flavor = "multi_thread")]
async fn expanded_pictures_are_collapsed_before_they_are_sent() {
    for stream in [false, true] {
        let vision = Vision::rendering(EngineProfile::default(), &[]).await;
        let picture = |content: &str| expanded(&picture(), &[data_uri(content)]);
        // a client keeps the prompt that the engine returned, and appends what it sees next
        let mut ids = [&[1, 2][..], &picture("a"), &[3]].concat();
        let mut pictures = vec![data_uri("a")];
        for turn in 0..2 {
            let body = json!({"input_ids": ids, "image_data": pictures, "stream": stream});
            ask(&vision, "s", &body).await;
            let sent = vision.generations().pop().unwrap();
            let placeholders = sent["input_ids"].as_array().unwrap().iter().filter(|id| **id == PAD).count();
            assert_eq!((placeholders, &sent["image_data"]), (turn + 1, &json!(pictures)));
            ids.extend(sampled(0));
            ids.extend(picture("bb"));
            pictures.push(data_uri("bb"));
        }
        let row = row(&vision, "s").await;
        assert_eq!(json!(turns(&row)), json!([[null, "first"], [null, "extends"]]));
        ids.truncate(ids.len() - picture("bb").len());
        assert_eq!(row["token_ids"], json!(ids));
    }
    // a batch is rewritten as a whole
    let vision = Vision::rendering(EngineProfile::default(), &[]).await;
    let lists = json!([expanded(&first(), &[data_uri("a")]), [5, 6], first()]);
    let body = json!({"input_ids": lists, "image_data": [[data_uri("a")], null, [data_uri("bb")]]});
    ask(&vision, "s", &body).await;
    let sent = vision.generations().pop().unwrap();
    assert_eq!(sent["input_ids"], json!([first(), [5, 6], first()]));
    assert!(rows(&vision, "s").await.iter().all(|row| turns(row)[0].0.is_null()));
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_that_processors_cannot_expand_are_refused() {
    let vision = Vision::rendering(EngineProfile::default(), &["--max-image-bytes", "100"]).await;
    let tokenizer = vision.model();
    let tokenizer = tokenizer.renderer.tokenizer();
    let marked = tokenizer.content().mark("<|image_pad|>", TextOrigin::Person);
    let text = tokenizer.encode_rendered(&marked).unwrap();
    let one = json!([data_uri("a")]);
    for (ids, images, rule, named) in [
        (
            json!([first(), picture().to_vec()].concat()),
            one.clone(),
            "image_count",
            "2 placeholders (token 1025) for 1 pictures",
        ),
        (json!(first()), json!([data_uri("a"), data_uri("b")]), "image_count", "1 placeholders (token 1025) for 2"),
        (json!([1, 2]), one.clone(), "image_count", "0 placeholders (token 1025) for 1"),
        (json!(first()), json!(null), "image_count", "1 placeholders (token 1025) for 0"),
        (json!(first()), json!([]), "image_count", "1 placeholders (token 1025) for 0"),
        (json!([&first()[..], &[PAD, 4]].concat()), one.clone(), "image_placeholder", "at 6 is not between"),
        (json!([text, first()].concat()), one.clone(), "image_text", "<|image_pad|>"),
        (json!(first()), json!([data_uri(&"x".repeat(100))]), "image_too_large", "image_data[0]: the picture has 10"),
    ] {
        let before = vision.generations().len();
        let body = json!({"input_ids": ids, "image_data": images});
        let answer = post(vision.proxy.data, "/sessions/s/generate", body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 400, "{rule}: {}", answer.text());
        assert!(answer.text().contains(named), "{rule}: {}", answer.text());
        let counted = vision.proxy.metric(&format!("tokentap_guard_refusals_total{{rule=\"{rule}\"}}")).await;
        assert!(counted >= 1.0, "{rule}");
        assert_eq!(vision.generations().len(), before, "{rule}: nothing is sent");
    }
    let batch = json!({"input_ids": [first(), first()], "image_data": [[data_uri("a")], []]});
    let answer = post(vision.proxy.data, "/sessions/s/generate", batch.to_string().as_bytes()).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("input_ids[1]: 1 placeholders"), "{}", answer.text());
    // the placeholder may be that of a video
    ask(&vision, "s", &json!({"input_ids": first(), "video_data": "data:video/mp4;base64,AAAA"})).await;
    assert_eq!(turns(&row(&vision, "s").await)[0].0, "media_unrecorded");
    // runs whose pictures cannot be told apart are sent as they are
    let unclear = [&[START][..], &[PAD; 6], &[END]].concat();
    ask(&vision, "t", &json!({"input_ids": unclear, "image_data": [data_uri("a"), data_uri("b")]})).await;
    assert_eq!(vision.generations().pop().unwrap()["input_ids"], json!(unclear));
    assert_eq!(turns(&row(&vision, "t").await)[0].0, "images_unverified");
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_that_never_answers_a_picture_is_given_up() {
    for stream in [false, true] {
        let vision = Vision::start(EngineProfile::default(), &["--image-timeout", "200ms"]).await;
        vision.set(Expansion::Hangs);
        let body = json!({"input_ids": first(), "image_data": [data_uri("a")], "stream": stream}).to_string();
        let answer = post(vision.proxy.data, "/sessions/s/generate", body.as_bytes());
        let answer = soon("the reply ends", answer).await;
        assert_eq!(answer.status, if stream { 200 } else { 504 }, "{}", answer.text());
        assert!(answer.text().contains("--image-timeout"), "{}", answer.text());
        // aborts are counted when they are sent
        soon("an abort", async {
            while vision.engine.asked().iter().all(|asked| asked.path != "/abort_request") {
                tokio::task::yield_now().await;
            }
        })
        .await;
        // prompts without pictures have no such limit
        vision.set(Expansion::Exact);
        ask(&vision, "s", &json!({"input_ids": [1, 2]})).await;
    }
}
