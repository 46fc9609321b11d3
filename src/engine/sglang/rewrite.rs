// SPDX-License-Identifier: Apache-2.0
//! Rewrites the client's body for the engine and changes only the members that the plan needs.

use std::fmt::Display;
use std::io::Write;

use bytes::Bytes;

use crate::columns::{COLUMNS, SAMPLING_MASK_AT};
use crate::engine::plan::{ExactSource, ItemPlan};
use crate::engine::sglang::forcing::{ForcingFacts, forces};
use crate::engine::sglang::request::{FLAT, GenerateRequest, PLUGIN_SWITCH, PerItem, SESSION_TAGS, byte_order_mark};
use crate::json::{Cursor, Edit, Object, Splice};

/// What a request gains besides the plan of its items.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Additions<'a> {
    /// The id of a request that has none.
    pub(crate) rid: Option<&'a str>,
    /// The engine repeats the prompt's ids.
    pub(crate) echo: bool,
    /// The number of leading tokens that forced columns of processed tokens leave out.
    pub(crate) column_start: usize,
}

/// Rewrites the client's body.
#[must_use]
pub(crate) fn rewrite(facts: &ForcingFacts<'_>, items: &[ItemPlan], additions: Additions<'_>) -> Bytes {
    let Additions { rid, echo, column_start } = additions;
    let request = facts.request;
    let bytes = &request.bytes[..];
    let mut edit = Edit::new(bytes, &request.object);
    let mut splice = Splice::default();
    if echo {
        edit.set("return_prompt_token_ids", b"true");
    }
    adapt(&mut edit, rid);
    let forced = items.iter().any(|item| item.logprob != item.asked || item.k != item.asked_k);
    if forced {
        force(facts, items, &mut edit);
    }
    ask_exactly(request, items, &mut edit);
    ask_columns(items, column_start, &mut edit);
    edit.finish(&mut splice);
    for parameters in parameters(request, items) {
        parameters.finish(bytes, &mut splice);
    }
    apply(splice, &request.bytes)
}

/// Rewrites the client's body without anything forced. `rid` is set in a request that has none.
#[must_use]
pub(crate) fn unforced(original: Bytes, rid: Option<&str>) -> Bytes {
    let mut cursor = Cursor::at(&original, byte_order_mark(&original));
    // it was read when the request was planned
    let Ok(object) = Object::read(&mut cursor, |_, cursor| cursor.skip().map(drop)) else { return original };
    let (mut edit, mut splice) = (Edit::new(&original, &object), Splice::default());
    adapt(&mut edit, rid);
    edit.finish(&mut splice);
    apply(splice, &original)
}

/// Removes tokentap's own members, and sets the request id.
fn adapt(edit: &mut Edit<'_>, rid: Option<&str>) {
    edit.remove(|key| key.is("entropy_options") || key.is("_proxy_session_id") || key.is(SESSION_TAGS));
    if let Some(rid) = rid {
        edit.set_with("rid", rid.len() + 2, |out| {
            out.push(b'"');
            out.extend_from_slice(rid.as_bytes());
            out.push(b'"');
        });
    }
}

/// Applies the changes. A body without changes is not copied.
fn apply(changes: Splice, original: &Bytes) -> Bytes {
    if changes.is_empty() { original.clone() } else { changes.apply(original).into() }
}

