// SPDX-License-Identifier: Apache-2.0
//! Captures one reply: parses its numbers, measures and adds entropies, and removes the forced members.

mod buffers;
mod chat;
mod measure;
mod trace;

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::engine::capabilities::Capabilities;
use crate::engine::capabilities::Product;
use crate::engine::events::{Chunk, NoKnownPrefix, Numbers};
use crate::engine::plan::Plan;
use crate::engine::reason::Reason;
use crate::generation::ReplyStats;
use crate::generation::context::GenerationContext;
use crate::generation::enrich;
use crate::generation::entropy_store::EntropyWriter;
use crate::generation::event::{EventAccess, EventFrame, ParsedOutputs, for_each_object};
use crate::generation::in_flight::InFlight;
use crate::generation::recorder::{CapturedOutput, Recorder};
use crate::generation::sequence::{ExpectedContent, Sequence, SequencePrefixes};
use crate::json::{Cursor, Edit, Malformed, Splice};
use crate::metrics::ModelMetrics;
use crate::session::Fault;
use crate::traces::{Failure, GenerationSpan};
use buffers::Buffers;
pub(crate) use chat::ChatCapture;

/// The capture of one reply. Keeps the request's ids in flight until it is dropped.
#[derive(Debug)]
pub struct Capture {
    plan: Plan,
    context: Arc<GenerationContext>,
    vocab: Option<u32>,
    model: Arc<ModelMetrics>,
    sequences: SmallVec<[Sequence; 1]>,
    content: ExpectedContent,
    /// The buffers of the current step. `end_step` returns them to the thread, unless they are too large.
    buffers: Option<Box<Buffers>>,
    entropy_writer: EntropyWriter,
    /// Set for a chat of the engine's own endpoint. Declared before `recorder`, so that dropping it marks the session as incomplete before
    /// the call ends.
    chat: Option<Box<ChatCapture>>,
    /// `None` after [`Self::take_in_flight`].
    flight: Option<InFlight>,
    /// `None` where turns are not recorded.
    recorder: Option<Recorder>,
    observed: ReplyStats,
    /// `None` without `--otlp`, and where the caller does not sample its trace.
    span: Option<Box<GenerationSpan>>,
    /// When the current event was read.
    now: Instant,
}

/// The reply is not in SGLang's format.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UnreadableReply(#[from] Malformed);

impl Capture {
    #[must_use]
    pub fn context(&self) -> &Arc<GenerationContext> {
        &self.context
    }

    /// Begins the capture of a reply to `plan`, which is sent `now` and whose ids are in `flight`.
    #[must_use]
    pub fn new(
        plan: Plan,
        flight: InFlight,
        recorder: Option<Recorder>,
        context: Arc<GenerationContext>,
        upstream: &Capabilities,
        now: Instant,
    ) -> Self {
        let entropy_writer = context.entropies.begin(now);
        if plan.entropy_request.wanted {
            recorder
                .iter()
                .for_each(|recorder| entropy_writer.set_session(Arc::clone(recorder.session()), recorder.epoch()));
            plan.rid.iter().for_each(|rid| entropy_writer.name(rid, 0));
        }
        let capture = Self {
            vocab: upstream.vocab_size,
            model: context.metrics.model(&upstream.model),
            sequences: SmallVec::new(),
            content: ExpectedContent::new(upstream.streaming, plan.items.iter().any(|item| item.logprob)),
            buffers: None,
            observed: ReplyStats::default(),
            plan,
            context,
            entropy_writer,
            flight: Some(flight),
            recorder,
            chat: None,
            span: None,
            now,
        };
        capture.name_sequences();
        capture
    }

    /// Captures a chat of the engine's own endpoint.
    #[must_use]
    pub fn with_chat(self, chat: ChatCapture) -> Self {
        Self { chat: Some(Box::new(chat)), ..self }
    }

    /// Whether it captures a chat of the engine's own endpoint.
    #[must_use]
    pub fn is_chat(&self) -> bool {
        self.chat.is_some()
    }

