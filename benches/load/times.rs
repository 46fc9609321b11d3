// SPDX-License-Identifier: Apache-2.0
//! Measured times, and a client that measures them during a load.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::client::Connection;

/// A request that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Times of served requests, and the number of failed ones.
#[derive(Debug, Default, Clone)]
pub struct Times {
    /// Milliseconds.
    pub served: Vec<f64>,
    pub failed: usize,
}

impl Times {
    pub fn add(&mut self, other: Self) {
        self.served.extend(other.served);
        self.failed += other.failed;
    }

    /// The percentile in milliseconds.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.served.clone();
        sorted.sort_by(f64::total_cmp);
        let at = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(at).copied().unwrap_or(f64::NAN)
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (all, [p50, p99]) = (self.served.len() + self.failed, [0.5, 0.99].map(|part| self.quantile(part)));
        write!(f, "{} of {all} served, p50 {p50:.2} ms, p99 {p99:.2} ms", self.served.len())
    }
}

/// Sends `request` at this rate, on the open connection or on a new one, until stopped.
pub async fn probe(addr: SocketAddr, request: Vec<u8>, pause: Duration, stop: Arc<AtomicBool>) -> Times {
    let mut times = Times::default();
    let mut open = None;
    let mut ticks = tokio::time::interval(pause);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let began = Instant::now();
        let once = async {
            let mut connection = match open.take() {
                Some(connection) => connection,
                None => Connection::open(addr.port()).await?,
            };
            let status = connection.exchange(&request, |_| {}).await?;
            std::io::Result::Ok((connection, status))
        };
        match tokio::time::timeout(PATIENCE, once).await {
            Ok(Ok((connection, 200))) => {
                times.served.push(began.elapsed().as_secs_f64() * 1e3);
                open = Some(connection);
            }
            _ => times.failed += 1,
        }
    }
    times
}

/// The times of this number of seconds.
pub async fn probe_for(addr: SocketAddr, request: Vec<u8>, pause: Duration, time: Duration) -> Times {
    let stop = Arc::new(AtomicBool::new(false));
    let probing = tokio::spawn(probe(addr, request, pause, Arc::clone(&stop)));
    tokio::time::sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    probing.await.expect("a probe does not panic")
}