fn force(facts: &ForcingFacts<'_>, items: &[ItemPlan], edit: &mut Edit<'_>) {
    let request = facts.request;
    let client_asked_none = items.iter().all(|item| !item.asked);
    if items.iter().any(|item| item.logprob != item.asked) {
        set_one_or_list(edit, "return_logprob", items.iter().map(|item| item.logprob));
        neutralise(request, items, edit);
    }
    if client_asked_none && (request.text_in_logprobs || facts.upstream.traits().decodes_top_logprobs) {
        edit.set("return_text_in_logprobs", b"false");
    }
    if items.iter().any(|item| item.k != item.asked_k || item.logprob != item.asked) {
        set_one_or_list(edit, "top_logprobs_num", items.iter().map(|item| item.k));
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

/// Requests exact values from the engine. Where the request has sampling parameters, [`Parameters`] requests the plugin's instead.
fn ask_exactly(request: &GenerateRequest, items: &[ItemPlan], edit: &mut Edit<'_>) {
    let asked = |exact| items.iter().any(|item| item.exact == Some(exact) && item.forces_exact());
    if asked(ExactSource::Support) {
        if !items.iter().any(|item| forces(&item.columns, SAMPLING_MASK_AT)) {
            edit.set("return_sampling_mask", b"true");
        }
        edit.set("sampling_logprobs_mode", b"\"support\"");
    }
    if asked(ExactSource::Plugin) && matches!(request.sampling, PerItem::Absent) {
        edit.set("sampling_params", format!("{{\"custom_params\":{{\"{PLUGIN_SWITCH}\":true}}}}").as_bytes());
    }
}

/// Requests the forced token columns, which are the same for all items.
fn ask_columns(items: &[ItemPlan], start: usize, edit: &mut Edit<'_>) {
    for (at, source) in COLUMNS.iter().enumerate() {
        if !items.iter().any(|item| forces(&item.columns, at)) {
            continue;
        }
        edit.set(source.request, b"true");
        if let Some(name) = source.alignment.start_member() {
            edit.set(name, start.to_string().as_bytes());
        }
    }
}

fn start(request: &GenerateRequest, at: usize) -> i64 {
    request.logprob_start_len.get(at).copied().unwrap_or(-1)
}

/// Neutralises the members that the engine ignores while `return_logprob` is off. When it is switched on they would bypass the prefix cache
/// and enlarge the reply.
fn neutralise(request: &GenerateRequest, items: &[ItemPlan], edit: &mut Edit<'_>) {
    if !matches!(request.logprob_start_len, PerItem::Absent) {
        let starts = items.iter().enumerate().map(|(at, item)| if item.asked { start(request, at) } else { -1 });
        set_one_or_list(edit, "logprob_start_len", starts);
    }
    if !matches!(request.token_ids_logprob, PerItem::Absent) && items.iter().all(|item| !item.asked) {
        edit.set("token_ids_logprob", b"null");
    }
}

/// Sets a member to one value if all are equal, as n > 1 requires; otherwise to a list.
fn set_one_or_list<T: Display + PartialEq>(edit: &mut Edit<'_>, name: &str, values: impl Iterator<Item = T> + Clone) {
    let mut rest = values.clone();
    let first = rest.next();
    let write = |out: &mut Vec<u8>| match first {
        Some(first) if rest.all(|value| value == first) => print(out, first),
        _ => {
            out.push(b'[');
            for (at, value) in values.enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                print(out, value);
            }
            out.push(b']');
        }
    };
    // the length of a usual value
    edit.set_with(name, 8, write);
}

fn print(out: &mut Vec<u8>, value: impl Display) {
    write!(out, "{value}").expect("writing to memory never fails");
}

/// One object of sampling parameters that the plan changes.
struct Parameters {
    object: Object,
    /// Set the temperature to 1.
    at_one: bool,
    /// Ask the engine's plugin.
    plugin: bool,
}

impl Parameters {
    fn finish(&self, bytes: &[u8], splice: &mut Splice) {
        let mut edit = Edit::new(bytes, &self.object);
        if self.at_one {
            edit.set("temperature", b"1.0");
        }
        if self.plugin {
            edit.set("custom_params", &switched(self.object.get(bytes, "custom_params").unwrap_or(b"null")));
        }
        edit.finish(splice);
    }
}

/// Adds the plugin's switch to the client's `custom_params`.
fn switched(given: &[u8]) -> Vec<u8> {
    let Ok(object) = Object::parse(given) else { return format!("{{\"{PLUGIN_SWITCH}\":true}}").into_bytes() };
    let (mut edit, mut splice) = (Edit::new(given, &object), Splice::default());
    edit.set(PLUGIN_SWITCH, b"true");
    edit.finish(&mut splice);
    splice.apply(given)
}

fn parameters(request: &GenerateRequest, items: &[ItemPlan]) -> Vec<Parameters> {
    let mut edits: Vec<Parameters> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let plugin = item.exact == Some(ExactSource::Plugin) && item.forces_exact();
        let Some(sampling) = request.sampling.get(at).filter(|_| item.at_one || plugin) else { continue };
        if edits.iter().any(|edit| edit.object.span == sampling.span) {
            continue; // one object for all items
        }
        let mut cursor = Cursor::at(&request.bytes, sampling.span.start);
        if let Ok(object) = Object::read(&mut cursor, |_, cursor| cursor.skip().map(drop)) {
            edits.push(Parameters { object, at_one: item.at_one, plugin });
        }
    }
    edits
}
