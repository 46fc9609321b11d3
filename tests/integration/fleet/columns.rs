// SPDX-License-Identifier: Apache-2.0
//! Token columns in the shared ledger.

use super::server::Server;
use crate::support::client::post;
use crate::support::proxy::Proxy;
use crate::token_columns::{check, jsonl, masks, recorded_engine};

#[tokio::test(flavor = "multi_thread")]
async fn another_tokentap_reads_the_column_from_the_ledger() {
    let Some(server) = Server::start() else { return };
    let (upstream, recorded) = recorded_engine("default/mask-stream").await;
    let url = server.url();
    let flags = ["--ledger", &url, "--ledger-replicas", "0", "--session-idle", "1h"];
    let (first, second) = (Proxy::probed(upstream.addr, &flags).await, Proxy::probed(upstream.addr, &flags).await);
    post(first.data, "/sessions/s/generate", &recorded.body).await;
    check(&jsonl(second.control, "s").await, &masks(&recorded, false), "the other tokentap");
}
