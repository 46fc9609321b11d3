// SPDX-License-Identifier: Apache-2.0
//! Body length: `Content-Length`, `Transfer-Encoding`, and both.

use super::super::case::{Case, case, get, hidden, last, passed, post, refused};

pub fn cases() -> Vec<Case> {
    let mut cases = lengths();
    cases.extend(bad_lengths());
    cases.extend(codings());
    cases.extend(both());
    cases
}

/// A head with this length, and this body.
fn length(value: &str, body: &str) -> Vec<u8> {
    post(&format!("Content-Length: {value}\r\n"), body)
}

fn chunked(value: &str) -> Vec<u8> {
    post(&format!("Transfer-Encoding: {value}\r\n"), "5\r\nhello\r\n0\r\n\r\n")
}

fn lengths() -> Vec<Case> {
    vec![
        case("a length", "9112 6.2", length("5", "hello"), passed("hello")),
        case("a length of zero", "9112 6.2", length("0", ""), passed("")),
        case("POST without a length", "9112 6.3", post("", ""), passed("")),
        case(
            "GET with a body",
            "9110 9.3.1",
            get("Content-Length: 5\r\n").into_iter().chain(*b"hello").collect::<Vec<_>>(),
            passed("hello"),
        ),
        case("a length with zeros before it", "9110 8.6", length("0005", "hello"), passed("hello")),
        case("space before a length", "9112 5.1", length("   5", "hello"), passed("hello")),
        case("a length after a tab", "9112 5.1", length("\t5", "hello"), passed("hello")),
        case("equal lengths", "9112 6.3", post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), passed("hello")),
        case("a list of equal lengths", "9112 6.3", length("5, 5", "hello"), refused(&[400])),
        case(
            "a length that is too short",
            "9112 9.3",
            length("5", "helloGARBAGE\r\n\r\n"),
            refused(&[200, 400]).and("hello"),
        ),
        case("a length that is too long", "9112 8", length("10", "hello"), refused(&[400])).ending(),
        case(
            "a whole request within a body",
            "9112 6.2",
            {
                let inner = hidden() + "\r\n\r\n";
                length(&inner.len().to_string(), &inner)
            },
            passed(&(hidden() + "\r\n\r\n")),
        ),
    ]
}

fn bad_lengths() -> Vec<Case> {
    let bad = [
        ("a plus sign", "+5"),
        ("a minus sign", "-5"),
        ("minus one", "-1"),
        ("a hexadecimal length", "0x5"),
        ("an exponent", "5e0"),
        ("a fraction", "5.0"),
        ("letters", "five"),
        ("letters after a length", "5a"),
        ("a comma after a length", "5,"),
        ("a comma before a length", ",5"),
        ("a list of different lengths", "5, 6"),
        ("two numbers", "5 6"),
        ("an empty length", ""),
        ("quotes around a length", "\"5\""),
        ("an underscore within a length", "0_5"),
        ("a length in other digits", "\u{665}"),
        ("NUL after a length", "5\0"),
        ("a vertical tab before a length", "\x0b5"),
        ("2^64", "18446744073709551616"),
        ("2^64 + 5", "18446744073709551621"),
        (
            "a hundred digits",
            "5555555555555555555555555555555555555555555555555555555555555555555555555555555555555555555555555555",
        ),
    ];
    let mut cases: Vec<Case> =
        bad.into_iter().map(|(name, value)| case(name, "9112 6.3", length(value, "hello"), refused(&[400]))).collect();
    cases.extend([
        case("2^64 - 1", "9112 6.3", length("18446744073709551615", "hello"), refused(&[431])),
        case(
            "different lengths",
            "9112 6.3",
            post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello"),
            refused(&[400]),
        ),
        case(
            "different lengths, zero first",
            "9112 6.3",
            post("Content-Length: 0\r\nContent-Length: 5\r\n", "hello"),
            refused(&[400]),
        ),
        case(
            "a length, and one that is not a number",
            "9112 6.3",
            post("Content-Length: 5\r\nContent-Length: x\r\n", "hello"),
            refused(&[400]),
        ),
        case("a folded length", "9112 5.2", post("Content-Length:\r\n 5\r\n", "hello"), refused(&[400])),
    ]);
    cases
}

