//! Trajectories: every token that went in and came out, as sessions of turns.
//!
//! A *turn* is one sampled response with the part of its prompt that is new. Turns form a *forest*: a call attaches to the deepest turn
//! whose tokens begin its prompt. A *path* is what a trainer gets: the turns from a root to a leaf, token by token as the engine saw
//! them. Nothing here knows HTTP, and nothing ever turns text into tokens.

pub mod export;
mod fault;
mod forest;
mod path;
mod policy;
mod turn;
mod view;

pub use fault::Fault;
pub use forest::{Forest, Place};
pub use path::{Path, Segment, Step};
pub use policy::Span;
pub use turn::{About, Cause, Measured, Turn};
pub use view::{Leaves, View};
