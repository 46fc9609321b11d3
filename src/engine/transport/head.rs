// SPDX-License-Identifier: Apache-2.0
//! The heads of requests to the upstream, and of its replies.

use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header, response};
use hyper::ext::ReasonPhrase;

use super::MAX_HEADERS;
use super::framing::Framing;
use super::pool::{Origin, READ_BUFFER};

/// A reply that is not HTTP, or whose framing is ambiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MalformedHead {
    #[error(transparent)]
    Syntax(#[from] httparse::Error),
    #[error("invalid HTTP status code")]
    Status,
    #[error("invalid HTTP header")]
    Header,
    #[error("message head is too large")]
    TooLarge,
    #[error("invalid content-length")]
    Length,
    #[error("unexpected transfer-encoding")]
    TransferEncoding,
}

/// The framing of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestFraming {
    /// There is no body. A `content-length: 0` of the client stays.
    Empty,
    Length(u64),
    /// The headers have `transfer-encoding`.
    Chunked,
}

/// The head of a request to `target` below the base path of the server, whose `Host` is sent if the headers have none.
pub(super) fn request(
    method: &Method,
    target: &str,
    headers: &HeaderMap,
    origin: &Origin,
    framing: RequestFraming,
) -> Vec<u8> {
    let Origin { host, base_path, .. } = origin;
    let is_empty = framing == RequestFraming::Empty;
    let length: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let mut head =
        Vec::with_capacity(method.as_str().len() + base_path.len() + target.len() + length + host.len() + 64);
    let mut add = |parts: &[&[u8]]| parts.iter().for_each(|part| head.extend_from_slice(part));
    add(&[method.as_str().as_bytes(), b" ", base_path.as_bytes(), target.as_bytes(), b" HTTP/1.1\r\n"]);
    for (name, value) in headers.iter().filter(|(name, _)| is_empty || *name != header::CONTENT_LENGTH) {
        add(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }
    if !headers.contains_key(header::HOST) {
        add(&[b"host: ", host.as_bytes(), b"\r\n"]);
    }
    if let RequestFraming::Length(length) = framing {
        add(&[b"content-length: ", itoa::Buffer::new().format(length).as_bytes(), b"\r\n"]);
    }
    add(&[b"\r\n"]);
    head
}

/// The head of a reply.
#[derive(Debug)]
pub(super) struct ReplyHead {
    pub parts: response::Parts,
    pub framing: Framing,
    /// The connection can be used again after the body.
    pub keeps_alive: bool,
}

/// Takes the head of a reply to a request from the received bytes; `None` if more bytes are needed. Informational replies are skipped.
pub(super) fn reply(received: &mut BytesMut, method: &Method) -> Result<Option<ReplyHead>, MalformedHead> {
    while !received.is_empty() {
        let Some((length, head)) = parse(received, method)? else {
            let is_full = received.len() >= READ_BUFFER;
            return if is_full { Err(MalformedHead::TooLarge) } else { Ok(None) };
        };
        received.advance(length);
        let status = head.parts.status;
        if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

fn parse(received: &[u8], method: &Method) -> Result<Option<(usize, ReplyHead)>, MalformedHead> {
    let mut parsed = httparse::Response::new(&mut []);
    let mut lines = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let config = httparse::ParserConfig::default();
    let httparse::Status::Complete(length) =
        config.parse_response_with_uninit_headers(&mut parsed, received, &mut lines)?
    else {
        return Ok(None);
    };
    let (mut parts, ()) = http::Response::new(()).into_parts();
    parts.status = StatusCode::from_u16(parsed.code.unwrap_or(0)).map_err(|_| MalformedHead::Status)?;
    if parsed.version == Some(0) {
        parts.version = Version::HTTP_10;
    }
    let reason = parsed.reason.unwrap_or_default();
    if Some(reason) != parts.status.canonical_reason()
        && let Ok(reason) = ReasonPhrase::try_from(reason.as_bytes())
    {
        parts.extensions.insert(reason);
    }
    // all values share one copy
    let shared = Bytes::copy_from_slice(&received[..length]);
    parts.headers.reserve(parsed.headers.len());
    for line in parsed.headers.iter() {
        let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(|_| MalformedHead::Header)?;
        let at = line.value.as_ptr() as usize - received.as_ptr() as usize;
        let value = HeaderValue::from_maybe_shared(shared.slice(at..at + line.value.len()));
        parts.headers.append(name, value.map_err(|_| MalformedHead::Header)?);
    }
    let framing = framing(&parts, method)?;
    // another protocol may follow on the connection
    let keeps_alive = parts.status != StatusCode::SWITCHING_PROTOCOLS && keeps_alive(&parts);
    Ok(Some((length, ReplyHead { parts, framing, keeps_alive })))
}

/// RFC 9112, 6.3.
fn framing(parts: &response::Parts, method: &Method) -> Result<Framing, MalformedHead> {
    let response::Parts { status, version, headers, .. } = parts;
    let has_no_body = status.is_informational()
        || matches!(*status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || *method == Method::HEAD;
    if has_no_body {
        return Ok(Framing::Length(0));
    }
    if let Some(last) = headers.get_all(header::TRANSFER_ENCODING).iter().next_back() {
        if *version == Version::HTTP_10 {
            return Err(MalformedHead::TransferEncoding);
        }
        // a value with other characters than ASCII names no coding, as in hyper
        let last = last.to_str().ok().and_then(|value| value.rsplit(',').next());
        let is_chunked = last.is_some_and(|last| last.trim().eq_ignore_ascii_case("chunked"));
        return Ok(if is_chunked { Framing::chunked() } else { Framing::UntilClose });
    }
    let mut lengths = headers
        .get_all(header::CONTENT_LENGTH)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b',').map(length));
    let Some(first) = lengths.next() else { return Ok(Framing::UntilClose) };
    match first {
        Some(length) if lengths.all(|other| other == first) && length < u64::MAX - 1 => Ok(Framing::Length(length)),
        _ => Err(MalformedHead::Length),
    }
}

/// A length in decimal digits.
fn length(text: &[u8]) -> Option<u64> {
    let digits = text.trim_ascii();
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Whether the upstream keeps the connection: `close` overrides `keep-alive`, which HTTP/1.0 needs.
fn keeps_alive(parts: &response::Parts) -> bool {
    let names = |name: &[u8]| {
        let values = parts.headers.get_all(header::CONNECTION).iter();
        let mut words = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        words.any(|word| word.trim_ascii().eq_ignore_ascii_case(name))
    };
    !names(b"close") && (parts.version == Version::HTTP_11 || names(b"keep-alive"))
}
