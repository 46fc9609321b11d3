// SPDX-License-Identifier: Apache-2.0
//! Removes keys from the engine's replies about itself.

use http::{Response, header};
use http_body_util::{BodyExt, Limited};

use crate::error::Error;
use crate::json::{Cursor, MAX_DEPTH, Malformed, Object, Splice};
use crate::long_work::{BodyLength, on_body};
use crate::serve::body::Body;
use crate::serve::proxy::Proxy;

/// The maximum bytes of a reply. A server's arguments and states are smaller.
const LARGEST: usize = 16 << 20;

/// Replaces every key in a reply by null. A reply that cannot be searched for keys is not forwarded.
///
/// # Errors
/// When the reply is cut off, too large or not JSON.
pub(crate) async fn redacted(proxy: &Proxy, reply: Response<Body>) -> Result<Response<Body>, Error> {
    let (mut head, body) = reply.into_parts();
    let unreadable = |why: &str| Error::Upstream {
        message: format!("the engine's reply may contain its keys and {why}; ask the engine directly"),
    };
    let bytes = Limited::new(body, LARGEST).collect().await.map_err(|error| unreadable(&error.to_string()))?.to_bytes();
    let bytes = match on_body(BodyLength::Reply(bytes.len()), || without_keys(&bytes)).await {
        Ok(bytes) => bytes,
        // the reply to HEAD
        Err(_) if bytes.is_empty() => Vec::new(),
        Err(error) => return Err(unreadable(&format!("cannot be searched: {error}"))),
    };
    let keys = &proxy.config.keys;
    let known = [&keys.upstream_api_key, &keys.upstream_admin_key];
    if known.into_iter().flatten().any(|key| memchr::memmem::find(&bytes, key.expose().as_bytes()).is_some()) {
        return Err(unreadable("has one in an unexpected place"));
    }
    // both describe the original bytes
    for name in [header::CONTENT_LENGTH, header::ETAG] {
        head.headers.remove(name);
    }
    Ok(Response::from_parts(head, Body::full(bytes)))
}

/// Replaces every secret in JSON by `null`. All other bytes are unchanged.
///
/// # Errors
/// When it is not JSON.
pub fn without_keys(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    let (mut cursor, mut splice) = (Cursor::new(bytes), Splice::default());
    value(&mut cursor, &mut splice, MAX_DEPTH)?;
    cursor.end()?;
    Ok(splice.apply(bytes))
}

fn value(cursor: &mut Cursor<'_>, splice: &mut Splice, depth: usize) -> Result<(), Malformed> {
    let depth = depth.checked_sub(1).ok_or(Malformed { at: cursor.position(), too_deep: true })?;
    match cursor.peek() {
        Some(b'{') => Object::read(cursor, |key, cursor| {
            // another parser may decode this name in another way
            if !key.is_well_escaped() {
                return Err(Malformed { at: cursor.position(), too_deep: false });
            }
            if !is_secret(&key.decode()) {
                return value(cursor, splice, depth);
            }
            let span = cursor.skip()?;
            if &cursor.bytes()[span.clone()] != b"null" {
                splice.replace(span, b"null".to_vec());
            }
            Ok(())
        })
        .map(drop),
        Some(b'[') => {
            cursor.expect(b'[')?;
            if cursor.take(b']') {
                return Ok(());
            }
            loop {
                value(cursor, splice, depth)?;
                if cursor.take(b']') {
                    return Ok(());
                }
                cursor.expect(b',')?;
            }
        }
        _ => cursor.skip().map(drop),
    }
}

/// Whether a member with this name is a secret: SGLang's `api_key`, `admin_api_key` and `ssl_keyfile_password`, and names that later
/// versions may add.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["api_key", "password", "secret", "auth_token", "access_token", "hf_token"].iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(text: &str) -> Result<String, Malformed> {
        without_keys(text.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn keys_at_any_depth_become_null_and_nothing_else_changes() {
        let text = r#"{"model_path": "m", "api_key":"k", "max_total_num_tokens":1e2,
            "internal_states": [{"admin_api_key" : ["a"], "x": [ ]}, {"ssl_keyfile_password":null}], "a\u0070i_key": "k"}"#;
        let want = r#"{"model_path": "m", "api_key":null, "max_total_num_tokens":1e2,
            "internal_states": [{"admin_api_key" : null, "x": [ ]}, {"ssl_keyfile_password":null}], "a\u0070i_key": null}"#;
        assert_eq!(cleaned(text).unwrap(), want);
        assert_eq!(cleaned("[]").unwrap(), "[]");
    }

    #[test]
    fn malformed_json_is_refused() {
        for text in ["", "{", "{\"api_key\": \"k\"", "[1,]", &"[".repeat(1000)] {
            assert!(cleaned(text).is_err(), "{text}");
        }
    }
}
