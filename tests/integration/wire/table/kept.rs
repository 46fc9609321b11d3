// SPDX-License-Identifier: Apache-2.0
//! Several requests on one connection.

use super::super::case::{Case, answered, case, get, hidden, last, passed, post, refused};

pub fn cases() -> Vec<Case> {
    let two = [post("Content-Length: 5\r\n", "hello"), post("Content-Length: 3\r\n", "abc")].concat();
    let mixed =
        [post("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"), post("Content-Length: 3\r\n", "abc")]
            .concat();
    let twenty = (0..20).flat_map(|_| get("")).collect::<Vec<u8>>();
    let all = (0..19).fold(passed("").with_statuses(&[200; 20]), |expected, _| expected.and(""));
    let closing = [post("Connection: close\r\nContent-Length: 5\r\n", "hello"), get("")].concat();
    let broken = [post("Content-Length: 5\r\n", "hello"), post("Content-Length: x\r\n", "abc")].concat();
    let old =
        [b"POST /p?TTTTT HTTP/1.0\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello".to_vec(), get("")].concat();
    let both = [
        post("Content-Length: 15\r\nTransfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
        (hidden() + "\r\n\r\n").into_bytes(),
    ];
    let early = b"POST /sessions/%20/p?TTTTT HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello";
    let inner = hidden();
    let refusal = format!(
        "POST /sessions/%20/p?TTTTT HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{inner}",
        inner.len()
    );
    vec![
        case("two requests at once", "9112 9.3.2", two, passed("hello").and("abc").with_statuses(&[200, 200])),
        case("chunked, then a length", "9112 9.3.2", mixed, passed("hello").and("abc").with_statuses(&[200, 200])),
        case("twenty requests at once", "9112 9.3.2", twenty, all).plain(),
        case("a request after close", "9112 9.6", closing, last("hello")),
        case("a bad request after a good one", "9112 9.3.2", broken, refused(&[200, 400]).and("hello")),
        case("a request after one of HTTP/1.0", "9112 9.3", old, last("hello")),
        case("a request after a length and chunked", "9112 6.3", both.concat(), last("hello")),
        case("a refusal before the body is read", "9112 9.3", early, answered(&[400])).either().plain(),
        case("a refusal, and a request as its body", "9112 9.3", refusal, answered(&[400])).either().plain(),
        case("a truncated head", "9112 8", "GET /p?TTTTT HTTP/1.1\r\nHost: loc", refused(&[])).ending(),
        case("a head without its end", "9112 8", "GET /p?TTTTT HTTP/1.1\r\nHost: localhost\r\n", refused(&[])).ending(),
        case("nothing", "9112 8", "", refused(&[])).ending().plain(),
    ]
}
