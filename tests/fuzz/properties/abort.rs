// SPDX-License-Identifier: Apache-2.0
//! The parser of an agent's abort request.

use serde_json::Value;
use serde_json::value::RawValue;
use tokentap::engine::sglang::abort::rid;

use super::grammar::{Members, shown};

/// An accepted abort names exactly one id, once, and aborts no other request.
pub fn abort(bytes: &[u8]) {
    let Ok(rid) = rid(bytes) else { return };
    assert!(!rid.is_empty());
    // serde also accepts the members as a JSON array; that is safe, because the forwarded body is serialized again
    let Ok(Members(members)) = serde_json::from_slice::<Members<'_>>(bytes) else { return };
    let of = |name: &str| -> Vec<&RawValue> {
        members.iter().filter(|(key, _)| key == name).map(|(_, value)| *value).collect()
    };
    let [named] = of("rid")[..] else { panic!("the engine would read another id: {}", shown(bytes)) };
    assert_eq!(serde_json::from_str::<Value>(named.get()).unwrap(), Value::String(rid));
    let all = of("abort_all");
    assert!(all.iter().all(|value| ["false", "null"].contains(&value.get())), "{}", shown(bytes));
}
