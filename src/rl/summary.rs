//! What an export says about the thinking of a row.

use super::{Think, ThinkTokens};
use crate::trajectory::Path;

/// Members for an export's row, each with its value as JSON text: `think_entropy_mean` (nats, or null), `think_token_count` (tokens),
/// `think_closed` (null where there is no span; all three are null where the think tokens are not known) and `high_entropy_share` (0 to 1 of the sampled tokens, above `threshold` nats; or null).
#[must_use]
pub fn members(path: &Path, tokens: Option<ThinkTokens>, threshold: f64) -> Vec<(&'static str, String)> {
    let think = Think::of(path, tokens, threshold);
    vec![
        ("think_entropy_mean", text(think.mean)),
        ("think_token_count", text(tokens.map(|_| think.tokens))),
        ("think_closed", text(think.present.then_some(think.closed))),
        ("high_entropy_share", text(think.high_share)),
    ]
}

fn text(value: Option<impl Into<serde_json::Value>>) -> String {
    value.map_or(serde_json::Value::Null, Into::into).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{END, START, THINK, path, turn};
    use super::*;

    #[test]
    fn what_is_missing_is_null() {
        let thought = path("s", vec![turn(&[1], &[START, 7, 8, END], &[0.0, 0.5, 1.0, 0.0])]);
        let expected = [("mean", "0.75"), ("count", "2"), ("closed", "true"), ("share", "0.25")];
        check(&members(&thought, Some(THINK), 0.672), expected);
        let silent = path("s", vec![turn(&[1], &[7], &[])]);
        let expected = [("mean", "null"), ("count", "0"), ("closed", "null"), ("share", "null")];
        check(&members(&silent, Some(THINK), 0.672), expected);
        let cut = path("s", vec![turn(&[START], &[7], &[0.5])]);
        let expected = [("mean", "0.5"), ("count", "1"), ("closed", "false"), ("share", "1.0")];
        check(&members(&cut, Some(THINK), 0.25), expected);
        let expected = [("mean", "null"), ("count", "null"), ("closed", "null"), ("share", "0.25")];
        check(&members(&thought, None, 0.672), expected);
    }

    fn check(found: &[(&'static str, String)], expected: [(&str, &str); 4]) {
        assert_eq!(found.len(), expected.len());
        for ((name, value), (ending, text)) in found.iter().zip(expected) {
            assert!(name.ends_with(ending) && value == text, "{name} is {value}, not {text}");
        }
    }
}
