//! The engine: a model behind SGLang's routes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;

use super::body::ReplyBody;
use super::cache::PrefixCache;
use super::control::Control;
use super::journal::{Journal, JournalEntry, JournalWriter};
use super::model::{Model, Position, entropy};
use super::options::{Dialect, EngineOptions};
use super::refusal::Refusal;
use super::rng::mix;
use super::routes::{self, refuse};
use super::sampling::SamplingParams;
use super::sequence::now;
use super::vocabulary::Vocabulary;
use super::weights::Weights;
use super::wire::Wire;

/// A whole engine. It has no listener: the caller accepts connections and hands requests to [`handle`](Self::handle).
#[derive(Debug)]
pub struct Engine {
    options: EngineOptions,
    model: Model,
    tokenizer: Vocabulary,
    /// The text of every id, for `return_text_in_logprobs`.
    texts: Vec<String>,
    control: Control,
    cache: PrefixCache,
    /// `None` where none is kept.
    journal: Option<Journal>,
    /// Sequences that took a seed, and those that took an id.
    drawn: AtomicU64,
    named: AtomicU64,
    started: u64,
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
            control: Control::new(),
            cache: PrefixCache::default(),
            drawn: AtomicU64::new(0),
            named: AtomicU64::new(0),
            started: mix(now().to_bits()),
        })
    }

    /// The model, whose distributions are the truth that tests compare with.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Vocabulary {
        &self.tokenizer
    }

    /// What the engine was started with.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The weights that are loaded now.
    pub fn weights(&self) -> Weights {
        self.control.weights()
    }

    /// What the engine received and sampled, sequence by sequence; empty unless [`EngineOptions::journal`] is set.
    pub fn journal(&self) -> Vec<JournalEntry> {
        self.journal.as_ref().map(Journal::entries).unwrap_or_default()
    }

    /// The exact distribution that the logprobs this engine returns at a position
    /// describe: [`Model::distribution`] of the parameters as the engine reads them.
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

    /// Answers one request. Dropping the future, or the body it gave, aborts what
    /// it was generating.
    pub async fn handle<B>(self: Arc<Self>, request: Request<B>) -> Response<ReplyBody>
    where
        B: http_body::Body<Data = Bytes>,
    {
        let (head, body) = request.into_parts();
        let Ok(body) = body.collect().await else {
            // The client disconnected, so this response is discarded.
            return refuse(&Refusal::Internal);
        };
        let body = body.to_bytes();
        match routes::route(self, &head, body).await {
            Ok(response) => response,
            Err(refusal) => refuse(&refusal),
        }
    }

    /// The entry of a sequence in the journal, where one is kept.
    pub(super) fn log(&self, rid: &str, prompt: &[u32]) -> Option<JournalWriter> {
        self.journal.as_ref().map(|journal| journal.begin(rid, prompt))
    }

    pub(super) fn texts(&self) -> &[String] {
        &self.texts
    }

    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    pub(super) fn cache(&self) -> &PrefixCache {
        &self.cache
    }

    pub(super) fn wire(&self) -> Wire {
        Wire { dialect: self.options.dialect, metrics: self.options.metrics }
    }

    /// A separate seed for each sequence, derived from the engine's.
    pub(super) fn next_seed(&self) -> u64 {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        mix(self.options.seed ^ mix(drawn.wrapping_add(1)))
    }

    /// 32 hexadecimal digits. Unlike what is sampled they never repeat, not even
    /// in an engine that is started again with the same seed.
    pub(super) fn random_rid(&self) -> String {
        let named = self.named.fetch_add(1, Ordering::Relaxed);
        let high = mix(self.started ^ mix(named.wrapping_add(1)));
        format!("{high:016x}{:016x}", mix(high ^ self.started))
    }
}
