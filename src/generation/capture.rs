//! One reply being captured: numbers read, entropies measured and added, what was forced removed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::entropy::store::Ticket;
use crate::entropy::{Estimator, TokenStats, TopK};
use crate::generation::enrich::{self, Info};
use crate::generation::flight::Flight;
use crate::generation::forcing::Item;
use crate::generation::plan::Plan;
use crate::generation::reason::Reason;
use crate::generation::record::{Recorder, Seen};
use crate::generation::sequence::{Content, Expected, KnownContent, Sequence, Step};
use crate::generation::trim::trim;
use crate::generation::{Observed, Tools};
use crate::json::{Cursor, Edit, Malformed, Splice};
use crate::sglang::flat;
use crate::sglang::probe::Capabilities;
use crate::sglang::response::{Chunk, Nothing, Numbers};
use crate::trajectory::Fault;

/// What comes of one reply. Holds the request's ids in flight until it is dropped.
#[derive(Debug)]
pub struct Capture {
    plan: Plan,
    tools: Arc<Tools>,
    vocab: Option<u32>,
    model: Arc<str>,
    sequences: Vec<Sequence>,
    content: Expected,
    numbers: Numbers,
    stats: Vec<TokenStats>,
    ticket: Ticket,
    /// `None` once nobody waits for the ids.
    flight: Option<Flight>,
    /// `None` where turns are not recorded.
    recorder: Option<Recorder>,
    /// The published entropies of the event at hand.
    values: Vec<f32>,
    observed: Observed,
}

/// A reply that is not what SGLang writes.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(#[from] Malformed);

impl Capture {
    /// Begins the capture of a reply to `plan`, whose ids are in `flight`.
    #[must_use]
    pub fn new(
        plan: Plan,
        flight: Flight,
        recorder: Option<Recorder>,
        tools: Arc<Tools>,
        upstream: &Capabilities,
    ) -> Self {
        let ticket = tools.store.begin();
        if plan.wish.wanted {
            plan.rids.iter().for_each(|(rid, index)| ticket.name(rid, *index));
            plan.rid.iter().for_each(|rid| ticket.name(rid, 0));
        }
        Self {
            vocab: upstream.vocab_size,
            model: Arc::clone(&upstream.model),
            sequences: Vec::new(),
            content: Expected::of(upstream.streaming, plan.items.iter().any(|item| item.logprob)),
            numbers: Numbers::default(),
            stats: Vec::new(),
            observed: Observed::default(),
            plan,
            tools,
            ticket,
            flight: Some(flight),
            recorder,
            values: Vec::new(),
        }
    }