    /// Whether events must not be handed out before later ones are read.
    #[must_use]
    pub fn holds_events(&self) -> bool {
        self.chat.as_ref().is_some_and(|chat| chat.awaits_ids())
    }

    /// Counts a sequence without the requested entropy. A chat of the engine's own endpoint requests none.
    pub fn skip(&mut self, reason: Reason) {
        self.miss_in_span(reason);
        if !self.is_chat() {
            self.context.metrics.skipped.with_label_values(&[reason.name()]).inc();
        }
    }

    /// Makes the entropies readable by the known ids.
    fn name_sequences(&self) {
        if self.plan.entropy_request.wanted {
            self.plan.rids.iter().for_each(|(rid, index)| self.entropy_writer.name(rid, *index));
        }
    }

    /// [`Plan::give_up`]; new ids replace the earlier ones, which no longer name this request.
    pub fn give_up(&mut self, reason: Reason) -> bool {
        let earlier: Vec<_> = self.plan.rids.iter().map(|(rid, _)| Arc::clone(rid)).collect();
        let is_renamed = self.plan.give_up(reason);
        if is_renamed {
            let rids = self.plan.rids.iter().map(|(rid, _)| Arc::clone(rid));
            self.flight = Some(self.context.flights.start(rids));
            self.name_sequences();
            earlier.iter().for_each(|rid| self.entropy_writer.remove_name(rid));
        }
        is_renamed
    }

