// SPDX-License-Identifier: Apache-2.0
//! The same for HTTP/2: fields that HTTP/1.1 cannot encode do not reach the upstream.

mod frames;

use super::recorder::{JournalEntry, Recorder};
use super::shut_down;
use crate::support::proxy::Proxy;
use frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, StreamOutcome, WINDOW_UPDATE,
    block, frame, stream_outcome,
};

type Lines<'a> = &'a [(&'a str, &'a str)];

/// A case: its name, the section of RFC 9113, its frames, the outcome of stream 1, and the body that the upstream receives, if any.
struct Case {
    name: &'static str,
    rfc: &'static str,
    frames: Vec<u8>,
    outcome: StreamOutcome,
    body: Option<&'static str>,
}

const GET: Lines = &[(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", "/p?TTTTT")];
const POST: Lines = &[(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", "/p?TTTTT")];

fn lines(of: Lines, more: Lines) -> Vec<u8> {
    block(&[of, more].concat())
}

/// A request without a body.
fn head(of: Lines, more: Lines) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, 1, &lines(of, more))
}

/// A request with a body.
fn with(more: Lines, body: &str) -> Vec<u8> {
    [frame(HEADERS, END_HEADERS, 1, &lines(POST, more)), frame(DATA, END_STREAM, 1, body.as_bytes())].concat()
}

/// A GET with another value for one pseudo-header.
fn instead(name: &str, value: &str) -> Vec<u8> {
    let lines: Vec<(&str, &str)> = GET.iter().map(|line| if line.0 == name { (name, value) } else { *line }).collect();
    head(&lines, &[])
}

/// A GET without one of the pseudo-headers.
fn lacking(name: &str) -> Vec<u8> {
    let lines: Vec<(&str, &str)> = GET.iter().filter(|line| line.0 != name).copied().collect();
    head(&lines, &[])
}

fn passed(name: &'static str, rfc: &'static str, frames: Vec<u8>, body: &'static str) -> Case {
    Case { name, rfc, frames, outcome: StreamOutcome::Status(200), body: Some(body) }
}

fn answered(name: &'static str, rfc: &'static str, frames: Vec<u8>, status: u16) -> Case {
    Case { name, rfc, frames, outcome: StreamOutcome::Status(status), body: None }
}

fn refused(name: &'static str, rfc: &'static str, frames: Vec<u8>) -> Case {
    Case { name, rfc, frames, outcome: StreamOutcome::Refused, body: None }
}

fn table() -> Vec<Case> {
    let mut table = messages();
    table.extend(headers());
    table.extend(pseudo());
    table.extend(layers());
    table.extend(floods());
    table
}

fn messages() -> Vec<Case> {
    let open = frame(HEADERS, END_HEADERS, 1, &lines(POST, &[]));
    let hello = frame(DATA, 0, 1, b"hello");
    let trailers = |lines: Lines| {
        [open.clone(), hello.clone(), frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(lines))].concat()
    };
    vec![
        passed("a GET", "8.1", head(GET, &[]), ""),
        passed("a POST", "8.1", with(&[], "hello"), "hello"),
        passed(
            "a GET with a body",
            "8.1",
            [frame(HEADERS, END_HEADERS, 1, &lines(GET, &[])), frame(DATA, END_STREAM, 1, b"hello")].concat(),
            "hello",
        ),
        passed("a length", "8.1.1", with(&[("content-length", "5")], "hello"), "hello"),
        refused("a length that is too large", "8.1.1", with(&[("content-length", "9")], "hello")),
        refused("a length that is too small", "8.1.1", with(&[("content-length", "3")], "hello")),
        refused("a length of zero, and a body", "8.1.1", with(&[("content-length", "0")], "hello")),
        refused("a length and no body", "8.1.1", head(POST, &[("content-length", "5")])),
        refused("a length that is not a number", "8.1.1", with(&[("content-length", "x")], "hello")),
        refused("different lengths", "8.1.1", with(&[("content-length", "5"), ("content-length", "3")], "hello")),
        passed("trailers", "8.1", trailers(&[("x-a", "b")]), "hello"),
        passed("a length as trailer", "8.1", trailers(&[("content-length", "9")]), "hello"),
        // RFC 9113 requires a reset; tokentap drops the trailers, so they have no effect
        passed("pseudo-headers as trailers", "8.1", trailers(&[(":path", "/smuggled?TTTTT")]), "hello"),
        refused(
            "trailers that do not end the stream",
            "8.1",
            [open.clone(), frame(HEADERS, END_HEADERS, 1, &block(&[("x-a", "b")])), hello.clone()].concat(),
        ),
        passed(
            "an HTTP/1.1 request as body",
            "8.1",
            with(&[], "GET /smuggled?TTTTT HTTP/1.1\r\nHost: a\r\n\r\n"),
            "GET /smuggled?TTTTT HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
    ]
}

fn headers() -> Vec<Case> {
    let named = |name, line: (&'static str, &'static str)| refused(name, "8.2", head(GET, &[line]));
    vec![
        refused("transfer-encoding", "8.2.2", with(&[("transfer-encoding", "chunked")], "0\r\n\r\n")),
        named("connection", ("connection", "close")),
        named("keep-alive", ("keep-alive", "timeout=5")),
        named("proxy-connection", ("proxy-connection", "close")),
        named("upgrade", ("upgrade", "h2c")),
        named("te other than trailers", ("te", "gzip")),
        passed("te: trailers", "8.2.2", head(GET, &[("te", "trailers")]), ""),
        named("CR LF within a value", ("x-a", "b\r\nx-b: c")),
        named("LF within a value", ("x-a", "b\nc")),
        named("CR within a value", ("x-a", "b\rc")),
        named("NUL within a value", ("x-a", "b\0c")),
        named("a request within a value", ("x-a", "b\r\n\r\nGET /smuggled?TTTTT HTTP/1.1\r\nHost: a\r\n\r\n")),
        named("capitals within a name", ("X-A", "b")),
        named("CR LF within a name", ("x-a: b\r\nx-c", "d")),
        named("a colon within a name", ("x:a", "b")),
        named("a space within a name", ("x a", "b")),
        named("an empty name", ("", "b")),
        named("a name beyond ASCII", ("x-\u{e9}", "b")),
        passed("a host besides the authority", "8.3.1", head(GET, &[("host", "evil")]), ""),
        answered("two hosts", "8.3.1", head(GET, &[("host", "a"), ("host", "b")]), 400),
        answered("a bad host", "8.3.1", head(GET, &[("host", "a/b")]), 400),
        passed("expect", "8.1", with(&[("expect", "100-continue")], "hello"), "hello"),
    ]
}

fn pseudo() -> Vec<Case> {
    let again = |name, line: (&'static str, &'static str)| refused(name, "8.3", head(GET, &[line]));
    vec![
        refused("CR LF within the path", "8.3.1", instead(":path", "/a?TTTTT HTTP/1.1\r\nx: y")),
        refused("a space within the path", "8.3.1", instead(":path", "/a?TTTTT b")),
        refused("NUL within the path", "8.3.1", instead(":path", "/a?TTTTT\0")),
        refused("an empty path", "8.3.1", instead(":path", "")),
        refused("a path without a slash", "8.3.1", instead(":path", "a?TTTTT")),
        refused("an absolute path", "8.3.1", instead(":path", "http://evil/a?TTTTT")),
        answered("dots within the path", "8.3.1", instead(":path", "/a/../b?TTTTT"), 400),
        answered("dots before a control route", "8.3.1", instead(":path", "/a/../flush_cache?TTTTT"), 403),
        answered("a control route", "8.3.1", instead(":path", "/%66lush_cache?TTTTT"), 403),
        refused("a method with spaces", "8.3.1", instead(":method", "GET /smuggled?TTTTT HTTP/1.1\r\nx: ")),
        refused("an empty method", "8.3.1", instead(":method", "")),
        refused("an authority with CR LF", "8.3.1", instead(":authority", "a\r\nx: y")),
        refused("an authority with a path", "8.3.1", instead(":authority", "a/b")),
        refused("a scheme with CR LF", "8.3.1", instead(":scheme", "http\r\nx: y")),
        refused("no path", "8.3.1", lacking(":path")),
        refused("no method", "8.3.1", lacking(":method")),
        refused("no scheme", "8.3.1", lacking(":scheme")),
        passed("no authority", "8.3.1", lacking(":authority"), ""),
        again("two paths", (":path", "/smuggled?TTTTT")),
        again("two methods", (":method", "POST")),
        again("an unknown one", (":x", "y")),
        again("a status", (":status", "200")),
        refused("one after a header", "8.3", head(&GET[..3], &[("x-a", "b"), (":path", "/p?TTTTT")])),
        refused("CONNECT with a path", "8.5", instead(":method", "CONNECT")),
        answered("CONNECT", "8.5", head(&[(":method", "CONNECT"), (":authority", "evil:80")], &[]), 501),
        refused(
            "CONNECT for a protocol",
            "8441 4",
            head(&[(":method", "CONNECT"), (":protocol", "websocket")], &GET[1..]),
        ),
    ]
}

fn layers() -> Vec<Case> {
    let good = head(GET, &[]);
    let open = |stream| frame(HEADERS, END_HEADERS, stream, &lines(POST, &[]));
    vec![
        refused("data without a stream", "5.1", frame(DATA, END_STREAM, 1, b"hello")),
        refused("data on stream 0", "6.1", frame(DATA, END_STREAM, 0, b"hello")),
        refused("headers on stream 0", "6.2", frame(HEADERS, END_STREAM | END_HEADERS, 0, &lines(GET, &[]))),
        refused("headers on stream 2", "5.1.1", frame(HEADERS, END_STREAM | END_HEADERS, 2, &lines(GET, &[]))),
        refused("padding that is too long", "6.2", frame(HEADERS, END_STREAM | END_HEADERS | 8, 1, &[255, 0])),
        refused("a continuation of nothing", "6.10", frame(CONTINUATION, END_HEADERS, 1, &lines(GET, &[]))),
        refused(
            "a frame between a head's",
            "6.10",
            [frame(HEADERS, END_STREAM, 1, &lines(GET, &[])), frame(PING, 0, 0, &[0; 8])].concat(),
        ),
        refused("a frame that is too large", "4.2", frame(DATA, 0, 1, &[0; 20_000])),
        refused("a bad index", "4.3", frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0xff, 0xff, 0xff, 0x7f])),
        refused("half a header line", "4.3", frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0, 10, b'a'])),
        refused("settings of five bytes", "6.5", frame(SETTINGS, 0, 0, &[0; 5])),
        refused("a ping of five bytes", "6.7", frame(PING, 0, 0, &[0; 5])),
        refused("no more window, for the connection", "6.9", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        refused("no more window, for a stream", "6.9", [open(1), frame(WINDOW_UPDATE, 0, 1, &[0; 4])].concat()),
        refused("too much window", "6.9.1", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        passed("an unknown frame", "4.1", [frame(0xbe, 0xff, 0, b"hello"), good].concat(), ""),
    ]
}

