//! What the engine says about itself, without its keys.

use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};

use crate::error::Error;
use crate::json::{Cursor, MAX_DEPTH, Malformed, Object, Splice};
use crate::long_work::on_body;
use crate::serve::body::Body;
use crate::serve::proxy_state::ProxyState;

/// More than a server's arguments and states take.
const LARGEST: usize = 16 << 20;

/// Passes a reply on in which every key is null; one in which they cannot be found does not pass.
///
/// # Errors
/// When the reply breaks off, is too large or is not JSON.
pub(crate) async fn redacted(state: &ProxyState, reply: Response<Body>) -> Result<Response<Body>, Error> {
    let (mut head, body) = reply.into_parts();
    let unreadable = |why: &str| Error::Upstream {
        status: StatusCode::BAD_GATEWAY,
        message: format!("the engine's answer may hold its keys and {why}; ask the engine itself"),
    };
    let bytes = Limited::new(body, LARGEST).collect().await.map_err(|error| unreadable(&error.to_string()))?.to_bytes();
    let bytes = match on_body(bytes.len(), || without_keys(&bytes)).await {
        Ok(bytes) => bytes,
        // the answer to HEAD
        Err(_) if bytes.is_empty() => Vec::new(),
        Err(error) => return Err(unreadable(&format!("cannot be searched: {error}"))),
    };
    let keys = &state.config.keys;
    let known = [&keys.upstream_api_key, &keys.upstream_admin_key];
    if known.into_iter().flatten().any(|key| memchr::memmem::find(&bytes, key.expose().as_bytes()).is_some()) {
        return Err(unreadable("names one where none was looked for"));
    }
    // they were those of other bytes
    for name in [header::CONTENT_LENGTH, header::ETAG] {
        head.headers.remove(name);
    }
    Ok(Response::from_parts(head, Body::full(bytes)))
}

/// JSON with `null` in the place of every secret, all else byte for byte.
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
            // some reader may take it for another name than this one does
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

/// Whether a member of this name is a secret: SGLang's `api_key`, `admin_api_key`, `ssl_keyfile_password`, and what later versions
/// may add to them.
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
    fn keys_go_wherever_they_stand_and_nothing_else_changes() {
        let text = r#"{"model_path": "m", "api_key":"k", "max_total_num_tokens":1e2,
            "internal_states": [{"admin_api_key" : ["a"], "x": [ ]}, {"ssl_keyfile_password":null}], "a\u0070i_key": "k"}"#;
        let want = r#"{"model_path": "m", "api_key":null, "max_total_num_tokens":1e2,
            "internal_states": [{"admin_api_key" : null, "x": [ ]}, {"ssl_keyfile_password":null}], "a\u0070i_key": null}"#;
        assert_eq!(cleaned(text).unwrap(), want);
        assert_eq!(cleaned("[]").unwrap(), "[]");
    }

    #[test]
    fn unreadable_reply_is_not_passed() {
        for text in ["", "{", "{\"api_key\": \"k\"", "[1,]", &"[".repeat(1000)] {
            assert!(cleaned(text).is_err(), "{text}");
        }
    }
}
