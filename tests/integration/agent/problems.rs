// SPDX-License-Identifier: Apache-2.0
//! Errors of the control port: always `{"error":{"code","message"}}`.

use serde_json::Value;
use tokentap::demo::EngineOptions;

use super::harness::{Agent, Harness};
use crate::support::client::request;

/// Method, path, body; status and code.
const REFUSED: [(&str, &str, &str, u16, &str); 35] = [
    ("GET", "/v1/sessions/nobody", "", 404, "no_such_session"),
    ("DELETE", "/v1/sessions/nobody", "", 404, "no_such_session"),
    ("GET", "/v1/sessions/nobody/trajectories", "", 404, "no_such_session"),
    ("POST", "/v1/sessions/nobody/freeze", "", 404, "no_such_session"),
    ("POST", "/v1/sessions/nobody/reward", "{\"reward\":1}", 404, "no_such_session"),
    ("POST", "/v1/samples", "{\"sessions\":[\"nobody\"],\"format\":\"jsonl\"}", 404, "no_such_session"),
    ("GET", "/v1/nothing", "", 404, "not_found"),
    ("GET", "/v1/sessions/frozen/nothing", "", 404, "not_found"),
    ("GET", "/nothing", "", 404, "not_found"),
    ("GET", "/v1/sessions/frozen?version=3", "", 404, "no_such_version"),
    ("GET", "/v1/sessions/frozen/trajectories?version=0", "", 404, "no_such_version"),
    ("GET", "/v1/sessions/open/trajectories?version=2", "", 404, "no_such_version"),
    ("POST", "/v1/sessions/open/reward", "{\"reward\":1,\"leaf\":1}", 404, "no_such_leaf"),
    ("POST", "/v1/sessions/frozen/reward", "{\"reward\":1}", 409, "frozen"),
    ("POST", "/v1/sessions/frozen/reward", "{\"reward\":1,\"leaf\":0}", 409, "frozen"),
    ("POST", "/v1/sessions", "{}", 405, "method"),
    ("POST", "/v1/sessions/open", "{}", 405, "method"),
    ("GET", "/v1/sessions/open/freeze", "", 405, "method"),
    ("GET", "/v1/sessions/open/reward", "", 405, "method"),
    ("PUT", "/v1/sessions/open/trajectories", "{}", 405, "method"),
    ("GET", "/v1/samples", "", 405, "method"),
    ("POST", "/v1/trajectories", "{}", 405, "method"),
    ("DELETE", "/v1/policy", "", 405, "method"),
    ("POST", "/v1/samples", "", 400, "bad_request"),
    ("POST", "/v1/samples", "{\"sessions\":", 400, "bad_request"),
    ("POST", "/v1/samples", "{\"sessions\":[\"open\"]}", 400, "bad_request"),
    ("POST", "/v1/samples", "{\"sessions\":[\"open\"],\"format\":\"xml\"}", 400, "bad_request"),
    ("POST", "/v1/samples", "{\"sessions\":[\"open\",\"open\"],\"format\":\"jsonl\"}", 400, "bad_request"),
    ("POST", "/v1/samples", "{\"sessions\":[],\"format\":\"verl\",\"max_prompt_length\":0}", 400, "bad_request"),
    ("POST", "/v1/sessions/open/reward", "{\"reward\":\"high\"}", 400, "bad_request"),
    ("POST", "/v1/sessions/open/reward", "{\"score\":1}", 400, "bad_request"),
    ("POST", "/v1/policy", "{\"version\":[1]}", 400, "bad_request"),
    ("GET", "/v1/sessions?limit=many", "", 400, "bad_request"),
    ("GET", "/v1/trajectories?since=yesterday", "", 400, "bad_request"),
    ("GET", "/v1/trajectories?since=0123456789abcdef-1", "", 410, "other_store"),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_control_error_has_a_code_and_a_message() {
    let harness = Harness::exact(EngineOptions::default()).await;
    for session in ["open", "frozen"] {
        let mut agent = Agent::new(&harness, session, "What did the keeper write?");
        agent.act(&agent.stops(3)).await;
    }
    let control = harness.demo.proxy.control;
    assert_eq!(request(control, "POST", "/v1/sessions/frozen/freeze", &[], b"").await.status, 200);
    for (method, path, body, status, code) in REFUSED {
        let answer = request(control, method, path, &[], body.as_bytes()).await;
        let about = format!("{method} {path} {body}: {} {}", answer.status, answer.text());
        assert_eq!(answer.status, status, "{about}");
        assert_eq!(answer.header("content-type"), Some("application/json"), "{about}");
        let answer: Value = answer.json();
        let error = answer["error"].as_object().unwrap_or_else(|| panic!("{about}"));
        assert_eq!(error["code"], code, "{about}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{about}");
        assert_eq!((answer.as_object().unwrap().len(), error.len()), (1, 2), "no other members: {about}");
    }
    harness.audit("open").await;
    harness.audit("frozen").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_session_is_gone_and_its_name_can_be_reused() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let mut agent = Agent::new(&harness, "again", "What did the keeper write?");
    let body = agent.body(&agent.stops(3));
    harness.demo.post("/sessions/again/generate", &body).await;
    let control = harness.demo.proxy.control;
    assert_eq!(request(control, "DELETE", "/v1/sessions/again", &[], b"").await.status, 200);
    assert_eq!(request(control, "GET", "/v1/sessions/again", &[], b"").await.status, 404);
    agent.act(&agent.stops(3)).await;
    let audit = harness.audit("again").await;
    assert_eq!(audit.causes(), ["first"], "the deleted turns are gone");
}