fn floods() -> Vec<Case> {
    let reset = |stream: u32| {
        [
            frame(HEADERS, END_STREAM | END_HEADERS, stream, &block(GET)),
            frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()),
        ]
        .concat()
    };
    let endless = (0..20_000).flat_map(|_| frame(CONTINUATION, 0, 1, b""));
    let large = (0..100)
        .flat_map(|_| frame(CONTINUATION, 0, 1, &lines(&[("x-a", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"); 200], &[])));
    let begun = || frame(HEADERS, END_STREAM, 1, &lines(GET, &[]));
    let many = vec![("x-a", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"); 150];
    vec![
        // stream 0 has no outcome: the connection ends
        refused("rapid reset", "10.5", (0..5_000).flat_map(|at| reset(at * 2 + 1)).collect()),
        refused("empty continuations", "10.5.1", begun().into_iter().chain(endless).collect()),
        refused("large continuations", "10.5.1", begun().into_iter().chain(large).collect()),
        passed("150 header lines", "10.5.1", head(GET, &many), ""),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_without_a_request_do_not_reach_the_upstream() {
    let recorder = Recorder::start().await;
    let proxy = Proxy::start(recorder.addr, &[]).await;
    let mut wrong = Vec::new();
    for (number, Case { name, rfc, frames, outcome: expected, body }) in table().into_iter().enumerate() {
        let tag = format!("h{number:04}");
        let text = String::from_utf8(frames.iter().map(|byte| byte & 0x7f).collect()).unwrap();
        let mut frames = frames;
        for (at, _) in text.match_indices("TTTTT") {
            frames[at..at + 5].copy_from_slice(tag.as_bytes());
        }
        let flooded = name == "rapid reset";
        let got = stream_outcome(proxy.data, &frames, if flooded { 0 } else { 1 }).await;
        let entries = recorder.of(&tag);
        let bodies: Vec<String> = entries
            .iter()
            .filter_map(|entry| match entry {
                JournalEntry::Complete(seen) => Some(String::from_utf8_lossy(&seen.body).replace(&tag, "TTTTT")),
                _ => None,
            })
            .collect();
        assert!(bodies.len() < 1_000, "{name} is rejected before all its requests are forwarded");
        if got != expected || !flooded && !bodies.iter().eq(body.iter()) {
            wrong
                .push(format!("{name:?} ({rfc}): expected {expected:?} and {body:?}, got {got:?} and {entries:.400?}"));
        }
    }
    wrong.extend(shut_down(proxy, &recorder).await);
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
