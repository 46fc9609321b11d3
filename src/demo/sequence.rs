// SPDX-License-Identifier: Apache-2.0
//! A sequence that is being generated.

use std::time::{SystemTime, UNIX_EPOCH};

use super::control::Weights;
use super::engine::Engine;
use super::experts::ExpertRouter;
use super::item::Item;
use super::journal::{End, JournalWriter, SampledToken};
use super::logits;
use super::model::Position;
use super::options::{Dialect, Streaming};
use super::sampling::ScriptedOutput;
use super::token_data::{LogprobRows, TokenMembers};
use super::transcript::Transcript;
use super::wire::{Finish, Logprobs, Meta, Reply, Span, Timing};

/// The part of a reply that a stream has sent.
#[derive(Debug, Clone, Copy, Default)]
struct StreamProgress {
    /// An event was sent.
    any: bool,
    /// The number of output tokens that were sent.
    tokens: usize,
    /// Bytes of text that were sent.
    text: usize,
}

/// A sequence and the content of its reply.
#[derive(Debug)]
pub(super) struct Sequence {
    item: Item,
    /// The scripted output; tokens are sampled after its end.
    script: Vec<u32>,
    output: Vec<u32>,
    transcript: Transcript,
    input_rows: LogprobRows,
    output_rows: LogprobRows,
    members: TokenMembers,
    experts: ExpertRouter,
    /// `meta_info.routed_experts`, once the sequence has ended.
    encoded_experts: Option<String>,
    spans: Vec<Span>,
    /// The label of [`Weights::reported_label`] at the last step.
    reported_version: String,
    finish: Option<Finish>,
    retractions: usize,
    cached_tokens: usize,
    timing: Timing,
    sent: StreamProgress,
    /// `None` if the engine keeps no journal.
    journal: Option<JournalWriter>,
}

impl Sequence {
    /// Begins a sequence, and computes the logprobs of its prompt. `received` is the arrival time in seconds since the epoch.
    pub(super) fn new(item: Item, engine: &Engine, received: f64) -> Self {
        let weights = engine.control.weights();
        let start = item.logprobs.as_ref().map_or(item.prompt.len(), |ask| ask.start);
        let now = now();
        let timing = Timing {
            request_received_ts: received,
            api_server_dispatch_finish_ts: received.max(now - 1e-4),
            forward_entry_time: now,
            ..Timing::default()
        };
        let input_rows = match &item.logprobs {
            Some(request) => LogprobRows::from_prompt(&item.prompt, request, engine.model(), weights.number),
            None => LogprobRows::default(),
        };
        Self {
            script: script(engine, &item),
            output: Vec::new(),
            transcript: Transcript::new(item.params.skip_special_tokens),
            input_rows,
            output_rows: LogprobRows::default(),
            members: TokenMembers::default(),
            experts: ExpertRouter::default(),
            encoded_experts: None,
            spans: Vec::new(),
            reported_version: weights.reported_label.clone(),
            finish: None,
            retractions: 0,
            cached_tokens: engine.cache.cached_prefix_len(&item.prompt, start.min(item.prompt.len() - 1)),
            timing,
            sent: StreamProgress::default(),
            journal: engine.begin_journal_entry(&item.rid, &item.prompt),
            item,
        }
    }

