// SPDX-License-Identifier: Apache-2.0
//! Pictures of sessions in the shared ledger.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::server::Server;
use crate::support::client::{get, post, request};
use crate::support::proxy::Proxy;
use crate::support::upstream::EngineProfile;
use crate::support::vision::{END, PAD, START, Vision, data_uri, png, sampled};

/// Two tokentaps that share sessions, before an engine with a vision model.
struct Pair {
    server: Server,
    first: Vision,
    second: Proxy,
}

impl Pair {
    /// `None` without a server.
    async fn start(flags: &[&str]) -> Option<Self> {
        let server = Server::start()?;
        let url = server.url();
        let own = ["--ledger", &url, "--ledger-replicas", "0", "--session-idle", "1h"];
        let flags = [&own[..], flags].concat();
        let first = Vision::start(EngineProfile::default(), &flags).await;
        let second = Proxy::probed(first.engine.addr, &flags).await;
        Some(Self { server, first, second })
    }

    /// Four turns with a picture each, by turns at these tokentaps.
    async fn converse(&self, session: &str, at: [SocketAddr; 2]) {
        let (mut ids, mut pictures) = (vec![1, 2], Vec::new());
        for content in ["a", "b", "c", "a"] {
            let data = at[pictures.len() % 2];
            ids.extend([START, PAD, END, 3]);
            pictures.push(data_uri(content));
            let body = json!({"input_ids": ids, "image_data": pictures}).to_string();
            let answer = post(data, &format!("/sessions/{session}/generate"), body.as_bytes()).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            ids.extend(sampled(0));
        }
    }

    /// The export of a session with the bytes of the pictures, from each tokentap.
    async fn exports(&self, session: &str) -> [String; 2] {
        let body = json!({"sessions": [session], "format": "jsonl", "images": "embed"}).to_string();
        let [first, second] = [self.first.proxy.control, self.second.control];
        [
            post(first, "/v1/samples", body.as_bytes()).await.text(),
            post(second, "/v1/samples", body.as_bytes()).await.text(),
        ]
    }

    /// The number of pictures in the ledger.
    fn stored(&self) -> usize {
        self.server.keys("tt:{images}:i:*")
    }
}

/// The only row of an export.
fn row(export: &str) -> Value {
    let mut rows = export.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let row = rows.next().unwrap_or_else(|| panic!("no row"));
    assert!(row.get("token_ids").is_some(), "{row}");
    row
}

#[tokio::test(flavor = "multi_thread")]
async fn each_tokentap_exports_the_pictures_of_all() {
    let Some(pair) = Pair::start(&[]).await else { return };
    for session in ["s", "t"] {
        pair.converse(session, [pair.first.proxy.data, pair.second.data]).await;
    }
    assert_eq!(pair.stored(), 3, "each picture once");
    for session in ["s", "t"] {
        let [first, second] = pair.exports(session).await;
        assert!(first == second, "{first} {second}");
        let row = row(&first);
        let data: Vec<_> =
            ["a", "b", "c", "a"].map(|content| base64_simd::STANDARD.encode_to_string(png(content))).into();
        assert_eq!(row["image_data"], json!(data), "{row}");
    }
    let digest = row(&pair.exports("s").await[1])["images"][0]["sha256"].as_str().unwrap().to_owned();
    let image = get(pair.second.control, &format!("/v1/sessions/s/images/{digest}")).await;
    assert_eq!((image.status, &image.body[..]), (200, &png("a")[..]));
    // the pictures go with the last session that has them
    for (session, left) in [("s", 3), ("t", 0)] {
        let deleted = request(pair.second.control, "DELETE", &format!("/v1/sessions/{session}"), &[], b"").await;
        assert_eq!((deleted.status, pair.stored()), (200, left), "{}", deleted.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_beyond_the_limit_are_unavailable_elsewhere() {
    for (limit, stored) in [("0", 0), ("300", 1)] {
        let Some(pair) = Pair::start(&["--ledger-image-bytes", limit]).await else { return };
        // a tokentap that gets a call gets all pictures of its conversation
        pair.converse("s", [pair.first.proxy.data; 2]).await;
        assert_eq!(pair.stored(), stored, "{limit}");
        let mut refused = Vec::new();
        for (addr, reasons) in [(pair.first.proxy.control, "{}"), (pair.second.control, r#"{"image_unavailable":1}"#)] {
            let body = json!({"sessions": ["s"], "format": "jsonl", "images": "embed"}).to_string();
            let answer = post(addr, "/v1/samples", body.as_bytes()).await;
            assert_eq!(answer.header("tokentap-refused"), Some(reasons), "{}", answer.text());
            // references are exported, and say so
            let body = json!({"sessions": ["s"], "format": "jsonl"}).to_string();
            let row = row(&post(addr, "/v1/samples", body.as_bytes()).await.text());
            let images = row["images"].as_array().unwrap();
            assert_eq!(images.len(), 4);
            assert_eq!(images.iter().any(|image| image["available"] == false), reasons != "{}", "{row}");
            let metrics = get(addr, "/metrics").await.text();
            let value =
                |line: &str| line.strip_prefix("tokentap_ledger_images_total{outcome=\"refused\"} ")?.parse().ok();
            let counted: Option<f64> = metrics.lines().find_map(value);
            refused.push(counted.unwrap_or_else(|| panic!("{metrics}")));
        }
        assert!(refused.iter().sum::<f64>() > 0.0, "{limit}: {refused:?}");
    }
}
