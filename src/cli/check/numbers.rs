// SPDX-License-Identifier: Apache-2.0
//! Reports on the engine's numbers: the vocabulary size, streams, exact entropies, the temperature of logprobs.

use super::GENERATION_TIMEOUT;
use crate::cli::check::{Report, Verdict};
use crate::columns::{COLUMNS, ColumnFault, ColumnSource, ExpertShape, ROUTED_EXPERTS_AT, SAMPLING_MASK_AT};
use crate::config::{ColumnName, Config, MoeShape};
use crate::engine::capabilities::{Capabilities, PluginState, StreamMode, VocabSource};
use crate::engine::sglang::expert_sample::{ExpertSample, expert_sample};
use crate::engine::sglang::forcing::expert_tokens;
use crate::engine::transport::client::Client;

pub(super) fn vocabulary(found: &Capabilities, report: &mut Report) {
    let source = match found.vocab_source {
        Some(VocabSource::Flag) => "from --vocab-size",
        Some(VocabSource::Engine) => "as reported by the engine",
        Some(VocabSource::ConfigFile) | None => "from the model's config.json",
    };
    match found.vocab_size {
        Some(size) => report.line(Verdict::Ok, "vocabulary", format!("{size} entries, {source}")),
        None => report.line(Verdict::Warn, "vocabulary", "unknown: only lower bounds can be given; set --vocab-size"),
    }
}

pub(super) fn streaming(config: &Config, found: &Capabilities, report: &mut Report) {
    let most = config.entropy.cumulative_stream_tokens;
    match found.streaming {
        Some(StreamMode::Incremental) => report.line(Verdict::Ok, "streams", "incremental"),
        Some(StreamMode::Cumulative | StreamMode::IncrementalIds) => {
            let remedy = match found.traits().can_stream_increments {
                false => "sglang-jax supports no other mode",
                true => "start SGLang with --incremental-streaming-output (0.5.12 and later)",
            };
            let text = format!(
                "cumulative: each event repeats all tokens, so top-k is requested only up to {most} tokens; {remedy}"
            );
            report.line(Verdict::Warn, "streams", text);
        }
        None => report.line(
            Verdict::Warn,
            "streams",
            format!("mode unknown: it is detected in each stream, and top-k is requested only up to {most} tokens"),
        ),
    }
}

/// Reports whether entropies are exact, and the reason if they are not.
pub(super) fn plugin(found: &Capabilities, report: &mut Report) {
    use Verdict::{Ok, Warn};
    match &found.plugin {
        PluginState::Exact => {
            report.line(Ok, "exact", "tokentap-sglang measures the full vocabulary inside the engine")
        }
        PluginState::Unusable(reason) => {
            report.line(
                Warn,
                "exact",
                format!("no, entropies are estimates; those that the engine reports are not used: {reason}"),
            );
        }
        PluginState::Absent => {
            let why = match &found.version {
                _ if !found.traits().has_plugins => "sglang-jax supports no plugin".to_owned(),
                _ if found.speculative.is_some() => "SGLang loads no observer with speculative decoding".to_owned(),
                _ if found.disaggregated => "with prefill/decode disaggregation the plugin declines".to_owned(),
                // the version affects only this message; capabilities are detected by probing
                Some(version) if version.starts_with("0.5.6") || version.starts_with("0.5.12") => {
                    format!("SGLang {version} supports no plugin")
                }
                _ => "the plugin `python/tokentap-sglang` in the environment of SGLang 0.5.23 makes them exact; the log of SGLang says if it declines".to_owned(),
            };
            report.line(Ok, "exact", format!("no, entropies are estimates from top-k: {why}"));
        }
    }
    if let Some(limit) = found.sampling_mask {
        report.line(Ok, "sampled", format!("the estimator `sampled` is exact for top_k up to {limit}"));
    }
}

/// Reports whether the engine returns the token columns of `--columns`.
pub(super) async fn columns(config: &Config, found: &Capabilities, engine: &Client, report: &mut Report) {
    for name in &config.columns.columns {
        let (verdict, text) = match name {
            ColumnName::RoutedExperts if is_dropped(found, ROUTED_EXPERTS_AT) => {
                (Verdict::Warn, dropped(ROUTED_EXPERTS_AT))
            }
            ColumnName::RoutedExperts => {
                let shape = expert_shape(config, found);
                let asked = tokio::time::timeout(GENERATION_TIMEOUT, expert_sample(engine, shape)).await;
                experts(config, found, asked.unwrap_or_else(|_| Err("no reply in time".to_owned())))
            }
            ColumnName::SamplingMask => match found.sampling_mask {
                Some(limit) => (
                    Verdict::Ok,
                    format!(
                        "sampling_mask: for requests with top_k up to {} (half of --sampling-mask-max-tokens)",
                        limit / 2
                    ),
                ),
                None if is_dropped(found, SAMPLING_MASK_AT) => (Verdict::Warn, dropped(SAMPLING_MASK_AT)),
                None => (
                    Verdict::Warn,
                    "sampling_mask: not returned; SGLang 0.5.23 can without speculative decoding".to_owned(),
                ),
            },
            ColumnName::TopLogprobs => (
                Verdict::Ok,
                format!("top_logprobs: the {} likeliest tokens of each sampled one", config.entropy.top_logprobs),
            ),
        };
        report.line(verdict, "column", text);
    }
}

