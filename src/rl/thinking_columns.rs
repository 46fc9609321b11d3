//! The columns of an exported row with statistics of the thinking.

use super::{ThinkStats, ThinkTokens};
use crate::export::Thinking;
use crate::session::Path;

/// Computes the statistics of a path. `threshold` is that of a token with high entropy, in nats. If the think tokens are unknown, all
/// statistics except `high_entropy_share` are `None`.
#[must_use]
pub fn thinking(path: &Path, tokens: Option<ThinkTokens>, threshold: f64) -> Thinking {
    let think = ThinkStats::of(path, tokens, threshold);
    Thinking {
        entropy_mean: think.mean,
        tokens: tokens.map(|_| think.tokens as u64),
        closed: think.present.then_some(think.closed),
        high_entropy_share: think.high_share,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{END, START, THINK, path, turn};
    use super::*;

    #[test]
    fn unknown_statistics_are_null() {
        let thought = path("s", vec![turn(&[1], &[START, 7, 8, END], &[0.0, 0.5, 1.0, 0.0])]);
        let expected = [("mean", "0.75"), ("count", "2"), ("closed", "true"), ("share", "0.25")];
        check(thinking(&thought, Some(THINK), 0.672), expected);
        let silent = path("s", vec![turn(&[1], &[7], &[])]);
        let expected = [("mean", "null"), ("count", "0"), ("closed", "null"), ("share", "null")];
        check(thinking(&silent, Some(THINK), 0.672), expected);
        let cut = path("s", vec![turn(&[START], &[7], &[0.5])]);
        let expected = [("mean", "0.5"), ("count", "1"), ("closed", "false"), ("share", "1.0")];
        check(thinking(&cut, Some(THINK), 0.25), expected);
        let expected = [("mean", "null"), ("count", "null"), ("closed", "null"), ("share", "0.25")];
        check(thinking(&thought, None, 0.672), expected);
    }

    fn check(found: Thinking, expected: [(&str, &str); 4]) {
        for ((name, value), (ending, text)) in found.members().iter().zip(expected) {
            assert!(name.ends_with(ending) && value == text, "{name} is {value}, not {text}");
        }
    }
}
