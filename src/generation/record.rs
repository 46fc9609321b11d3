//! What a reply leaves in its session: each sequence becomes a turn when it ends, also when it ends early.

mod running;

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use crate::engine::request::GenerateRequest;
use crate::engine::response::{Chunk, Numbers};
use crate::generation::forcing::Item;
use crate::generation::sequence::Step;
use crate::json::{Edit, Splice};
use crate::session::ledger::Ack;
use crate::session::{About, Call, Chat, Draft, Fault, Measured, Policy, Reported, now_ms};
use running::Running;

/// What a recorder knows before the reply begins.
#[derive(Debug)]
pub struct Asked {
    /// By prompt: its ids, where the client gave them or the engine's tokenizer said them.
    pub prompts: Vec<Option<Arc<[u32]>>>,
    /// By prompt: `sampling_params` as the client wrote them.
    pub sampling: Vec<Option<Box<str>>>,
    /// The served model.
    pub model: Arc<str>,
    /// The URL of the engine, where it is known.
    pub engine: Option<Box<str>>,
    /// The policy.
    pub policy: Arc<Policy>,
    /// The policy's epoch when the request came.
    pub epoch: u64,
    /// What its turns remember, where they are of a chat.
    pub chat: Option<Box<Chat>>,
    /// `output_ids` are what was sampled; of sglang-jax they are not.
    pub ids_are_sampled: bool,
}

/// Records one reply.
#[derive(Debug)]
pub struct Recorder {
    call: Call,
    asked: Asked,
    started: Instant,
    started_ms: u64,
    running: Vec<Running>,
    acks: Vec<Ack>,
}

/// One object of a reply, read and measured.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The bytes it stands in.
    pub bytes: &'a Bytes,
    /// What was read of it.
    pub chunk: &'a Chunk,
    /// Its sequence.
    pub index: usize,
    /// What was asked for that.
    pub item: &'a Item,
    /// Which samples of which prompt.
    pub n: usize,
    /// Its numbers.
    pub numbers: &'a Numbers,
    /// Which of them are new.
    pub step: Step,
    /// Entropies of the new tokens; empty where none are measured.
    pub entropy: &'a [f32],
    /// How they were obtained; known with the finish reason.
    pub measured: Option<Measured>,
    /// Intervals and statistics of all tokens, where they were asked for, as text by their names; known with the finish reason.
    pub own: Vec<(&'static str, String)>,
    /// What is done to `meta_info`.
    pub edit: &'a Edit<'a>,
    /// What is cut within its members.
    pub cuts: &'a Splice,
}

impl Asked {
    /// What a request says.
    #[must_use]
    pub fn of(request: &GenerateRequest, model: &Arc<str>, policy: Arc<Policy>, ids_are_sampled: bool) -> Self {
        let prompts = request.batch().unwrap_or(1);
        let text = |at: usize| {
            let span = request.sampling.get(at)?.span.clone();
            Some(std::str::from_utf8(&request.bytes[span]).ok()?.into())
        };
        Self {
            prompts: (0..prompts).map(|at| request.prompt_ids(at)).collect(),
            sampling: (0..prompts).map(text).collect(),
            model: Arc::clone(model),
            epoch: policy.epoch(),
            policy,
            chat: None,
            engine: None,
            ids_are_sampled,
        }
    }

    /// Takes the prompt's ids where the engine repeats them: once is enough, and the end of a stream may never come.
    fn repeated(&mut self, seen: &Seen<'_>) {
        let Some(unknown @ None) = self.prompts.get_mut(seen.index / seen.n.max(1)) else { return };
        let Some(span) = &seen.chunk.prompt_ids else { return };
        let mut ids = Vec::new();
        *unknown = Chunk::ids(seen.bytes, span, &mut ids).is_ok().then(|| ids.into());
    }
}

impl Recorder {
    /// A recorder of the reply to `call`.
    #[must_use]
    pub fn new(call: Call, asked: Asked) -> Self {
        Self { call, asked, started: Instant::now(), started_ms: now_ms(), running: Vec::new(), acks: Vec::new() }
    }

    /// The ids of prompts that came as text; believed where there are as many lists as prompts.
    pub fn tokenized(&mut self, prompts: Vec<Arc<[u32]>>) {
        if prompts.len() == self.asked.prompts.len() {
            self.asked.prompts = prompts.into_iter().map(Some).collect();
        }
    }

    /// The session's name.
    #[must_use]
    pub fn session(&self) -> &Arc<str> {
        self.call.id()
    }

    /// Something was generated that is not recorded.
    pub fn incomplete(&self) {
        self.call.incomplete();
    }

