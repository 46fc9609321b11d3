// SPDX-License-Identifier: Apache-2.0
//! `tokentap check`: describes the upstream, and warns about causes of inaccurate or expensive results.

mod ledger;
mod numbers;
mod report;
mod route;
mod teachers;
mod template;

use std::time::Duration;

use crate::app::settings;
use crate::archive::Storage;
use crate::chat::model::Chats;
use crate::cli::print;
use crate::cli::terminal::{self, Palette};
use crate::config::{CheckArgs, Config, EntropyDefault};
use crate::engine::capabilities::Capabilities;
use crate::engine::engines::Engines;
use crate::engine::sglang::forcing::affordable_k;
use crate::engine::survey::Survey;
use crate::engine::transport::client::Client;
use report::{Report, Verdict};

/// The timeout of the probes that generate, because a paused engine does not answer them.
const GENERATION_TIMEOUT: Duration = Duration::from_secs(60);

/// Probes the upstream and prints the report. Retries for the duration of `wait` until the upstream answers. Returns `Ok(false)` if a line
/// of the report has failed.
///
/// # Errors
/// A line for the user when the settings are invalid.
pub async fn run(args: CheckArgs) -> Result<bool, String> {
    let CheckArgs { config, wait, json } = args;
    let client = settings::client(&config)?;
    let engines = Engines::try_new(client, &config.engine)?;
    let probe = Survey::new(engines.clone(), config.entropy.vocab_size, config.entropy.top_logprobs);
    let mut report = Report::default();
    match wait_for_info(&probe, wait).await {
        Ok(found) => {
            let found = match tokio::time::timeout(GENERATION_TIMEOUT, probe.probe_generation(found.clone())).await {
                Ok(Ok((found, _))) => found,
                Ok(Err(error)) => {
                    report.line(Verdict::Fail, "generate", error.to_string());
                    found
                }
                Err(_) => {
                    report.line(Verdict::Fail, "generate", "no token within 60 s; is the engine paused?");
                    found
                }
            };
            describe(&config, &found, &engines, &mut report);
            if found.probed {
                numbers::columns(&config, &found, &engines.any(), &mut report).await;
            }
            if found.generates != Some(false) {
                route::aborts(&engines, &mut report).await;
                if config.sessions.record {
                    route::prompts(&found, &engines, &mut report).await;
                }
                describe_chats(&config, &found, &engines.any(), &mut report).await;
            }
            teachers::check(&config, &engines.any(), &found, &mut report).await?;
            for note in &found.notes {
                report.line(Verdict::Warn, "note", note);
            }
        }
        Err(error) => {
            report.line(Verdict::Fail, "upstream", format!("{error}; SGLang needs about a minute to load a model"));
        }
    }
    ledger::check(&config, &mut report).await?;
    if let Some(uri) = &config.archive.archive {
        archive(uri, &mut report).await;
    }
    print(&if json { report.json() } else { report.text(Palette::of_stdout(), terminal::width()) });
    Ok(!report.has_failed())
}

/// Writes to the archive and reads from it.
async fn archive(uri: &str, report: &mut Report) {
    let probed = match Storage::open(uri) {
        Ok(storage) => storage.probe().await.map_err(|error| format!("{uri}: {error}")),
        Err(error) => Err(error),
    };
    match probed {
        Ok(()) => report.line(Verdict::Ok, "archive", format!("{uri} can be written and read")),
        Err(error) => report.line(Verdict::Fail, "archive", error),
    }
}

/// Reads the information routes. Retries for the duration of `wait` until the upstream answers.
///
/// # Errors
/// The last error when the upstream does not answer in time.
async fn wait_for_info(
    probe: &Survey,
    wait: Duration,
) -> Result<Capabilities, crate::engine::sglang::probe::ProbeError> {
    let deadline = tokio::time::Instant::now() + wait;
    let mut is_logged = false;
    loop {
        match probe.read_info().await {
            Ok((found, _)) => return Ok(found),
            Err(error) if tokio::time::Instant::now() >= deadline => return Err(error),
            Err(error) if !is_logged => {
                is_logged = true;
                tracing::info!(%error, wait_s = wait.as_secs(), "waiting for the upstream");
            }
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(500).min(wait)).await;
    }
}

fn describe(config: &Config, found: &Capabilities, engines: &Engines, report: &mut Report) {
    use Verdict::{Fail, Ok, Warn};
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
    route::upstream(config, found, engines, report);
    report.line(
        if found.model_path.is_some() { Ok } else { Warn },
        "model",
        format!("{} from {}, tokenizer {}", found.model, shown(&found.model_path), shown(&found.tokenizer_path)),
    );
    if found.generates == Some(false) {
        report.line(Fail, "model", "does not generate, so there is no policy to measure");
        return;
    }
    match found.context_length {
        Some(length) => report.line(Ok, "context", format!("{length} tokens")),
        None => report.line(Warn, "context", "unknown: reply sizes are estimated"),
    }
    numbers::vocabulary(found, report);
    numbers::streaming(config, found, report);
    if found.probed {
        describe_generation(found, report);
    } else {
        report.line(Warn, "not asked", "top-k form, exact entropies, temperature and logprobs: nothing was generated");
    }
    describe_info(config, found, report);
    route::weights(config, found, engines, report);
}

