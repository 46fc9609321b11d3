// SPDX-License-Identifier: Apache-2.0
//! The filter that removes secrets from the engine's information routes.

use serde_json::Value;
use tokentap::serve::data::redact::without_keys;

use super::grammar::{Plain, shown};
use super::json::agrees;

const SECRET: [&str; 6] = ["api_key", "password", "secret", "auth_token", "access_token", "hf_token"];

/// Any JSON is accepted. The value of each member whose name means a secret, in any spelling, becomes null; everything else is unchanged.
pub fn redact(bytes: &[u8]) {
    let plain = Plain::new(bytes);
    let made = without_keys(bytes);
    if made.is_err() && has_odd_escape(bytes) {
        // a name with an escape that JSON does not define: it is unknown how a client decodes it
        return;
    }
    agrees(&made, plain.is_json(), &plain, bytes);
    let Ok(made) = made else { return };
    if let Ok(mut wanted) = serde_json::from_slice::<Value>(bytes) {
        erase_secrets(&mut wanted);
        assert_eq!(serde_json::from_slice::<Value>(&made).unwrap(), wanted, "{}", shown(bytes));
    }
    let mut secrets = 0;
    for (name, after) in strings(&made).filter(|(_, after)| after.starts_with(b":")) {
        if is_secret(&name) {
            secrets += 1;
            let value = after[1..].trim_ascii_start();
            assert!(
                value.starts_with(b"null"),
                "the value of {name:?} is not removed: {} of {}",
                shown(&made),
                shown(bytes)
            );
        }
    }
    assert!(secrets > 0 || made == bytes, "changed without a secret: {}", shown(bytes));
    assert_eq!(without_keys(&made).unwrap(), made, "a second pass changes nothing");
}

/// Whether there is an escape that JSON does not define.
fn has_odd_escape(bytes: &[u8]) -> bool {
    let mut at = 0;
    while at < bytes.len() {
        at += match &bytes[at..] {
            [b'\\', b'u', digits @ ..] if unit(digits).is_some() => 6,
            [b'\\', byte, ..] if b"\"\\/bfnrt".contains(byte) => 2,
            [b'\\', ..] => return true,
            _ => 1,
        };
    }
    false
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET.iter().any(|word| name.contains(word))
}

fn erase_secrets(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(erase_secrets),
        Value::Object(members) => {
            for (name, value) in members {
                if is_secret(name) { *value = Value::Null } else { erase_secrets(value) }
            }
        }
        _ => {}
    }
}

/// Each string as Python decodes it, which accepts lone surrogates, and the text after it.
fn strings(text: &[u8]) -> impl Iterator<Item = (String, &[u8])> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = rest.iter().position(|byte| *byte == b'"')? + 1;
        let (mut read, mut at) = (Vec::new(), start);
        while rest[at] != b'"' {
            let (bytes, length) = match &rest[at..] {
                [b'\\', b'u', digits @ ..] => unit(digits).map_or((vec![b'?'], 2), |byte| (vec![byte], 6)),
                // control characters, which no name of a secret has
                [b'\\', b'b' | b'f' | b'n' | b'r' | b't', ..] => (vec![b'?'], 2),
                [b'\\', byte, ..] => (vec![*byte], 2),
                [byte, ..] => (vec![*byte], 1),
                [] => unreachable!("it is JSON"),
            };
            read.extend(bytes);
            at += length;
        }
        rest = rest[at + 1..].trim_ascii_start();
        Some((String::from_utf8_lossy(&read).into_owned(), rest))
    })
}

/// The character of a `\u` escape, if four hexadecimal digits follow. Other characters than ASCII become `?`, because no name of a secret
/// has any.
fn unit(digits: &[u8]) -> Option<u8> {
    let digits = digits.get(..4).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
    let unit = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    Some(u8::try_from(unit).ok().filter(u8::is_ascii).unwrap_or(b'?'))
}
