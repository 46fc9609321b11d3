// SPDX-License-Identifier: Apache-2.0
//! The engine: serves a model on SGLang's routes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;

use super::control::{EngineControl, PrefixCache, Weights};
use super::journal::{Journal, JournalEntry, JournalWriter};
use super::model::{Model, Position, Vocabulary, entropy};
use super::options::{Dialect, EngineOptions};
use super::refusal::Refusal;
use super::rng::mix;
use super::routes::{self, ReplyBody, refuse};
use super::sampling::SamplingParams;
use super::sequence::now;
use super::wire::Wire;

/// A demo engine. It has no listener: the caller accepts connections and passes requests to [`handle`](Self::handle).
#[derive(Debug)]
pub struct Engine {
    options: EngineOptions,
    model: Model,
    tokenizer: Vocabulary,
    /// The text of every id, for `return_text_in_logprobs`.
    pub(super) texts: Vec<String>,
    pub(super) control: EngineControl,
    pub(super) cache: PrefixCache,
    /// `None` if the engine keeps no journal.
    journal: Option<Journal>,
    /// The number of seeds that were drawn.
    drawn_seeds: AtomicU64,
    /// The number of random request ids that were drawn.
    drawn_rids: AtomicU64,
    /// The seed of random request ids, from the time of the start.
    rid_seed: u64,
}

impl Engine {
    /// Trains the model, which takes a fraction of a second.
    pub fn new(options: EngineOptions) -> Arc<Self> {
        let tokenizer = Model::tokenizer();
        let model = Model::train(&tokenizer, options.allowed.as_deref());
        let texts = (0..model.vocab_size() as u32).map(|id| tokenizer.decode(&[id], false)).collect();
        Arc::new(Self {
            model,
            tokenizer,
            texts,
            journal: options.journal.then(Journal::default),
            options,
            control: EngineControl::new(),
            cache: PrefixCache::default(),
            drawn_seeds: AtomicU64::new(0),
            drawn_rids: AtomicU64::new(0),
            rid_seed: mix(now().to_bits()),
        })
    }

    /// The model. Tests compare results with its exact distributions.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Vocabulary {
        &self.tokenizer
    }

    /// The options that the engine was started with.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The weights that are loaded now.
    pub fn weights(&self) -> Weights {
        self.control.weights()
    }

    /// The prompts that the engine received and the tokens that it sampled, one entry for each sequence; empty unless
    /// [`EngineOptions::journal`] is set.
    pub fn journal(&self) -> Vec<JournalEntry> {
        self.journal.as_ref().map(Journal::entries).unwrap_or_default()
    }

    /// The exact distribution from which this engine computes the logprobs that it returns at a position: [`Model::distribution`] with the
    /// parameters that the engine applies.
    pub fn distribution<'a>(&self, at: impl Into<Position<'a>>, params: &SamplingParams, version: u64) -> Vec<f64> {
        let mut params = params.clone().normalised();
        if self.options.original_logprob {
            params.temperature = 1.0;
        }
        if self.options.dialect == Dialect::Sglang056 {
            params.repetition_penalty = 1.0;
        }
        self.model.distribution(at, &params, version)
    }

    /// Entropy of [`distribution`](Self::distribution), nats.
    pub fn entropy<'a>(&self, at: impl Into<Position<'a>>, params: &SamplingParams, version: u64) -> f64 {
        entropy(&self.distribution(at, params, version))
    }

    /// Answers one request. Dropping the future, or the body of its response, aborts the generations of the request.
    pub async fn handle<B>(self: Arc<Self>, request: Request<B>) -> Response<ReplyBody>
    where
        B: http_body::Body<Data = Bytes>,
    {
        let (head, body) = request.into_parts();
        let Ok(body) = body.collect().await else {
            // the client disconnected, so this response is discarded
            return refuse(&Refusal::Internal);
        };
        let body = body.to_bytes();
        match routes::route(self, &head, body).await {
            Ok(response) => response,
            Err(refusal) => refuse(&refusal),
        }
    }

    /// Begins the journal entry of a sequence; `None` if the engine keeps no journal.
    pub(super) fn begin_journal_entry(&self, rid: &str, prompt: &[u32]) -> Option<JournalWriter> {
        self.journal.as_ref().map(|journal| journal.begin(rid, prompt))
    }

    pub(super) fn wire(&self) -> Wire {
        Wire { dialect: self.options.dialect, metrics: self.options.metrics }
    }

    /// Returns the seed of the next sequence, derived from the engine's seed.
    pub(super) fn next_seed(&self) -> u64 {
        let drawn = self.drawn_seeds.fetch_add(1, Ordering::Relaxed);
        mix(self.options.seed ^ mix(drawn.wrapping_add(1)))
    }

    /// Returns a random request id: 32 hexadecimal digits. Unlike sampled tokens, the ids differ after a restart with the same seed.
    pub(super) fn random_rid(&self) -> String {
        let drawn = self.drawn_rids.fetch_add(1, Ordering::Relaxed);
        let high = mix(self.rid_seed ^ mix(drawn.wrapping_add(1)));
        format!("{high:016x}{:016x}", mix(high ^ self.rid_seed))
    }
}
