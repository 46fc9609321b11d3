//! `entropy_options`: tokentap's own member of a request, removed before forwarding.

use serde::Deserialize;

/// The client's options for entropies.
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

/// `entropy_options` is invalid.
#[derive(Debug, thiserror::Error)]
#[error("entropy_options: {0}")]
pub struct OptionsError(String);

impl EntropyOptions {
    /// Parses the value of `entropy_options`.
    ///
    /// # Errors
    /// An error message for the client that names the member.
    pub fn parse(text: &[u8]) -> Result<Self, OptionsError> {
        // serde would fill the members from a list in order
        if text.first() != Some(&b'{') {
            return Err(OptionsError("must be an object".to_owned()));
        }
        serde_json::from_slice(text).map_err(|error| OptionsError(error.to_string()))
    }
}
