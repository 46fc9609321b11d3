// SPDX-License-Identifier: Apache-2.0
//! Scores of teachers in the shared ledger.

use serde_json::json;

use super::{Fleet, control, generate};
use crate::support::client::{Answer, post};
use crate::support::proxy::Proxy;
use crate::teacher::{column, values};

/// The rows of a session with scores of the upstream.
async fn scored_rows(addr: std::net::SocketAddr) -> Answer {
    let body = json!({"sessions": ["s"], "format": "jsonl", "scores": "self"}).to_string();
    post(addr, "/v1/samples", body.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_of_one_tokentap_are_exported_by_each() {
    let Some(fleet) = Fleet::start(&["--columns", "top_logprobs", "--top-logprobs", "3"]).await else { return };
    let [one, other] = fleet.control();
    let mut prompt = vec![1, 2, 3];
    for turn in 0..4 {
        prompt.extend(generate(fleet.data()[turn % 2], "s", &prompt).await);
        prompt.push(40);
    }
    let (status, frozen) = control("POST", other, "/v1/sessions/s/freeze", &json!({})).await;
    assert_eq!(status, 200, "{frozen}");
    let request = json!({"teacher": "self", "sessions": ["s"], "top_logprobs": 2, "logprobs_of_top_ids": true});
    let (status, found) = control("POST", one, "/v1/teacher-scores", &request).await;
    assert_eq!((status, &found["rows"][0]["scored"]), (200, &json!(16)), "{found}");
    let expected = scored_rows(one).await;
    assert_eq!(column(&expected).map(|logprobs| logprobs.len()), Some(16));
    assert_eq!(values(&expected, "teacher_logprobs_of_top_ids").map(|(shape, _)| shape), Some(json!([3])));
    assert!(scored_rows(other).await.body == expected.body, "the other tokentap exports the same bytes");
    // the other one does not ask the teacher again, and adds what is missing
    let (_, found) = control("POST", other, "/v1/teacher-scores", &request).await;
    assert_eq!((&found["rows"][0]["scored"], &found["rows"][0]["skipped"]), (&json!(0), &json!(16)), "{found}");
    let wider = json!({"teacher": "self", "sessions": ["s"], "top_logprobs": 4});
    let (_, found) = control("POST", other, "/v1/teacher-scores", &wider).await;
    assert_eq!(found["rows"][0]["scored"], 16, "{found}");
    // a tokentap that starts later reads both from the ledger
    let url = fleet.server.url();
    let flags = ["--ledger", &url, "--ledger-replicas", "0", "--session-idle", "1h"];
    let third = Proxy::probed(fleet.first.direct, &flags).await;
    let rows = scored_rows(third.control).await;
    // without a tokenizer it lacks the statistics of think tokens
    let columns = |rows: &Answer| rows.json()["columns"].clone();
    assert_eq!(columns(&rows), columns(&scored_rows(one).await));
    assert_eq!(values(&rows, "teacher_top_ids").map(|(shape, _)| shape), Some(json!([4])));
    assert_eq!(values(&rows, "teacher_logprobs_of_top_ids"), values(&expected, "teacher_logprobs_of_top_ids"));
}