fn is_dropped(found: &Capabilities, at: usize) -> bool {
    found.dropped.contains(&COLUMNS[at].request)
}

fn dropped(at: usize) -> String {
    let ColumnSource { name, request, .. } = COLUMNS[at];
    format!("{name}: the router drops {request}; run one tokentap beside each engine")
}

/// The shape of the experts: `--moe-shape`, or that of the model's config.json.
fn expert_shape(config: &Config, found: &Capabilities) -> Option<ExpertShape> {
    let set = config.columns.moe_shape;
    let set = set.map(|MoeShape([layers, per_token, experts])| ExpertShape { layers, per_token, experts });
    set.or(found.experts)
}

/// Compares the shape of the experts with those of a generation. Their numbers show the product of layers and experts per token, and not
/// which of both is which.
fn experts(config: &Config, found: &Capabilities, sample: Result<Option<ExpertSample>, String>) -> (Verdict, String) {
    let sample = match sample {
        Ok(Some(sample)) => sample,
        Ok(None) => {
            let text = "routed_experts: not returned; start SGLang with --enable-return-routed-experts";
            return (Verdict::Warn, text.to_owned());
        }
        Err(error) => return (Verdict::Warn, format!("routed_experts: not compared with a generation: {error}")),
    };
    let ExpertSample { values, fault } = sample;
    let Some(ExpertShape { layers, per_token, experts }) = expert_shape(config, found) else {
        let text = format!(
            "routed_experts: {values} numbers for each token; layers and experts are unknown, so that no trainer's format has them: set \
             --moe-shape"
        );
        return (Verdict::Warn, text);
    };
    let shown = format!("{layers} layers, {per_token} of {experts} experts for each token");
    let text = match fault {
        None => {
            let order =
                format!("that they are {layers} x {per_token} and not {per_token} x {layers} cannot be detected");
            let tokens = expert_tokens(ExpertShape { layers, per_token, experts }, config.limits.max_reply_bytes);
            let text = format!(
                "routed_experts: {shown}, in requests of up to {tokens} tokens (see --max-bytes-in-flight); the engine returns {values} \
                 numbers, and {order}"
            );
            if found.hierarchical_cache {
                let risk = "after a reload from the hierarchical cache, SGLang may report the experts of other tokens";
                return (Verdict::Warn, format!("{text}; {risk}: start it without --enable-hierarchical-cache"));
            }
            return (Verdict::Ok, text);
        }
        Some(ColumnFault::Length) => {
            format!(
                "the engine returns {values} numbers for each token, and {layers} x {per_token} are {}",
                u64::from(layers) * u64::from(per_token)
            )
        }
        Some(ColumnFault::Encoding) => format!("the engine returns an expert above the last, {}", experts - 1),
        Some(fault) => format!("the column would be missing ({})", fault.name()),
    };
    (Verdict::Fail, format!("routed_experts: {shown}: {text}; correct --moe-shape"))
}

pub(super) fn temperature(found: &Capabilities, report: &mut Report) {
    match found.original_logprobs {
        Some(false) => report.line(Verdict::Ok, "temperature", "logprobs are at the request's temperature"),
        Some(true) => report.line(
            Verdict::Warn,
            "temperature",
            "logprobs are always at temperature 1: unset SGLANG_RETURN_ORIGINAL_LOGPROB to get those of the sampling policy",
        ),
        None => report.line(Verdict::Warn, "temperature", "of the logprobs could not be determined; entropy_info.temperature will be null"),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::config;

    #[test]
    fn hierarchical_cache_and_a_router_are_warnings_about_routed_experts() {
        let args = ["tokentap", "serve", "--upstream", "http://127.0.0.1:1", "--moe-shape", "2x2x4"];
        let Ok(cli) = config::load(args.map(OsString::from)) else { panic!("the flags are valid") };
        let config = cli.command.config().unwrap();
        let plain = Capabilities { routed_experts: Some(true), ..Capabilities::default() };
        let sample = || Ok(Some(ExpertSample { values: 4, fault: None }));
        let (verdict, text) = experts(config, &plain, sample());
        assert!(verdict == Verdict::Ok && text.starts_with("routed_experts: 2 layers, 2 of 4 experts"), "{text}");
        let (verdict, text) = experts(config, &Capabilities { hierarchical_cache: true, ..plain.clone() }, sample());
        assert!(verdict == Verdict::Warn && text.ends_with("without --enable-hierarchical-cache"), "{text}");
        let found = Capabilities { dropped: vec![COLUMNS[ROUTED_EXPERTS_AT].request], ..plain };
        assert!(is_dropped(&found, ROUTED_EXPERTS_AT) && !is_dropped(&found, SAMPLING_MASK_AT));
    }
}
