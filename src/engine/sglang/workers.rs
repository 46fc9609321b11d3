// SPDX-License-Identifier: Apache-2.0
//! `GET /workers` of sglang-router.

use serde::Deserialize;

pub(crate) const PATH: &str = "/workers";

#[derive(Debug, Deserialize)]
struct Workers {
    workers: Vec<Worker>,
}

#[derive(Debug, Deserialize)]
struct Worker {
    url: String,
    #[serde(default = "yes")]
    is_healthy: bool,
}

fn yes() -> bool {
    true
}

/// The workers with HTTP URLs, and whether they are healthy. Sorted, so that a new order does not count as a change. With `--dp-aware` a
/// router lists a worker once per rank, as `http://HOST:PORT@RANK`. `None` if the body is not such a list.
pub(crate) fn read(body: &[u8]) -> Option<Vec<(String, bool)>> {
    let listed: Workers = serde_json::from_slice(body).ok()?;
    let mut workers: Vec<(String, bool)> = listed
        .workers
        .into_iter()
        .filter(|worker| ["http://", "https://"].iter().any(|scheme| worker.url.starts_with(scheme)))
        .map(|worker| {
            let url = worker.url.trim_end_matches('/');
            let engine = url.rsplit_once('@').filter(|(_, rank)| rank.bytes().all(|byte| byte.is_ascii_digit()));
            (engine.map_or(url, |(engine, _)| engine).to_owned(), worker.is_healthy)
        })
        .collect();
    workers.sort_unstable();
    workers.dedup_by(|later, earlier| {
        let same = later.0 == earlier.0;
        earlier.1 |= same && later.1;
        same
    });
    Some(workers)
}
