// SPDX-License-Identifier: Apache-2.0
//! Checks the replies before they are timed.

use serde_json::Value;
use tokentap::demo::Model;

use crate::api::{Api, ApiConnection};
use crate::canned::{Columns, Sequence, Shape, VOCAB};
use crate::grpc;
use crate::target::{Engine, Target};
use crate::upstream::{CANNED, Server};
use crate::workload::{EntropyRequest, Flow, Workload};

/// A reply.
struct Reply {
    body: Vec<u8>,
    canned: String,
}

/// Sends each of the requests through each target once.
///
/// # Panics
/// When a proxy changed a reply that it should forward, tokentap's reply is not the plain one plus entropies, or its chat does not have the
/// text of the sampled tokens.
pub async fn check(workload: &Workload, targets: &[Target], engine: &Engine) {
    let workload = &match workload.flow {
        Flow::Paced(_) => Workload { flow: Flow::Stream, ..*workload },
        _ => *workload,
    };
    let native = &workload.native();
    let direct = fetch(&Target::Direct, engine, native, native.requests(false)).await;
    let carried = Shape { tokens: workload.tokens, k: None, flat: false, columns: Columns::default(), variant: 0 };
    let carried = match workload.entropy_request {
        EntropyRequest::About => "about".to_owned(),
        EntropyRequest::Nothing | EntropyRequest::Entropy => carried.label(),
        EntropyRequest::TopLogprobs | EntropyRequest::EntropyOverLogprobs => {
            Shape { k: Some(workload.k), ..carried }.label()
        }
    };
    assert!(
        direct.iter().all(|reply| reply.canned == carried),
        "{}: another reply than that of the workload",
        workload.name
    );
    for target in targets.iter().filter(|target| **target != Target::Direct && target.serves(workload)) {
        let replies = fetch(target, engine, workload, workload.requests(target.measures())).await;
        assert_eq!(replies.len(), direct.len());
        let measured = target.measures() && workload.is_job();
        if !measured && workload.api == Api::Generate {
            let same = replies.iter().zip(&direct).all(|(reply, direct)| reply.body == direct.body);
            assert!(same, "{}: {} changed a forwarded reply", workload.name, target.name());
            continue;
        }
        let plain = fetch(&Target::Direct, engine, native, workload.plain_requests()).await;
        for (variant, (reply, plain)) in (0..).zip(replies.iter().zip(&plain)) {
            let flat = workload.server == Server::Flat && !workload.is_stream();
            let (k, columns) = (measured.then_some(workload.k), target.engine_columns());
            let read = Shape { tokens: workload.tokens, k, flat, columns, variant };
            assert_eq!(reply.canned, read.label(), "{}: the engine got another request", workload.name);
            let (objects, plain) = (objects(workload, &reply.body), objects(native, &plain.body));
            match workload.api {
                Api::Chat => has_text_of(workload, &objects, &plain),
                Api::Grpc if !measured => assert!(objects == plain, "{}: a message was changed", workload.name),
                Api::Generate | Api::Grpc => {
                    enriched(workload, &Sequence::new(read).entropy_bounds(), &objects, &plain)
                }
            }
        }
    }
}

async fn fetch(target: &Target, engine: &Engine, workload: &Workload, requests: Vec<Vec<u8>>) -> Vec<Reply> {
    let running = target.start(engine, workload).await;
    let mut connection = ApiConnection::open(workload.api, running.port).await.unwrap();
    let mut replies = Vec::new();
    for request in &requests {
        let mut body = Vec::new();
        let status = connection.exchange(request, |data| body.extend_from_slice(data)).await.unwrap();
        assert_eq!(status, 200, "{}: {}", target.name(), String::from_utf8_lossy(&body));
        let canned = connection.header(CANNED).unwrap_or_default().to_owned();
        replies.push(Reply { body, canned });
    }
    replies
}

/// The object of a reply, or those of its events or messages.
fn objects(workload: &Workload, body: &[u8]) -> Vec<Value> {
    if workload.api == Api::Grpc {
        return grpc::replies(body).iter().map(|json| serde_json::from_slice(json).unwrap()).collect();
    }
    if !workload.is_stream() {
        return vec![serde_json::from_slice(body).unwrap()];
    }
    let text = std::str::from_utf8(body).unwrap();
    let events: Vec<&str> = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect();
    let (done, events) = events.split_last().unwrap();
    assert_eq!(*done, "[DONE]");
    events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// `chunks` must be a chat that streams the text of the tokens of `plain`, a chunk for each.
fn has_text_of(workload: &Workload, chunks: &[Value], plain: &[Value]) {
    let name = workload.name;
    let texts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
    let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
    assert_eq!(texts.len(), workload.tokens, "{name}: chunks are missing");
    let ids = plain.iter().flat_map(|event| event["output_ids"].as_array().unwrap());
    let ids: Vec<u32> = ids.map(|id| id.as_u64().unwrap() as u32).collect();
    assert_eq!(texts.concat(), Model::tokenizer().decode(&ids, false), "{name}: not the text of the sampled tokens");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length", "{name}");
}

/// `replies` without tokentap's members must equal `plain`, and the added members must be valid.
fn enriched(workload: &Workload, bounds: &[(f64, f64)], replies: &[Value], plain: &[Value]) {
    let name = workload.name;
    assert_eq!(replies.len(), plain.len(), "{name}: events are missing");
    for (at, (reply, plain)) in replies.iter().zip(plain).enumerate() {
        let mut rest = reply.clone();
        let meta = rest["meta_info"].as_object_mut().unwrap();
        let entropies = meta.remove("output_token_entropy").unwrap_or_else(|| panic!("{name}: no entropies"));
        let info = meta.remove("entropy_info");
        assert_eq!(rest, *plain, "{name}: more was changed than added");
        let entropies: Vec<f64> = entropies.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
        let bounds = match (workload.flow, workload.server) {
            (Flow::Whole, _) => bounds,
            (_, Server::Flat) => &bounds[at..=at],
            (_, Server::Nested) => &bounds[..=at],
        };
        assert_eq!(entropies.len(), bounds.len(), "{name}: event {at}");
        for (nats, (low, high)) in entropies.iter().zip(bounds) {
            assert!((low - 1e-3..=high + 1e-3).contains(nats), "{name}: {nats} is not in {low}..{high}");
        }
        if at + 1 == replies.len() {
            let info = info.expect("the last object has entropy_info");
            assert_eq!((&info["source"], &info["top_k"]), (&"top_k".into(), &workload.k.into()), "{name}");
            assert_eq!(info["vocab_size"], VOCAB, "{name}");
            assert_eq!(rest["meta_info"]["finish_reason"]["type"], "length", "{name}");
        }
    }
}
