// SPDX-License-Identifier: Apache-2.0
//! Requests in which a proxy in front of tokentap might read another session name, or none.

use tokentap::demo::EngineOptions;

use crate::support::client::{Connection, get};
use crate::support::demo::Demo;
use crate::support::manual_upstream::soon;

const BODY: &str = r#"{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":2}}"#;

/// The parts that differ from a plain call, and the expected session: `None` is a generated one.
struct Case {
    label: &'static str,
    target: &'static str,
    lines: &'static str,
    body: String,
    named: Option<&'static str>,
}

fn case(label: &'static str, lines: &'static str, named: Option<&'static str>) -> Case {
    let body = format!("Content-Length: {}\r\n\r\n{BODY}", BODY.len());
    Case { label, target: "/generate", lines, body, named }
}

impl Case {
    fn with_target(self, target: &'static str) -> Self {
        Self { target, ..self }
    }

    /// Sends the body in chunks, followed by these trailers.
    fn with_trailers(self, trailers: &str) -> Self {
        let body = format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{BODY}\r\n0\r\n{trailers}\r\n", BODY.len());
        Self { body, ..self }
    }

    fn with_members(self, members: &str) -> Self {
        let body = BODY.replacen('{', &format!("{{{members},"), 1);
        Self { body: format!("Content-Length: {}\r\n\r\n{body}", body.len()), ..self }
    }

    fn encode(&self) -> String {
        let Self { target, lines, body, .. } = self;
        format!("POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{lines}{body}")
    }
}

fn unambiguous() -> Vec<Case> {
    vec![
        case("other letters", "x-SESSION-iD: a\r\n", Some("a")),
        case("white space around it", "X-Session-Id:\t a \t\r\n", Some("a")),
        case("the same twice", "X-Session-Id: a\r\nX-Session-Id: a\r\n", Some("a")),
        case("an empty one before it", "X-Session-Id:\r\nX-Session-Id: a\r\n", Some("a")),
        case("underscores", "X_Session_Id: a\r\n", None),
        case("underscores beside it", "X_Session_Id: b\r\nX-Session-Id: a\r\n", Some("a")),
        case(
            "named by Connection, which ends at tokentap",
            "Connection: X-Session-Id\r\nX-Session-Id: a\r\n",
            Some("a"),
        ),
        case("in trailers", "", None).with_trailers("X-Session-Id: b\r\n"),
        case("in announced trailers", "Trailer: X-Session-Id\r\n", None).with_trailers("X-Session-Id: b\r\n"),
        case("in trailers and before", "X-Session-Id: a\r\n", Some("a")).with_trailers("X-Session-Id: b\r\n"),
        case("the header before the query", "X-Session-Id: a\r\n", Some("a")).with_target("/generate?session_id=b"),
        case("the path before the header", "X-Session-Id: b\r\n", Some("a")).with_target("/sessions/a/generate"),
        case("the header before the body", "X-Session-Id: a\r\n", Some("a")).with_members(r#""session_id":"b""#),
        case("twice in the body: the last, as SGLang reads JSON", "", Some("a"))
            .with_members(r#""session_id":"b","session_id":"a""#),
        case("escaped in the body", "", Some("a")).with_members(r#""session\u005fid":"\u0061""#),
        case("another name in the query", "", None).with_target("/generate?session%5Fid=b"),
    ]
}

fn ambiguous() -> Vec<Case> {
    vec![
        case("two headers", "X-Session-Id: a\r\nX-Session-Id: b\r\n", None),
        case("a second one that is no name", "X-Session-Id: a\r\nX-Session-Id: b:c\r\n", None),
        case("a list", "X-Session-Id: a, b\r\n", None),
        case("two of the other header", "Proxy-X-Session-Id: a\r\nProxy-X-Session-Id: b\r\n", None),
        case("twice in the query", "", None).with_target("/generate?session_id=a&session_id=b"),
        case("a folded line", "X-Session-Id: a\r\n b\r\n", None),
        case("within a folded line", "X-A: c\r\n X-Session-Id: a\r\n", None),
        case("white space before the colon", "X-Session-Id : a\r\n", None),
        case("a bare CR", "X-Session-Id: a\rX-Session-Id: b\r\n", None),
        case("a NUL", "X-Session-Id: a\0b\r\n", None),
        case("a path within a path", "", None).with_target("/sessions/a%2fb/generate"),
        case("an encoded path within a path", "", None).with_target("/sessions/a%252fb/generate"),
        case("a parent in the path", "", None).with_target("/sessions/a/../b/generate"),
        case("a list in the body", "", None).with_members(r#""session_id":["a"]"#),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn session_name_precedence_follows_the_documentation() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    for case in unambiguous() {
        let mut client = Connection::open(demo.proxy.data).await;
        client.send(case.encode().as_bytes()).await;
        let answer = soon(case.label, client.answer()).await;
        assert_eq!(answer.status, 200, "{}: {}", case.label, answer.text());
        let session = answer.header("x-tokentap-session").unwrap();
        match case.named {
            Some(name) => assert_eq!(session, name, "{}", case.label),
            None => assert_eq!(session.len(), 32, "{}: a generated session, not {session}", case.label),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_session_name_returns_400() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    for case in ambiguous() {
        let mut client = Connection::open(demo.proxy.data).await;
        client.send(case.encode().as_bytes()).await;
        let answer = soon(case.label, client.answer()).await;
        assert_eq!(answer.status, 400, "{}: {}", case.label, answer.text());
    }
    let listed = get(demo.proxy.control, "/v1/sessions").await.json();
    assert_eq!(listed["sessions"], serde_json::json!([]), "no ambiguous request was recorded");
}
