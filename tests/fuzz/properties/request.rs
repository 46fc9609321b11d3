// SPDX-License-Identifier: Apache-2.0
//! The parser of `/generate` requests.

use bytes::Bytes;
use serde_json::{Map, Value};
use tokentap::engine::sglang::request::{GenerateRequest, PerItem, SessionName, SessionNames};

use super::grammar::{Plain, shown};
use super::json::agrees;

/// The parser accepts a body exactly if Python would parse it as an object, and each field has the value that `serde_json` finds.
pub fn request(bytes: &[u8]) {
    let read = GenerateRequest::parse(Bytes::copy_from_slice(bytes));
    if read.as_ref().is_ok_and(|request| request.wide) {
        assert!(bytes.contains(&0) || bytes.contains(&0xff), "{}", shown(bytes));
        return;
    }
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let plain = Plain::new(text);
    agrees(&read, plain.is_object(), &plain, bytes);
    let Ok(request) = read else { return };
    assert_eq!(request.non_finite.is_some(), plain.is_non_finite(), "{}", shown(bytes));
    let (_, _, _, ids) = (request.batch(), request.n(), request.rids(), request.prompt_ids(0));
    let readable = request.is_readable();
    if let Ok(Value::Object(members)) = serde_json::from_slice::<Value>(text) {
        let input = shown(bytes);
        fields(&request, &members, &input);
        // floats are left out: large integers and a negative zero become floats in `serde_json`
        let plain = members.get("input_ids").is_none_or(|ids| !has_float(ids));
        if plain {
            assert_eq!(ids.as_deref(), prompt(&members).as_deref(), "{input}");
        }
        if readable && let Some(Value::Array(texts)) = members.get("text") {
            assert_eq!(request.batch(), Some(texts.len()), "{input}");
        }
    }
}

fn fields(request: &GenerateRequest, members: &Map<String, Value>, input: &str) {
    let get = |name: &str| members.get(name).filter(|value| !value.is_null());
    let string = |value: &Value| value.as_str().map(str::to_owned);
    let stream =
        members.get("stream").map_or(Some(false), |value| value.as_bool().or(value.is_null().then_some(false)));
    assert_eq!(request.stream, stream, "{input}");
    assert_eq!(request.return_entropy, get("return_entropy").and_then(Value::as_bool), "{input}");
    same(&request.rid, get("rid"), string, input);
    same(&request.return_logprob, get("return_logprob"), Value::as_bool, input);
    same(&request.sampling_mask, get("return_sampling_mask"), Value::as_bool, input);
    if !input.contains("-0") {
        same(&request.top_logprobs_num, get("top_logprobs_num"), Value::as_i64, input);
        same(&request.logprob_start_len, get("logprob_start_len"), Value::as_i64, input);
    }
    let named = |value: &Value| match value {
        Value::Null => None,
        Value::String(name) => Some(SessionName::Text(name.clone())),
        _ => Some(SessionName::NoString),
    };
    let session = |name: &str| get(name).and_then(named);
    let in_metadata = |name: &str| get("metadata").and_then(|metadata| metadata.get(name)).and_then(named);
    let sessions = SessionNames {
        session_id: session("session_id"),
        metadata: in_metadata("session_id"),
        proxy_session_id: session("_proxy_session_id"),
        user: session("user"),
        user_id: in_metadata("user_id"),
        prompt_cache_key: session("prompt_cache_key"),
        tags: request.sessions.tags.clone(),
    };
    assert_eq!(request.sessions, sessions, "{input}");
    assert_eq!(request.sessions.tags.is_some(), get("session_tags").is_some(), "{input}");
    assert_eq!(request.entropy_options.is_some(), get("entropy_options").is_some(), "{input}");
    if let Some(Value::Object(sampling)) = get("sampling_params") {
        let ours = request.sampling.get(0).expect("an object is one for all");
        let own = |name: &str| sampling.get(name);
        assert_eq!(ours.temperature, own("temperature").and_then(Value::as_f64), "{input}");
        if !input.contains("-0") {
            assert_eq!(ours.n, own("n").and_then(Value::as_i64), "{input}");
            assert_eq!(ours.top_k, own("top_k").and_then(Value::as_i64), "{input}");
        }
        assert_eq!(request.bytes[ours.span.start], b'{');
    }
}

/// Compares a field that has one value for all items, or one for each item.
fn same<T: PartialEq + std::fmt::Debug>(
    ours: &PerItem<T>,
    theirs: Option<&Value>,
    one: impl Fn(&Value) -> Option<T>,
    input: &str,
) {
    let each = |value: &Value| if value.is_null() { Some(None) } else { one(value).map(Some) };
    let wanted = match theirs {
        None => PerItem::Absent,
        Some(Value::Array(values)) => {
            values.iter().map(each).collect::<Option<_>>().map_or(PerItem::Unreadable, PerItem::Many)
        }
        Some(value) => one(value).map_or(PerItem::Unreadable, PerItem::One),
    };
    assert_eq!(*ours, wanted, "{input}");
}

fn has_float(value: &Value) -> bool {
    value.is_f64() || value.as_array().is_some_and(|values| values.iter().any(has_float))
}

/// The ids of the first prompt, if all prompts have the same shape and the texts, if any, match it.
fn prompt(members: &Map<String, Value>) -> Option<Vec<u32>> {
    let is_list = |value: &&Value| value.is_array();
    let given = members.get("input_ids")?.as_array()?;
    let lists = given.iter().filter(is_list).count();
    let numbers = |list: &[Value]| list.iter().all(Value::is_number);
    let nested = lists > 0;
    let plain = if nested {
        given.iter().all(|list| list.as_array().is_some_and(|list| numbers(list)))
    } else {
        numbers(given)
    };
    let alike = match members.get("text") {
        None | Some(Value::Null) => true,
        Some(Value::String(_)) => !nested,
        Some(Value::Array(texts)) => nested && texts.len() == lists && texts.iter().all(Value::is_string),
        Some(_) => false,
    };
    let first = if nested { given.first()?.as_array()? } else { given };
    let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
    first.iter().map(id).collect::<Option<_>>().filter(|_| plain && alike)
}
