// SPDX-License-Identifier: Apache-2.0
//! Computes advantages of groups of trajectories (GRPO), optionally shaped by the entropy of the sampled tokens (EGPO), and statistics of the
//! thinking.
//!
//! All functions are pure functions of [`Path`](crate::session::Path)s: they do not wait, keep no state and do not use HTTP. All arithmetic
//! is float64.

mod advantage;
mod group_request;
mod mean_entropy;
mod mismatch;
mod options;
mod request;
mod response;
mod returns;
mod row_index;
mod rows;
mod teacher;
mod think;

pub use advantage::{GroupStats, Shaping};
pub use group_request::{GroupId, GroupRequest, RequestError, SampleRequest, check_storable};
pub use mismatch::{Mismatch, MismatchSums, RatioLimits};
pub use options::{AdvantageEstimator, AdvantageOptions, EntropyScope};
pub use request::Request;
pub use response::{AdvantageResponse, GroupResponse, SampleResponse, TurnAdvantage, advantages};
pub use returns::RewardSource;
pub use row_index::RowIndex;
pub use rows::add_advantages;
pub use teacher::{RatioProblem, check_scored, log_ratios, one_teacher};
pub use think::{HIGH_ENTROPY, ThinkStats, thinking};

#[cfg(test)]
mod tests;
