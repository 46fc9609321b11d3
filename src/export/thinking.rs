//! Statistics of the thinking in a row. The caller computes them, because the export does not know the think tokens.

/// Statistics of the thinking in a path.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Thinking {
    /// Mean entropy of the thinking in nats; `None` if none of its tokens has an entropy.
    pub entropy_mean: Option<f64>,
    /// Tokens of the thinking; `None` if the think tokens are unknown.
    pub tokens: Option<u64>,
    /// Whether every span of thinking was closed; `None` without a span.
    pub closed: Option<bool>,
    /// Share of the sampled tokens with a high entropy, 0 to 1; `None` if no token has an entropy.
    pub high_entropy_share: Option<f64>,
}

impl Thinking {
    /// The members of an entry, each with its value as JSON text.
    #[must_use]
    pub fn members(&self) -> [(&'static str, String); 4] {
        [
            ("think_entropy_mean", json(self.entropy_mean)),
            ("think_token_count", json(self.tokens)),
            ("think_closed", json(self.closed)),
            ("high_entropy_share", json(self.high_entropy_share)),
        ]
    }
}

fn json(value: Option<impl Into<serde_json::Value>>) -> String {
    value.map_or(serde_json::Value::Null, Into::into).to_string()
}
