// SPDX-License-Identifier: Apache-2.0
//! Limits what a request allocates. `cargo bench --bench costs` prints the numbers.
//!
//! A limit is at most 3 % above the number that was measured. Counts do not depend on the speed of the machine. If a change needs more
//! allocations for a reason, raise the limit in the same commit.

#![expect(clippy::print_stdout, reason = "the test prints what it measured")]
#![expect(clippy::unwrap_used, reason = "a test that cannot start its servers has failed")]
#![allow(unreachable_pub, missing_docs, missing_debug_implementations, dead_code, reason = "shared with a bench")]
#![allow(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

#[path = "../benches/proxy/canned.rs"]
mod canned;
#[path = "../benches/costs/measured.rs"]
mod measured;
#[path = "../benches/proxy/upstream.rs"]
mod upstream;

use measured::{Costs, CountingAllocator, Subject, body};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Allocations of a /generate of 16 tokens.
const WHOLE: f64 = 66.0;

/// Allocations of a /generate of 512 tokens: more tokens need longer buffers, not more of them.
const LONG: f64 = 72.0;

/// Allocations a token of an incremental stream.
const TOKEN: f64 = 8.5;

fn check(what: &str, costs: f64, most: f64) -> Result<(), String> {
    if costs <= most { Ok(()) } else { Err(format!("{what}: {costs} allocations, limit {most}")) }
}

#[test]
fn requests_stay_within_their_allocations() {
    let subject = Subject::start(&["--log", "error"]);
    let whole = subject.costs(&body(16, ""));
    let long = subject.costs(&body(512, ""));
    let stream = |tokens| subject.costs(&body(tokens, ",\"stream\":true")).allocations;
    let token = (stream(116) - stream(16)) / 100.0;
    println!("16 tokens: {whole:?}, 512 tokens: {long:?}, a streamed token: {token}");
    check("/generate, 16 tokens", whole.allocations, WHOLE).unwrap();
    check("/generate, 512 tokens", long.allocations, LONG).unwrap();
    check("a streamed token", token, TOKEN).unwrap();
    // a request that needs more work exceeds the limit, so the limits detect additional allocations
    let Costs { allocations, .. } = subject.costs(&body(16, ",\"entropy_options\":{\"bounds\":true}"));
    check("/generate with intervals", allocations, WHOLE).unwrap_err();
}
