//! `entropy_options`: tokentap's own object in a request, removed before it is forwarded.

use serde::Deserialize;

/// What a client wants to know about each token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EntropyOptions {
    /// `estimate`, `renormalized`, `lower`, `upper` or `sampled`.
    pub estimator: Option<String>,
    /// k for this request.
    pub top_k: Option<u32>,
    /// Add the certified interval.
    pub bounds: bool,
    /// Add the statistics of each token.
    pub stats: bool,
}

/// `entropy_options` is not what it should be.
#[derive(Debug, thiserror::Error)]
#[error("entropy_options: {0}")]
pub struct OptionsError(String);

impl EntropyOptions {
    /// Reads the value of `entropy_options`.
    ///
    /// # Errors
    /// A sentence for the client that names the member.
    pub fn parse(text: &[u8]) -> Result<Self, OptionsError> {
        // a list would fill the members by their order
        if text.first() != Some(&b'{') {
            return Err(OptionsError("must be an object".to_owned()));
        }
        serde_json::from_slice(text).map_err(|error| OptionsError(error.to_string()))
    }
}
