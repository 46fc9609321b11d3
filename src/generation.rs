// SPDX-License-Identifier: Apache-2.0
//! The generation pipeline: checks and plans a request through the product of its engine, sends it, measures and records the reply, and
//! removes what the request did not ask for.

pub(crate) mod active;
mod attempts;
mod begin_limit;
pub(crate) mod buffered;
pub(crate) mod capture;
pub mod context;
pub(crate) mod continuation;
pub(crate) mod enrich;
pub(crate) mod entropy_lists;
pub(crate) mod entropy_request;
pub(crate) mod entropy_store;
pub mod event;
pub(crate) mod events;
pub(crate) mod generator;
pub(crate) mod in_flight;
pub(crate) mod interruptions;
pub mod log_wait;
pub(crate) mod recorder;
pub(crate) mod request;
pub(crate) mod resumption;
pub(crate) mod retries;
pub(crate) mod sequence;
pub mod settings;
pub(crate) mod stream;
pub(crate) mod uncaptured;
mod unforced;
pub mod update;

use std::time::Duration;

use crate::engine::reason::Reason;

/// Statistics of a reply, for its access log line.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ReplyStats {
    /// Sequences that have finished.
    pub finished: u64,
    /// Output tokens.
    pub tokens: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// The engine aborted a sequence because it was asked to.
    pub is_aborted: bool,
    /// Mean entropy of the last sequence, in nats.
    pub mean: Option<f64>,
    /// Why entropies are missing.
    pub missing: Option<Reason>,
    /// Time that tokentap itself spent on the reply.
    pub overhead: Duration,
}