    /// The recorder of the reply.
    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_mut()
    }

    /// Whether the reply must be read.
    #[must_use]
    pub fn reads_reply(&self) -> bool {
        self.recorder.is_some() || self.plan.reads_reply()
    }

    /// Marks the session as incomplete: it has generated tokens that are not recorded. The ids of a chat may still arrive.
    pub fn incomplete(&mut self) {
        if let Some(recorder) = self.recorder.as_mut().filter(|_| self.chat.is_none()) {
            recorder.incomplete();
        }
    }

    /// Commits unfinished sequences: no more of the reply will arrive.
    pub fn cut(&mut self, fault: Fault) {
        if let Some(chat) = &mut self.chat {
            chat.end();
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.cut(fault, self.plan.n);
        }
        self.count_missing_columns();
    }

    /// Counts the columns that the recorded turns lack. The first of each kind is logged.
    fn count_missing_columns(&mut self) {
        let Some(recorder) = &mut self.recorder else { return };
        for (column, fault) in recorder.take_missing_columns() {
            let counter = self.context.metrics.missing_columns.with_label_values(&[&*column, fault.name()]);
            if counter.get() == 0 {
                tracing::warn!(%column, reason = fault.name(), "turns are recorded without a requested token column");
            }
            counter.inc();
        }
    }

    /// The plan of the request.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan, to update it with the engine's answer.
    pub fn plan_mut(&mut self) -> &mut Plan {
        &mut self.plan
    }

    /// Statistics of the reply so far, for the access log and for metrics. Tokens of unfinished sequences count: the reply may be cut.
    #[must_use]
    pub fn observed(&self) -> ReplyStats {
        let mut observed = self.observed;
        for sequence in self.sequences.iter().filter(|sequence| !sequence.finished) {
            observed.tokens += sequence.tokens as u64;
            observed.prompt_tokens += sequence.prompt_tokens;
            observed.mean = sequence.mean().or(observed.mean);
        }
        observed
    }

    /// Whether every requested sequence has finished.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let prompts = if self.is_chat() { 1 } else { self.plan.items.len() };
        self.observed.finished >= (prompts * self.plan.n) as u64
    }

    /// Registers the id under which the engine continues the request.
    pub fn continue_as(&mut self, rid: &Arc<str>) {
        if let Some(flight) = &mut self.flight {
            flight.continue_as(rid);
        }
    }

    /// Records that the current policy has sampled `new` tokens, which a later object of the reply lists.
    pub fn mark_epoch(&mut self, new: usize) {
        if let Some(recorder) = &mut self.recorder {
            recorder.mark_epoch(new);
        }
    }

    /// Whether a client has aborted one of its ids.
    #[must_use]
    pub fn is_aborted_by_client(&self) -> bool {
        self.flight.as_ref().is_some_and(InFlight::is_aborted_by_client)
    }

    /// Takes the in-flight ids, so that they can outlive the capture.
    pub fn take_in_flight(&mut self) -> InFlight {
        self.flight.take().unwrap_or_else(|| self.context.flights.start([]))
    }

    /// Records that the engine refused the request.
    pub fn fail(&mut self, status: StatusCode) {
        if let Some(chat) = &mut self.chat {
            chat.refused(status);
        }
        self.entropy_writer.fail();
        self.fail_span(Failure::Status(status));
    }

    /// Begins to read an event.
    pub fn begin_step(&mut self, now: Instant) {
        self.now = now;
        if self.buffers.is_none() {
            self.buffers = Buffers::take();
        }
    }

    /// Ends what [`Self::begin_step`] began: adds the time that was spent on parsing, measuring and writing.
    pub fn end_step(&mut self) {
        self.observed.overhead += self.now.elapsed();
        if let Some(buffers) = self.buffers.take_if(|buffers| buffers.can_be_kept()) {
            buffers.keep();
        }
    }

    /// Parses and measures a reply that does not stream.
    ///
    /// # Errors
    /// [`UnreadableReply`] when the body is not in SGLang's format; the client then gets it unchanged.
    pub fn decode_whole(&mut self, body: &Bytes, reads: EventAccess) -> Result<ParsedOutputs, UnreadableReply> {
        if let (Some(chat), Some(recorder)) = (&mut self.chat, &mut self.recorder) {
            let decoded = chat.decode_whole(body, reads, recorder, &mut self.observed);
            self.finish_chat_span();
            return decoded;
        }
        let mut parsed = ParsedOutputs::default();
        for_each_object(Cursor::new(body), |cursor, at| {
            self.decode_object(body, cursor, Some(at), reads, &mut parsed)
        })?;
        Ok(parsed)
    }

    /// Parses and measures one event of a stream.
    ///
    /// # Errors
    /// [`UnreadableReply`] when the event is not in SGLang's format; the client then gets it unchanged.
    pub fn decode_event(&mut self, framed: &EventFrame, reads: EventAccess) -> Result<ParsedOutputs, UnreadableReply> {
        if let (Some(chat), Some(recorder)) = (&mut self.chat, &mut self.recorder) {
            let decoded = chat.decode_event(framed, recorder, &mut self.observed, self.flight.as_mut());
            self.finish_chat_span();
            return decoded;
        }
        let EventFrame { raw, json } = framed;
        let mut cursor = Cursor::at(&raw[..json.end], json.start);
        let mut parsed = ParsedOutputs::default();
        self.decode_object(raw, &mut cursor, None, reads, &mut parsed)?;
        cursor.end()?;
        Ok(parsed)
    }

    /// Parses and measures one object of the reply. In a stream its index follows its lists, so parsing resumes after the prefix of any
    /// sequence that matches. In the rare case that the prefix belongs to another sequence, the object is parsed again.
    fn decode_object(
        &mut self,
        bytes: &Bytes,
        cursor: &mut Cursor<'_>,
        index: Option<usize>,
        reads: EventAccess,
        parsed: &mut ParsedOutputs,
    ) -> Result<(), UnreadableReply> {
        let mut buffers = self.buffers.take().unwrap_or_default();
        let read = self.decode_chunk(cursor, index, &mut buffers.numbers);
        let done = read.and_then(|chunk| {
            self.process_chunk(bytes, &chunk, index.unwrap_or(chunk.index), &mut buffers, &mut parsed.changes)?;
            parsed.add(reads, index, chunk);
            Ok(())
        });
        self.buffers = Some(buffers);
        done
    }

    fn decode_chunk(
        &self,
        cursor: &mut Cursor<'_>,
        index: Option<usize>,
        numbers: &mut Numbers,
    ) -> Result<Chunk, UnreadableReply> {
        numbers.clear();
        numbers.rows.keep_ids(self.plan.keeps_top);
        if index.is_some() || !self.content.is_full() {
            return Ok(self.plan.product.decode(cursor, &NoKnownPrefix, numbers)?);
        }
        let start = cursor.clone();
        let chunk = self.plan.product.decode(cursor, &SequencePrefixes(&self.sequences), numbers)?;
        let none = Sequence::default();
        let sequence = self.sequences.get(chunk.index).unwrap_or(&none);
        if !sequence.owns(&chunk, cursor.bytes()) || !sequence.counts_jump(&chunk, numbers.chosen.len()) {
            *cursor = start;
            return Ok(self.plan.product.decode(cursor, &NoKnownPrefix, numbers)?);
        }
        Ok(chunk)
    }

    /// Measures and records an object of a sequence, and adds the changes of its bytes to `splice`.
    fn process_chunk(
        &mut self,
        bytes: &Bytes,
        chunk: &Chunk,
        index: usize,
        buffers: &mut Buffers,
        splice: &mut Splice,
    ) -> Result<(), UnreadableReply> {
        let Some(meta) = &chunk.meta else {
            self.fail_span_with(chunk.error(bytes));
            return Ok(());
        };
        let Some(item) = self.plan.item(index).copied() else {
            // the engine returned more sequences than the plan expects
            self.incomplete();
            return Ok(());
        };
        if self.sequences.len() <= index {
            // on first use: a request may ask for a million samples
            self.sequences.resize_with(index + 1, Sequence::default);
        }
        if let Some(rid) = chunk.rid.as_deref().filter(|_| self.sequences[index].tokens == 0) {
            // most replies repeat the id that the request had
            let known = self.plan.rids.get(index).map(|(known, _)| known).filter(|known| ***known == *rid);
            let rid = known.map_or_else(|| rid.into(), Arc::clone);
            if let (0, Some(span)) = (index, &mut self.span) {
                span.set_rid(&rid);
            }
            if self.plan.entropy_request.wanted {
                self.entropy_writer.name(&rid, index);
            }
            if let (true, Some(flight)) = (self.plan.stream, &mut self.flight) {
                flight.add(rid);
            }
        }
        if self.plan.echo {
            self.plan.product.strip_echo(bytes, chunk, splice);
        }
        self.sequences[index].prompt_tokens = chunk.prompt_tokens.unwrap_or(0);
        let mut edit = Edit::new(bytes, meta);
        let mut cuts = Splice::default();
        Product::trim(&self.plan, &item, bytes, meta, &mut edit, &mut cuts)?;
        let step = self.measure(bytes, chunk, index, &item, buffers);
        let wanted = self.plan.entropy_request.wanted;
        let info = (wanted && chunk.finish.is_some()).then(|| self.info(&item, index));
        if let Some(recorder) = &mut self.recorder {
            let details = info.map(|_| enrich::details(&self.sequences[index], &self.plan.entropy_request));
            recorder.record(CapturedOutput {
                bytes,
                chunk,
                index,
                item: &item,
                n: self.plan.n,
                numbers: &buffers.numbers,
                step,
                entropy: &buffers.values,
                measured: info.map(|info| info.measured()),
                details: details.unwrap_or_default(),
                edit: &edit,
                cuts: &cuts,
                arrived: self.now,
            });
        }
        if wanted {
            enrich::add(&self.sequences[index], step.content, &self.plan.entropy_request, info.as_ref(), &mut edit);
        }
        splice.append(cuts);
        edit.finish(splice);
        if chunk.finish.is_some() {
            self.count_missing_columns();
        }
        if let Some(finish) = &chunk.finish {
            self.finish(chunk, index, &item, finish.kind.clone());
        }
        Ok(())
    }
}
