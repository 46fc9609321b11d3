// SPDX-License-Identifier: Apache-2.0
//! Records the sequences of a reply as turns of its session. A sequence becomes a turn when it ends, including when it is cut off.

mod column_builder;
mod prompt_images;
mod record_context;
mod turn_builder;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::columns::ColumnFault;
use crate::engine::events::{Chunk, Numbers};
use crate::engine::plan::ItemPlan;
use crate::generation::sequence::EventStep;
use crate::json::{Edit, Splice};
use crate::session::ledger::Ack;
use crate::session::{
    Call, Chat, Draft, EntropyMethod, FORWARDED_REASON, Fault, PromptImages, ReportedVersions, TurnMetadata, now_ms,
};
use column_builder::ColumnFacts;
use prompt_images::RequestedImages;
pub(crate) use record_context::RecordContext;
use turn_builder::TurnBuilder;

/// The characters of the reason why a turn was forwarded.
const LONGEST_REASON: usize = 256;

/// Records one reply.
#[derive(Debug)]
pub struct Recorder {
    call: Call,
    context: RecordContext,
    started: Instant,
    started_ms: u64,
    turns: SmallVec<[TurnBuilder; 1]>,
    /// The turn that `session_params` continues; the outer `None` until it has been looked up.
    continued: Option<Option<ContinuedRequest>>,
    /// The prompts that the engine completed, by their positions.
    completed_prompts: HashMap<usize, Arc<[u32]>>,
    acks: SmallVec<[Ack; 1]>,
    /// The columns that turns lack since [`Self::take_missing_columns`].
    missing_columns: Vec<(Box<str>, ColumnFault)>,
    /// The session is marked as incomplete. Each of a million unreadable events would otherwise be a write to the ledger.
    is_incomplete: bool,
}

/// A recorded turn that the engine's session continues.
#[derive(Debug)]
struct ContinuedRequest {
    /// All tokens up to its end.
    tokens: Vec<u32>,
    /// How many of them it sampled.
    sampled: usize,
}

/// One parsed and measured object of a reply.
#[derive(Debug)]
pub struct CapturedOutput<'a> {
    /// The bytes that the object's spans refer to.
    pub bytes: &'a Bytes,
    /// The parsed object.
    pub chunk: &'a Chunk,
    /// The index of its sequence.
    pub index: usize,
    /// The plan of its prompt.
    pub item: &'a ItemPlan,
    /// Samples per prompt.
    pub n: usize,
    pub numbers: &'a Numbers,
    /// Which of the numbers are new.
    pub step: EventStep,
    /// Entropies of the new tokens; empty where none are measured.
    pub entropy: &'a [f32],
    /// How they were obtained; `Some` once the finish reason is known.
    pub measured: Option<EntropyMethod>,
    /// The requested intervals and statistics of all tokens, as JSON text by name; filled once the finish reason is known.
    pub details: Vec<(&'static str, String)>,
    /// The changes to the members of `meta_info`.
    pub edit: &'a Edit<'a>,
    /// The byte ranges to cut from its members.
    pub cuts: &'a Splice,
    /// When it arrived.
    pub arrived: Instant,
}

/// A sequence whose ids the engine reported as a whole, without logprobs.
#[derive(Debug)]
pub struct ForwardedSequence {
    /// The index of the sequence in the reply.
    pub index: usize,
    /// The ids of the prompt.
    pub prompt: Arc<[u32]>,
    /// The sampled ids.
    pub ids: Vec<u32>,
    /// The request id.
    pub rid: Option<Box<str>>,
    /// The finish reason.
    pub finish: Option<Box<str>>,
    /// Cached tokens of the prompt.
    pub cached_tokens: Option<u64>,
    /// The weight versions that the engine reported.
    pub reported: ReportedVersions,
}

/// What is known of a turn once its sequence has ended.
struct FinishedTurn {
    /// The ids of the prompt, if they are known.
    prompt: Option<Arc<[u32]>>,
    /// The weight versions that the engine reported.
    reported: ReportedVersions,
    /// Its finish reason and fault, and what the reply says about its entropies and cached tokens.
    about: TurnMetadata,
    /// Milliseconds from the request to its end.
    elapsed_ms: u64,
    /// No other sequence answers its prompt.
    is_only_sample: bool,
}

impl Recorder {
    /// A recorder of the reply to `call`, which is sent `now`.
    #[must_use]
    pub fn new(call: Call, context: RecordContext, now: Instant) -> Self {
        Self {
            call,
            context,
            started: now,
            started_ms: now_ms(),
            turns: SmallVec::new(),
            continued: None,
            completed_prompts: HashMap::new(),
            acks: SmallVec::new(),
            missing_columns: Vec::new(),
            is_incomplete: false,
        }
    }

