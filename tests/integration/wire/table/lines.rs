// SPDX-License-Identifier: Apache-2.0
//! Request lines: methods, targets, spaces, versions, line ends.

use super::super::case::{Case, Port, answered, case, last, passed, refused};

fn line(line: &str) -> Vec<u8> {
    [line.as_bytes(), b"\r\nHost: localhost\r\n\r\n"].concat()
}

fn bytes(line: &[u8]) -> Vec<u8> {
    [line, b"\r\nHost: localhost\r\n\r\n"].concat()
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(methods());
    cases.extend(targets());
    cases.extend(spaces());
    cases.extend(versions());
    cases
}

fn methods() -> Vec<Case> {
    let long = format!("{} /p?TTTTT HTTP/1.1", "M".repeat(8000));
    vec![
        case("plain GET", "9112 3", line("GET /p?TTTTT HTTP/1.1"), passed("")),
        case("HEAD", "9110 9.3.2", line("HEAD /p?TTTTT HTTP/1.1"), passed("")).plain(),
        case("unknown method", "9110 9.1", line("PURGE /p?TTTTT HTTP/1.1"), passed("")),
        case("method of token characters", "9110 9.1", line("M-S_!#$%&'*+.^`|~1 /p?TTTTT HTTP/1.1"), passed("")),
        case("method in small letters", "9110 9.1", line("get /p?TTTTT HTTP/1.1"), passed("")),
        case("method with a bracket", "9112 3.1", line("G(T /p?TTTTT HTTP/1.1"), refused(&[400])),
        case("method with a colon", "9112 3.1", line("GET: /p?TTTTT HTTP/1.1"), refused(&[400])),
        case("method with NUL", "9112 3.1", line("G\0T /p?TTTTT HTTP/1.1"), refused(&[400])),
        case("method beyond ASCII", "9112 3.1", line("G\u{c9}T /p?TTTTT HTTP/1.1"), refused(&[400])),
        case("no method", "9112 3.1", line(" /p?TTTTT HTTP/1.1"), refused(&[400])),
        case("method of 8,000 letters", "9112 3", line(&long), passed("")),
        case("TRACE", "9110 9.3.8", line("TRACE /p?TTTTT HTTP/1.1"), passed("")).plain(),
        case("CONNECT", "9110 9.3.6", line("CONNECT metadata.internal:443 HTTP/1.1"), answered(&[501])).plain(),
        case("CONNECT with a path", "9112 3.2.3", line("CONNECT /p?TTTTT HTTP/1.1"), answered(&[501])).plain(),
        case("HTTP/2 preface, cut", "9113 3.4", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", refused(&[400])).plain(),
    ]
}

fn targets() -> Vec<Case> {
    let long = format!("GET /{}?TTTTT HTTP/1.1", "a".repeat(60_000));
    let longer = format!("GET /{}?TTTTT HTTP/1.1", "a".repeat(70_000));
    vec![
        case("absolute form", "9112 3.2.2", line("GET http://metadata.internal/a?TTTTT HTTP/1.1"), passed(""))
            .plain()
            .target("/a?TTTTT"),
        case(
            "absolute form, no path",
            "9112 3.2.2",
            line("GET http://metadata.internal?TTTTT HTTP/1.1"),
            answered(&[400]),
        )
        .plain(),
        case("absolute form with user", "9110 4.2.4", line("GET http://u:p@localhost/a?TTTTT HTTP/1.1"), passed(""))
            .plain()
            .target("/a?TTTTT"),
        case(
            "absolute form, foreign host, control port",
            "9112 3.2.2",
            line("GET http://evil/flush_cache?TTTTT HTTP/1.1"),
            answered(&[403]),
        )
        .on(&[Port::Control]),
        case("absolute form, another scheme", "9112 3.2.2", line("GET ftp://localhost/a?TTTTT HTTP/1.1"), passed(""))
            .plain()
            .target("/a?TTTTT"),
        case("absolute form, empty authority", "9110 4.2.1", line("GET http:///a?TTTTT HTTP/1.1"), refused(&[400]))
            .plain(),
        case("authority form", "9112 3.2.3", line("GET metadata.internal:80 HTTP/1.1"), answered(&[400])).plain(),
        case("asterisk form", "9112 3.2.4", line("OPTIONS * HTTP/1.1"), answered(&[400])).plain(),
        case("asterisk with GET", "9112 3.2.4", line("GET * HTTP/1.1"), answered(&[400])).plain(),
        case("relative path", "9112 3.2", line("GET a/b?TTTTT HTTP/1.1"), refused(&[400])).plain(),
        case("no target", "9112 3", line("GET  HTTP/1.1"), refused(&[400])),
        case("only a query", "9112 3.2.1", line("GET ?TTTTT HTTP/1.1"), refused(&[400])).plain(),
        case("space in the target", "9112 3.2", line("GET /p?TTTTT a HTTP/1.1"), refused(&[400])),
        case("tab in the target", "9112 3.2", line("GET /p?TTTTT\ta HTTP/1.1"), refused(&[400])),
        case("NUL in the target", "9112 3.2", line("GET /p?TTTTT\0 HTTP/1.1"), refused(&[400])),
        case("DEL in the target", "9112 3.2", line("GET /p?TTTTT\x7f HTTP/1.1"), refused(&[400])),
        case("CR in the target", "9112 2.2", line("GET /p?TTTTT\ra HTTP/1.1"), refused(&[400])),
        case("UTF-8 in the target", "9112 3.2", line("GET /p?TTTTT\u{e9} HTTP/1.1"), answered(&[400])),
        case("a byte that is not UTF-8", "9112 3.2", bytes(b"GET /p?TTTTT\xff HTTP/1.1"), refused(&[400])),
        case("angle brackets", "9112 3.2", line("GET /p?TTTTT<a> HTTP/1.1"), refused(&[400])),
        case("a fragment", "9112 3.2.1", line("GET /p?TTTTT#a HTTP/1.1"), passed("")),
        case("a target of 60 KB", "9112 3", line(&long), passed("")).plain(),
        case("a target of 70 KB", "9110 15.5.15", line(&longer), refused(&[431])).plain(),
    ]
}

fn spaces() -> Vec<Case> {
    vec![
        case("two spaces before the target", "9112 3", line("GET  /p?TTTTT HTTP/1.1"), refused(&[400])),
        case("two spaces after the target", "9112 3", line("GET /p?TTTTT  HTTP/1.1"), refused(&[400])),
        case("tabs for spaces", "9112 3", line("GET\t/p?TTTTT\tHTTP/1.1"), refused(&[400])),
        case("form feed for a space", "9112 3", line("GET\x0c/p?TTTTT HTTP/1.1"), refused(&[400])),
        case("space after the version", "9112 3", line("GET /p?TTTTT HTTP/1.1 "), refused(&[400])),
        case("space before the method", "9112 3", line(" GET /p?TTTTT HTTP/1.1"), refused(&[400])),
        case("empty lines first", "9112 2.2", line("\r\n\r\nGET /p?TTTTT HTTP/1.1"), passed("")),
        case("bare line feeds first", "9112 2.2", line("\n\nGET /p?TTTTT HTTP/1.1"), passed("")),
        case(
            "bare LF after the request line",
            "9112 2.2",
            "GET /p?TTTTT HTTP/1.1\nHost: localhost\r\n\r\n",
            passed(""),
        ),
        case("bare LF everywhere", "9112 2.2", "GET /p?TTTTT HTTP/1.1\nHost: localhost\n\n", passed("")),
        case(
            "bare CR after the request line",
            "9112 2.2",
            "GET /p?TTTTT HTTP/1.1\rHost: localhost\r\n\r\n",
            refused(&[400]),
        ),
        case("CR CR LF", "9112 2.2", "GET /p?TTTTT HTTP/1.1\r\r\nHost: localhost\r\n\r\n", refused(&[400])),
        case(
            "white space before the first header",
            "9112 2.2",
            "GET /p?TTTTT HTTP/1.1\r\n Host: localhost\r\n\r\n",
            refused(&[400]),
        ),
        case("rubbish", "9112 2.2", "\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03\r\n\r\n", refused(&[400])),
    ]
}

fn versions() -> Vec<Case> {
    vec![
        case("HTTP/1.0", "9112 2.3", line("GET /p?TTTTT HTTP/1.0"), last("")),
        case("HTTP/1.0 without Host", "9112 3.2", "GET /p?TTTTT HTTP/1.0\r\n\r\n", last("")).plain(),
        case(
            "HTTP/1.0 kept alive",
            "9112 9.3",
            "GET /p?TTTTT HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n",
            passed(""),
        ),
        case("HTTP/0.9", "9112 2.3", "GET /p?TTTTT\r\n\r\n", refused(&[400])),
        case("HTTP/1.2", "9112 2.3", line("GET /p?TTTTT HTTP/1.2"), refused(&[400])),
        case("HTTP/2.0 in a request line", "9110 2.5", line("GET /p?TTTTT HTTP/2.0"), refused(&[400])),
        case("HTTP/1.10", "9112 2.3", line("GET /p?TTTTT HTTP/1.10"), refused(&[400])),
        case("HTTP/01.1", "9112 2.3", line("GET /p?TTTTT HTTP/01.1"), refused(&[400])),
        case("HTTP/1", "9112 2.3", line("GET /p?TTTTT HTTP/1"), refused(&[400])),
        case("HTTP/ 1.1", "9112 2.3", line("GET /p?TTTTT HTTP/ 1.1"), refused(&[400])),
        case("http/1.1", "9112 2.3", line("GET /p?TTTTT http/1.1"), refused(&[400])),
        case("HTTP/1,1", "9112 2.3", line("GET /p?TTTTT HTTP/1,1"), refused(&[400])),
        case("no version, but headers", "9112 2.3", line("GET /p?TTTTT"), refused(&[400])),
        case("another protocol", "9112 2.3", line("GET /p?TTTTT ICAP/1.0"), refused(&[400])),
    ]
}
