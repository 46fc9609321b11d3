// SPDX-License-Identifier: Apache-2.0
//! Probes the upstream, or every engine of a router, and combines the answers.

mod identity;

use std::time::Duration;

pub use identity::{EngineIdentity, Identities, IdentityTracker, Observation};

use crate::columns::{COLUMNS, ROUTED_EXPERTS_AT};
use crate::engine::capabilities::{Capabilities, PluginState, common};
use crate::engine::engines::{EngineSource, Engines, RefreshOutcome, each};
use crate::engine::sglang::probe::{Probe, ProbeError};
use crate::engine::transport::client::Client;

/// Timeout of a router engine's information routes. After it, the answers of the other engines are used.
const INFO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the other engines of a router may take for the generating probe, once one of them has answered.
const GENERATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Probes the engines behind the upstream. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Survey {
    engines: Engines,
    vocab_size: Option<u32>,
    top_k: u32,
}

/// The result of a liveness check.
#[derive(Debug)]
pub struct LivenessReport {
    /// The `weight_version`, if all engines report the same.
    pub weight_version: Option<String>,
    /// The router's list of engines has changed.
    pub changed: bool,
    /// The identity of each engine by URL; `None` for one that did not answer.
    pub identities: Identities,
}

impl Survey {
    /// A survey that sends k = `top_k`, because sglang-jax recompiles the model for each k.
    #[must_use]
    pub fn new(engines: Engines, vocab_size: Option<u32>, top_k: u32) -> Self {
        Self { engines, vocab_size, top_k }
    }

    /// The probe of the upstream itself.
    fn upstream(&self) -> Probe {
        Probe::new(self.engines.upstream().clone(), self.vocab_size, self.top_k)
    }

    /// The probes of a router's healthy engines, with their URLs; empty where the upstream is the engine.
    fn members(&self) -> Vec<(String, Probe)> {
        let current = self.engines.current();
        let healthy = current.engines.iter().filter(|engine| engine.healthy);
        let probe =
            |client: &Client| (client.upstream().to_owned(), Probe::new(client.clone(), self.vocab_size, self.top_k));
        healthy.map(|engine| probe(&engine.client)).collect()
    }

    /// Asks a router for its engines and returns whether they have changed.
    ///
    /// # Errors
    /// [`ProbeError`] when the upstream does not answer, or is a router that answers with a server error.
    async fn refresh(&self) -> Result<bool, ProbeError> {
        match self.engines.refresh().await? {
            RefreshOutcome::Same => Ok(false),
            RefreshOutcome::Changed => Ok(true),
            RefreshOutcome::Refused(status) => {
                Err(ProbeError::Answer { path: "/workers", status, hint: "the router forwards nothing; see its log" })
            }
        }
    }

    /// Checks that a router forwards calls. A router that listed its workers has answered already. Another router is asked for the model, a
    /// call that it forwards to one of its engines. A timeout is not an error: the router may have chosen an engine that hangs.
    ///
    /// # Errors
    /// [`ProbeError`] when the router refuses the connection or answers with an error.
    async fn router_answers(&self) -> Result<(), ProbeError> {
        if self.engines.current().source == EngineSource::Workers {
            return Ok(());
        }
        let answer = tokio::time::timeout(INFO_TIMEOUT, self.upstream().check_liveness()).await;
        answer.map_or(Ok(()), |answer| answer.map(|_| ()))
    }

    /// Checks that the upstream answers, on the cheapest route.
    ///
    /// # Errors
    /// [`ProbeError`] when it does not answer, or when it is a router and none of its engines answers.
    pub async fn check_liveness(&self) -> Result<LivenessReport, ProbeError> {
        // an engine does not become a router while it runs
        let changed = self.engines.current().source != EngineSource::Upstream && self.refresh().await?;
        let members = self.members();
        if members.is_empty() {
            let found = self.upstream().check_liveness().await?;
            let identities = vec![(self.engines.upstream().upstream().to_owned(), Some(EngineIdentity::from(&found)))];
            return Ok(LivenessReport { weight_version: found.weight_version, changed, identities });
        }
        let answers = each(members, |(url, probe)| async move {
            let found = tokio::time::timeout(INFO_TIMEOUT, probe.check_liveness()).await;
            (url, found.ok().and_then(Result::ok))
        });
        let (router, answers) = tokio::join!(self.router_answers(), answers);
        router?;
        let identities: Identities =
            answers.iter().map(|(url, found)| (url.clone(), found.as_ref().map(EngineIdentity::from))).collect();
        // the router itself must detect an engine that does not answer
        let mut labels = answers.into_iter().filter_map(|(_, found)| found).map(|found| found.weight_version);
        let first = labels.next().ok_or(ProbeError::NoEngine)?;
        let weight_version = first.filter(|first| labels.all(|label| label.as_ref() == Some(first)));
        Ok(LivenessReport { weight_version, changed, identities })
    }

