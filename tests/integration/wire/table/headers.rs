// SPDX-License-Identifier: Apache-2.0
//! Header lines and `Host`.

use super::super::case::{Case, Port, answered, case, get, passed, post, refused};

fn hosts(lines: &str) -> Vec<u8> {
    format!("GET /p?TTTTT HTTP/1.1\r\n{lines}\r\n").into_bytes()
}

pub fn cases() -> Vec<Case> {
    let mut cases = syntax();
    cases.extend(values());
    cases.extend(host());
    cases.extend(sizes());
    cases
}

fn syntax() -> Vec<Case> {
    vec![
        case("space before the colon", "9112 5.1", get("X-A : b\r\n"), refused(&[400])),
        case("tab before the colon", "9112 5.1", get("X-A\t: b\r\n"), refused(&[400])),
        case(
            "Content-Length with a space before the colon",
            "9112 5.1",
            post("Content-Length : 5\r\n", "hello"),
            refused(&[400]),
        ),
        case(
            "Transfer-Encoding with a space before the colon",
            "9112 5.1",
            post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
            refused(&[400]),
        ),
        case("an empty name", "9112 5", get(": b\r\n"), refused(&[400])),
        case("no colon", "9112 5", get("X-A\r\n"), refused(&[400])),
        case("a space within a name", "9110 5.1", get("X A: b\r\n"), refused(&[400])),
        case("NUL within a name", "9110 5.1", get("X\0A: b\r\n"), refused(&[400])),
        case("a name beyond ASCII", "9110 5.1", get("X-\u{e9}: b\r\n"), refused(&[400])),
        case("brackets within a name", "9110 5.1", get("X(A): b\r\n"), refused(&[400])),
        case("a slash within a name", "9110 5.1", get("X/A: b\r\n"), refused(&[400])),
        case("an obs-fold", "9112 5.2", get("X-A: b\r\n c\r\n"), refused(&[400])),
        case("an obs-fold with a tab", "9112 5.2", get("X-A: b\r\n\tc\r\n"), refused(&[400])),
        case("an obs-fold of an empty line", "9112 5.2", get("X-A: b\r\n \r\n"), refused(&[400])),
        case(
            "an obs-fold that hides a length",
            "9112 5.2",
            post("X-A: b\r\n Content-Length: 5\r\n", "hello"),
            refused(&[400]),
        ),
        case("bare LF after a header", "9112 2.2", get("X-A: b\nX-B: c\r\n"), passed(""))
            .with("x-a", "b")
            .with("x-b", "c"),
        case("bare CR within a value", "9112 2.2", get("X-A: b\rX-B: c\r\n"), refused(&[400])),
        case("bare LF ends the head", "9112 2.2", "GET /p?TTTTT HTTP/1.1\r\nHost: localhost\r\n\n", passed("")),
        case(
            "CR CR LF ends the head",
            "9112 2.2",
            "GET /p?TTTTT HTTP/1.1\r\nHost: localhost\r\n\r\r\n",
            refused(&[400]),
        ),
    ]
}

fn values() -> Vec<Case> {
    let raw = |value: &[u8]| [b"GET /p?TTTTT HTTP/1.1\r\nHost: localhost\r\nX-A: ", value, b"\r\n\r\n"].concat();
    vec![
        case("no space after the colon", "9112 5", get("X-A:b\r\n"), passed("")).with("x-a", "b"),
        case("space around a value", "9112 5.1", get("X-A:  \t b \t \r\n"), passed("")).with("x-a", "b"),
        case("an empty value", "9110 5.5", get("X-A:\r\n"), passed("")).with("x-a", ""),
        case("a colon as value", "9110 5.5", get("X-A: : :\r\n"), passed("")).with("x-a", ": :"),
        case("NUL within a value", "9110 5.5", get("X-A: b\0c\r\n"), refused(&[400])),
        case("a bell within a value", "9110 5.5", get("X-A: b\x07c\r\n"), refused(&[400])),
        case("DEL within a value", "9110 5.5", get("X-A: b\x7fc\r\n"), refused(&[400])),
        case("a vertical tab within a value", "9110 5.5", get("X-A: b\x0bc\r\n"), refused(&[400])),
        case("a tab within a value", "9110 5.5", get("X-A: b\tc\r\n"), passed("")).with("x-a", "b\tc"),
        case("obs-text within a value", "9110 5.5", raw(b"b\xff\xfec"), passed("")),
        case("UTF-8 within a value", "9110 5.5", get("X-A: \u{e9}\r\n"), passed("")).with("x-a", "\u{e9}"),
        case("a name with an underscore", "9110 5.1", get("X_A: b\r\n"), passed("")).with("x_a", "b"),
        case("Content_Length", "9110 5.1", post("Content_Length: 5\r\nContent-Length: 2\r\n", "he"), passed("he")),
        case(
            "Transfer_Encoding",
            "9110 5.1",
            post("Transfer_Encoding: chunked\r\nContent-Length: 2\r\n", "he"),
            passed("he"),
        ),
        case("the same name twice", "9110 5.3", get("X-A: b\r\nX-A: c\r\n"), passed(""))
            .with("x-a", "b")
            .with("x-a", "c"),
    ]
}

