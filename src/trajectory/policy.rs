//! Which policy sampled which tokens.

use serde::{Deserialize, Serialize};

/// Tokens of one response that one policy sampled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The first token, counted from the start of the response.
    pub start: u32,
    /// Behind the last one.
    pub end: u32,
    /// tokentap's policy epoch. Where weights changed in between and the engine did not say at which token: the first that is possible.
    pub epoch: u64,
    /// The last epoch that is possible; equal to `epoch` where it is known.
    pub until: u64,
    /// The engine's `weight_version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_version: Option<Box<str>>,
    /// What the trainer called the epoch (`POST /v1/policy`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Box<str>>,
}

impl Span {
    /// Whether it is known which policy it was.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.epoch == self.until
    }
}
