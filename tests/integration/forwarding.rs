// SPDX-License-Identifier: Apache-2.0
//! Headers and bodies of forwarded requests: byte for byte, unbuffered, in both directions.

use crate::support::client::{Connection, request};
use crate::support::manual_upstream::{Call, END, ManualUpstream, chunk, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

async fn start() -> (ManualUpstream, Proxy) {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    (upstream, proxy)
}

/// Sends a request and accepts it at the upstream.
async fn send_request(upstream: &mut ManualUpstream, proxy: &Proxy, bytes: &[u8]) -> (Connection, Call) {
    let mut client = Connection::open(proxy.data).await;
    client.send(bytes).await;
    let call = upstream.next().await;
    (client, call)
}

const HOP_BY_HOP: &[u8] = b"Connection: X-Private, keep-alive\r\nConnection: x-also-private\r\nX-Private: 1\r\n\
    X-Also-Private: 2\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\n\
    Proxy-Authenticate: Basic\r\nTE: gzip\r\nTrailer: x-sum\r\n";

const HOP_HEADERS: [&str; 10] = [
    "connection",
    "x-private",
    "x-also-private",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
    "te",
    "trailer",
    "expect",
];

const END_TO_END: &[u8] = b"Authorization: Bearer  two  words\r\nX-Many: b\r\nX-Odd: \xe9\x80 \"q\" ;a=1,,\r\nX-Many: a\r\nX-Empty:\r\n\
    Cookie: a=1\r\nCookie: b=2\r\nX-Many: b, c\r\nAccept: */*;q=0.1\r\nUser-Agent: agent/1\r\nContent-Type: text/plain; x=Y\r\n\
    Accept-Encoding: gzip, br\r\nReferer: http://x/?y\r\nX-Forwarded-For: 10.0.0.1\r\n";

/// Asserts that a head has the values of each header of `END_TO_END`, in order.
fn assert_end_to_end(head: &[u8]) {
    let lines = |text: &[u8]| -> Vec<(Vec<u8>, Vec<u8>)> {
        text.split(|byte| *byte == b'\n')
            .filter_map(|line| {
                let at = line.iter().position(|byte| *byte == b':')?;
                Some((line[..at].to_ascii_lowercase(), line[at + 1..].trim_ascii().to_vec()))
            })
            .collect()
    };
    let (sent, arrived) = (lines(END_TO_END), lines(head));
    for (name, _) in &sent {
        let of = |list: &[(Vec<u8>, Vec<u8>)]| -> Vec<String> {
            list.iter().filter(|(key, _)| key == name).map(|(_, value)| value.escape_ascii().to_string()).collect()
        };
        assert_eq!(of(&arrived), of(&sent), "{}", name.escape_ascii());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_headers_are_forwarded_unchanged_except_hop_by_hop() {
    let (mut upstream, proxy) = start().await;
    let head = [b"POST /tokenize HTTP/1.1\r\nHost: agent\r\nExpect: 100-continue\r\n", END_TO_END, HOP_BY_HOP].concat();
    let (mut client, mut call) = send_request(
        &mut upstream,
        &proxy,
        &[&head[..], b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"].concat(),
    )
    .await;
    assert_end_to_end(&call.head);
    for name in HOP_HEADERS {
        assert!(call.values(name).is_empty(), "{name}: {:?}", call.values(name));
    }
    assert_eq!(call.values("host"), [upstream.addr.to_string()]);
    assert_eq!(call.values("transfer-encoding"), ["chunked"], "the framing is tokentap's own, once");
    call.body_until(|body| body == b"4\r\nbody\r\n0\r\n\r\n").await;
    call.ok().await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_header_is_added() {
    let (mut upstream, proxy) = start().await;
    let (mut client, call) =
        send_request(&mut upstream, &proxy, b"GET /health HTTP/1.1\r\nhost: agent\r\naccept: */*\r\n\r\n").await;
    let mut names: Vec<&str> = call.asked.headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["accept", "host"]);
    call.reply(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let answer = client.answer().await;
    let mut names: Vec<&str> = answer.headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["content-length", "date"], "a server without a clock gets a date, nothing else");
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_headers_are_forwarded_unchanged_except_hop_by_hop() {
    let (mut upstream, proxy) = start().await;
    let (mut client, call) = send_request(&mut upstream, &proxy, b"GET /health HTTP/1.1\r\nhost: agent\r\n\r\n").await;
    let head = [
        b"HTTP/1.1 418 Short And Stout\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nServer: uvicorn\r\n",
        END_TO_END,
        HOP_BY_HOP,
    ];
    call.reply(&[&head.concat()[..], b"Upgrade: h2c\r\nContent-Length: 2\r\n\r\nok"].concat()).await;
    assert!(client.read_until(|read| read.ends_with(b"\r\n\r\nok")).await, "{}", client.seen().escape_ascii());
    assert_end_to_end(client.seen());
    let text = String::from_utf8_lossy(client.seen()).to_lowercase();
    assert!(text.starts_with("http/1.1 418 short and stout\r\n"), "{text}");
    assert!(text.contains("\r\ndate: thu, 01 jan 1970 00:00:00 gmt\r\n"), "the date is the engine's: {text}");
    for name in HOP_HEADERS.iter().chain(&["upgrade"]) {
        assert!(!text.contains(&format!("\r\n{name}:")), "{name}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn te_trailers_is_forwarded() {
    let (mut upstream, proxy) = start().await;
    let (mut client, call) =
        send_request(&mut upstream, &proxy, b"GET /x HTTP/1.1\r\nhost: agent\r\nTE: trailers\r\n\r\n").await;
    assert_eq!(call.values("te"), ["trailers"]);
    call.ok().await;
    client.answer().await;
    for te in ["TE: trailers, deflate;q=0.5", "TE: trailers\r\nTE: gzip"] {
        let bytes = format!("GET /x HTTP/1.1\r\nhost: agent\r\n{te}\r\n\r\n");
        let (mut client, call) = send_request(&mut upstream, &proxy, bytes.as_bytes()).await;
        let forwarded = call.values("te");
        assert!(forwarded.iter().all(|value| *value == "trailers"), "{te:?} becomes {forwarded:?}");
        call.ok().await;
        client.answer().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_is_streamed_to_the_upstream() {
    let (mut upstream, proxy) = start().await;
    let head = b"POST /encode HTTP/1.1\r\nhost: agent\r\ntransfer-encoding: chunked\r\n\r\n";
    let (mut client, mut call) = send_request(&mut upstream, &proxy, head).await;
    client.send(&chunk(b"first")).await;
    call.body_until(|body| body.ends_with(b"first\r\n")).await;
    client.send(&chunk(b"last")).await;
    client.send(END).await;
    let body = call.body_until(|body| body.ends_with(END)).await;
    assert_eq!(body, b"5\r\nfirst\r\n4\r\nlast\r\n0\r\n\r\n");
    call.ok().await;
    assert!(client.answer().await.complete);
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_is_streamed_to_the_client() {
    let (mut upstream, proxy) = start().await;
    let (mut client, mut call) =
        send_request(&mut upstream, &proxy, b"POST /v1/chat/completions HTTP/1.1\r\nhost: agent\r\n\r\n").await;
    call.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    soon("the head", client.read_until(|read| read.ends_with(b"\r\n\r\n"))).await;
    call.send(&chunk(b"first")).await;
    soon("the first piece", client.read_until(|read| read.ends_with(b"first\r\n"))).await;
    call.reply(&[&chunk(b"last")[..], END].concat()).await;
    let answer = client.answer().await;
    assert_eq!((answer.text().as_str(), answer.complete), ("firstlast", true));
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_keep_their_framing() {
    let (mut upstream, proxy) = start().await;
    for (field, line) in [("content-length: 0", true), ("content-length: 3", true), ("x-none: 1", false)] {
        let body = if field.ends_with('3') { "abc" } else { "" };
        let bytes = format!("POST /tokenize HTTP/1.1\r\nhost: agent\r\n{field}\r\n\r\n{body}");
        let (mut client, mut call) = send_request(&mut upstream, &proxy, bytes.as_bytes()).await;
        let framing = call.values("content-length");
        assert_eq!(framing.is_empty(), !line, "{field}: {framing:?}");
        assert!(call.values("transfer-encoding").is_empty(), "{field}");
        call.body_until(|read| read == body.as_bytes()).await;
        let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        call.reply(reply.as_bytes()).await;
        let answer = client.answer().await;
        assert_eq!(answer.header("content-length"), Some(body.len().to_string().as_str()), "{field}");
        assert_eq!(answer.header("transfer-encoding"), None, "{field}");
        assert_eq!(answer.text(), body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_length_with_chunks_is_not_forwarded() {
    let (mut upstream, proxy) = start().await;
    for length in ["0", "3", "100"] {
        for fields in [
            format!("content-length: {length}\r\ntransfer-encoding: chunked"),
            format!("transfer-encoding: chunked\r\ncontent-length: {length}"),
        ] {
            let bytes = format!("POST /tokenize HTTP/1.1\r\nhost: agent\r\n{fields}\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
            let (mut client, mut call) = send_request(&mut upstream, &proxy, bytes.as_bytes()).await;
            assert!(call.values("content-length").is_empty(), "{fields}");
            assert_eq!(call.values("transfer-encoding"), ["chunked"], "{fields}");
            call.body_until(|read| read == b"3\r\nabc\r\n0\r\n\r\n").await;
            call.ok().await;
            assert_eq!(client.answer().await.status, 200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_bodies_are_forwarded_unchanged() {
    let (mut upstream, proxy) = start().await;
    let packed = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcbH\xcd\xc9\xc9\x07\x00\x86\xa6\x106\x05\x00\x00\x00";
    for encoding in ["gzip", "deflate", "br", "zstd", "made-up"] {
        let headers = [("content-encoding", encoding), ("accept-encoding", "gzip")];
        let headers = headers.map(|(key, value)| (key, value.to_owned()));
        let client = tokio::spawn(async move {
            let headers = headers.each_ref().map(|(key, value)| (*key, value.as_str()));
            request(proxy.data, "POST", "/encode", &headers, packed).await
        });
        let mut call = upstream.next().await;
        assert_eq!((call.values("content-encoding"), call.values("accept-encoding")), (vec![encoding], vec!["gzip"]));
        call.body_until(|body| body == packed).await;
        call.reply(&message(200, &[("content-encoding", encoding)], packed)).await;
        let answer = client.await.unwrap();
        assert_eq!(answer.header("content-encoding"), Some(encoding));
        assert_eq!(answer.body, packed, "{encoding}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_without_a_body_are_forwarded_without_one() {
    let (mut upstream, proxy) = start().await;
    for (method, reply, field) in [
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n", "\r\ncontent-length: 1234\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\nx-left: 1\r\n\r\n", "\r\nx-left: 1\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\n\r\n", "\r\netag: \"a\"\r\n"),
    ] {
        let bytes = format!("{method} /health HTTP/1.1\r\nhost: agent\r\n\r\n");
        let (mut client, call) = send_request(&mut upstream, &proxy, bytes.as_bytes()).await;
        assert_eq!(call.asked.method, method);
        call.reply(reply.as_bytes()).await;
        // the next reply on the same connection shows where this one ended
        client.send(b"GET /next HTTP/1.1\r\nhost: agent\r\n\r\n").await;
        upstream.next().await.reply(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnext").await;
        assert!(client.read_until(|read| read.ends_with(b"next")).await);
        let text = String::from_utf8_lossy(client.seen()).into_owned();
        let (first, rest) = text.split_once("\r\n\r\n").unwrap();
        assert!(format!("{first}\r\n").contains(field), "{first}");
        assert!(!first.contains("transfer-encoding"), "{first}");
        assert!(!first.contains("content-length") || method == "HEAD", "{first}");
        assert!(rest.starts_with("HTTP/1.1 200"), "{method}: there are no bytes between the replies: {rest}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_expects_100_continue_gets_it() {
    let (mut upstream, proxy) = start().await;
    for path in ["/tokenize", "/generate"] {
        let mut client = Connection::open(proxy.data).await;
        let head = format!("POST {path} HTTP/1.1\r\nhost: agent\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n");
        client.send(head.as_bytes()).await;
        soon("100 Continue", client.read_until(|read| read == b"HTTP/1.1 100 Continue\r\n\r\n")).await;
        client.send(b"{}").await;
        let call = upstream.next().await;
        assert!(call.values("expect").is_empty(), "the expectation has been met already");
        call.ok().await;
        assert_eq!(client.answer().await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_1_0_body_that_ends_by_close_is_forwarded() {
    let (mut upstream, proxy) = start().await;
    let (mut client, mut call) =
        send_request(&mut upstream, &proxy, b"GET /health HTTP/1.1\r\nhost: agent\r\n\r\n").await;
    call.send(b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nall of it").await;
    drop(call);
    let answer = soon("the reply ends", client.answer()).await;
    assert_eq!((answer.status, answer.text().as_str(), answer.complete), (200, "all of it", true));
}