    /// Reads the information routes. They are fast, and a paused engine answers them too. Also returns the identity of each engine from its
    /// first answer, so that a later replacement shows in the next [`LivenessReport`].
    ///
    /// # Errors
    /// [`ProbeError`] when neither the upstream nor any of its engines answers like SGLang.
    pub async fn read_info(&self) -> Result<(Capabilities, Identities), ProbeError> {
        self.refresh().await?;
        let members = self.members();
        if members.is_empty() {
            let (found, is_router) = self.upstream().read_info().await?;
            self.engines.note_router(is_router);
            let identity = EngineIdentity::from(&found);
            return Ok((found, vec![(self.engines.upstream().upstream().to_owned(), Some(identity))]));
        }
        let answers = each(members, |(url, probe)| async move {
            let answer = tokio::time::timeout(INFO_TIMEOUT, probe.read_info()).await;
            (url, answer.map(|answer| answer.map(|(found, _)| found)))
        });
        let (router, answers) = tokio::join!(self.router_answers(), answers);
        // a router that refuses calls forwards nothing
        router?;
        let mut silent = Vec::new();
        let mut known = Vec::new();
        let mut identities = Vec::new();
        let mut failure = None;
        for (url, answer) in answers {
            identities.push((
                url.clone(),
                answer.as_ref().ok().and_then(|answer| answer.as_ref().ok()).map(EngineIdentity::from),
            ));
            match answer {
                Ok(Ok(found)) => known.push((url, found)),
                Ok(Err(error)) => {
                    silent.push(format!("{url} could not be asked: {error}"));
                    failure = Some(error);
                }
                Err(_) => silent.push(format!("{url} could not be asked: no answer in time")),
            }
        }
        match common::combine(known) {
            Some(mut found) => {
                found.notes.extend(silent);
                Ok((found, identities))
            }
            None => Err(failure.unwrap_or(ProbeError::NoEngine)),
        }
    }

    /// Probes by generating: vocabulary, flat form, temperature of logprobs. Waits while an engine is paused, but at most 10 s for one
    /// engine of a router after another has answered. `found` is the result of [`read_info`](Self::read_info). Also returns whether every
    /// engine has answered.
    ///
    /// # Errors
    /// [`ProbeError`] when the upstream, or every engine of a router, stops answering.
    pub async fn probe_generation(&self, found: Capabilities) -> Result<(Capabilities, bool), ProbeError> {
        let members = self.members();
        // an engine that only prefills or only decodes cannot answer a generation
        if members.is_empty() || found.disaggregated {
            let mut found = self.upstream().probe_generation(found).await?;
            if self.engines.current().source != EngineSource::Upstream && found.generates != Some(false) {
                found.dropped = Vec::from_iter(self.drops_experts(&mut found).await?);
            }
            return Ok((found, true));
        }
        let notes = found.notes.clone();
        let mut known = Vec::new();
        let mut silent = Vec::new();
        let mut failure = None;
        for (url, answer) in probe_each(members, &found).await {
            match answer {
                Some(Ok(found)) => known.push((url, found)),
                Some(Err(error)) => {
                    silent.push(format!("{url} did not answer the probe: {error}"));
                    failure = Some(error);
                }
                None => silent.push(format!("{url} did not answer the probe in time")),
            }
        }
        let Some(mut found) = common::combine(known) else { return Err(failure.unwrap_or(ProbeError::NoEngine)) };
        if found.generates != Some(false) && !found.refuses_logprobs {
            let through = tokio::time::timeout(GENERATION_TIMEOUT, self.through_router(&mut found)).await;
            if let Ok(answer) = through {
                answer?;
            } else {
                // features that may not pass the router are not used
                (found.flat, found.echoes_prompt, found.sampling_mask) = (false, false, None);
                found.plugin = PluginState::Absent;
                silent.push("the router did not answer the probe in time".to_owned());
            }
        }
        let is_complete = silent.is_empty();
        found.notes.extend(silent);
        found.notes.extend(notes.into_iter().filter(|note| !found.notes.contains(note)).collect::<Vec<_>>());
        Ok((found, is_complete))
    }

