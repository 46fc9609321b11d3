// SPDX-License-Identifier: Apache-2.0
//! Refuses requests that hyper accepts and a proxy could parse in another way. A request must have exactly one valid `Host`, a valid
//! `:authority`, and no transfer coding except chunked.

use http::uri::Authority;
use http::{HeaderMap, Request, Version, header};

use crate::error::Error;
use crate::serve::host::Host;

/// Checks the headers of a request.
///
/// # Errors
/// When a header is not valid. An HTTP/1 connection must then be closed, because its client may frame the body in another way.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), Error> {
    host(request.version(), request.headers(), request.uri().authority())?;
    coding(request.headers())
}

/// RFC 9112, 3.2: a missing, repeated or invalid `Host` is answered with 400. An empty one is valid.
/// HTTP/2 has the host in `:authority`. The authority of an absolute target of HTTP/1 is ignored.
fn host(version: Version, headers: &HeaderMap, authority: Option<&Authority>) -> Result<(), Error> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let good = match (hosts.next(), hosts.next()) {
        (None, _) => version != Version::HTTP_11,
        (Some(host), None) => host.is_empty() || host.to_str().is_ok_and(|host| Host::parse(host).is_some()),
        (Some(_), Some(_)) => false,
    };
    let authority = authority.filter(|_| version == Version::HTTP_2);
    let good = good && authority.is_none_or(|authority| Host::parse(authority.as_str()).is_some());
    if good { Ok(()) } else { Err(Error::bad_request("a request must have exactly one Host header with a valid host")) }
}

/// RFC 9112, 6.1 and 7: hyper checks only the last coding. It decodes chunked and leaves the others, and the engine would not learn that
/// they are applied.
fn coding(headers: &HeaderMap) -> Result<(), Error> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let good = match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    };
    if good {
        return Ok(());
    }
    let message = "the only supported Transfer-Encoding is chunked, once".to_owned();
    Err(Error::NotImplemented { message })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn is_valid(version: Version, lines: &[(&'static str, &'static str)]) -> bool {
        let mut request = Request::new(());
        *request.version_mut() = version;
        for (name, value) in lines {
            request.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        check(&request).is_ok()
    }

    #[test]
    fn request_needs_exactly_one_valid_host() {
        for good in ["", "localhost", "a_b.c:30000", "[::1]:80"] {
            assert!(is_valid(Version::HTTP_11, &[("host", good)]), "{good:?}");
        }
        for bad in ["a b", "u@a", "a:65536", "[::1]x", "[::1].evil.com:1"] {
            assert!(!is_valid(Version::HTTP_11, &[("host", bad)]), "{bad:?}");
        }
        assert!(!is_valid(Version::HTTP_11, &[]) && is_valid(Version::HTTP_10, &[]) && is_valid(Version::HTTP_2, &[]));
        assert!(!is_valid(Version::HTTP_2, &[("host", "a"), ("host", "a")]));
    }

    #[test]
    fn authority_is_a_valid_host() {
        let is_valid = |authority: &str| {
            let uri = format!("http://{authority}/generate");
            check(&Request::builder().version(Version::HTTP_2).uri(uri).body(()).unwrap()).is_ok()
        };
        assert!(["localhost", "a_b.c:30000", "[::1]:80"].into_iter().all(is_valid));
        assert!(!["u@a", "a:65536", "[::1].evil.example"].into_iter().any(is_valid));
    }

    #[test]
    fn only_the_chunked_transfer_coding_is_accepted() {
        let of = |value| is_valid(Version::HTTP_11, &[("host", "a"), ("transfer-encoding", value)]);
        assert!(of("chunked") && of("Chunked"));
        assert!(!of("gzip, chunked") && !of("chunked, chunked") && !of("identity") && !of(""));
        let twice = [("host", "a"), ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")];
        assert!(!is_valid(Version::HTTP_11, &twice));
    }
}
