// SPDX-License-Identifier: Apache-2.0
//! Hop-by-hop headers: `Connection` and the headers it lists, upgrades, `Expect`, `TE`.

use super::super::case::{Case, Port, answered, case, get, last, passed, post};

pub fn cases() -> Vec<Case> {
    let mut cases = connection();
    cases.extend(upgrades());
    cases.extend(expectations());
    cases
}

fn connection() -> Vec<Case> {
    let named = |name, lines: &str| case(name, "9110 7.6.1", get(lines), passed(""));
    vec![
        named("Connection: keep-alive", "Connection: keep-alive\r\nKeep-Alive: timeout=5\r\n"),
        case("Connection: close", "9112 9.6", get("Connection: close\r\n"), last("")),
        case("close within a list", "9112 9.6", get("Connection: keep-alive, close\r\n"), last("")),
        case("Close in capitals", "9112 9.6", get("Connection: CLOSE\r\n"), last("")),
        case("close in a second header", "9112 9.6", get("Connection: x\r\nConnection: close\r\n"), last("")),
        named("a header that Connection names", "Connection: X-A\r\nX-A: b\r\nX-B: c\r\n")
            .without("x-a")
            .with("x-b", "c"),
        named("names in two headers", "Connection: X-A\r\nConnection: keep-alive,X-B\r\nX-A: b\r\nX-B: c\r\n")
            .without("x-a")
            .without("x-b"),
        named("names in other letters", "Connection: x-a\r\nX-A: b\r\n").without("x-a"),
        named("space and empty members around names", "Connection: , \t X-A ,, \r\nX-A: b\r\n").without("x-a"),
        named("a bad member beside a name", "Connection: \"x\", X-A\r\nX-A: b\r\n").without("x-a"),
        named("Connection names Host", "Connection: host\r\n"),
        named("Connection names Authorization", "Connection: authorization\r\nAuthorization: Bearer k\r\n")
            .without("authorization"),
        named("Connection names X-Session-Id", "Connection: x-session-id\r\nX-Session-Id: s\r\n")
            .without("x-session-id"),
        named("Connection names X-Forwarded-For", "Connection: X-Forwarded-For\r\nX-Forwarded-For: 1.2.3.4\r\n")
            .without("x-forwarded-for"),
        case(
            "Connection names Content-Length",
            "9110 7.6.1",
            post("Connection: content-length\r\nContent-Length: 5\r\n", "hello"),
            passed("hello"),
        ),
        case(
            "Connection names Content-Length of zero",
            "9110 7.6.1",
            post("Connection: content-length\r\nContent-Length: 0\r\n", ""),
            passed(""),
        ),
        case(
            "Connection names Transfer-Encoding",
            "9110 7.6.1",
            post("Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
            passed("hello"),
        ),
        case(
            "Connection names Content-Type",
            "9110 7.6.1",
            post("Connection: content-type\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n", "hello"),
            passed("hello"),
        )
        .without("content-type"),
        named("Proxy-Connection", "Proxy-Connection: keep-alive\r\n"),
        named("Proxy-Authorization", "Proxy-Authorization: Basic eDp5\r\n"),
        named("Keep-Alive alone", "Keep-Alive: timeout=5\r\n"),
        named("Trailer", "Trailer: x-a\r\n"),
        named("TE: trailers", "TE: trailers\r\nConnection: TE\r\n").without("te"),
        named("TE: gzip", "TE: gzip\r\n").without("te"),
        named("TE in two headers", "TE: trailers\r\nTE: chunked\r\n").without("te"),
        named("HTTP2-Settings", "Connection: HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n").without("http2-settings"),
        named("Via and Forwarded stay", "Via: 1.1 x\r\nForwarded: for=1.2.3.4\r\n")
            .with("via", "1.1 x")
            .with("forwarded", "for=1.2.3.4"),
    ]
}

fn upgrades() -> Vec<Case> {
    let data: &[Port] = &[Port::Plain, Port::Captured];
    let h2c = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n";
    let socket = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
    vec![
        case("an upgrade to h2c", "9110 7.8", get(h2c), passed("")).on(data),
        case("an upgrade to a web socket", "9110 7.8", get(socket), answered(&[501])).on(data),
        case(
            "an upgrade with a body",
            "9110 7.8",
            post("Connection: Upgrade\r\nUpgrade: x\r\nContent-Length: 5\r\n", "hello"),
            answered(&[501]),
        )
        .either()
        .on(data),
        case("an upgrade that Connection does not name", "9110 7.8", get("Upgrade: h2c\r\n"), passed("")).on(data),
        case(
            "an upgrade over HTTP/1.0",
            "9110 7.8",
            "GET /p?TTTTT HTTP/1.0\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
            last(""),
        )
        .on(data),
        case("an upgrade, control port", "9110 7.8", get(h2c), passed("")).on(&[Port::Control]),
        case("a web socket, control port", "9110 7.8", get(socket), passed("")).on(&[Port::Control]),
    ]
}

fn expectations() -> Vec<Case> {
    let body = |name, lines: &str| {
        case(name, "9110 10.1.1", post(lines, "hello"), passed("hello").with_statuses(&[100, 200])).without("expect")
    };
    let plain = |name, lines: &str| case(name, "9110 10.1.1", post(lines, "hello"), passed("hello")).without("expect");
    vec![
        body("Expect: 100-continue", "Expect: 100-continue\r\nContent-Length: 5\r\n"),
        body("Expect in capitals", "Expect: 100-CONTINUE\r\nContent-Length: 5\r\n"),
        case(
            "Expect with chunked",
            "9110 10.1.1",
            post("Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
            passed("hello").with_statuses(&[100, 200]),
        )
        .without("expect"),
        case("Expect without a body", "9110 10.1.1", get("Expect: 100-continue\r\n"), passed("")).without("expect"),
        case(
            "Expect over HTTP/1.0",
            "9110 10.1.1",
            "POST /p?TTTTT HTTP/1.0\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
            last("hello"),
        )
        .without("expect"),
        plain("Expect something else", "Expect: 200-maybe\r\nContent-Length: 5\r\n"),
        plain("an empty Expect", "Expect:\r\nContent-Length: 5\r\n"),
        plain("Expect in a list", "Expect: 100-continue, x\r\nContent-Length: 5\r\n"),
    ]
}
