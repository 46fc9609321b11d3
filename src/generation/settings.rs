//! The settings of generations.

use std::time::Duration;

use crate::engine::plan::PlanLimits;

/// The settings of generations.
#[derive(Debug, Clone)]
pub struct GenerationSettings {
    /// The settings of entropies.
    pub entropy: EntropySettings,
    /// A reply without entropies that were requested becomes a 502.
    pub is_strict: bool,
    /// Requests that are known to crash a server are refused.
    pub is_guarded: bool,
    /// Turns are recorded.
    pub records: bool,
    /// The limits of a session.
    pub session: SessionLimits,
    /// How long an undelivered reply is kept.
    pub session_idle: Duration,
    /// How long a shared ledger may take to confirm a turn; `None` without one.
    pub ledger_timeout: Option<Duration>,
    /// A reply whose turn is not confirmed is refused.
    pub is_ledger_strict: bool,
}

/// The settings of entropies.
#[derive(Debug, Clone, Copy)]
pub struct EntropySettings {
    /// When they are computed.
    pub mode: EntropyMode,
    /// k, if a request sets none.
    pub top_logprobs: u32,
    /// The limits of what is requested from the engine.
    pub limits: PlanLimits,
}

/// When entropies are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntropyMode {
    /// For every generation without `return_entropy: false`.
    On,
    /// For every generation.
    Always,
    /// Only for requests with `return_entropy: true`.
    Request,
    /// Never.
    Off,
}

/// The limits of a session.
#[derive(Debug, Clone, Copy)]
pub struct SessionLimits {
    /// The most turns.
    pub turns: usize,
    /// The most branches, which are turns that no other turn continues.
    pub branches: usize,
}
