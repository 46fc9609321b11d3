// SPDX-License-Identifier: Apache-2.0
//! The parsers of `POST /v1/advantages` and of `entropy_options`.

use tokentap::engine::sglang::request::EntropyOptions;
use tokentap::rl::Request;

use super::grammar::{Plain, shown};

/// An accepted request is JSON, and its numbers are valid.
pub fn control(bytes: &[u8]) {
    if EntropyOptions::parse(bytes).is_ok() {
        assert!(Plain::new(bytes).is_object(), "{}", shown(bytes));
    }
    let Ok(request) = Request::parse(bytes, None) else { return };
    let single = |number: f64| (number as f32).is_finite();
    let shaping = request.options.shaping();
    assert!(single(shaping.lambda) && single(shaping.alpha) && shaping.alpha > 0.0, "{}", shown(bytes));
    assert!(single(request.high_entropy_threshold));
    assert!(request.options.think_tokens().is_none_or(|think| think.start != think.end));
    for (at, group) in request.options.groups.iter().enumerate() {
        assert!(request.options.groups[..at].iter().all(|other| other.id != group.id), "{}", shown(bytes));
        assert!(!group.samples.is_empty() && group.samples.iter().all(|sample| sample.reward.is_none_or(single)));
    }
}
