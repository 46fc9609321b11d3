// SPDX-License-Identifier: Apache-2.0
//! Settings for trainers that pause the engine or abort its generations.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::duration;

/// What happens to a generation that the trainer aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnAbort {
    /// The client gets the engine's reply.
    Pass,
    /// The client gets an error that it retries.
    Retry,
    /// It is continued, and the client gets one reply.
    Resume,
}

/// Settings for trainers that pause the engine or abort its generations.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Interruptions by a trainer")]
pub struct InterruptionConfig {
    /// How long a new generation waits while a trainer has paused the engine through the control port; then it gets 503 with Retry-After. 0 sends it to the paused engine at once
    #[arg(long, env = "TOKENTAP_PAUSE_WAIT", value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub pause_wait: Duration,
    /// What a client gets of a generation that the trainer aborted: pass (the engine's reply), retry (an error that clients retry: 503, 529 for Messages, an error event in a stream), resume (one reply: after a pause or an update the generation is continued from its tokens, at most 8 times, if that samples as without the abort; else as pass)
    #[arg(long, env = "TOKENTAP_ON_ABORT", value_name = "WHAT", default_value = "pass")]
    pub on_abort: OnAbort,
}
