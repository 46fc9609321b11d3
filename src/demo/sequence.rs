//! One sequence while it is generated.

use std::time::{SystemTime, UNIX_EPOCH};

use super::engine::Engine;
use super::item::Item;
use super::journal::{End, JournalWriter, Sampled};
use super::logits;
use super::model::Position;
use super::options::{Dialect, Streaming};
use super::rows::TopRows;
use super::said::ReplyMembers;
use super::sampling::ScriptedOutput;
use super::transcript::Transcript;
use super::weights::Weights;
use super::wire::{Finish, Logprobs, Meta, Reply, Span, Timing};

/// What has been sent of a stream.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    any: bool,
    tokens: usize,
    text: usize,
}

/// A sequence and everything a reply says about it.
#[derive(Debug)]
pub(super) struct Sequence {
    item: Item,
    /// What is to be sampled first, whatever the distribution.
    script: Vec<u32>,
    output: Vec<u32>,
    transcript: Transcript,
    input_rows: TopRows,
    output_rows: TopRows,
    said: ReplyMembers,
    spans: Vec<Span>,
    shown_version: String,
    finish: Option<Finish>,
    retractions: usize,
    cached: usize,
    timing: Timing,
    sent: Sent,
    /// `None` where no journal is kept.
    pen: Option<JournalWriter>,
}

impl Sequence {
    /// Begins a sequence: the numbers of its prompt are computed here.
    pub(super) fn new(item: Item, engine: &Engine, received: f64) -> Self {
        let weights = engine.control().weights();
        let start = item.logprobs.as_ref().map_or(item.prompt.len(), |ask| ask.start);
        let now = now();
        let timing = Timing {
            request_received_ts: received,
            api_server_dispatch_finish_ts: received.max(now - 1e-4),
            forward_entry_time: now,
            ..Timing::default()
        };
        let input_rows = match &item.logprobs {
            Some(ask) => TopRows::of_prompt(&item.prompt, ask, engine.model(), weights.number),
            None => TopRows::default(),
        };
        Self {
            script: script(engine, &item),
            output: Vec::new(),
            transcript: Transcript::new(item.params.skip_special_tokens),
            input_rows,
            output_rows: TopRows::default(),
            said: ReplyMembers::default(),
            spans: Vec::new(),
            shown_version: weights.shown.clone(),
            finish: None,
            retractions: 0,
            cached: engine.cache().matched(&item.prompt, start.min(item.prompt.len() - 1)),
            timing,
            sent: Sent::default(),
            pen: engine.log(&item.rid, &item.prompt),
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
        let params = &self.item.params;
        let at = Position { prompt: &self.item.prompt, output: &self.output };
        let adjusted = engine.model().adjusted_logits(at, params, weights.number);
        let id = match params.is_greedy() {
            _ if self.output.len() < self.script.len() => self.script[self.output.len()],
            true => logits::top(&adjusted, 1)[0],
            false => {
                let probabilities = logits::softmax_f32(&adjusted, params.temperature as f32);
                logits::draw(&probabilities, params, self.item.rng.next_f64())
            }
        };
        let room = self.item.limit > 0;
        if let (Some(pen), true) = (&self.pen, room) {
            let greedy = params.is_greedy() || engine.options().original_logprob;
            let logprobs = logits::logprobs(&adjusted, params.temperature as f32, greedy);
            pen.sampled(Sampled {
                id,
                logprob: logprobs[id as usize],
                entropy: engine.entropy(at, params, weights.number),
                weights: weights.number,
                label: weights.label.clone(),
            });
        }
        if let Some(ask) = &self.item.logprobs {
            let original = engine.options().original_logprob;
            let logprobs = logits::logprobs(&adjusted, params.temperature as f32, params.is_greedy() || original);
            // With max_new_tokens 0 SGLang still reports what would have come next.
            self.output_rows.push(ask, &logprobs, room.then_some(id));
        }
        if self.timing.prefill_finished_time == 0.0 {
            self.timing.prefill_finished_time = now();
            self.timing.queue_time = self.timing.forward_entry_time - self.timing.api_server_dispatch_finish_ts;
        }
        self.shown_version.clone_from(&weights.shown);
        if !room {
            return self.end(Finish::Length(0), engine);
        }
        self.said.push(&adjusted, id, &self.item, engine.options());
        self.output.push(id);
        match self.spans.last_mut() {
            Some(span) if span.version == weights.label => span.end += 1,
            _ => {
                let start = self.output.len() - 1;
                self.spans.push(Span { version: weights.label.clone(), start, end: start + 1 });
            }
        }
        self.look_for_the_end(id, engine);
    }

    fn look_for_the_end(&mut self, id: u32, engine: &Engine) {
        let params = &self.item.params;
        let is_stop = id == engine.model().eos() || params.stop_token_ids.contains(&id);
        let stopped = !params.ignore_eos && is_stop;
        if !stopped || params.no_stop_trim {
            self.transcript.push(engine.tokenizer(), id);
        }
        let length = (self.output.len() == self.item.limit).then_some(Finish::Length(self.item.limit));
        let token = stopped.then_some(Finish::StopToken(id));
        let string = self.transcript.cut(&params.stop, params.no_stop_trim).map(Finish::StopString);
        // Which of them wins in one step changed between the versions.
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
            self.transcript.close(engine.tokenizer());
        }
        if finish != Finish::Abort {
            engine.cache().insert([&self.item.prompt[..], &self.output].concat());
        }
        if let Some(pen) = &self.pen {
            pen.end(match finish {
                Finish::Abort => End::Abort,
                Finish::Length(_) => End::Length,
                Finish::StopToken(_) | Finish::StopString(_) => End::Stop,
            });
        }
        self.finish = Some(finish);
        self.timing.request_finished_ts = now();
    }