    /// Sets the ids of prompts that the client sent as text. Ignored unless there is one list per prompt.
    pub fn set_prompt_ids(&mut self, prompts: Vec<Arc<[u32]>>) {
        if prompts.len() == self.context.prompts.len() {
            self.context.prompts = prompts.into_iter().map(Some).collect();
        }
    }

    /// The policy's epoch when the request came.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.context.epoch
    }

    /// The session's name.
    #[must_use]
    pub fn session(&self) -> &Arc<str> {
        self.call.id()
    }

    /// Marks the session as incomplete: it has generated tokens that are not recorded.
    pub fn incomplete(&mut self) {
        if !std::mem::replace(&mut self.is_incomplete, true) {
            self.call.mark_incomplete();
        }
    }

    /// Returns the acknowledgements that resolve when the turns so far are on disk.
    pub fn take_acks(&mut self) -> SmallVec<[Ack; 1]> {
        std::mem::take(&mut self.acks)
    }

    /// Returns the requested columns that the recorded turns lack, and why.
    pub fn take_missing_columns(&mut self) -> Vec<(Box<str>, ColumnFault)> {
        std::mem::take(&mut self.missing_columns)
    }

    /// Records that the current policy has sampled `new` tokens of the first sequence, which a later object lists.
    pub fn mark_epoch(&mut self, new: usize) {
        let epochs = self.context.policy.sampled_epochs();
        if self.turns.is_empty() {
            self.turns.push(TurnBuilder::default());
        }
        self.turns[0].mark_epochs(epochs, new);
        self.turns[0].marked += new;
    }

    /// Records an object of the reply.
    pub fn record(&mut self, output: CapturedOutput<'_>) {
        if self.turns.len() <= output.index {
            self.turns.resize_with(output.index + 1, TurnBuilder::default);
        }
        let policy = &self.context.policy;
        let epochs = match output.step.new {
            0 => policy.sampled_epochs(),
            _ => policy.observe_tokens(self.started),
        };
        let elapsed = self.ms_until(output.arrived);
        let turn = &mut self.turns[output.index];
        if turn.recorded {
            return;
        }
        self.context.record_echoed_prompt(&output);
        turn.add_tokens(&output);
        turn.entropy.extend_from_slice(output.entropy);
        if output.step.new > 0 && output.chunk.finish.is_none() {
            turn.first_ms.get_or_insert(elapsed);
        }
        let marked = std::mem::take(&mut turn.marked);
        turn.mark_epochs(epochs, output.step.new.saturating_sub(marked));
        turn.add_members(&output, self.context.top_k);
        if turn.rid.is_none() {
            turn.rid = output.chunk.rid.as_deref().map(Into::into);
        }
        if output.chunk.finish.is_some() {
            self.finish(output);
        }
    }

    /// Sets the conversation that the turns continue.
    pub fn set_chat(&mut self, chat: Option<Box<Chat>>) {
        self.context.chat = chat;
    }

    /// Records a sequence of a reply that is forwarded unchanged, for `reason`. It is not trained.
    pub fn record_forwarded(&mut self, sequence: ForwardedSequence, first_ms: Option<u64>, reason: &str) {
        let ForwardedSequence { index, prompt, ids, rid, finish, cached_tokens, reported } = sequence;
        self.turns.resize_with(self.turns.len().max(index + 1), TurnBuilder::default);
        self.observe(&reported);
        // it may name a member of the request
        let reason: String = reason.chars().take(LONGEST_REASON).collect();
        let extras = [(FORWARDED_REASON.into(), serde_json::Value::from(reason).to_string())].into();
        let turn = TurnBuilder { ids, rid, first_ms, extras, ..TurnBuilder::default() };
        let about = TurnMetadata { finish, fault: Some(Fault::Forwarded), cached_tokens, ..TurnMetadata::default() };
        let elapsed_ms = self.elapsed_ms();
        self.commit(
            turn,
            index,
            0,
            FinishedTurn { prompt: Some(prompt), reported, about, elapsed_ms, is_only_sample: false },
        );
    }

    /// Notes the weight version of a complete reply. The spans are preferred: any other label is the front end's, which may be outdated.
    fn observe(&self, reported: &ReportedVersions) {
        let last = reported.spans.last().map(|(label, ..)| label);
        if let Some(label) = last.or(reported.label.as_ref()) {
            self.context.policy.observe(self.context.epoch, label);
        }
    }

    /// Milliseconds since the request.
    #[must_use]
    pub fn elapsed_ms(&self) -> u64 {
        self.ms_until(Instant::now())
    }

    fn ms_until(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.started).as_millis()).unwrap_or(u64::MAX)
    }

    /// The ids of a prompt. Where the engine completed it from its session, they are known only if they have `count` tokens, the
    /// engine's number: with the tokens of the recorded turn that is continued, or without any.
    fn resolve_prompt(&mut self, at: usize, count: Option<u64>) -> Option<Arc<[u32]>> {
        let prompt = self.context.prompts.get(at).cloned().flatten()?;
        let Some(params) = &self.context.session_params else { return Some(prompt) };
        if let Some(completed) = self.completed_prompts.get(&at) {
            return Some(Arc::clone(completed));
        }
        let is_whole = |tokens: usize| count == Some(tokens as u64);
        // a request has many sequences, and a session many turns
        let continued =
            self.continued.get_or_insert_with(|| ContinuedRequest::find(&self.call, params.rid.as_deref()?));
        let completed = continued.as_ref().and_then(|ContinuedRequest { tokens, sampled }| {
            let kept = params.kept(tokens, *sampled);
            // the engine removes the token that begins every text
            let is_text_start = tokens.first() == prompt.first();
            let added = if is_whole(kept.len() + prompt.len()) {
                &prompt[..]
            } else {
                prompt.get(1..).filter(|rest| is_text_start && is_whole(kept.len() + rest.len()))?
            };
            Some([kept, added].concat().into())
        });
        let completed: Arc<[u32]> = completed.or_else(|| is_whole(prompt.len()).then_some(prompt))?;
        self.completed_prompts.insert(at, Arc::clone(&completed));
        Some(completed)
    }

    /// Commits the turn of a sequence that has finished.
    fn finish(&mut self, output: CapturedOutput<'_>) {
        let CapturedOutput { bytes, chunk, index, n, measured, details, arrived, .. } = output;
        let mut turn = std::mem::take(&mut self.turns[index]);
        turn.extras.extend(details.into_iter().map(|(name, value)| (name.into(), value)));
        let at = index / n.max(1);
        let prompt = self.resolve_prompt(at, turn.prompt_tokens);
        let finish = chunk.finish.as_ref().map(|finish| Box::from(&*finish.kind));
        let read = turn.resolve_ids(Some((bytes, chunk)), self.context.ids_are_sampled);
        let cut_off = finish.as_ref().filter(|kind| ***kind == *"abort").map(|_| Fault::Aborted);
        let vocab_size = self.context.vocab_size;
        let of_images = self.context.image_fault(at);
        // no echo is asked for in a stream whose pictures cannot be recorded
        let unknown = of_images.filter(|_| prompt.is_none());
        let inconsistent = read.err().or(unknown);
        let inconsistent =
            inconsistent.or_else(|| turn.fault(chunk.completion_tokens, prompt.as_deref(), vocab_size)).or(of_images);
        // a turn that was cut off may be trained later, so its ids are verified, unless it has none or no place
        let is_never_trained = turn.ids.is_empty() || prompt.is_none();
        let fault = if is_never_trained { cut_off.or(inconsistent) } else { inconsistent.or(cut_off) };
        let label = chunk.weight_label(bytes).map(Into::into);
        let reported = ReportedVersions { label, spans: chunk.weight_versions(bytes) };
        self.observe(&reported);
        let about = TurnMetadata {
            finish,
            fault,
            measured: measured.map(Arc::new),
            cached_tokens: chunk.cached_tokens(bytes),
            ..TurnMetadata::default()
        };
        let (elapsed_ms, is_only_sample) = (self.ms_until(arrived), n == 1);
        self.commit(turn, index, at, FinishedTurn { prompt, reported, about, elapsed_ms, is_only_sample });
    }

    /// Commits the sequences that have not finished when the reply ends. Their fault is `fault`, unless what was received is inconsistent:
    /// a turn that was only cut off may be trained later. Without its prompt a turn has no place and is never trained.
    pub fn cut(&mut self, fault: Fault, n: usize) {
        for index in 0..self.turns.len() {
            let mut turn = std::mem::take(&mut self.turns[index]);
            if turn.recorded {
                self.turns[index].recorded = true;
                continue;
            }
            let read = turn.resolve_ids(None, self.context.ids_are_sampled);
            if turn.ids.is_empty() {
                if turn.tokens() > 0 {
                    self.incomplete();
                }
                continue;
            }
            let at = index / n.max(1);
            let prompt = self.resolve_prompt(at, turn.prompt_tokens);
            let inconsistent = read.err().or_else(|| turn.fault(None, prompt.as_deref(), self.context.vocab_size));
            let inconsistent = inconsistent.or_else(|| self.context.image_fault(at));
            let fault = inconsistent.filter(|_| prompt.is_some()).unwrap_or(fault);
            // the first event's label: weights may have changed since
            let is_same = self.context.policy.sampled_epochs() == (self.context.epoch..=self.context.epoch);
            let label = turn.label.take().filter(|_| is_same);
            let reported = ReportedVersions { label, spans: Vec::new() };
            let about = TurnMetadata { fault: Some(fault), ..TurnMetadata::default() };
            let (elapsed_ms, is_only_sample) = (self.elapsed_ms(), n == 1);
            self.commit(turn, index, at, FinishedTurn { prompt, reported, about, elapsed_ms, is_only_sample });
        }
    }

    /// Commits the turn of sequence `index`, which answers prompt `at`.
    fn commit(&mut self, mut turn: TurnBuilder, index: usize, at: usize, finished: FinishedTurn) {
        let FinishedTurn { prompt, reported, about, elapsed_ms, is_only_sample } = finished;
        let sampling = self.context.sampling.get_mut(at);
        let sampling = sampling.and_then(|text| if is_only_sample { text.take() } else { text.clone() });
        let tokens = u32::try_from(turn.ids.len()).unwrap_or(u32::MAX);
        // the engine reports no columns for a request that it aborts in its queue
        let is_cut = about.finish.as_deref().is_none_or(|finish| finish == "abort");
        let adapter = self.context.adapters.get(at).and_then(Option::as_ref);
        let images = self.context.images.get(at).and_then(RequestedImages::placed);
        let recorded = |name: &str| {
            let session = self.call.sessions().session(self.call.id());
            let prefix = session.zip(prompt.as_ref());
            let keys = |prompt| images.map_or(prompt, PromptImages::keys);
            prefix
                .map(|(session, prompt)| session.recorded_prefix(keys(prompt), name, self.context.epoch, adapter))
                .unwrap_or_default()
        };
        let facts = ColumnFacts { starts: &self.context.column_starts, is_cut, recorded: &recorded };
        let (columns, missing_columns) =
            turn.take_columns(prompt.as_ref().map(|prompt| prompt.len()), self.context.experts, &facts);
        self.missing_columns.extend(missing_columns.iter().map(|(name, fault)| (name.clone(), *fault)));
        let about = TurnMetadata {
            engine: self.context.engine.clone(),
            rid: turn.rid,
            index: u32::try_from(index).unwrap_or(u32::MAX),
            policy: self.context.policy.spans(self.context.epoch, tokens, &reported, &turn.marks, adapter),
            sampling,
            model: Arc::clone(&self.context.model),
            lora_path: adapter.map(|adapter| Arc::clone(&adapter.name)),
            started_ms: self.started_ms,
            first_ms: turn.first_ms,
            elapsed_ms,
            chat: self.context.chat.clone(),
            labels: self.context.labels.clone(),
            extras: turn.extras.into_iter().map(|(name, value)| (name, value.into())).collect(),
            columns,
            missing_columns,
            images: images.cloned().map(Box::new),
            ..about
        };
        let (response, logprobs, mut entropy) = (turn.ids, turn.logprobs, turn.entropy);
        if entropy.iter().all(|value| value.is_nan()) {
            entropy.clear();
        }
        let (_, ack) = self.call.commit(Draft { prompt, response, logprobs, entropy, about, ..Draft::default() });
        self.acks.push(ack);
        self.turns[index].recorded = true;
    }
}

