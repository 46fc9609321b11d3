// SPDX-License-Identifier: Apache-2.0
//! Hop-by-hop headers (RFC 9110, 7.6.1).

use http::{HeaderMap, HeaderName, header};

const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Removes the hop-by-hop headers, including those that `Connection` names.
pub fn end_hop(headers: &mut HeaderMap) {
    // most messages have none
    if !headers.keys().any(|name| HOP_BY_HOP.contains(name) || *name == header::TE) {
        return;
    }
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        // split as bytes, so that a name next to invalid text is still found
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect();
    // `Transfer-Encoding` overrides `Content-Length` (RFC 9112, 6.3), which would truncate the body
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    // `trailers` is forwarded, any other value applies to this connection only
    if headers.get_all(header::TE).iter().any(|te| te.as_bytes() != b"trailers") {
        headers.remove(header::TE);
    }
}

/// Whether a body is an event stream.
#[must_use]
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Prepares a client's headers for the upstream. The upstream client sets framing and host again.
pub fn upstream(headers: &mut HeaderMap) {
    end_hop(headers);
    headers.remove(header::HOST);
    // the upstream client sends no length for an empty body, and some servers then answer 411
    let empty = headers.remove(header::CONTENT_LENGTH).filter(|length| length == "0");
    if let Some(length) = empty {
        headers.insert(header::CONTENT_LENGTH, length);
    }
    headers.remove(header::EXPECT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_named_by_connection_are_removed_and_repeated_headers_keep_their_order() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("te", "gzip"),
            ("transfer-encoding", "chunked"),
            ("x-many", "b"),
            ("x-many", "a"),
            ("host", "agent"),
            ("authorization", "Bearer k"),
        ] {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        upstream(&mut headers);
        let remaining: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(remaining, [("x-many", "b"), ("x-many", "a"), ("authorization", "Bearer k")]);
    }

    #[test]
    fn headers_named_by_connection_are_removed_despite_invalid_bytes() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, http::HeaderValue::from_bytes(b"caf\xe9,X-Private").unwrap());
        headers.insert("x-private", http::HeaderValue::from_static("1"));
        end_hop(&mut headers);
        assert!(headers.is_empty(), "{headers:?}");
    }
}