    /// Whether an event should be sent now.
    pub(super) fn is_due(&self, engine: &Engine) -> bool {
        if self.is_finished() {
            return true;
        }
        let interval = self.item.params.stream_interval.unwrap_or(1);
        let unsent = self.output.len() - self.sent.tokens;
        match engine.options().dialect {
            // What may become a stop string is held back, ids and all.
            Dialect::Sglang0523 => {
                (unsent >= interval || self.sent.tokens == 0) && !self.transcript.may_stop(&self.item.params.stop)
            }
            Dialect::Sglang056 => interval == 1 || self.output.len() % interval == 1,
        }
    }

    /// The next event; from then on it counts as sent.
    pub(super) fn event(&mut self, engine: &Engine, index: Option<usize>) -> Vec<u8> {
        self.stamp();
        let from = match engine.options().streaming {
            Streaming::Incremental if engine.options().dialect == Dialect::Sglang0523 => self.sent,
            _ => Sent { any: self.sent.any, ..Sent::default() },
        };
        let mut event = Vec::new();
        engine.wire().event(&mut event, &Reply { index, ..self.reply(engine, from) });
        self.sent = Sent { any: true, tokens: self.output.len(), text: self.transcript.text().len() };
        event
    }

    /// The whole reply, for a request that does not stream.
    pub(super) fn whole<'a>(&'a self, engine: &'a Engine) -> Reply<'a> {
        self.reply(engine, Sent::default())
    }

    /// Notes that the first byte is about to go out.
    pub(super) fn stamp(&mut self) {
        if self.timing.response_sent_to_client_ts == 0.0 {
            self.timing.response_sent_to_client_ts = now();
        }
    }

    /// Until the end the label of the engine's front; then, where there are spans, that of the last.
    fn weight_version(&self, engine: &Engine) -> &str {
        let spans = self.is_finished() && engine.options().dialect == Dialect::Sglang0523;
        let last = self.spans.last().filter(|_| spans);
        last.map_or(&self.shown_version, |span| &span.version)
    }

    fn reply<'a>(&'a self, engine: &'a Engine, from: Sent) -> Reply<'a> {
        let logprobs = self.item.logprobs.as_ref().map(|ask| Logprobs {
            input: self.input_rows.side(ask, 0, self.item.shape.input),
            output: self.output_rows.side(ask, from.tokens, self.item.shape.output),
            output_length: self.output_rows.len(),
            texts: self.item.shape.texts.then_some(engine.texts()),
        });
        Reply {
            text: self.transcript.text().get(from.text..).unwrap_or_default(),
            output_ids: &self.output[from.tokens..],
            meta: Meta {
                id: &self.item.rid,
                finish: self.finish.as_ref(),
                prompt_tokens: self.item.prompt.len(),
                completion_tokens: self.output.len(),
                cached_tokens: self.cached,
                weight_version: self.weight_version(engine),
                weight_versions: &self.spans,
                retractions: self.retractions,
                logprobs,
                masks: self.said.masks(&self.item, from.tokens),
                masks_length: self.output.len(),
                exact: self.said.entropies(&self.item, engine.options(), from.tokens),
                timing: self.timing,
                first: !from.any,
            },
            prompt_token_ids: self.item.shape.prompt_token_ids.then_some(&self.item.prompt),
            index: None,
        }
    }
}

/// The tokens that a request wants sampled.
fn script(engine: &Engine, item: &Item) -> Vec<u32> {
    let most = engine.model().vocab_size();
    match &item.params.say {
        None => Vec::new(),
        Some(ScriptedOutput::Text(text)) => engine.tokenizer().encode(text),
        Some(ScriptedOutput::Ids(ids)) => ids.iter().copied().take_while(|id| (*id as usize) < most).collect(),
    }
}

/// Seconds since the epoch.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
