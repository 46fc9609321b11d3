// SPDX-License-Identifier: Apache-2.0
//! The chunked coding.

use super::super::case::{Case, Expected, case, hidden, passed, post, refused};

fn chunked(name: &'static str, body: &str, expected: Expected) -> Case {
    case(name, "9112 7.1", post("Transfer-Encoding: chunked\r\n", body), expected)
}

pub fn cases() -> Vec<Case> {
    let mut cases = sizes();
    cases.extend(ends());
    cases.extend(extensions());
    cases.extend(trailers());
    cases
}

fn sizes() -> Vec<Case> {
    let bad = [
        ("a chunk size with 0x", "0x5"),
        ("a chunk size with a plus sign", "+5"),
        ("a chunk size below zero", "-5"),
        ("no chunk size", ""),
        ("a chunk size that is not a number", "g"),
        ("a chunk size with an underscore", "0_5"),
        ("a chunk size with a space before it", " 5"),
        ("a chunk size in other digits", "\u{665}"),
        ("a chunk size with NUL", "5\0"),
        ("a chunk size with a comma", "5,5"),
        ("a chunk size of 2^64 + 5", "10000000000000005"),
        (
            "a chunk size of a hundred digits",
            "fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        ),
    ];
    let mut cases: Vec<Case> = bad
        .into_iter()
        .map(|(name, size)| chunked(name, &format!("{size}\r\nhello\r\n0\r\n\r\n"), refused(&[400])))
        .collect();
    cases.extend([
        chunked("a chunk size of 2^64 - 1", "ffffffffffffffff\r\nhello\r\n0\r\n\r\n", refused(&[400])).ending(),
        chunked("two chunks", "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", passed("hello")),
        chunked("only the last chunk", "0\r\n\r\n", passed("")),
        chunked("a size in capitals", "A\r\nhellohello\r\n0\r\n\r\n", passed("hellohello")),
        chunked("zeros before a size", "0000005\r\nhello\r\n000\r\n\r\n", passed("hello")),
        chunked("twenty zeros before a size", "000000000000000000005\r\nhello\r\n0\r\n\r\n", passed("hello")),
        chunked("space after a size", "5 \r\nhello\r\n0\r\n\r\n", passed("hello")),
        chunked("CR LF as data", "2\r\n\r\n\r\n0\r\n\r\n", passed("\r\n")),
        chunked("a last chunk as data", "5\r\n0\r\n\r\n\r\n0\r\n\r\n", passed("0\r\n\r\n")),
    ]);
    cases
}

fn ends() -> Vec<Case> {
    vec![
        chunked("bare LF after a size", "5\nhello\r\n0\r\n\r\n", refused(&[400])),
        chunked("bare CR after a size", "5\rhello\r\n0\r\n\r\n", refused(&[400])),
        chunked("bare LF after data", "5\r\nhello\n0\r\n\r\n", refused(&[400])),
        chunked("nothing after data", "5\r\nhello0\r\n\r\n", refused(&[400])),
        chunked("data longer than their size", "3\r\nhello\r\n0\r\n\r\n", refused(&[400])),
        chunked("data shorter than their size", "6\r\nhello\r\n0\r\n\r\n", refused(&[400])),
        chunked("bare LF after the last size", "5\r\nhello\r\n0\n\r\n", refused(&[400])),
        // bytes after a bare line feed are parsed as trailers, so a request inside them is dropped
        chunked("bare LF after the last chunk", &format!("5\r\nhello\r\n0\r\n\n{}\r\n\r\n", hidden()), passed("hello")),
        chunked("CR X after the last chunk", "5\r\nhello\r\n0\r\n\rX", refused(&[400])),
        chunked("no last chunk", "5\r\nhello\r\n", refused(&[400])).ending(),
        chunked("cut within data", "5\r\nhel", refused(&[400])).ending(),
        chunked("cut within a size", "5", refused(&[400])).ending(),
        chunked("no empty line at the end", "5\r\nhello\r\n0\r\n", refused(&[400])).ending(),
        chunked("rubbish after the body", "5\r\nhello\r\n0\r\n\r\n\0\0\r\n\r\n", refused(&[200, 400]).and("hello")),
        chunked("an empty line after the body", "5\r\nhello\r\n0\r\n\r\n\r\n", passed("hello")),
    ]
}

fn extensions() -> Vec<Case> {
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "a".repeat(20_000));
    let many = format!("{}0\r\n\r\n", format!("1;{}\r\na\r\n", "b".repeat(100)).repeat(200));
    vec![
        chunked("an extension", "5;a=b\r\nhello\r\n0;c\r\n\r\n", passed("hello")),
        chunked("an extension in quotes", "5;a=\"b;c\"\r\nhello\r\n0\r\n\r\n", passed("hello")),
        chunked("space around an extension", "5 ; a = b\r\nhello\r\n0\r\n\r\n", passed("hello")),
        chunked("an extension without a name", "5;\r\nhello\r\n0\r\n\r\n", passed("hello")),
        chunked("bare LF within an extension", "5;a\nhello\r\n0\r\n\r\n", refused(&[400])),
        chunked("bare LF within quotes", "5;a=\"\nx\"\r\nhello\r\n0\r\n\r\n", refused(&[400])),
        chunked("bare CR within an extension", "5;a\rb\r\nhello\r\n0\r\n\r\n", refused(&[400])),
        chunked("CR LF within quotes", "5;a=\"\r\nb\"\r\nhello\r\n0\r\n\r\n", refused(&[400])),
        chunked("NUL within an extension", "5;a\0b\r\nhello\r\n0\r\n\r\n", passed("hello")),
        chunked(
            "a request within an extension",
            &format!("5;{}\r\nhello\r\n0\r\n\r\n", hidden().replace("\r\n", "\n")),
            refused(&[400]),
        ),
        chunked("an extension of 20 KB", &long, refused(&[400])),
        chunked("20 KB of extensions", &many, refused(&[400])),
    ]
}

