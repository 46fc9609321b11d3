// SPDX-License-Identifier: Apache-2.0
//! Code that the OpenAI APIs share.

pub(crate) mod error;
mod fields;
mod reply;
pub(crate) mod tools;

use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use fields::{FIELDS, FieldTarget, lora_adapter, output_constraint};
pub(crate) use reply::{LogprobWriter, TokenNames, Usage, id_list, metadata};

/// The current time in seconds since 1970, for `created` of a reply.
pub(crate) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
