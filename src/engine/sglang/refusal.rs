// SPDX-License-Identifier: Apache-2.0
//! Streams that the engine refuses: SGLang answers a stream with status 200 before it checks the request.

use memchr::memmem;

use crate::engine::events::Chunk;
use crate::json::Cursor;

/// Statuses of a refusal that may be due to what tokentap forced. Others, such as that of a full queue, are the engine's state.
const DUE_TO_REQUEST: [u64; 2] = [400, 500];

/// Whether the first object of a stream refuses the request: an error object with one of these statuses or none, or an abort with one of
/// them and without tokens.
#[must_use]
pub(crate) fn refuses(json: &[u8]) -> bool {
    // the first event of every forced stream is checked, and nearly none has either word
    if [&b"\"error\""[..], b"\"abort\""].iter().all(|word| memmem::find(json, word).is_none()) {
        return false;
    }
    let Ok(chunk) = Chunk::outline(&mut Cursor::new(json)) else { return false };
    if chunk.meta.is_some() {
        let status = chunk.finish.as_ref().and_then(|finish| finish.status_code);
        return status.is_some_and(|status| DUE_TO_REQUEST.contains(&u64::from(status)))
            && chunk.completion_tokens.unwrap_or(0) == 0;
    }
    let Some(error) = chunk.object.get(json, "error") else { return false };
    let code = serde_json::from_slice::<serde_json::Value>(error).ok().and_then(|error| error.get("code")?.as_u64());
    code.is_none_or(|code| DUE_TO_REQUEST.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::refuses;

    #[test]
    fn error_or_failed_abort_without_tokens_is_a_refusal() {
        for (text, expected) in [
            (r#"{"error":{"message":"no"}}"#, true),
            (r#"{"error":{"message":"no","type":"invalid_request_error","code":400,"retryable":false}}"#, true),
            (r#"{"error":{"message":"busy","code":503}}"#, false),
            (
                r#"{"text":"","meta_info":{"finish_reason":{"type":"abort","status_code":400,"message":"no"},"completion_tokens":0}}"#,
                true,
            ),
            (r#"{"text":"","meta_info":{"finish_reason":{"type":"abort","status_code":500,"message":"no"}}}"#, true),
            (
                r#"{"text":"","meta_info":{"finish_reason":{"type":"abort","status_code":503,"message":"busy"},"completion_tokens":0}}"#,
                false,
            ),
            (
                r#"{"text":"a","meta_info":{"finish_reason":{"type":"abort","status_code":500,"message":"no"},"completion_tokens":1}}"#,
                false,
            ),
            (
                r#"{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"asked"},"completion_tokens":0}}"#,
                false,
            ),
            (r#"{"text":"","meta_info":{"finish_reason":null,"completion_tokens":0}}"#, false),
            (r#"{"meta":1}"#, false),
            ("[1]", false),
            ("", false),
        ] {
            assert_eq!(refuses(text.as_bytes()), expected, "{text}");
        }
    }
}
