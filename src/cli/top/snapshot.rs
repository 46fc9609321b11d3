// SPDX-License-Identifier: Apache-2.0
//! A snapshot of the running sequences, from the control port.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use serde::Deserialize;

use crate::cli::control::ControlClient;
use crate::cli::terminal::printable;

/// The number of newest entropies of a sequence: the width of its spark line.
pub(super) const RECENT: usize = 24;

/// The largest number of sequences.
const SEQUENCES: usize = 1000;

/// The state of a tokentap.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) at: Instant,
    pub(super) sequences: Vec<Sequence>,
    /// The number of running sequences, of which at most 1000 are listed.
    pub(super) total: usize,
    pub(super) policy: Policy,
    /// The first line of `/readyz`.
    pub(super) state: String,
}

/// A running sequence.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Sequence {
    pub(super) rid: Arc<str>,
    pub(super) index: usize,
    pub(super) session: Option<String>,
    pub(super) tokens: u64,
    pub(super) age_ms: u64,
    pub(super) epoch: Option<u64>,
    /// The entropies of its newest tokens, in nats; `None` where one is missing.
    pub(super) entropy: Vec<Option<f32>>,
}

impl Sequence {
    pub(super) fn age(&self) -> Duration {
        Duration::from_millis(self.age_ms)
    }

    /// The entropies of its newest tokens, NaN where one is missing.
    pub(super) fn recent(&self) -> impl Iterator<Item = f32> {
        self.entropy.iter().map(|nats| nats.unwrap_or(f32::NAN))
    }

    /// The entropy of its newest token.
    pub(super) fn newest(&self) -> Option<f32> {
        self.entropy.last().copied().flatten()
    }
}

/// The policy now.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Policy {
    pub(super) epoch: u64,
    pub(super) weight_version: Option<String>,
    pub(super) version: Option<String>,
}

#[derive(Deserialize)]
struct Listing {
    requests: Vec<Sequence>,
    total: usize,
}

impl Snapshot {
    /// Reads it with one request for the list, whatever the number of sequences is.
    ///
    /// # Errors
    /// A line for the user.
    pub(super) async fn read(client: &ControlClient) -> Result<Self, String> {
        let target = format!("/v1/requests?limit={SEQUENCES}&recent={RECENT}");
        let (listing, policy, ready) =
            tokio::try_join!(client.get::<Listing>(&target), client.get("/v1/policy"), client.status("/readyz"))?;
        let Listing { requests: sequences, total } = listing;
        let (status, text) = ready;
        let state = match (status, text.lines().next().unwrap_or_default()) {
            (StatusCode::OK, _) => "ready".to_owned(),
            (_, "") => format!("/readyz is {}", status.as_u16()),
            (_, line) => printable(line),
        };
        Ok(Self { at: Instant::now(), sequences, total, policy, state })
    }
}
