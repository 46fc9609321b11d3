//! Code that the OpenAI APIs share.

pub(crate) mod error;
mod fields;
mod logprobs;
mod members;
pub(crate) mod tools;
mod usage;

use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use fields::{FIELDS, FieldTarget, UNSUPPORTED};
pub(crate) use logprobs::logprob_list;
pub(crate) use members::{lora_adapter, output_constraint};
pub(crate) use usage::{Usage, id_list, metadata};

/// The current time in seconds since 1970, for `created` of a reply.
pub(crate) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
