//! What trainers compute from trajectories: advantages of groups, shaped by the entropy of the thinking.
//!
//! Pure functions of [`Path`](crate::session::Path)s: nothing here waits, keeps state or knows HTTP. All arithmetic is float64.

mod advantage;
mod answer;
mod request;
mod summary;
mod think;

pub use advantage::{GroupStats, Shaping};
pub use answer::{Answer, GroupAnswer, SampleAnswer, advantages};
pub use request::{AdvantageEstimator, GroupId, GroupRequest, Request, RequestError, SampleRequest};
pub use summary::thinking;
pub use think::{HIGH_ENTROPY, Think, ThinkTokens};

#[cfg(test)]
mod tests;