fn trailers() -> Vec<Case> {
    let with = |name, trailers: &str| chunked(name, &format!("5\r\nhello\r\n0\r\n{trailers}\r\n"), passed("hello"));
    let bad = |name, trailers: &str| chunked(name, &format!("5\r\nhello\r\n0\r\n{trailers}\r\n"), refused(&[400]));
    let large = format!("X-A: {}\r\n", "b".repeat(100_000));
    let many = "X-A: b\r\n".repeat(2_000);
    vec![
        with("a trailer", "X-A: b\r\n").without("x-a"),
        with("Content-Length as trailer", "Content-Length: 50\r\n"),
        with("Transfer-Encoding as trailer", "Transfer-Encoding: chunked\r\n"),
        with("Host as trailer", "Host: evil\r\n"),
        with("Authorization as trailer", "Authorization: Bearer x\r\n").without("authorization"),
        case(
            "a trailer that was announced",
            "9112 7.1.2",
            post("Trailer: X-A\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\nX-A: b\r\n\r\n"),
            passed("hello"),
        )
        .without("x-a"),
        case(
            "Content-Length announced as trailer",
            "9110 6.5.1",
            post(
                "Trailer: content-length\r\nTransfer-Encoding: chunked\r\n",
                "5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n",
            ),
            passed("hello"),
        ),
        bad("a trailer without a colon", "X-A\r\n"),
        bad("space before a trailer's colon", "X-A : b\r\n"),
        bad("a folded trailer", "X-A: b\r\n c\r\n"),
        // as above, the bytes after the bare line feed are parsed as trailers
        with("bare LF after a trailer", &format!("X-A: b\n\r\n{}\r\n", hidden())),
        bad("NUL within a trailer", "X-A: b\0\r\n"),
        bad("a trailer of 100 KB", &large),
        bad("2,000 trailers", &many),
        chunked("a request for a trailer", &format!("5\r\nhello\r\n0\r\n{}b\r\n\r\n", hidden()), refused(&[400])),
    ]
}