fn codings() -> Vec<Case> {
    let hello = "5\r\nhello\r\n0\r\n\r\n";
    let coding = |name, value: &str| case(name, "9112 6.3", chunked(value), refused(&[400]));
    let list = |name, value: &str| case(name, "9112 6.1", chunked(value), refused(&[501]));
    vec![
        case("chunked", "9112 7.1", chunked("chunked"), passed("hello")),
        case("Chunked", "9112 7", chunked("Chunked"), passed("hello")),
        case("CHUNKED", "9112 7", chunked("CHUNKED"), passed("hello")),
        case("space around chunked", "9112 5.1", chunked("  chunked \t"), passed("hello")),
        case("an empty member before chunked", "9110 5.6.1", chunked(", chunked"), refused(&[501])),
        coding("an empty member after chunked", "chunked,"),
        list("chunked twice", "chunked, chunked"),
        case(
            "chunked in two headers",
            "9112 6.1",
            post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", hello),
            refused(&[501]),
        ),
        coding("identity", "identity"),
        list("identity before chunked", "identity, chunked"),
        coding("identity after chunked", "chunked, identity"),
        list("gzip before chunked", "gzip, chunked"),
        coding("gzip after chunked", "chunked, gzip"),
        coding("gzip alone", "gzip"),
        coding("a parameter", "chunked;q=1"),
        coding("xchunked", "xchunked"),
        coding("chunkedx", "chunkedx"),
        coding("quotes", "\"chunked\""),
        coding("a vertical tab before chunked", "\x0bchunked"),
        coding("a form feed after chunked", "chunked\x0c"),
        coding("NUL after chunked", "chunked\0"),
        coding("chunked without a comma", "gzip chunked"),
        coding("an empty coding", ""),
        coding("a byte beyond ASCII", "chunked\u{a0}"),
        case("a folded coding", "9112 5.2", post("Transfer-Encoding:\r\n chunked\r\n", hello), refused(&[400])),
        case(
            "a folded list of codings",
            "9112 5.2",
            post("Transfer-Encoding: gzip,\r\n\tchunked\r\n", hello),
            refused(&[400]),
        ),
        case(
            "two headers, chunked first",
            "9112 6.1",
            post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", hello),
            refused(&[400]),
        ),
        case(
            "two headers, chunked last",
            "9112 6.1",
            post("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", hello),
            refused(&[501]),
        ),
        case(
            "chunked over HTTP/1.0",
            "9112 6.1",
            format!(
                "POST /p?TTTTT HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n{hello}"
            ),
            refused(&[400]),
        ),
        case(
            "chunked with GET",
            "9112 6.1",
            [get("Transfer-Encoding: chunked\r\n"), hello.into()].concat(),
            passed("hello"),
        ),
    ]
}

fn both() -> Vec<Case> {
    let hello = "5\r\nhello\r\n0\r\n\r\n";
    let two = |name, lines: &str, body: &str| case(name, "9112 6.3", post(lines, body), last("hello"));
    // one reader ends at the length, before the hidden request, the other at the last chunk
    let chunks = format!("0\r\n\r\n{}", hidden());
    let size = format!("{:x}\r\n{}\r\n0\r\n\r\n", hidden().len(), hidden());
    let prefix = size.find("\r\n").map_or(0, |end| end + 2);
    vec![
        two("a length and chunked", "Content-Length: 15\r\nTransfer-Encoding: chunked\r\n", hello),
        two("chunked and a length", "Transfer-Encoding: chunked\r\nContent-Length: 15\r\n", hello),
        two("a wrong length and chunked", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", hello),
        two("a length of zero and chunked", "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", hello),
        case(
            "CL.TE: a request after the last chunk",
            "9112 11.2",
            post(&format!("Content-Length: {}\r\nTransfer-Encoding: chunked\r\n", chunks.len()), &chunks),
            last(""),
        ),
        case(
            "TE.CL: a request within a chunk",
            "9112 11.2",
            post(&format!("Content-Length: {prefix}\r\nTransfer-Encoding: chunked\r\n"), &size),
            last(&hidden()),
        ),
        case(
            "TE.TE: the second is invalid",
            "9112 11.2",
            post("Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\nContent-Length: 4\r\n", &chunks),
            refused(&[400]),
        ),
        case(
            "TE.TE: the first is invalid",
            "9112 11.2",
            post("Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n", &chunks),
            refused(&[501]),
        ),
        case(
            "TE.CL: an invalid coding",
            "9112 11.2",
            post("Content-Length: 5\r\nTransfer-Encoding: xchunked\r\n", "hello"),
            refused(&[400]),
        ),
        case(
            "CL.0: a length with GET",
            "9112 11.2",
            [get(&format!("Content-Length: {}\r\n", hidden().len())), hidden().into()].concat(),
            passed(&hidden()),
        ),
        case(
            "a bad length and chunked",
            "9112 6.3",
            post("Content-Length: x\r\nTransfer-Encoding: chunked\r\n", hello),
            refused(&[400]),
        ),
        case(
            "different lengths and chunked",
            "9112 6.3",
            post("Content-Length: 5\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n", hello),
            refused(&[400]),
        ),
        case(
            "a length and identity",
            "9112 6.3",
            post("Content-Length: 5\r\nTransfer-Encoding: identity\r\n", "hello"),
            refused(&[400]),
        ),
        case(
            "a length and chunked over HTTP/1.0",
            "9112 6.1",
            format!(
                "POST /p?TTTTT HTTP/1.0\r\nHost: localhost\r\nContent-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n{hello}"
            ),
            refused(&[400]),
        ),
    ]
}