    /// What tells when the turns so far are on disk.
    pub fn take_acks(&mut self) -> Vec<Ack> {
        std::mem::take(&mut self.acks)
    }

    /// Takes note of an object of the reply.
    pub fn take(&mut self, seen: Seen<'_>) {
        if self.running.len() <= seen.index {
            self.running.resize_with(seen.index + 1, Running::default);
        }
        let epoch = self.asked.policy.epoch();
        let elapsed = self.elapsed_ms();
        let running = &mut self.running[seen.index];
        if running.recorded {
            return;
        }
        self.asked.repeated(&seen);
        running.tokens(&seen);
        running.entropy.extend_from_slice(seen.entropy);
        if seen.step.new > 0 && seen.chunk.finish.is_none() {
            running.first_ms.get_or_insert(elapsed);
        }
        running.mark(epoch, seen.step.new);
        running.keep(&seen);
        if running.rid.is_none() {
            running.rid = seen.chunk.rid.as_deref().map(Into::into);
        }
        if seen.chunk.finish.is_some() {
            self.finish(seen);
        }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The sequence has come to its end.
    fn finish(&mut self, seen: Seen<'_>) {
        let Seen { bytes, chunk, index, item, n, measured, own, .. } = seen;
        let mut running = std::mem::take(&mut self.running[index]);
        running.extras.extend(own.into_iter().map(|(name, value)| (name.into(), value)));
        let at = index / n.max(1);
        let prompt = self.asked.prompts.get(at).cloned().flatten();
        let finish = chunk.finish.as_ref().map(|finish| Box::from(&*finish.kind));
        let read = running.read(Some((bytes, chunk)), self.asked.ids_are_sampled);
        let fault = match &finish {
            Some(kind) if **kind == *"abort" => Some(Fault::Aborted),
            _ => None,
        };
        let fault = fault.or(read.err()).or_else(|| running.fault(chunk, item, prompt.as_deref()));
        let label = chunk.text(bytes, "weight_version").map(Into::into);
        let reported = Reported { label, spans: chunk.weight_versions(bytes) };
        // only here, and from the spans where there are any: all else is the label of the engine's front, which may stay behind
        let last = reported.spans.last().map(|(label, ..)| label);
        if let Some(label) = last.or(reported.label.as_ref()) {
            self.asked.policy.observe(self.asked.epoch, label);
        }
        let about =
            About { finish, fault, measured, cached_tokens: chunk.count(bytes, "cached_tokens"), ..About::default() };
        self.commit(running, (index, at), prompt, reported, about);
    }

    /// The reply has ended although sequences have not: what came is kept, and is not trained.
    pub fn cut(&mut self, fault: Fault, n: usize) {
        for index in 0..self.running.len() {
            let mut running = std::mem::take(&mut self.running[index]);
            if running.recorded {
                self.running[index].recorded = true;
                continue;
            }
            // what cannot be read is left out: the turn is not trained anyway
            let _ = running.read(None, self.asked.ids_are_sampled);
            if running.ids.is_empty() {
                continue;
            }
            let at = index / n.max(1);
            let prompt = self.asked.prompts.get(at).cloned().flatten();
            // the first event's label: weights may have changed since
            let label = running.label.take().filter(|_| self.asked.policy.epoch() == self.asked.epoch);
            let reported = Reported { label, spans: Vec::new() };
            self.commit(running, (index, at), prompt, reported, About { fault: Some(fault), ..About::default() });
        }
    }

    fn commit(
        &mut self,
        running: Running,
        (index, at): (usize, usize),
        prompt: Option<Arc<[u32]>>,
        reported: Reported,
        about: About,
    ) {
        let tokens = u32::try_from(running.ids.len()).unwrap_or(u32::MAX);
        let about = About {
            engine: self.asked.engine.clone(),
            rid: running.rid,
            index: u32::try_from(index).unwrap_or(u32::MAX),
            policy: self.asked.policy.spans(self.asked.epoch, tokens, &reported, &running.marks),
            sampling: self.asked.sampling.get(at).cloned().flatten(),
            model: (*self.asked.model).into(),
            started_ms: self.started_ms,
            first_ms: running.first_ms,
            elapsed_ms: self.elapsed_ms(),
            chat: self.asked.chat.clone(),
            extras: running.extras.into_iter().map(|(name, value)| (name, value.into())).collect(),
            ..about
        };
        let (response, logprobs, mut entropy) = (running.ids, running.logprobs, running.entropy);
        if entropy.iter().all(|value| value.is_nan()) {
            entropy.clear();
        }
        let (_, ack) = self.call.commit(Draft { prompt, response, logprobs, entropy, about });
        self.acks.push(ack);
        self.running[index].recorded = true;
    }
}
