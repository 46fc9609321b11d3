// SPDX-License-Identifier: Apache-2.0
//! Probes the upstream and keeps its capabilities up to date.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use super::build::EngineSenders;
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::probe::ProbeError;
use crate::engine::survey::{IdentityTracker, Observation, Survey};
use crate::serve::discovery::Discovery;
use crate::serve::proxy::Proxy;

/// After this number of consecutive failed probes, one per second, the upstream is considered down.
const MAX_FAILED_PROBES: u32 = 3;

/// The minimum time after a probe before a plugin that has failed since then is probed again.
const PLUGIN_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The timeout of a liveness check, and of all information routes together.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks the liveness of the upstream every second. Probes its capabilities when it answers for the first time or again, and when its
/// engines have changed.
pub(super) async fn watch(proxy: Arc<Proxy>, engine: EngineSenders) {
    let EngineSenders { capabilities, ready, discovery, .. } = engine;
    let entropy = &proxy.config.entropy;
    let probe = Survey::new(proxy.engines.clone(), entropy.vocab_size, entropy.top_logprobs);
    let mut generation_probe: Option<tokio::task::JoinHandle<()>> = None;
    let mut failed_probes = 0;
    let mut waiting_logged = false;
    // the engines have changed since their information routes were last read
    let mut stale = false;
    // the identities of the engines when their information routes were last read
    let mut identities = IdentityTracker::default();
    // an engine was replaced since then
    let mut replaced = false;
    // the upstream has answered before
    let mut has_answered = false;
    let mut probed_at = tokio::time::Instant::now();
    loop {
        let up = *ready.borrow();
        let epoch = proxy.generator.policy.epoch();
        let observe_label = |epoch, label: &Option<String>| {
            if let Some(label) = label {
                proxy.generator.policy.observe_model_info(epoch, label);
            }
        };
        let probing = async {
            if up {
                let report = with_timeout(probe.check_liveness()).await?;
                let observation = identities.observe(report.identities);
                replaced |= observation == Observation::Replaced;
                stale |= report.changed || replaced || observation == Observation::New;
                if !stale {
                    // otherwise the label may be from an engine that was not probed
                    if observation == Observation::Same {
                        observe_label(epoch, &report.weight_version);
                    }
                    return Ok(None);
                }
            }
            let (found, seen) = with_timeout(probe.read_info()).await?;
            stale = false;
            if up {
                replaced |= identities.observe(seen) == Observation::Replaced;
            } else {
                identities.reset(seen);
            }
            Ok(Some(found))
        };
        let answer: Result<_, ProbeError> = probing.await;
        proxy.generator.policy.set_several_engines(proxy.engines.single().is_none());
        match answer {
            Ok(found) => {
                failed_probes = 0;
                let retry_plugin = proxy.generator.context.plugin_failed.load(Ordering::Relaxed)
                    && probed_at.elapsed() >= PLUGIN_RETRY_INTERVAL;
                let failed = retry_plugin.then(|| Capabilities::clone(&capabilities.borrow()));
                if let Some(found) = &found {
                    // a replaced engine needs a new epoch, because its label may be the same: SGLang's initial label is always `default`
                    let is_new = std::mem::replace(&mut replaced, false) || !up;
                    let is_new = std::mem::replace(&mut has_answered, true) && is_new;
                    observe_label(
                        if is_new { proxy.generator.policy.observe_new_engine() } else { epoch },
                        &found.weight_version,
                    );
                    waiting_logged = false;
                    proxy.generator.forget_refusals();
                    capabilities.send_replace(Arc::new(found.clone()));
                    proxy.metrics.upstream_up.set(1);
                    ready.send_replace(true);
                    record_probe(&discovery, Ok(()));
                    tracing::info!(upstream = proxy.client.upstream(), model = %found.model, version = found.version, "the upstream answers");
                }
                if let Some(found) = found.or(failed) {
                    probed_at = tokio::time::Instant::now();
                    if let Some(previous) = generation_probe.take() {
                        previous.abort();
                    }
                    generation_probe = Some(tokio::spawn(probe_generation(
                        Arc::clone(&proxy),
                        probe.clone(),
                        found,
                        capabilities.clone(),
                    )));
                }
            }
            Err(error) => {
                failed_probes += 1;
                record_probe(&discovery, Err(&error));
                if !up && !std::mem::replace(&mut waiting_logged, true) {
                    tracing::info!(%error, "waiting for the upstream");
                }
                if up && failed_probes >= MAX_FAILED_PROBES {
                    tracing::warn!(%error, "the upstream is gone; its return is waited for");
                    proxy.metrics.upstream_up.set(0);
                    ready.send_replace(false);
                }
            }
        }
        let pause = if *ready.borrow() { Duration::from_secs(1) } else { Duration::from_millis(250) };
        tokio::time::sleep(pause).await;
    }
}

