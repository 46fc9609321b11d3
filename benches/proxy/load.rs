// SPDX-License-Identifier: Apache-2.0
//! Closed loops: each connection sends its next request after its reply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::api::ApiConnection;
use crate::workload::{Flow, Workload};

/// Connections that stay open between runs.
pub struct Load {
    connections: Vec<ApiConnection>,
    requests: Arc<Vec<Vec<u8>>>,
    flow: Flow,
    tokens: usize,
}

/// The clients' measurements, in microseconds.
#[derive(Debug, Default)]
pub struct Record {
    /// From sending to the last byte.
    pub latencies: Vec<f64>,
    /// From sending to the first byte of the body.
    pub firsts: Vec<f64>,
    /// Between the pieces of a paced stream.
    pub gaps: Vec<f64>,
    /// From the first request to the last reply.
    pub elapsed: Duration,
}

impl Load {
    pub async fn connect(workload: &Workload, connections: usize, port: u16, through_tokentap: bool) -> Self {
        let mut open = Vec::new();
        for _ in 0..connections {
            open.push(ApiConnection::open(workload.api, port).await.unwrap());
        }
        let requests = Arc::new(workload.requests(through_tokentap));
        Self { connections: open, requests, flow: workload.flow, tokens: workload.tokens }
    }

    /// Runs all connections for `time`, and until the last replies have arrived.
    pub async fn run(&mut self, time: Duration) -> Record {
        let mut tasks = JoinSet::new();
        let start = Instant::now();
        let all = self.connections.len() as u32;
        for (at, connection) in std::mem::take(&mut self.connections).into_iter().enumerate() {
            let requests = Arc::clone(&self.requests);
            let delay = match self.flow {
                // synchronized streams would delay the engine instead of the proxy
                Flow::Paced(pace) => pace * self.tokens as u32 * at as u32 / all,
                _ => Duration::ZERO,
            };
            let paced = matches!(self.flow, Flow::Paced(_));
            tasks.spawn(async move {
                tokio::time::sleep(delay).await;
                one(connection, &requests, at, start + time, paced).await
            });
        }
        let mut sum = Record::default();
        while let Some(done) = tasks.join_next().await {
            let (connection, record) = done.unwrap();
            self.connections.push(connection);
            sum.latencies.extend(record.latencies);
            sum.firsts.extend(record.firsts);
            sum.gaps.extend(record.gaps);
        }
        sum.elapsed = start.elapsed();
        sum
    }
}

async fn one(
    mut connection: ApiConnection,
    requests: &[Vec<u8>],
    first: usize,
    until: Instant,
    paced: bool,
) -> (ApiConnection, Record) {
    let mut record = Record::default();
    for request in requests.iter().cycle().skip(first % requests.len()) {
        let start = Instant::now();
        let mut before = None;
        let status = connection
            .exchange(request, |_| {
                if !paced && before.is_some() {
                    return;
                }
                let now = Instant::now();
                match before.replace(now) {
                    None => record.firsts.push(micros(now - start)),
                    Some(before) => record.gaps.push(micros(now - before)),
                }
            })
            .await;
        let end = Instant::now();
        assert_eq!(status.unwrap(), 200, "a request of the load failed");
        record.latencies.push(micros(end - start));
        if end >= until {
            break;
        }
    }
    (connection, record)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
