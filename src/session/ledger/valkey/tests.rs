//! Tests with real servers.
//!
//! `TOKENTAP_VALKEY_SERVER` is the path of a server: `valkey-server`, or `redis-server` 7 or later. Without it they are skipped.

mod model;
mod process;
