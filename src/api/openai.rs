//! What OpenAI's APIs have in common.

mod body;
mod fields;
mod members;
pub mod problem;
mod usage;

pub(crate) use body::{Body, is_meant, is_said, wrong};
pub(crate) use fields::UNSUPPORTED;
pub(crate) use members::{Members, adapter, constraint, unreadable};
pub(crate) use usage::{Usage, list, metadata};
