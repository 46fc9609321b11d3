//! Code that OpenAI's APIs share.

mod body;
mod fields;
mod members;
pub(crate) mod problem;
mod usage;

use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use body::{RequestBody, is_non_default, is_present, wrong};
pub(crate) use fields::UNSUPPORTED;
pub(crate) use members::{Members, adapter, constraint, unreadable};
pub(crate) use usage::{Usage, list, metadata, to_json};

/// The current time, for `created` of a reply.
pub(crate) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
