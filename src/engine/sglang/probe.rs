// SPDX-License-Identifier: Apache-2.0
//! Probes one server for its capabilities.

mod experts;
mod facts;
mod logprobs;
mod plugin;
mod refusal;
mod stream;

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};

pub use facts::InfoObject;
use facts::{Models, product};
use refusal::{config_experts, config_vocab, mask_limit, range_end};

use crate::columns::{COLUMNS, SAMPLING_MASK_AT};
use crate::engine::capabilities::{Capabilities, PluginState, VocabSource};
use crate::engine::transport::client::Client;
use crate::engine::transport::failure::Failure;

/// An id above every vocabulary that fits in 31 bits.
const NO_TOKEN: u32 = 2_000_000_000;
/// Timeout of `/server_info`, which waits for the scheduler.
const SERVER_INFO_TIMEOUT: Duration = Duration::from_secs(2);
/// Prompts for the temperature probe. Any ids that every vocabulary has will do.
const PROMPTS: [[u32; 3]; 4] = [[10, 11, 12], [100, 101, 102], [50, 60, 70], [9, 200, 33]];

/// A probe of one server.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    client: Client,
    vocab_size: Option<u32>,
    top_k: u32,
    /// Whether the paths that the server reports may be those of this machine.
    reads_files: bool,
}

/// Why the upstream cannot be probed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The upstream did not answer.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// The upstream did not answer in time.
    #[error("no answer in time")]
    Timeout,
    /// No engine of the router answers.
    #[error("the router lists engines, and none of them answers")]
    NoEngine,
    /// The upstream answered, but not like SGLang.
    #[error("GET {path} answered {status}: {hint}")]
    Answer {
        /// The route.
        path: &'static str,
        /// Its status.
        status: StatusCode,
        /// Advice for the user.
        hint: &'static str,
    },
}

impl ProbeError {
    /// Whether a server answered, and neither like SGLang nor like a proxy whose engine is starting.
    #[must_use]
    pub fn is_another_server(&self) -> bool {
        matches!(self, Self::Answer { status, .. } if !status.is_server_error())
    }

    /// Whether nothing accepted the connection.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Failure(Failure::Connect { .. } | Failure::Unreachable { .. }))
    }
}

/// The answer of `/server_info`.
enum ServerInfo {
    /// An engine's answer.
    Engine(InfoObject),
    /// A router's answer.
    Router,
    /// No answer, or an unreadable one.
    Unknown,
}

impl Probe {
    /// A probe that sends k = `top_k`, because sglang-jax recompiles the model for each k.
    #[must_use]
    pub(crate) fn new(client: Client, vocab_size: Option<u32>, top_k: u32) -> Self {
        Self { client, vocab_size, top_k, reads_files: true }
    }

    /// A probe of another server than the upstream. It opens no file at a path that the server reports: such a server could choose the file,
    /// and on another machine the path is that of another model.
    #[must_use]
    pub(crate) fn remote(client: Client) -> Self {
        Self { reads_files: false, ..Self::new(client, None, 1) }
    }

    /// Checks that the engine answers on the cheapest route, and returns what that route reports about the model.
    ///
    /// # Errors
    /// [`ProbeError`] when it does not answer.
    pub(crate) async fn check_liveness(&self) -> Result<Capabilities, ProbeError> {
        let mut found = Capabilities::unknown(None);
        self.model_info().await?.0.model(&mut found);
        Ok(found)
    }

    /// Reads the information routes, and returns whether they are a router's. They are fast, and a paused engine answers them too.
    ///
    /// # Errors
    /// [`ProbeError`] when the upstream does not answer as SGLang does.
    pub(crate) async fn read_info(&self) -> Result<(Capabilities, bool), ProbeError> {
        let mut found = Capabilities::unknown(self.vocab_size);
        let (facts, has_model_info) = self.model_info().await?;
        facts.model(&mut found);
        found.product = product(has_model_info, &found);
        if let Some(models) = self.json::<Models>("/v1/models").await? {
            models.models(&mut found);
        }
        found.experts = self.config_file(&found).and_then(|text| config_experts(&text));
        let info = self.server_info().await?;
        let is_router = matches!(info, ServerInfo::Router);
        if let ServerInfo::Engine(facts) = info {
            facts.server(&mut found);
        }
        Ok((found, is_router))
    }