    /// Removes capabilities of the engines that the router does not forward.
    async fn through_router(&self, found: &mut Capabilities) -> Result<(), ProbeError> {
        let mut through = Capabilities { notes: Vec::new(), flat: false, echoes_prompt: false, ..found.clone() };
        through.gives_logprobs = None;
        (through.plugin, through.sampling_mask) = (PluginState::Absent, None);
        self.upstream().probe_router_fields(&mut through).await?;
        if found.gives_logprobs == Some(true) && through.gives_logprobs != Some(true) {
            found.notes.push("the router does not let logprobs through".to_owned());
            found.gives_logprobs = through.gives_logprobs;
        }
        let mut lost = Vec::new();
        if found.flat && !through.flat {
            lost.push("return_flat_raw_top_logprobs_b64");
        }
        if found.echoes_prompt && !through.echoes_prompt {
            lost.push("return_prompt_token_ids");
        }
        if found.sampling_mask.is_some() && through.sampling_mask.is_none() {
            lost.push("return_sampling_mask");
        }
        lost.extend(self.drops_experts(found).await?);
        if !lost.is_empty() {
            found.notes.push(format!("the router drops fields that its engines answer: {}", lost.join(", ")));
        }
        found.dropped = lost;
        found.flat &= through.flat;
        found.echoes_prompt &= through.echoes_prompt;
        found.sampling_mask = found.sampling_mask.and(through.sampling_mask);
        if found.plugin == PluginState::Exact {
            found.plugin = match through.plugin {
                PluginState::Absent => {
                    PluginState::Unusable("the router drops sampling_params.custom_params".to_owned())
                }
                other => other,
            };
        }
        Ok(())
    }

    /// The member of a request that asks for routed experts, if the engines report that they return them and the router drops it. Where
    /// no engine reports it, the answer through the router says whether they are returned.
    async fn drops_experts(&self, found: &mut Capabilities) -> Result<Option<&'static str>, ProbeError> {
        if found.routed_experts == Some(false) || !found.traits().ignores_unknown_members {
            return Ok(None);
        }
        let is_returned = self.upstream().returns_experts().await?;
        let is_dropped = found.routed_experts == Some(true) && is_returned == Some(false);
        found.routed_experts = found.routed_experts.or(is_returned);
        Ok(is_dropped.then_some(COLUMNS[ROUTED_EXPERTS_AT].request))
    }
}

/// Runs the generating probe on these engines and returns the answers in their order. Once one has answered, the others have
/// [`GENERATION_TIMEOUT`]; `None` for one that did not answer by then.
async fn probe_each(
    members: Vec<(String, Probe)>,
    found: &Capabilities,
) -> Vec<(String, Option<Result<Capabilities, ProbeError>>)> {
    let mut answers: Vec<_> = members.iter().map(|(url, _)| (url.clone(), None)).collect();
    let mut asking = tokio::task::JoinSet::new();
    for (at, (_, probe)) in members.into_iter().enumerate() {
        let found = found.clone();
        asking.spawn(async move { (at, probe.probe_generation(found).await) });
    }
    let mut deadline = None;
    while let Some(next) = match deadline {
        None => asking.join_next().await,
        Some(deadline) => tokio::time::timeout_at(deadline, asking.join_next()).await.unwrap_or(None),
    } {
        // a task that panicked has not answered
        let Ok((at, answer)) = next else { continue };
        if answer.is_ok() {
            deadline = deadline.or_else(|| Some(tokio::time::Instant::now() + GENERATION_TIMEOUT));
        }
        answers[at].1 = Some(answer);
    }
    answers
}
