//! Headers that end at this hop (RFC 9110, 7.6.1).

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

/// Removes the headers that end at this hop, those that `Connection` names among them.
pub fn end_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        // by bytes: what is no text beside a name does not hide it
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect();
    // a length beside a coding is no length (RFC 9112, 6.3): the body would be cut to it
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    // `trailers` may pass, anything else is about this connection
    if headers.get_all(header::TE).iter().any(|te| te.as_bytes() != b"trailers") {
        headers.remove(header::TE);
    }
}

/// Whether a body is an event stream.
#[must_use]
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// What goes upstream of a client's headers: framing and host are set anew by the client of the upstream.
pub fn upstream(headers: &mut HeaderMap) {
    end_hop(headers);
    headers.remove(header::HOST);
    // of a body that is empty the client of the upstream would say nothing, and some servers answer 411
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
    fn what_connection_names_goes_and_repeated_names_stay_in_order() {
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
        let left: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(left, [("x-many", "b"), ("x-many", "a"), ("authorization", "Bearer k")]);
    }

    #[test]
    fn what_connection_names_goes_whatever_stands_beside_it() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, http::HeaderValue::from_bytes(b"caf\xe9,X-Private").unwrap());
        headers.insert("x-private", http::HeaderValue::from_static("1"));
        end_hop(&mut headers);
        assert!(headers.is_empty(), "{headers:?}");
    }
}