    /// What records the reply.
    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_mut()
    }

    /// Whether the reply must be read.
    #[must_use]
    pub fn reads_reply(&self) -> bool {
        self.recorder.is_some() || self.plan.reads_reply()
    }

    /// Something was generated that is not recorded.
    pub fn incomplete(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.incomplete();
        }
    }

    /// No more of the reply will come, whether or not it has ended.
    pub fn cut(&mut self, fault: Fault) {
        if let Some(recorder) = &mut self.recorder {
            recorder.cut(fault, self.plan.n);
        }
    }

    /// The plan being carried out.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan, for what turns out on the way to the reply.
    pub fn plan_mut(&mut self) -> &mut Plan {
        &mut self.plan
    }

    /// What was seen, for the log line and for metrics.
    #[must_use]
    pub fn observed(&self) -> &Observed {
        &self.observed
    }

    /// The ids, which nobody waits for any more.
    pub fn take_flight(&mut self) -> Flight {
        self.flight.take().unwrap_or_else(|| self.tools.flights.start([]))
    }

    /// The engine refused the request.
    pub fn fail(&mut self) {
        self.ticket.fail();
    }

    /// Time spent so far in reading, measuring and writing.
    pub fn spent(&mut self, time: Duration) {
        self.observed.overhead += time;
    }

    /// A whole non-streaming reply, enriched; `None` where there is nothing to change.
    ///
    /// # Errors
    /// [`Unreadable`] when the body is not what SGLang writes; the client then gets it as it came.
    pub fn reply(&mut self, body: &Bytes) -> Result<Option<Vec<u8>>, Unreadable> {
        let mut cursor = Cursor::new(body);
        let mut splice = Splice::default();
        if cursor.take(b'[') {
            let mut at = 0;
            while !cursor.take(b']') {
                if at > 0 {
                    cursor.expect(b',')?;
                }
                self.object(body, &mut cursor, Some(at), &mut splice)?;
                at += 1;
            }
        } else {
            self.object(body, &mut cursor, Some(0), &mut splice)?;
        }
        cursor.end()?;
        Ok((!splice.is_empty()).then(|| splice.apply(body)))
    }

    /// One event of a stream; `data` is where its JSON lies. `None` where there is nothing to change.
    ///
    /// # Errors
    /// [`Unreadable`] when the event is not what SGLang writes; the client then gets it as it came.
    pub fn event(&mut self, raw: &Bytes, data: Range<usize>) -> Result<Option<Vec<u8>>, Unreadable> {
        let mut cursor = Cursor::at(&raw[..data.end], data.start);
        let mut splice = Splice::default();
        self.object(raw, &mut cursor, None, &mut splice)?;
        cursor.end()?;
        Ok((!splice.is_empty()).then(|| splice.apply(raw)))
    }

    /// One object of the reply. In a stream its index stands at its end, so its lists are taken up where any sequence's ended, and
    /// read once more in the rare case that it was another's.
    fn object(
        &mut self,
        bytes: &Bytes,
        cursor: &mut Cursor<'_>,
        index: Option<usize>,
        splice: &mut Splice,
    ) -> Result<(), Unreadable> {
        let mut numbers = std::mem::take(&mut self.numbers);
        let read = self.read(cursor, index, &mut numbers);
        let done = read.and_then(|chunk| self.take(bytes, &chunk, index.unwrap_or(chunk.index), &mut numbers, splice));
        self.numbers = numbers;
        done
    }

    fn read(&self, cursor: &mut Cursor<'_>, index: Option<usize>, numbers: &mut Numbers) -> Result<Chunk, Unreadable> {
        if index.is_some() || !self.content.is_full() {
            return Ok(Chunk::read(cursor, &Nothing, numbers)?);
        }
        let start = cursor.clone();
        let chunk = Chunk::read(cursor, &KnownContent(&self.sequences), numbers)?;
        let none = Sequence::default();
        if !self.sequences.get(chunk.index).unwrap_or(&none).owns(&chunk, cursor.bytes()) {
            *cursor = start;
            return Ok(Chunk::read(cursor, &Nothing, numbers)?);
        }
        Ok(chunk)
    }

    fn take(
        &mut self,
        bytes: &Bytes,
        chunk: &Chunk,
        index: usize,
        numbers: &mut Numbers,
        splice: &mut Splice,
    ) -> Result<(), Unreadable> {
        let Some(meta) = &chunk.meta else { return Ok(()) };
        let Some(item) = self.plan.item(index).copied() else { return Ok(()) };
        self.sequence(index);
        if let Some(rid) = chunk.rid.as_deref().filter(|_| self.sequences[index].tokens == 0) {
            if self.plan.wish.wanted {
                self.ticket.name(rid, index);
            }
            if let (true, Some(flight)) = (self.plan.stream, &mut self.flight) {
                flight.add(rid.to_owned());
            }
        }
        if chunk.top.is_none() {
            flat::read(bytes, meta, &mut numbers.rows)?;
        }
        if self.plan.echo {
            let mut edit = Edit::new(bytes, &chunk.object);
            edit.remove(|key| key.is("prompt_token_ids"));
            edit.finish(splice);
        }
        let mut edit = Edit::new(bytes, meta);
        let mut cuts = Splice::default();
        trim(&item, bytes, meta, &mut edit, &mut cuts)?;
        let step = self.measure(bytes, chunk, index, &item, numbers);
        let wanted = self.plan.wish.wanted;
        let info = (wanted && chunk.finish.is_some()).then(|| self.info(&item, index));
        if let Some(recorder) = &mut self.recorder {
            let (entropy, n) = (&self.values[..], self.plan.n);
            let measured = info.map(|info| info.measured());
            let (edit, cuts) = (&edit, &cuts);
            recorder.take(Seen { bytes, chunk, index, item: &item, n, numbers, step, entropy, measured, edit, cuts });
        }
        if wanted {
            enrich::add(&self.sequences[index], step.content, &self.plan.wish, info.as_ref(), &mut edit);
        }
        splice.append(cuts);
        edit.finish(splice);
        if let Some(finish) = &chunk.finish {
            self.finish(chunk, index, &item, &finish.kind);
        }
        Ok(())
    }

    fn measure(&mut self, bytes: &Bytes, chunk: &Chunk, index: usize, item: &Item, numbers: &mut Numbers) -> Step {
        let estimator = self.estimator();
        let sequence = &mut self.sequences[index];
        let read = (numbers.chosen.len(), numbers.rows.len());
        let step = sequence.step(bytes, chunk, read, &mut self.content);
        if self.plan.stream && step.content == Content::Full {
            sequence.remember(bytes, chunk);
        }
        self.tools.metrics.tokens.with_label_values(&[&self.model, "output"]).inc_by(step.new as u64);
        self.values.clear();
        if !self.plan.wish.wanted {
            return step;
        }
        self.stats.clear();
        // one row a token, in the order of the tokens; where none came the token has no numbers
        numbers.rows.align(step.row_from, step.new);
        let chosen = numbers.chosen.get(step.chosen_from..).unwrap_or_default();
        let batch = TopK { rows: &numbers.rows, chosen, vocab: self.vocab, stats: self.plan.wish.stats };
        self.tools.backend.top_k(&batch, &mut self.stats);
        self.stats.truncate(step.new);
        for (at, stats) in self.stats.iter().enumerate() {
            let width = numbers.rows.row(at).len();
            sequence.width = sequence.width.max(width);
            sequence.exact &= self.vocab.is_some_and(|vocab| width >= vocab as usize);
            sequence.count(stats, estimator);
        }
        sequence.lists.begin_event();
        sequence.lists.push(&self.stats, &self.plan.wish, estimator);
        self.values.extend(self.stats.iter().map(|stats| estimator.of(stats)));
        self.ticket.append(index, self.values.iter().copied());
        self.tools.observe(&self.model, estimator, item, &self.stats);
        step
    }

    /// Sequences come into being when they are first heard of: a request may ask for a million samples.
    fn sequence(&mut self, index: usize) {
        if self.sequences.len() <= index {
            self.sequences.resize_with(index + 1, Sequence::default);
        }
    }

    /// The estimator that can be carried out with what is known.
    fn estimator(&self) -> Estimator {
        let wished = self.plan.wish.estimator;
        if self.vocab.is_some() { wished } else { wished.without_vocabulary() }
    }

    fn info(&self, item: &Item, index: usize) -> Info {
        let sequence = &self.sequences[index];
        let reason = if sequence.is_measured() { None } else { item.reason.or_else(|| sequence.lack()) };
        Info {
            measured: sequence.is_measured(),
            exact: sequence.exact,
            estimator: self.estimator(),
            temperature: item.temperature.ok(),
            width: sequence.width,
            vocab: self.vocab,
            mean: sequence.mean(),
            reason: reason.or(item.temperature.err()),
        }
    }

    fn finish(&mut self, chunk: &Chunk, index: usize, item: &Item, kind: &str) {
        let sequence = &mut self.sequences[index];
        if std::mem::replace(&mut sequence.finished, true) {
            return;
        }
        self.ticket.finish(index, kind);
        self.observed.finished += 1;
        self.observed.tokens += sequence.tokens as u64;
        self.observed.prompt_tokens += chunk.prompt_tokens.unwrap_or(0);
        if let Some(mean) = sequence.mean() {
            self.observed.mean = Some(mean);
        }
        if self.plan.wish.wanted && !sequence.is_measured() && sequence.tokens > 0 {
            let reason = item.reason.or_else(|| sequence.lack()).unwrap_or(Reason::MissingRows);
            self.observed.missing = Some(reason);
            self.tools.metrics.skipped.with_label_values(&[reason.name()]).inc();
        }
        let tokens = &self.tools.metrics.tokens;
        tokens.with_label_values(&[&self.model, "prompt"]).inc_by(chunk.prompt_tokens.unwrap_or(0));
        if let Some(mean) = sequence.mean() {
            self.tools.metrics.mean_entropy.with_label_values(&[&self.model]).observe(mean);
        }
    }
}
