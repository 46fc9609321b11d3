// SPDX-License-Identifier: Apache-2.0
//! The settings of generations.

use std::time::Duration;

use crate::columns::{COLUMNS, ExpertShape};
use crate::engine::plan::PlanLimits;
use crate::error::Error;
use crate::session::Sessions;

/// The settings of generations.
#[derive(Debug, Clone)]
pub struct GenerationSettings {
    /// The settings of entropies.
    pub entropy: EntropySettings,
    /// The token columns that are requested.
    pub columns: ColumnSettings,
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
    /// How long a generation waits while a trainer has paused the engine; zero if it does not wait.
    pub pause_wait: Duration,
    /// How long the engine may take to begin the reply to a request with media; zero if there is no limit.
    pub image_timeout: Duration,
    /// What happens to a generation that a trainer aborted.
    pub on_abort: AbortPolicy,
}

/// What happens to a generation that a trainer aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortPolicy {
    /// The client gets the engine's reply.
    Pass,
    /// The client gets an error that it retries.
    Retry,
    /// It is continued, and the client gets one reply.
    Resume,
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

/// The token columns that are requested with every recorded generation.
#[derive(Debug, Clone, Copy, Default)]
pub struct ColumnSettings {
    /// Those of the table, by their positions in it.
    pub wanted: [bool; COLUMNS.len()],
    /// The likeliest tokens are recorded.
    pub keeps_top: bool,
    /// The routing of the model, if it is set.
    pub experts: Option<ExpertShape>,
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

impl SessionLimits {
    /// Checks that a session has room for a call of `new` generations. Concurrent calls may exceed the limit together.
    ///
    /// # Errors
    /// A 403 when the limit is reached. Clients do not retry a 403, and a retry would be refused too.
    pub(crate) fn check(self, sessions: &Sessions, session: &str, new: usize) -> Result<(), Error> {
        let (turns, branches) = sessions.session(session).map_or((0, 0), |found| found.extent());
        let forbidden = |message| Err(Error::Forbidden { message });
        if new > self.turns || new > self.branches {
            return forbidden(format!(
                "{new} generations in one call of session {session:?} are more than its {} turns and {} branches",
                self.turns, self.branches,
            ));
        }
        let full = |count: usize, what: &str| {
            forbidden(format!(
                "session {session:?} has {count} {what}, as many as it may have; \
                 begin another session, or delete this one once it is exported"
            ))
        };
        if turns.saturating_add(new) > self.turns {
            return full(turns, "turns");
        }
        if branches >= self.branches || new > 1 && branches.saturating_add(new) > self.branches {
            return full(branches, "branches");
        }
        Ok(())
    }
}