    /// Reads the size of the vocabulary from the engine, unless `found` has it.
    ///
    /// # Errors
    /// [`ProbeError`] when the upstream stops answering.
    pub(crate) async fn with_vocabulary(&self, mut found: Capabilities) -> Result<Capabilities, ProbeError> {
        if found.vocab_size.is_none() {
            self.vocabulary(&mut found).await?;
        }
        Ok(found)
    }

    /// Probes by generating: vocabulary, flat form, temperature of logprobs. Waits while the engine is paused.
    ///
    /// # Errors
    /// [`ProbeError`] when the upstream stops answering.
    pub(crate) async fn probe_generation(&self, mut found: Capabilities) -> Result<Capabilities, ProbeError> {
        found.probed = true;
        // earlier values may be outdated, and must not survive a probe that gets no answer
        (found.plugin, found.sampling_mask) = (PluginState::Absent, None);
        (found.gives_logprobs, found.original_logprobs) = (None, None);
        found.notes.clear();
        if found.generates == Some(false) {
            return Ok(found);
        }
        if found.vocab_size.is_none() {
            self.vocabulary(&mut found).await?;
        }
        if !found.refuses_logprobs {
            self.logprobs(&mut found).await?;
            self.sampling_mask(&mut found).await?;
        }
        if found.streaming.is_none()
            // 0.5.6 answers only after its first generation, which has happened by now
            && let ServerInfo::Engine(facts) = self.server_info().await?
        {
            facts.server(&mut found);
        }
        if found.streaming.is_none() {
            self.streaming(&mut found).await?;
        }
        Ok(found)
    }