/// Records the outcome of a probe, until an engine has answered for the first time.
fn record_probe(discovery: &watch::Sender<Discovery>, outcome: Result<(), &ProbeError>) {
    discovery.send_if_modified(|known| {
        let failed = match *known {
            Discovery::Unanswered(failed) | Discovery::Unreachable(failed) => Some(failed + 1),
            Discovery::GivenUp => None,
            Discovery::Answered | Discovery::Decided => return false,
        };
        let next = match (outcome, failed) {
            (Ok(()), _) => Discovery::Answered,
            (Err(_), None) => Discovery::GivenUp,
            (Err(error), _) if error.is_another_server() => Discovery::GivenUp,
            (Err(error), Some(failed)) if error.is_unreachable() => Discovery::Unreachable(failed),
            (Err(_), Some(failed)) => Discovery::Unanswered(failed),
        };
        std::mem::replace(known, next) != next
    });
}

/// Waits for an answer for at most [`PROBE_TIMEOUT`].
async fn with_timeout<T>(answer: impl Future<Output = Result<T, ProbeError>>) -> Result<T, ProbeError> {
    tokio::time::timeout(PROBE_TIMEOUT, answer).await.unwrap_or(Err(ProbeError::Timeout))
}

/// Probes the capabilities that only a generation shows. It runs in the background, because a paused engine does not answer until it
/// continues. Retries with a backoff of at most a minute until all engines have answered.
async fn probe_generation(
    proxy: Arc<Proxy>,
    probe: Survey,
    found: Capabilities,
    capabilities: watch::Sender<Arc<Capabilities>>,
) {
    let mut pause = Duration::from_secs(1);
    let has_earlier_result = found.original_logprobs.is_some();
    let mut notes = Vec::new();
    loop {
        // the engine chooses the request ids of the probe
        let random = proxy.generator.context.flights.random();
        let answer = probe.probe_generation(found.clone()).await;
        drop(random);
        match answer {
            Ok((found, is_complete)) => {
                let answered =
                    found.generates == Some(false) || found.refuses_logprobs || found.original_logprobs.is_some();
                if answered {
                    proxy.generator.context.plugin_failed.store(false, Ordering::Relaxed);
                }
                // a probe without an answer does not replace the result of an earlier one
                if answered || !has_earlier_result {
                    capabilities.send_replace(Arc::new(found.clone()));
                }
                // logged after the result was published, so that tests and scripts can wait for this line
                tracing::info!(
                    vocab_size = found.vocab_size,
                    flat = found.flat,
                    streaming = found.streaming.map(tracing::field::display),
                    plugin = %found.plugin,
                    original_logprobs = found.original_logprobs,
                    "the upstream has been probed"
                );
                // retries with the same notes do not log them again
                if found.notes != notes {
                    found.notes.iter().for_each(|note| tracing::warn!(%note, "the upstream is not used in full"));
                    notes.clone_from(&found.notes);
                }
                if answered && is_complete {
                    return;
                }
            }
            Err(error) => tracing::warn!(%error, "the probe got no answer"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(60));
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::engine::transport::failure::Failure;

    #[test]
    fn only_a_server_error_is_an_engine_that_starts() {
        let recorded = |start, outcome: &Result<(), ProbeError>| {
            let (discovery, known) = watch::channel(start);
            record_probe(&discovery, outcome.as_ref().copied());
            *known.borrow()
        };
        let answer = |status| Err(ProbeError::Answer { path: "/model_info", status, hint: "" });
        let refused = || ProbeError::Failure(Failure::Connect { upstream: "u".into(), cause: "refused".into() });
        let start = Discovery::Unanswered(1);
        for status in [200, 302, 401, 403, 404, 429] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(recorded(start, &answer(status)), Discovery::GivenUp, "{status}");
        }
        assert_eq!(recorded(start, &answer(StatusCode::BAD_GATEWAY)), Discovery::Unanswered(2));
        assert_eq!(recorded(start, &Err(ProbeError::Timeout)), Discovery::Unanswered(2));
        assert_eq!(recorded(start, &Err(refused())), Discovery::Unreachable(2));
        assert_eq!(recorded(Discovery::Unreachable(2), &Err(ProbeError::Timeout)), Discovery::Unanswered(3));
        assert_eq!(recorded(Discovery::GivenUp, &Err(refused())), Discovery::GivenUp);
        assert_eq!(recorded(Discovery::GivenUp, &Ok(())), Discovery::Answered, "it answers after an ingress did");
        assert_eq!(recorded(Discovery::Decided, &Ok(())), Discovery::Decided);
    }
}
