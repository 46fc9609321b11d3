// SPDX-License-Identifier: Apache-2.0
//! Tests with real servers.
//!
//! `VALKEY_SERVER` is the path of a server: `valkey-server`, or `redis-server` 7 or later. `VALKEY_TLS_SERVER` is one
//! that was built with TLS. Without them the tests are skipped.

mod cluster;
mod faults;
mod inspection;
mod model;
mod process;
mod secured;
mod sentinel;

use std::time::Duration;

use super::{Append, Entry, Position};
use crate::session::Uid;

fn entries(count: usize, bytes: usize) -> Vec<Entry> {
    let mut state = 1_u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count)
        .map(|_| Entry { uid: Uid::unique(), body: (0..bytes).map(|_| noise()).collect::<Vec<_>>().into() })
        .collect()
}

/// The first append to a session.
fn append(session: &str) -> Append {
    let (entries, finished, begun_ago) = (entries(1, 10), Vec::new(), Duration::ZERO);
    Append { session: session.into(), after: None, entries, finished, in_use: true, begun_ago }
}

/// The append after another one.
fn next(before: &Append) -> Append {
    Append { after: Position::after(before.after, &before.entries), entries: entries(1, 10), ..before.clone() }
}
