// SPDX-License-Identifier: Apache-2.0
//! Verifies the values of the engine's plugin.
//!
//! A plugin is used only if each of its values is within the interval that the logprobs of the same token certify. The bounds are those of
//! `entropy`, implemented a second time so that the check is independent.

use serde_json::Value;

use crate::engine::capabilities::PluginState;

/// The allowed error of the plugin, in nats: float32 rounding on both sides.
const SLACK: f64 = 1e-3;

/// The first token of a reply to the probe.
#[derive(Debug)]
pub(super) struct FirstToken {
    /// Its top logprobs, the largest first.
    pub logprobs: Vec<f64>,
    /// The member `output_token_entropy`.
    pub exact: Option<Value>,
    /// The reply has `entropy_info`, which only tokentap writes.
    pub is_of_tokentap: bool,
}

/// Verifies the plugin with the first tokens of several replies.
pub(super) fn judge(tokens: &[&FirstToken], vocab: Option<u32>) -> PluginState {
    let mut verdict = PluginState::Absent;
    for token in tokens {
        if token.is_of_tokentap {
            return PluginState::Unusable(
                "the upstream is another tokentap, which measures them itself; give --upstream the address of SGLang"
                    .to_owned(),
            );
        }
        let Some(reported) = &token.exact else { return PluginState::Absent };
        let Some([value]) = reported.as_array().map(Vec::as_slice) else {
            return PluginState::Unusable(format!("it answered {reported} for one token"));
        };
        let Some(value) = value.as_f64() else {
            return PluginState::Unusable(
                "it answered null for the full vocabulary, as it does when TOKENTAP_ENTROPY_TOP_K is set".to_owned(),
            );
        };
        let (lower, upper) = interval(&token.logprobs, vocab);
        if !(lower - SLACK..=upper + SLACK).contains(&value) {
            return PluginState::Unusable(format!(
                "it returned {value:.4} nats for a token with {lower:.4} to {upper:.4} nats"
            ));
        }
        verdict = PluginState::Exact;
    }
    verdict
}

/// The certified entropy interval of a row, in nats: the row's own terms plus those of the tail. The lower bound has as few tail tokens as
/// the last entry allows, the upper bound spreads the tail evenly over all other tokens.
fn interval(row: &[f64], vocab: Option<u32>) -> (f64, f64) {
    let known = row.iter().filter(|logprob| logprob.is_finite() && **logprob > -1e30);
    let (mut mass, mut own, mut last) = (0.0, 0.0, f64::NEG_INFINITY);
    for logprob in known {
        mass += logprob.exp();
        own -= logprob.exp() * logprob;
        last = *logprob;
    }
    let rest = 1.0 - mass;
    if rest <= 0.0 {
        return (own, own);
    }
    let others = vocab.map_or(f64::INFINITY, |vocab| f64::from(vocab) - row.len() as f64);
    let upper = if others >= 1.0 { own + rest * (others / rest).ln() } else { own };
    (own - rest * last, upper.max(own - rest * last))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(exact: Value) -> FirstToken {
        // 0.5, 0.25 and 0.25 among five tokens
        FirstToken { logprobs: [0.5_f64, 0.125].map(f64::ln).to_vec(), exact: Some(exact), is_of_tokentap: false }
    }

    #[test]
    fn value_within_the_interval_is_accepted() {
        // lower: 0.5 ln 2 + 0.5 ln 8; upper: 0.5 ln 2 + 0.125 ln 8 + 0.375 ln (3 / 0.375)
        let (lower, upper) = interval(&token(Value::Null).logprobs, Some(5));
        assert!((lower - 1.386_294_361).abs() < 1e-8 && (upper - 1.386_294_361).abs() < 1e-8, "{lower} {upper}");
        assert_eq!(judge(&[&token(json!([1.3863]))], Some(5)), PluginState::Exact);
    }

    #[test]
    fn any_other_answer_makes_the_plugin_unusable() {
        for reported in
            [json!([1.2]), json!([1.5]), json!([null]), json!([]), json!([1.38, 1.38]), json!(1.38), json!(["1.38"])]
        {
            let verdict = judge(&[&token(json!([1.3863])), &token(reported.clone())], Some(5));
            assert!(matches!(verdict, PluginState::Unusable(_)), "{reported}: {verdict:?}");
        }
        let token = FirstToken { is_of_tokentap: true, ..token(json!([1.3863])) };
        assert!(
            matches!(judge(&[&token], Some(5)), PluginState::Unusable(reason) if reason.contains("another tokentap"))
        );
        assert_eq!(judge(&[&FirstToken { exact: None, ..self::token(Value::Null) }], Some(5)), PluginState::Absent);
    }

    #[test]
    fn upper_bound_is_infinite_without_a_vocabulary_size() {
        assert_eq!(judge(&[&token(json!([9.0]))], None), PluginState::Exact);
        assert!(matches!(judge(&[&token(json!([1.0]))], None), PluginState::Unusable(_)));
    }
}
