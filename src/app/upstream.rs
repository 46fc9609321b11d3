//! What is known of the upstream, kept up to date.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use super::Parts;
use crate::engine::probe::{Capabilities, IdentityTracker, Observation, ProbeError, Survey};

/// The upstream counts as gone after this many consecutive failed probes, one a second.
const PATIENCE: u32 = 3;

/// A plugin that failed is probed again after this time.
const REPRIEVE: Duration = Duration::from_secs(60);

/// How long a sign of life may take, and how long the information routes may take altogether.
const ANSWER: Duration = Duration::from_secs(10);

/// Keeps what is known of the upstream up to date: at start, and whenever it has come back.
pub(super) async fn watch(parts: Arc<Parts>, probed: watch::Sender<Arc<Capabilities>>, ready: watch::Sender<bool>) {
    let entropy = &parts.config.entropy;
    let probe = Survey::new(parts.engines.clone(), entropy.vocab_size, entropy.top_logprobs);
    let mut asking: Option<tokio::task::JoinHandle<()>> = None;
    let mut missed = 0;
    let mut told = false;
    // the engines have changed since they were last asked
    let mut stale = false;
    // what each of them was when it was last asked, and that one is another engine since
    let mut identities = IdentityTracker::default();
    let mut replaced = false;
    // it has answered before
    let mut known = false;
    let mut asked = tokio::time::Instant::now();
    loop {
        let up = *ready.borrow();
        let epoch = parts.generator.policy.epoch();
        let shown = |epoch, label: &Option<String>| {
            if let Some(label) = label {
                parts.generator.policy.observe_model_info(epoch, label);
            }
        };
        let look = async {
            if up {
                let pulse = limited(probe.check_liveness()).await?;
                let observation = identities.observe(pulse.identities);
                replaced |= observation == Observation::Replaced;
                stale |= pulse.changed || replaced || observation == Observation::New;
                if !stale {
                    // the label may be that of another engine
                    if observation == Observation::Same {
                        shown(epoch, &pulse.weight_version);
                    }
                    return Ok(None);
                }
            }
            let (found, seen) = limited(probe.read_info()).await?;
            stale = false;
            if up {
                replaced |= identities.observe(seen) == Observation::Replaced;
            } else {
                identities.reset(seen);
            }
            Ok(Some(found))
        };
        let answer: Result<_, String> = look.await;
        match answer {
            Ok(found) => {
                missed = 0;
                let again = parts.tools.plugin_failed.load(Ordering::Relaxed) && asked.elapsed() >= REPRIEVE;
                let failed = again.then(|| Capabilities::clone(&probed.borrow()));
                if let Some(found) = &found {
                    // its label may be that of the engine before, as `default` is of every engine that starts
                    let is_new = std::mem::replace(&mut replaced, false) || !up;
                    let is_new = std::mem::replace(&mut known, true) && is_new;
                    shown(if is_new { parts.generator.policy.begin_epoch().0 } else { epoch }, &found.weight_version);
                    told = false;
                    parts.generator.forget_refusals();
                    probed.send_replace(Arc::new(found.clone()));
                    parts.metrics.upstream_up.set(1);
                    ready.send_replace(true);
                    tracing::info!(upstream = parts.client.upstream(), model = %found.model, version = found.version, "the upstream answers");
                }
                if let Some(found) = found.or(failed) {
                    asked = tokio::time::Instant::now();
                    if let Some(previous) = asking.take() {
                        previous.abort();
                    }
                    asking = Some(tokio::spawn(ask(Arc::clone(&parts), probe.clone(), found, probed.clone())));
                }
            }
            Err(error) => {
                missed += 1;
                if !up && !std::mem::replace(&mut told, true) {
                    tracing::info!(%error, "waiting for the upstream");
                }
                if up && missed >= PATIENCE {
                    tracing::warn!(%error, "the upstream is gone; its return is waited for");
                    parts.metrics.upstream_up.set(0);
                    ready.send_replace(false);
                }
            }
        }
        let pause = if *ready.borrow() { Duration::from_secs(1) } else { Duration::from_millis(250) };
        tokio::time::sleep(pause).await;
    }
}

/// An answer within [`ANSWER`]; else a line for the log.
async fn limited<T>(answer: impl Future<Output = Result<T, ProbeError>>) -> Result<T, String> {
    let answer = tokio::time::timeout(ANSWER, answer).await.map_err(|_| "no answer in time".to_owned())?;
    answer.map_err(|error| error.to_string())
}

/// Asks what only generating shows, in the background: a paused engine answers late. Asks again, at most once a minute, until all engines
/// have answered.
async fn ask(parts: Arc<Parts>, probe: Survey, found: Capabilities, probed: watch::Sender<Arc<Capabilities>>) {
    let mut pause = Duration::from_secs(1);
    let again = found.original_logprobs.is_some();
    let mut notes = Vec::new();
    loop {
        // it generates under ids of the engine's
        let random = parts.tools.flights.random();
        let answer = probe.ask(found.clone()).await;
        drop(random);
        match answer {
            Ok((found, is_complete)) => {
                let answered =
                    found.generates == Some(false) || found.refuses_logprobs || found.original_logprobs.is_some();
                if answered {
                    parts.tools.plugin_failed.store(false, Ordering::Relaxed);
                }
                // what an earlier probe found is not given up for no answer
                if answered || !again {
                    probed.send_replace(Arc::new(found.clone()));
                }
                // logged after it was published, so that tests and scripts can wait for the line
                tracing::info!(
                    vocab_size = found.vocab_size,
                    flat = found.flat,
                    streaming = ?found.streaming,
                    plugin = ?found.plugin,
                    original_logprobs = found.original_logprobs,
                    "the upstream has been probed"
                );
                // asked again and again, and logged once
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
