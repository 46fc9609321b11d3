//! One reply being captured: numbers read, entropies measured and added, what was forced removed.

mod tally;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::engine::flat;
use crate::engine::probe::Capabilities;
use crate::engine::response::{Chunk, Nothing, Numbers};
use crate::entropy::TokenStats;
use crate::generation::enrich;
use crate::generation::entropy_store::Ticket;
use crate::generation::event::{Framed, Parsed, Reads, for_each_object};
use crate::generation::in_flight::InFlight;
use crate::generation::plan::Plan;
use crate::generation::record::{Recorder, Seen};
use crate::generation::sequence::{Expected, KnownContent, Sequence};
use crate::generation::trim::trim;
use crate::generation::{Observed, Tools};
use crate::json::{Cursor, Edit, Malformed, Splice};
use crate::session::Fault;

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
    flight: Option<InFlight>,
    /// `None` where turns are not recorded.
    recorder: Option<Recorder>,
    /// The published entropies of the event at hand.
    values: Vec<f32>,
    /// What the engine itself said exactly of the event at hand, one number a token; NaN where it said none.
    exact: Vec<f32>,
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
        flight: InFlight,
        recorder: Option<Recorder>,
        tools: Arc<Tools>,
        upstream: &Capabilities,
    ) -> Self {
        let ticket = tools.store.begin();
        if plan.entropy_request.wanted {
            recorder.iter().for_each(|recorder| ticket.belong(Arc::clone(recorder.session())));
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
            exact: Vec::new(),
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

    /// Whether every sequence that was asked for has come to its end.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.observed.finished >= (self.plan.items.len() * self.plan.n) as u64
    }

    /// The ids, which nobody waits for any more.
    pub fn take_flight(&mut self) -> InFlight {
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

    /// Parses and measures a reply that does not stream.
    ///
    /// # Errors
    /// [`Unreadable`] when the body is not what SGLang writes; the client then gets it unchanged.
    pub fn reply(&mut self, body: &Bytes, reads: Reads) -> Result<Parsed, Unreadable> {
        let mut parsed = Parsed::default();
        for_each_object(Cursor::new(body), |cursor, at| self.object(body, cursor, Some(at), reads, &mut parsed))?;
        Ok(parsed)
    }

    /// Parses and measures one event of a stream.
    ///
    /// # Errors
    /// [`Unreadable`] when the event is not what SGLang writes; the client then gets it unchanged.
    pub fn event(&mut self, framed: &Framed, reads: Reads) -> Result<Parsed, Unreadable> {
        let Framed { raw, json } = framed;
        let mut cursor = Cursor::at(&raw[..json.end], json.start);
        let mut parsed = Parsed::default();
        self.object(raw, &mut cursor, None, reads, &mut parsed)?;
        cursor.end()?;
        Ok(parsed)
    }

    /// One object of the reply. In a stream its index stands at its end, so its lists are taken up where any sequence's ended, and
    /// read once more in the rare case that it was another's.
    fn object(
        &mut self,
        bytes: &Bytes,
        cursor: &mut Cursor<'_>,
        index: Option<usize>,
        reads: Reads,
        parsed: &mut Parsed,
    ) -> Result<(), Unreadable> {
        let mut numbers = std::mem::take(&mut self.numbers);
        let read = self.read(cursor, index, &mut numbers);
        let done = read.and_then(|chunk| {
            self.take(bytes, &chunk, index.unwrap_or(chunk.index), &mut numbers, &mut parsed.changes)?;
            parsed.add(reads, index, chunk);
            Ok(())
        });
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
        let sequence = self.sequences.get(chunk.index).unwrap_or(&none);
        if !sequence.owns(&chunk, cursor.bytes()) || !sequence.counts_jump(&chunk, numbers.chosen.len()) {
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
        let Some(item) = self.plan.item(index).copied() else {
            // more sequences than the request was understood to ask for
            self.incomplete();
            return Ok(());
        };
        self.sequence(index);
        if let Some(rid) = chunk.rid.as_deref().filter(|_| self.sequences[index].tokens == 0) {
            if self.plan.entropy_request.wanted {
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
        trim(&self.plan, &item, bytes, meta, &mut edit, &mut cuts)?;
        let step = self.measure(bytes, chunk, index, &item, numbers);
        let wanted = self.plan.entropy_request.wanted;
        let info = (wanted && chunk.finish.is_some()).then(|| self.info(&item, index));
        if let Some(recorder) = &mut self.recorder {
            let (entropy, n) = (&self.values[..], self.plan.n);
            let measured = info.map(|info| info.measured());
            let own =
                info.map(|_| enrich::details(&self.sequences[index], &self.plan.entropy_request)).unwrap_or_default();
            let (edit, cuts) = (&edit, &cuts);
            let item = &item;
            recorder.take(Seen { bytes, chunk, index, item, n, numbers, step, entropy, measured, own, edit, cuts });
        }
        if wanted {
            enrich::add(&self.sequences[index], step.content, &self.plan.entropy_request, info.as_ref(), &mut edit);
        }
        splice.append(cuts);
        edit.finish(splice);
        if let Some(finish) = &chunk.finish {
            self.finish(chunk, index, &item, &finish.kind);
        }
        Ok(())
    }

    /// Sequences come into being when they are first heard of: a request may ask for a million samples.
    fn sequence(&mut self, index: usize) {
        if self.sequences.len() <= index {
            self.sequences.resize_with(index + 1, Sequence::default);
        }
    }
}
