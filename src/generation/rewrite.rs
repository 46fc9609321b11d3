//! The body that goes upstream: the client's, with as few members changed as the plan needs.

use bytes::Bytes;

use crate::generation::forcing::{Facts, Item};
use crate::json::{Edit, Object, Splice};
use crate::sglang::probe::Dialect;
use crate::sglang::request::{FLAT, GenerateRequest, PerItem};

/// Writes the upstream body. `rids` are ids to be given to a request that has none; with `echo` the engine repeats the prompt's ids.
#[must_use]
pub fn rewrite(facts: &Facts<'_>, items: &[Item], rids: &[String], echo: bool) -> Bytes {
    let request = facts.request;
    let bytes = &request.bytes[..];
    let mut edit = Edit::new(bytes, &request.object);
    let mut splice = Splice::default();
    edit.remove(|key| key.is("entropy_options") || key.is("_proxy_session_id"));
    if echo {
        edit.set("return_prompt_token_ids", b"true");
    }
    match (rids, request.batch()) {
        ([], _) => {}
        ([rid], None) => edit.set("rid", format!("\"{rid}\"").as_bytes()),
        (rids, _) => edit.set("rid", list(rids.iter().map(|rid| format!("\"{rid}\""))).as_bytes()),
    }
    let forced = items.iter().any(|item| item.logprob != item.asked || item.k != item.asked_k);
    if forced {
        force(facts, items, &mut edit);
    }
    edit.finish(&mut splice);
    for at_one in temperatures(request, items) {
        at_one.finish(bytes, &mut splice);
    }
    if splice.is_empty() { request.bytes.clone() } else { splice.apply(bytes).into() }
}

fn force(facts: &Facts<'_>, items: &[Item], edit: &mut Edit<'_>) {
    let request = facts.request;
    let nobody_asked = items.iter().all(|item| !item.asked);
    if items.iter().any(|item| item.logprob != item.asked) {
        let flags = items.iter().map(|item| item.logprob.to_string());
        edit.set("return_logprob", one_or_list(flags).as_bytes());
        neutralise(request, items, edit);
    }
    if nobody_asked && (request.text_in_logprobs || facts.upstream.dialect == Some(Dialect::Jax)) {
        // sglang-jax decodes the text of every entry unless told otherwise
        edit.set("return_text_in_logprobs", b"false");
    }
    if items.iter().any(|item| item.k != item.asked_k || item.logprob != item.asked) {
        edit.set("top_logprobs_num", one_or_list(items.iter().map(|item| item.k.to_string())).as_bytes());
    }
    let flat = facts.flat && items.iter().any(|item| item.k > 0);
    let prompt_side = items.iter().enumerate().any(|(at, item)| item.asked && start(request, at) >= 0);
    if flat {
        edit.set(FLAT[0], b"true");
        edit.set(FLAT[2], b"true");
        if prompt_side {
            edit.set(FLAT[1], b"true");
        } else if request.flat[1] {
            edit.set(FLAT[1], b"false");
        }
    }
}

fn start(request: &GenerateRequest, at: usize) -> i64 {
    request.logprob_start_len.get(at).copied().unwrap_or(-1)
}

/// The engine ignores these companions while `return_logprob` is off; switching it on must not wake them: they would cost the
/// prefix cache and fill the reply.
fn neutralise(request: &GenerateRequest, items: &[Item], edit: &mut Edit<'_>) {
    if !matches!(request.logprob_start_len, PerItem::Absent) {
        let starts = items.iter().enumerate().map(|(at, item)| if item.asked { start(request, at) } else { -1 });
        edit.set("logprob_start_len", one_or_list(starts.map(|start| start.to_string())).as_bytes());
    }
    if !matches!(request.token_ids_logprob, PerItem::Absent) && items.iter().all(|item| !item.asked) {
        edit.set("token_ids_logprob", b"null");
    }
}

/// One value where all are equal, as n > 1 demands; else a list.
fn one_or_list(values: impl Iterator<Item = String>) -> String {
    let values: Vec<String> = values.collect();
    match values.first() {
        Some(first) if values.iter().all(|value| value == first) => first.clone(),
        _ => list(values.into_iter()),
    }
}

fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(","))
}

/// One object of sampling parameters whose temperature becomes 1.
struct AtOne {
    start: usize,
    object: Object,
}

impl AtOne {
    fn finish(&self, bytes: &[u8], splice: &mut Splice) {
        debug_assert_eq!(self.start, self.object.span.start);
        let mut edit = Edit::new(bytes, &self.object);
        edit.set("temperature", b"1.0");
        edit.finish(splice);
    }
}

fn temperatures(request: &GenerateRequest, items: &[Item]) -> Vec<AtOne> {
    let mut edits: Vec<AtOne> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let Some(sampling) = request.sampling.get(at).filter(|_| item.at_one) else { continue };
        let start = sampling.span.start;
        if edits.iter().any(|edit| edit.start == start) {
            continue; // one object for all items
        }
        let mut cursor = crate::json::Cursor::at(&request.bytes, start);
        if let Ok(object) = Object::read(&mut cursor, |_, cursor| cursor.skip().map(drop)) {
            edits.push(AtOne { start, object });
        }
    }
    edits
}
