//! Asks the upstream, or every engine of a router, and combines the answers.

use std::time::Duration;

use super::ask::{Probe, ProbeError};
use super::{Capabilities, EngineIdentity, Plugin, common};
use crate::sglang::engines::{Engines, Source, each};

/// How long an engine of a router may take with its information routes; the answers of the others are used without it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks what the engines are. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Survey {
    engines: Engines,
    vocab_size: Option<u32>,
    top_k: u32,
}

/// A sign of life.
#[derive(Debug)]
pub struct Pulse {
    /// The `weight_version`, where all engines name the same.
    pub weight_version: Option<String>,
    /// The engines of the router are others than before.
    pub changed: bool,
    /// The URL of each engine that answered, and what it is.
    pub identities: Vec<(String, EngineIdentity)>,
}

impl Survey {
    /// A survey that sends k = `top_k`, because sglang-jax compiles the model anew for each k.
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
        let probe = |client: &crate::sglang::client::Client| {
            (client.upstream().to_owned(), Probe::new(client.clone(), self.vocab_size, self.top_k))
        };
        healthy.map(|engine| probe(&engine.client)).collect()
    }

    /// Whether the upstream answers, by the cheapest route there is.
    ///
    /// # Errors
    /// [`ProbeError`] when it does not.
    pub async fn is_up(&self) -> Result<Pulse, ProbeError> {
        let found = self.upstream().is_up().await?;
        // an engine does not become a router while it runs
        if self.engines.current().source == Source::Upstream {
            let identities = vec![(self.engines.upstream().upstream().to_owned(), EngineIdentity::of(&found))];
            return Ok(Pulse { weight_version: found.weight_version, changed: false, identities });
        }
        let changed = self.engines.refresh().await?;
        let answers = each(self.members(), |(url, probe)| async move {
            let found = tokio::time::timeout(PATIENCE, probe.is_up()).await.ok()?.ok()?;
            Some((url, found))
        });
        // an engine that does not answer is the router's to notice
        let answers: Vec<(String, Capabilities)> = answers.await.into_iter().flatten().collect();
        let identities = answers.iter().map(|(url, found)| (url.clone(), EngineIdentity::of(found))).collect();
        let mut labels = answers.into_iter().map(|(_, found)| found.weight_version);
        let first = labels.next().unwrap_or(found.weight_version);
        let weight_version = first.filter(|first| labels.all(|label| label.as_ref() == Some(first)));
        Ok(Pulse { weight_version, changed, identities })
    }

    /// What the information routes say: quick, and also answered by an engine that is paused. With it come the URL of each engine that
    /// answered, and its identity in the first of these answers: an engine that is replaced after that answer has another identity in
    /// the next [`Pulse`].
    ///
    /// # Errors
    /// [`ProbeError`] when neither the upstream nor any engine behind it answers as SGLang does.
    pub async fn look(&self) -> Result<(Capabilities, Vec<(String, EngineIdentity)>), ProbeError> {
        self.engines.refresh().await?;
        let members = self.members();
        if members.is_empty() {
            let (found, is_router) = self.upstream().look().await?;
            self.engines.note_router(is_router);
            let identity = EngineIdentity::of(&found);
            return Ok((found, vec![(self.engines.upstream().upstream().to_owned(), identity)]));
        }
        let answers = each(members, |(url, probe)| async move {
            let answer = tokio::time::timeout(PATIENCE, probe.look()).await;
            (url, answer.map(|answer| answer.map(|(found, _)| found)))
        });
        let upstream = self.upstream();
        let (router, answers) = tokio::join!(upstream.is_up(), answers);
        // a router without an answer forwards nothing
        router?;
        let mut silent = Vec::new();
        let mut known = Vec::new();
        let mut failure = None;
        for (url, answer) in answers {
            match answer {
                Ok(Ok(found)) => known.push((url, found)),
                Ok(Err(error)) => {
                    silent.push(format!("{url} could not be asked: {error}"));
                    failure = Some(error);
                }
                Err(_) => silent.push(format!("{url} could not be asked: no answer in time")),
            }
        }
        let identities = known.iter().map(|(url, found)| (url.clone(), EngineIdentity::of(found))).collect();
        match common::of(known) {
            Some(mut found) => {
                found.notes.extend(silent);
                Ok((found, identities))
            }
            None => Err(failure.unwrap_or(ProbeError::NoEngine)),
        }
    }

    /// What only generating shows: vocabulary, flat form, the temperature of logprobs. Waits while an engine is paused. `found` is
    /// what [`look`](Self::look) returned.
    ///
    /// # Errors
    /// [`ProbeError`] when an engine stops answering.
    pub async fn ask(&self, found: Capabilities) -> Result<Capabilities, ProbeError> {
        let members = self.members();
        // an engine that prefills or decodes alone answers no generation of its own
        if members.is_empty() || found.disaggregated {
            return self.upstream().ask(found).await;
        }
        let notes = found.notes.clone();
        let answers = each(members, move |(url, probe)| {
            let found = found.clone();
            async move { (url, probe.ask(found).await) }
        });
        let mut known = Vec::new();
        let mut failure = None;
        for (url, answer) in answers.await {
            match answer {
                Ok(found) => known.push((url, found)),
                Err(error) => failure = Some(error),
            }
        }
        let Some(mut found) = common::of(known) else { return Err(failure.unwrap_or(ProbeError::NoEngine)) };
        found.notes.extend(notes);
        if found.generates != Some(false) && !found.refuses_logprobs {
            self.through_router(&mut found).await?;
        }
        Ok(found)
    }

    /// Takes back what the engines offer and the router's own reading of a request does not let through.
    async fn through_router(&self, found: &mut Capabilities) -> Result<(), ProbeError> {
        let mut through = Capabilities { notes: Vec::new(), flat: false, echoes_prompt: false, ..found.clone() };
        through.gives_logprobs = None;
        (through.plugin, through.sampling_mask) = (Plugin::Absent, None);
        self.upstream().through(&mut through).await?;
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
        if !lost.is_empty() {
            found.notes.push(format!("the router drops fields that its engines answer: {}", lost.join(", ")));
        }
        found.flat &= through.flat;
        found.echoes_prompt &= through.echoes_prompt;
        found.sampling_mask = found.sampling_mask.and(through.sampling_mask);
        if found.plugin == Plugin::Exact {
            found.plugin = match through.plugin {
                Plugin::Absent => Plugin::Unusable("the router drops sampling_params.custom_params".to_owned()),
                other => other,
            };
        }
        Ok(())
    }
}