    pub(super) fn rid(&self) -> &str {
        &self.item.rid
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    pub(super) fn retract(&mut self, times: usize) {
        self.retractions += times;
    }

    pub(super) fn abort(&mut self, engine: &Engine) {
        self.end(Finish::Abort, engine);
    }

    /// Generates one token.
    pub(super) fn step(&mut self, engine: &Engine, weights: &Weights) {
        if self.item.experts_from.is_some() {
            // the token that this step samples is processed by the next step
            let processed = self.experts.rows().len();
            for token in self.item.prompt.iter().chain(&self.output).skip(processed) {
                self.experts.process(*token, weights.number);
            }
        }
        let params = &self.item.params;
        let at = Position { prompt: &self.item.prompt, output: &self.output };
        let adjusted = engine.model().adjusted_logits(at, params, weights.number);
        let id = match params.is_greedy() {
            _ if self.output.len() < self.script.len() => self.script[self.output.len()],
            true => logits::top(&adjusted, 1)[0],
            false => {
                let probabilities = logits::softmax_f32(&adjusted, params.temperature as f32);
                logits::sample(&probabilities, params, self.item.rng.next_f64())
            }
        };
        let has_room = self.item.limit > 0;
        let unscaled = params.is_greedy() || engine.options().original_logprob;
        let is_asked = self.journal.is_some() || self.item.logprobs.is_some();
        let logprobs = is_asked.then(|| logits::logprobs(&adjusted, params.temperature as f32, unscaled));
        let logprobs = logprobs.unwrap_or_default();
        if let (Some(journal), true) = (&self.journal, has_room) {
            journal.record(SampledToken {
                id,
                logprob: logprobs[id as usize],
                entropy: engine.entropy(at, params, weights.number),
                weights: weights.number,
                label: weights.label.clone(),
            });
        }
        if let Some(request) = &self.item.logprobs {
            // with max_new_tokens 0 SGLang still returns the top logprobs of the next position
            self.output_rows.push(request, &logprobs, has_room.then_some(id));
        }
        if self.timing.prefill_finished_time == 0.0 {
            self.timing.prefill_finished_time = now();
            self.timing.queue_time = self.timing.forward_entry_time - self.timing.api_server_dispatch_finish_ts;
        }
        self.reported_version.clone_from(&weights.reported_label);
        if !has_room {
            return self.end(Finish::Length(0), engine);
        }
        self.members.push(&adjusted, id, &self.item, engine.options());
        self.output.push(id);
        match self.spans.last_mut() {
            Some(span) if span.version == weights.label => span.end += 1,
            _ => {
                let start = self.output.len() - 1;
                self.spans.push(Span { version: weights.label.clone(), start, end: start + 1 });
            }
        }
        self.check_finish(id, engine);
    }

    /// Appends the text of the sampled token `id`, and ends the sequence if a stop condition or the maximum length is reached.
    fn check_finish(&mut self, id: u32, engine: &Engine) {
        let params = &self.item.params;
        let is_stop = id == engine.model().eos() || params.stop_token_ids.contains(&id);
        let stopped = !params.ignore_eos && is_stop;
        if !stopped || params.no_stop_trim {
            self.transcript.push(engine.tokenizer(), id);
        }
        let length = (self.output.len() == self.item.limit).then_some(Finish::Length(self.item.limit));
        let token = stopped.then_some(Finish::StopToken(id));
        let string = self.transcript.truncate_at_stop(&params.stop, params.no_stop_trim).map(Finish::StopString);
        // the precedence of conditions that are met in the same step differs between the versions
        let finish = match engine.options().dialect {
            Dialect::Sglang0523 => string.or(token).or(length),
            Dialect::Sglang056 => length.or(token).or(string),
        };
        if let Some(finish) = finish {
            self.end(finish, engine);
        }
    }

    fn end(&mut self, finish: Finish, engine: &Engine) {
        if !matches!(finish, Finish::StopString(_)) {
            self.transcript.finish(engine.tokenizer());
        }
        if finish != Finish::Abort {
            engine.cache.insert([&self.item.prompt[..], &self.output].concat());
        }
        if let Some(journal) = &self.journal {
            journal.end(match finish {
                Finish::Abort => End::Abort,
                Finish::Length(_) => End::Length,
                Finish::StopToken(_) | Finish::StopString(_) => End::Stop,
            });
        }
        self.encoded_experts = self.item.experts_from.map(|from| {
            let end = (self.item.prompt.len() + self.output.len()).saturating_sub(1).min(self.experts.rows().len());
            let rows = self.experts.rows().get(from..end).unwrap_or_default();
            let bytes: Vec<u8> = rows.iter().flatten().flat_map(|expert| expert.to_le_bytes()).collect();
            base64_simd::STANDARD.encode_to_string(bytes)
        });
        self.finish = Some(finish);
        self.timing.request_finished_ts = now();
    }

    /// Whether an event must be sent now.
    pub(super) fn is_event_due(&self, engine: &Engine) -> bool {
        if self.is_finished() {
            return true;
        }
        let interval = self.item.params.stream_interval.unwrap_or(1);
        let unsent = self.output.len() - self.sent.tokens;
        match engine.options().dialect {
            // tokens that may become part of a stop string are not sent yet
            Dialect::Sglang0523 => {
                (unsent >= interval || self.sent.tokens == 0)
                    && !self.transcript.ends_in_stop_prefix(&self.item.params.stop)
            }
            Dialect::Sglang056 => interval == 1 || self.output.len() % interval == 1,
        }
    }

    /// Returns the next event and records it as sent.
    pub(super) fn event(&mut self, engine: &Engine, index: Option<usize>) -> Vec<u8> {
        self.record_send_time();
        let from = match engine.options().streaming {
            Streaming::Incremental if engine.options().dialect == Dialect::Sglang0523 => self.sent,
            _ => StreamProgress { any: self.sent.any, ..StreamProgress::default() },
        };
        let mut event = Vec::new();
        engine.wire().event(&mut event, &Reply { index, ..self.to_reply(engine, from) });
        self.sent = StreamProgress { any: true, tokens: self.output.len(), text: self.transcript.text().len() };
        event
    }

    /// The full reply to a request that does not stream.
    pub(super) fn full_reply<'a>(&'a self, engine: &'a Engine) -> Reply<'a> {
        self.to_reply(engine, StreamProgress::default())
    }

    /// Records the time at which the first byte of the reply is sent.
    pub(super) fn record_send_time(&mut self) {
        if self.timing.response_sent_to_client_ts == 0.0 {
            self.timing.response_sent_to_client_ts = now();
        }
    }

    /// The label in `meta_info`: [`Weights::reported_label`], or the label of the last span if the sequence has finished and the reply has
    /// spans.
    fn weight_version(&self, engine: &Engine) -> &str {
        let has_spans = self.is_finished() && engine.options().dialect == Dialect::Sglang0523;
        let last = self.spans.last().filter(|_| has_spans);
        last.map_or(&self.reported_version, |span| &span.version)
    }

    /// The reply from `from` on.
    fn to_reply<'a>(&'a self, engine: &'a Engine, from: StreamProgress) -> Reply<'a> {
        let logprobs = self.item.logprobs.as_ref().map(|request| Logprobs {
            input: self.input_rows.side(request, 0, self.item.format.input),
            output: self.output_rows.side(request, from.tokens, self.item.format.output),
            output_length: self.output_rows.len(),
            texts: self.item.format.texts.then_some(&engine.texts),
        });
        Reply {
            text: self.transcript.text().get(from.text..).unwrap_or_default(),
            output_ids: &self.output[from.tokens..],
            meta: Meta {
                id: &self.item.rid,
                finish: self.finish.as_ref(),
                prompt_tokens: self.item.prompt.len(),
                completion_tokens: self.output.len(),
                cached_tokens: self.cached_tokens,
                weight_version: self.weight_version(engine),
                weight_versions: &self.spans,
                retractions: self.retractions,
                logprobs,
                masks: self.members.masks(&self.item, from.tokens),
                masks_length: self.output.len(),
                experts: self.encoded_experts.as_deref(),
                exact: self.members.entropies(&self.item, engine.options(), from.tokens),
                timing: self.timing,
                first: !from.any,
            },
            prompt_token_ids: self.item.format.prompt_token_ids.then_some(&self.item.prompt),
            index: None,
        }
    }
}

/// The tokens of the scripted output; empty without one.
fn script(engine: &Engine, item: &Item) -> Vec<u32> {
    let most = engine.model().vocab_size();
    match &item.params.script {
        None => Vec::new(),
        Some(ScriptedOutput::Text(text)) => engine.tokenizer().encode(text),
        Some(ScriptedOutput::Ids(ids)) => ids.iter().copied().take_while(|id| (*id as usize) < most).collect(),
    }
}

/// Seconds since the epoch.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
