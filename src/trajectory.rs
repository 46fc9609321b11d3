//! Trajectories: every token that went in and came out, as sessions of turns.
//!
//! A *turn* is one sampled response with the part of its prompt that is new. Turns form a *forest*: a call attaches to the deepest turn
//! whose tokens begin its prompt. A *path* is what a trainer gets: the turns from a root to a leaf, token by token as the engine saw
//! them. Nothing here knows HTTP, and nothing ever turns text into tokens.

mod call;
mod chat;
mod conversation;
mod counts;
mod early;
pub mod export;
mod fault;
mod forest;
mod keeping;
mod lineage;
mod listing;
pub mod log;
mod name;
mod news;
mod order;
mod path;
mod policy;
mod replies;
mod restoration;
mod restore;
mod rewards;
mod row;
mod said;
mod session;
mod snapshot;
mod store;
mod turn;
mod view;

pub use call::{Call, Turns};
pub use chat::{Chat, Digest, Reading};
pub use conversation::{Fingerprint, Prefix};
pub use counts::TurnCounts;
pub use fault::Fault;
pub use forest::{Forest, Place};
pub use name::{LONGEST_NAME, is_name};
pub use news::Ended;
pub use order::Gone;
pub use path::{Path, Segment, Step};
pub use policy::{Mark, Policy, Reported, Span};
pub use restoration::RestoreProgress;
pub use row::Row;
pub use session::{Finished, Reward, Session, SessionError};
pub use snapshot::{Snapshot, Summary};
pub use store::{Store, StoreLimits, now_ms};
pub use turn::{About, Cause, Draft, MOST_TURNS, Measured, Turn};
pub use view::{Leaves, View};

#[cfg(test)]
mod tests;