/// Reports the capabilities that only a generating probe detects.
fn describe_generation(found: &Capabilities, report: &mut Report) {
    if found.flat {
        report.line(Verdict::Ok, "top-k form", "flat base64 for replies that do not stream");
    } else {
        report.line(
            Verdict::Warn,
            "top-k form",
            "nested JSON only: about three times the bytes of flat base64, which SGLang 0.5.23 offers",
        );
    }
    numbers::plugin(found, report);
    numbers::temperature(found, report);
    if !found.refuses_logprobs {
        match found.gives_logprobs {
            Some(true) => report.line(Verdict::Ok, "logprobs", "returned as requested"),
            Some(false) => {
                report.line(Verdict::Fail, "logprobs", "missing from the reply to a request for them, see the note");
            }
            None => report.line(Verdict::Warn, "logprobs", "unknown"),
        }
    }
}

/// Reports whether tokentap or the engine serves chat completions, and why.
async fn describe_chats(config: &Config, found: &Capabilities, client: &Client, report: &mut Report) {
    let reason = match Chats::find(&config.chat, found, None) {
        Chats::Rendered(model) => match model.check_tokenizer(client).await {
            Ok(()) => {
                report.line(Verdict::Ok, "chat", format!("served from tokens: {}", model.describe()));
                report.line(
                    Verdict::Ok,
                    "chat",
                    "assistant messages keep their sampled tokens only within a session (/sessions/ID/v1 or X-Session-Id); otherwise they are tokenized as text and marked foreign_assistant_text",
                );
                let _ = model.images.ask(&model.renderer, client).await;
                match model.images.answer() {
                    Ok(tokens) => report.line(
                        Verdict::Ok,
                        "images",
                        format!("from tokens: a picture of 64 x 64 pixels has {tokens} tokens"),
                    ),
                    Err(reason) => report.line(
                        Verdict::Ok,
                        "images",
                        format!("by the engine's own endpoint, and not trained: {reason}"),
                    ),
                }
                template::final_assistant_message(&model.renderer, report);
                return template::tools(&model.renderer, report);
            }
            Err(reason) => reason,
        },
        Chats::Forwarded(reason) => reason,
    };
    report.line(Verdict::Warn, "chat", Chats::Forwarded(reason).describe());
}

/// Reports the settings of the engine that affect logprobs and prompts, which the information routes return.
fn describe_info(config: &Config, found: &Capabilities, report: &mut Report) {
    use Verdict::{Fail, Ok, Warn};
    if found.refuses_logprobs {
        let kind = found.speculative.as_deref().unwrap_or_default();
        report.line(
            Fail,
            "speculation",
            format!("{kind} refuses logprobs: start SGLang without --speculative-algorithm"),
        );
    } else if let Some(kind) = &found.speculative {
        let text = format!(
            "{kind}: some engines (0.5.6 EAGLE v2) send rows for the first token only; see tokentap_logprob_anomalies_total"
        );
        report.line(Warn, "speculation", text);
    }
    if found.bf16 {
        report.line(
            Warn,
            "precision",
            "logprobs are rounded to bfloat16: intervals are wider; --rl-on-policy-target does this",
        );
    }
    if let Some(k) = lowered_k(config, found) {
        let text = format!(
            "lowered from {} to {k} where a client that does not stream sets no length: the reply could exceed an eighth of --max-bytes-in-flight (at least 64MiB)",
            config.entropy.top_logprobs
        );
        report.line(Warn, "top-k", text);
    }
    if found.disaggregated {
        report.line(Warn, "prefill", "disaggregated: top-k is at most 128");
    }
    if found.skip_tokenizer_init {
        report.line(Ok, "tokenizer", "none in the engine: prompts are ids only");
    }
    if found.traits().compiles_for_logprobs && config.entropy.entropy != EntropyDefault::Always {
        let text = "forced logprobs make sglang-jax compile the model for each batch shape: only return_entropy: true is served; see --entropy always";
        report.line(Warn, "jax", text);
    }
    if found.traits().streams_need_overlap {
        let streams = match found.overlap_schedule {
            Some(true) => (Ok, "the overlap schedule is on: logprobs can be streamed"),
            Some(false) => (Warn, "the overlap schedule is off: streams with logprobs break, so none are forced"),
            None => (Warn, "no route says whether the overlap schedule is on: no logprobs are forced on streams"),
        };
        report.line(streams.0, "streams", streams.1);
    }
    if !found.lists_sampled_ids() {
        let text = "output_ids are not the sampled tokens: turns without logprobs get the fault ids_unverified and are not trained; \
                    ask for logprobs (return_logprob or return_entropy) or start the engine with --skip-tokenizer-init";
        report.line(Warn, "trajectories", text);
    }
}

/// The k of top-k logprobs for a reply of the full context length, if a size limit makes it smaller than the setting.
fn lowered_k(config: &Config, found: &Capabilities) -> Option<u32> {
    let wanted = config.entropy.top_logprobs;
    let bound = config.entropy.reply_budget.max(config.limits.max_reply_bytes);
    let k = affordable_k(wanted, found.context_length?, found.flat, bound);
    (k < wanted).then_some(k)
}
