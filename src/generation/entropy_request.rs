// SPDX-License-Identifier: Apache-2.0
//! The entropies that a request asks for, by `return_entropy`, `entropy_options` and `--entropy`.

use crate::engine::plan::EntropyRequest;
use crate::engine::sglang::request::{EntropyOptions, GenerateRequest};
use crate::entropy::Estimator;
use crate::error::Error;
use crate::generation::settings::{EntropyMode, EntropySettings};

/// Parses the entropy members of a request.
///
/// # Errors
/// A 400 that names the invalid member of `entropy_options`.
pub(crate) fn entropy_request(request: &GenerateRequest, settings: &EntropySettings) -> Result<EntropyRequest, Error> {
    let options = match &request.entropy_options {
        Some(span) => EntropyOptions::parse(&request.bytes[span.clone()]).map_err(Error::bad_request)?,
        None => EntropyOptions::default(),
    };
    let estimator = match options.estimator.as_deref() {
        None => Estimator::Estimate,
        Some(name) => Estimator::NAMED.into_iter().find(|estimator| estimator.name() == name).ok_or_else(|| {
            Error::bad_request(format!(
                "entropy_options.estimator: {name:?} is not one of estimate, renormalized, lower, upper, sampled"
            ))
        })?,
    };
    if options.top_k == Some(0) {
        return Err(Error::bad_request("entropy_options.top_k: must be at least 1"));
    }
    if let Some(k) = options.top_k.filter(|k| *k > settings.limits.max_top_logprobs) {
        return Err(Error::bad_request(format!(
            "entropy_options.top_k: {k} is above {}, the limit of tokentap",
            settings.limits.max_top_logprobs
        )));
    }
    let wanted = match (settings.mode, request.return_entropy) {
        (EntropyMode::Always, _) | (EntropyMode::On | EntropyMode::Request, Some(true)) => true,
        (EntropyMode::On, None) => true,
        (EntropyMode::Off, _) | (_, Some(false)) | (EntropyMode::Request, None) => false,
    };
    Ok(EntropyRequest {
        wanted,
        explicit: request.return_entropy == Some(true),
        estimator,
        top_k: options.top_k.unwrap_or(settings.top_logprobs),
        by_top_k: options.top_k.is_some()
            || matches!(estimator, Estimator::Renormalized | Estimator::Lower | Estimator::Upper),
        bounds: options.bounds,
        stats: options.stats,
    })
}