    /// Detects the streaming mode from the events of a short stream, for engines whose information routes do not report it, for example
    /// behind a router. Skips products whose streams may break off with logprobs.
    async fn streaming(&self, found: &mut Capabilities) -> Result<(), ProbeError> {
        if found.product.is_some() && !found.traits().streams_need_overlap {
            let body = json!({
                "input_ids": PROMPTS[0],
                "stream": true,
                "return_logprob": !found.refuses_logprobs,
                "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": true},
            });
            let (status, answer) = self.generate(&body).await?;
            if status.is_success() {
                found.streaming = stream::mode(&answer);
            }
        }
        if found.streaming.is_none() {
            let note = "the streaming mode is not known: no information route names it and a stream did not show it";
            found.notes.push(note.into());
        }
        Ok(())
    }

    /// Repeats the probes that depend on fields of a request, which a router may drop. `found` holds the capabilities of its engines.
    pub(crate) async fn probe_router_fields(&self, found: &mut Capabilities) -> Result<(), ProbeError> {
        self.logprobs(found).await?;
        self.sampling_mask(found).await
    }

    async fn get(&self, path: &'static str) -> Result<(StatusCode, Bytes), ProbeError> {
        Ok(self.client.call(Method::GET, path, None).await?)
    }

    async fn json<T: serde::de::DeserializeOwned>(&self, path: &'static str) -> Result<Option<T>, ProbeError> {
        let (status, body) = self.get(path).await?;
        Ok(if status.is_success() { serde_json::from_slice(&body).ok() } else { None })
    }

    async fn model_info(&self) -> Result<(InfoObject, bool), ProbeError> {
        let mut last = StatusCode::NOT_FOUND;
        for path in ["/model_info", "/get_model_info"] {
            let (status, body) = self.get(path).await?;
            if status.is_success() {
                if let Ok(facts) = serde_json::from_slice(&body) {
                    return Ok((facts, path == "/model_info"));
                }
            } else if status == StatusCode::UNAUTHORIZED {
                let hint = "the server wants a key: set --upstream-api-key";
                return Err(ProbeError::Answer { path, status, hint });
            }
            last = status;
        }
        let hint = "is this an SGLang server?";
        Err(ProbeError::Answer { path: "/get_model_info", status: last, hint })
    }

    /// Reads `/server_info` with a timeout: 0.5.6 does not answer it before its first generation (measured, with `--skip-server-warmup`).
    async fn server_info(&self) -> Result<ServerInfo, ProbeError> {
        for path in ["/server_info", "/get_server_info"] {
            let answer = match tokio::time::timeout(SERVER_INFO_TIMEOUT, self.json::<Value>(path)).await {
                Ok(answer) => answer?,
                Err(_) => return Ok(ServerInfo::Unknown),
            };
            // sglang-router answers for itself and reports nothing about its engines
            if answer.as_ref().is_some_and(|answer| answer["router_manager"] == true) {
                return Ok(ServerInfo::Router);
            }
            if let Some(facts) = answer.and_then(|answer| serde_json::from_value(answer).ok()) {
                return Ok(ServerInfo::Engine(facts));
            }
        }
        Ok(ServerInfo::Unknown)
    }

    async fn generate(&self, body: &Value) -> Result<(StatusCode, Bytes), ProbeError> {
        Ok(self.client.call(Method::POST, "/generate", Some(body.to_string())).await?)
    }

    /// Reads the vocabulary size from the error for an invalid id, which every engine returns before it generates. The id is in
    /// `logit_bias`, because 0.5.6 does not check `token_ids_logprob` and crashes on it (measured).
    async fn vocabulary(&self, found: &mut Capabilities) -> Result<(), ProbeError> {
        let body = json!({
            "input_ids": PROMPTS[0],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0, "logit_bias": {NO_TOKEN.to_string(): 1.0}},
        });
        let (status, answer) = self.generate(&body).await?;
        if status == StatusCode::BAD_REQUEST {
            let named = range_end(&String::from_utf8_lossy(&answer));
            (found.vocab_size, found.vocab_source) = (named, named.map(|_| VocabSource::Engine));
        }
        if found.vocab_size.is_none() {
            let read = self.config_file(found).and_then(|text| config_vocab(&text));
            (found.vocab_size, found.vocab_source) = (read, read.map(|_| VocabSource::ConfigFile));
        }
        Ok(())
    }

    /// Detects sampling masks and their limit from a request that the engine refuses before it generates; an engine without the field
    /// generates one token. SGLang checks top_k first, and refuses masks afterwards for other reasons, such as speculative decoding. So
    /// they are supported only if a request within the limit has one.
    async fn sampling_mask(&self, found: &mut Capabilities) -> Result<(), ProbeError> {
        if !found.traits().ignores_unknown_members {
            return Ok(());
        }
        let body = |top_k: i32| {
            json!({
                "input_ids": PROMPTS[0],
                "return_sampling_mask": true,
                "sampling_params": {"max_new_tokens": 1, "temperature": 1.0, "top_k": top_k},
            })
        };
        let (status, answer) = self.generate(&body(-1)).await?;
        let limit =
            (status == StatusCode::BAD_REQUEST).then(|| mask_limit(&String::from_utf8_lossy(&answer))).flatten();
        if limit.is_none() {
            return Ok(());
        }
        let (status, answer) = self.generate(&body(2)).await?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let has_mask = status.is_success() && answer["meta_info"].get(COLUMNS[SAMPLING_MASK_AT].member).is_some();
        found.sampling_mask = limit.filter(|_| has_mask);
        Ok(())
    }

    /// The model's config.json, if the model's path is a folder that tokentap can read.
    fn config_file(&self, found: &Capabilities) -> Option<Vec<u8>> {
        let path = found.model_path.as_deref().filter(|_| self.reads_files)?;
        std::fs::read(std::path::Path::new(path).join("config.json")).ok()
    }
}