impl ContinuedRequest {
    /// The turn of the engine's request `rid` in the session of `call`, if it can be continued.
    fn find(call: &Call, rid: &str) -> Option<Self> {
        let session = call.sessions().session(call.id())?;
        let turn = session.sampled_by(rid).filter(|turn| turn.about.fault.is_none())?;
        Some(Self { tokens: session.tokens(turn.id), sampled: turn.response.len() })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::capabilities::Capabilities;
    use crate::engine::sglang::request::GenerateRequest;
    use crate::session::ledger::SharedLog;
    use crate::session::{Policy, Sessions, StoreLimits};

    #[tokio::test]
    async fn session_is_marked_as_incomplete_once_for_a_reply() {
        let limits = StoreLimits { bytes: u64::MAX, ttl: Duration::MAX, idle: Duration::MAX };
        let store = Arc::new(Sessions::new(limits));
        let policy = Arc::new(Policy::new(SharedLog::default()));
        let context = RecordContext::for_generate(&GenerateRequest::default(), &Capabilities::default(), policy);
        let mut recorder = Recorder::new(Call::new(Arc::clone(&store), "s".into()), context, Instant::now());
        recorder.incomplete();
        assert!(store.session("s").is_some());
        store.delete("s").await.unwrap();
        recorder.incomplete();
        assert!(store.session("s").is_none(), "a second mark would create it again");
    }
}
