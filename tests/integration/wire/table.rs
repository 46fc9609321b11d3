// SPDX-License-Identifier: Apache-2.0
//! The table of cases, by topic.

mod chunks;
mod framing;
mod headers;
mod hops;
mod kept;
mod lines;
mod paths;

use super::case::Case;

/// All cases.
pub fn all() -> Vec<Case> {
    let suites = [lines::cases, headers::cases, framing::cases, chunks::cases, hops::cases, kept::cases, paths::cases];
    suites.iter().flat_map(|suite| suite()).collect()
}