fn host() -> Vec<Case> {
    vec![
        case("no Host", "9112 3.2", hosts("X: y\r\n"), refused(&[400])),
        case("two Hosts", "9112 3.2", hosts("Host: localhost\r\nHost: evil\r\n"), refused(&[400])),
        case("two equal Hosts", "9112 3.2", hosts("Host: localhost\r\nHost: localhost\r\n"), refused(&[400])),
        case("two Hosts, one empty", "9112 3.2", hosts("Host:\r\nHost: localhost\r\n"), refused(&[400])),
        case("a list of Hosts", "9110 7.2", hosts("Host: localhost, evil\r\n"), refused(&[400])),
        case("an empty Host", "9110 7.2", hosts("Host:\r\n"), passed("")).on(&[Port::Plain, Port::Captured]),
        case("an empty Host, control port", "9110 7.2", hosts("Host:\r\n"), answered(&[403])).on(&[Port::Control]),
        case("a Host with a path", "9110 7.2", hosts("Host: localhost/x\r\n"), refused(&[400])),
        case("a Host with a user", "9110 7.2", hosts("Host: evil@localhost\r\n"), refused(&[400])),
        case("a Host with a space", "9110 7.2", hosts("Host: local host\r\n"), refused(&[400])),
        case("a Host with a fragment", "9110 7.2", hosts("Host: localhost#x\r\n"), refused(&[400])),
        case("a Host with a backslash", "9110 7.2", hosts("Host: localhost\\x\r\n"), refused(&[400])),
        case("a Host with a bad port", "9110 7.2", hosts("Host: localhost:x\r\n"), refused(&[400])),
        case("a Host with a port too large", "9110 7.2", hosts("Host: localhost:65536\r\n"), refused(&[400])),
        case("a Host with two ports", "9110 7.2", hosts("Host: localhost:1:2\r\n"), refused(&[400])),
        case("a Host with NUL", "9110 7.2", hosts("Host: local\0host\r\n"), refused(&[400])),
        case("a Host with a space before the colon", "9112 5.1", hosts("Host : localhost\r\n"), refused(&[400])),
        case("Host of the address, IPv6", "9110 7.2", hosts("Host: [::1]:80\r\n"), passed("")),
        case("Host with an open bracket", "9110 7.2", hosts("Host: [::1\r\n"), refused(&[400])),
        case("a foreign Host, control port", "9110 7.2", hosts("Host: evil\r\n"), answered(&[403]))
            .on(&[Port::Control]),
        case("a foreign Host, data port", "9110 7.2", hosts("Host: evil\r\n"), passed(""))
            .on(&[Port::Plain, Port::Captured]),
        case("Host and X-Forwarded-Host", "9110 7.2", get("X-Forwarded-Host: evil\r\n"), passed("")),
    ]
}

fn sizes() -> Vec<Case> {
    let many = |count: usize| get(&(0..count).map(|at| format!("X-{at}: b\r\n")).collect::<String>());
    vec![
        case("90 headers", "9110 5.4", many(90), passed("")),
        case("101 headers", "6585 5", many(101), refused(&[431])),
        case("1,000 headers", "6585 5", many(1000), refused(&[431])),
        case("a value of 60 KB", "9110 5.4", get(&format!("X-A: {}\r\n", "b".repeat(60_000))), passed("")),
        case("a value of 70 KB", "6585 5", get(&format!("X-A: {}\r\n", "b".repeat(70_000))), refused(&[431])),
        case("a value of 1 MB", "6585 5", get(&format!("X-A: {}\r\n", "b".repeat(1_000_000))), refused(&[431])),
        case("a name of 32 KB", "9110 5.4", get(&format!("{}: b\r\n", "X".repeat(32_000))), passed("")),
        case("a name of 65,536 bytes", "9110 5.4", get(&format!("{}: b\r\n", "X".repeat(65_536))), refused(&[431])),
    ]
}
