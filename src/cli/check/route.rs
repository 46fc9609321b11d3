// SPDX-License-Identifier: Apache-2.0
//! Reports on the requests of tokentap to the upstream: the router and its engines, aborts, and the tokenize route.

use crate::cli::check::{Report, Verdict};
use crate::config::Config;
use crate::engine::capabilities::Capabilities;
use crate::engine::engines::{AbortOutcome, EngineSource, Engines};
use crate::engine::rid;
use crate::engine::sglang::tokenize::tokenize;
use crate::session::INITIAL_WEIGHT_VERSION;

/// Reports the product and version of the upstream, and the URLs of its engines.
pub(super) fn upstream(config: &Config, found: &Capabilities, engines: &Engines, report: &mut Report) {
    use Verdict::{Ok, Warn};
    let current = engines.current();
    let kind = found.product.map_or("of a kind that is not known", |product| product.name);
    let (verdict, version) = match &found.version {
        Some(version) => (Ok, version.as_str()),
        None => (Warn, "of a version that it does not name"),
    };
    let urls: Vec<&str> = current.engines.iter().map(|engine| engine.client.upstream()).collect();
    let origin = match current.source {
        EngineSource::Unknown | EngineSource::Upstream => {
            return report.line(verdict, "upstream", format!("{} is {kind} {version}", config.upstream));
        }
        EngineSource::Unlisted => {
            report.line(
                Warn,
                "upstream",
                format!(
                    "{} is a router that does not name its engines: what follows is reported by the router",
                    config.upstream
                ),
            );
            return report.line(Warn, "engines", "unknown; name each with --engine URL");
        }
        EngineSource::Flag => "from --engine",
        EngineSource::Workers => "from its /workers",
    };
    report.line(
        Warn,
        "upstream",
        format!(
            "{} forwards to engines: generations go through it, aborts and probes go to the engines, and the control \
             routes of SGLang (pause, weights) must be sent to each engine",
            config.upstream
        ),
    );
    if urls.is_empty() {
        return report.line(Warn, "engines", format!("none, {origin}"));
    }
    report.line(verdict, "engines", format!("{} {origin}: {}; {kind} {version}", urls.len(), urls.join(", ")));
    for engine in current.engines.iter().filter(|engine| !engine.healthy) {
        report.line(Warn, "engines", format!("{} is unhealthy according to the router", engine.client.upstream()));
    }
}

/// Reports the `weight_version` of the engines. Behind a router it alone shows that weights changed: the calls go to the engines. Tokentaps
/// that share sessions compare their turns by it.
pub(super) fn weights(config: &Config, found: &Capabilities, engines: &Engines, report: &mut Report) {
    use Verdict::{Ok, Warn};
    let (is_router, is_shared) = (engines.single().is_none(), config.ledger.ledger.is_some());
    let mut initial = Vec::new();
    if is_router {
        initial.push("an update is recognised only if it sets weight_version, or by POST /v1/policy");
    }
    if is_shared {
        initial.push("rows with turns of several tokentaps are policy_uncertain until an update sets weight_version");
    }
    match &found.weight_version {
        Some(version) if version == INITIAL_WEIGHT_VERSION && !initial.is_empty() => {
            initial.iter().for_each(|text| report.line(Warn, "weights", format!("weight_version {version}: {text}")));
        }
        Some(version) => report.line(Ok, "weights", format!("weight_version {version}")),
        None if is_router => report.line(Warn, "weights", "weight_version unknown, or not the same at every engine"),
        None => report.line(Warn, "weights", "weight_version unknown"),
    }
}

/// Reports whether the engines accept an abort. The request id is random, so no request is aborted.
pub(super) async fn aborts(engines: &Engines, report: &mut Report) {
    let outcomes = engines.abort(&rid::fresh(), None).await;
    if outcomes.iter().all(AbortOutcome::is_unsupported) {
        let text = "no /abort_request: a client that disconnects ends its generation only by closing the connection; name the engines with --engine";
        return report.line(Verdict::Warn, "aborts", text);
    }
    let failed = outcomes.iter().filter(|outcome| !outcome.is_absent);
    let problems: Vec<String> = failed.filter_map(AbortOutcome::problem).collect();
    if problems.is_empty() {
        report.line(Verdict::Ok, "aborts", "client disconnects abort the generation");
    }
    for problem in problems {
        report.line(Verdict::Warn, "aborts", problem);
    }
}

/// Reports which route returns the token ids of text prompts. A turn without them is not trained.
pub(super) async fn prompts(found: &Capabilities, engines: &Engines, report: &mut Report) {
    if found.skip_tokenizer_init {
        return;
    }
    let answer = tokenize(&engines.any(), "\"tokentap\"").await;
    match (answer, found.echoes_prompt) {
        (Ok(_), true) => report.line(
            Verdict::Ok,
            "prompts",
            "the engine echoes the ids of text prompts; those of streams come from /tokenize",
        ),
        (Ok(_), false) => report.line(Verdict::Ok, "prompts", "the ids of text prompts come from /tokenize"),
        (Err(error), true) => report.line(
            Verdict::Warn,
            "prompts",
            format!("the engine echoes the ids of text prompts; streams with a text prompt are not trained: {error}"),
        ),
        (Err(error), false) => report.line(
            Verdict::Warn,
            "prompts",
            format!("turns with a text prompt are not trained; send input_ids: {error}"),
        ),
    }
}
