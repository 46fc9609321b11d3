//! The client's entropy request, from `return_entropy`, `entropy_options` and `--entropy`.

use crate::config::{EntropyConfig, EntropyDefault};
use crate::engine::request::{EntropyOptions, GenerateRequest};
use crate::entropy::Estimator;
use crate::error::Error;

/// What is added to a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntropyRequest {
    /// Entropies are requested.
    pub wanted: bool,
    /// The client set `return_entropy: true`.
    pub explicit: bool,
    /// The estimator of the published entropies.
    pub estimator: Estimator,
    /// k, before any cap.
    pub top_k: u32,
    /// The client set a k, or an estimator that needs a top-k.
    pub by_top_k: bool,
    /// Add the certified interval.
    pub bounds: bool,
    /// Add the statistics of each token.
    pub stats: bool,
}

impl EntropyRequest {
    /// Nothing is requested.
    pub const NONE: Self = Self {
        wanted: false,
        explicit: false,
        estimator: Estimator::Estimate,
        top_k: 0,
        by_top_k: false,
        bounds: false,
        stats: false,
    };

    /// Parses a request's entropy members.
    ///
    /// # Errors
    /// A 400 that names the invalid member of `entropy_options`.
    pub fn of(request: &GenerateRequest, config: &EntropyConfig) -> Result<Self, Error> {
        let options = match &request.entropy_options {
            Some(span) => EntropyOptions::parse(&request.bytes[span.clone()])
                .map_err(|error| Error::bad_request(error.to_string()))?,
            None => EntropyOptions::default(),
        };
        let estimator = match options.estimator.as_deref() {
            None => Estimator::Estimate,
            Some(name) => Estimator::NAMED.into_iter().find(|estimator| estimator.name() == name).ok_or_else(|| {
                Error::bad_request(format!(
                    "entropy_options.estimator: {name:?} is none of estimate, renormalized, lower, upper, sampled"
                ))
            })?,
        };
        if options.top_k == Some(0) {
            return Err(Error::bad_request("entropy_options.top_k: must be at least 1"));
        }
        if let Some(k) = options.top_k.filter(|k| *k > config.max_top_logprobs) {
            return Err(Error::bad_request(format!(
                "entropy_options.top_k: {k} is above {}, the limit of tokentap",
                config.max_top_logprobs
            )));
        }
        let wanted = match (config.entropy, request.return_entropy) {
            (EntropyDefault::Always, _) | (EntropyDefault::On | EntropyDefault::Request, Some(true)) => true,
            (EntropyDefault::On, None) => true,
            (EntropyDefault::Off, _) | (_, Some(false)) | (EntropyDefault::Request, None) => false,
        };
        Ok(Self {
            wanted,
            explicit: request.return_entropy == Some(true),
            estimator,
            top_k: options.top_k.unwrap_or(config.top_logprobs),
            by_top_k: options.top_k.is_some()
                || matches!(estimator, Estimator::Renormalized | Estimator::Lower | Estimator::Upper),
            bounds: options.bounds,
            stats: options.stats,
        })
    }
}
