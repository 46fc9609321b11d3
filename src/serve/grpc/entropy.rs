//! `tokentap.v1.Entropy`: slices of logits in, their numbers out.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, yield_now};
use tonic::{Code, Request, Response, Status, Streaming, async_trait};

use super::call_slots::{CALLS, CallSlot};
use super::pb::entropy_server::Entropy;
use super::{Answers, pb, status};
use crate::entropy::{Dtype, RowStats};
use crate::logits::slices::{Intake, MAX_ROWS, Misshapen, Rows, SLOT_BYTES, Side, Slices, Unmeasured};
use crate::serve::connection::Phase;

/// Slices of one call that are measured, or whose answers wait to be taken; more are not read.
const AHEAD: usize = 16;

/// Rows of these slices: what their numbers take, whoever does not take them.
const ROWS_AHEAD: usize = MAX_ROWS;

/// The largest message: the rows that fit a slot, an id of at most ten bytes and a temperature for each of as many as there may be,
/// and what little else there is. The buffer of a call stays as large as its largest message. Ids grow eightfold as they are read:
/// those that cannot belong to the rows are dropped before anything is waited for.
pub(super) const LARGEST_SLICE: usize = SLOT_BYTES + MAX_ROWS * (10 + 4) + 1024;

/// The service.
#[derive(Debug)]
pub(super) struct Measuring {
    pub(super) slices: Arc<Slices>,
    pub(super) place: Arc<CallSlot>,
    pub(super) phase: watch::Receiver<Phase>,
}

#[async_trait]
impl Entropy for Measuring {
    type ComputeStream = Answers<pb::Measurement>;

    async fn compute(&self, request: Request<Streaming<pb::Slice>>) -> Result<Response<Self::ComputeStream>, Status> {
        let (sender, asked) = mpsc::channel(AHEAD);
        let call = Call {
            asked: request.into_inner(),
            slices: Arc::clone(&self.slices),
            place: Arc::clone(&self.place),
            phase: self.phase.clone(),
            rows: Arc::new(Semaphore::new(ROWS_AHEAD)),
            sender,
        };
        // Room is waited for by a task, never by the answers: whoever does not read those is not polled, and would keep the place in
        // the queue that others wait behind.
        let reading = tokio::spawn(call.read());
        let answers = Answering { asked, reading, place: Arc::clone(&self.place), given: 0 };
        let answers =
            stream::unfold(answers, |mut answers| async move { answers.next().await.map(|answer| (answer, answers)) });
        Ok(Response::new(answers.boxed()))
    }
}

/// The answers of a call. Dropping them ends it.
struct Answering {
    asked: mpsc::Receiver<Result<Asked, Status>>,
    reading: JoinHandle<()>,
    place: Arc<CallSlot>,
    /// Answers that were given out and may not have been taken.
    given: usize,
}

impl Answering {
    async fn next(&mut self) -> Option<Result<pb::Measurement, Status>> {
        if self.asked.is_empty() {
            self.taken().await;
        }
        let asked = match self.asked.recv().await? {
            Ok(asked) => asked,
            Err(status) => {
                self.taken().await;
                return Some(Err(status));
            }
        };
        self.given += 1;
        Some(Ok(asked.answer().await))
    }

    /// More is asked for: what was given out is on its way.
    async fn taken(&mut self) {
        yield_now().await;
        self.place.took(std::mem::take(&mut self.given));
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// A call that is being read.
struct Call {
    asked: Streaming<pb::Slice>,
    slices: Arc<Slices>,
    place: Arc<CallSlot>,
    phase: watch::Receiver<Phase>,
    /// Of this call alone, so that nobody waits for another's.
    rows: Arc<Semaphore>,
    sender: mpsc::Sender<Result<Asked, Status>>,
}

/// A slice whose rows have been handed in, or one that is wrong.
struct Asked {
    id: u64,
    chosen: bool,
    intake: Result<Intake, Misshapen>,
    /// What its numbers take of the call's share.
    _rows: OwnedSemaphorePermit,
}

impl Call {
    /// Hands slices in, in their order, until there are no more, or nobody waits for their numbers.
    async fn read(mut self) {
        loop {
            let slice = tokio::select! {
                slice = self.asked.message() => slice.map_err(status::sized).transpose(),
                () = self.place.lost() => {
                    let message = format!(
                        "{CALLS} calls of Entropy.Compute are going on, and this one was silent for longest: call again with the next slice"
                    );
                    Some(Err(Status::unavailable(message)))
                }
                // whoever tells has gone when this fails, and so has the server
                _ = self.phase.wait_for(|phase| *phase >= Phase::Draining) => {
                    Some(Err(Status::unavailable("tokentap is stopping")))
                }
            };
            let asked = match slice {
                None => return,
                Some(Ok(slice)) => {
                    self.place.came();
                    Ok(self.hand_in(slice).await)
                }
                Some(Err(status)) => Err(status),
            };
            let last = asked.is_err();
            if self.sender.send(asked).await.is_err() || last {
                return;
            }
        }
    }

    /// The message of a slice is gone when this returns: what is being measured lies in slots, and for those it waits.
    async fn hand_in(&self, slice: pb::Slice) -> Asked {
        let (id, chosen) = (slice.id, !slice.token_ids.is_empty());
        let opened = rows(&slice).and_then(|rows| {
            let pb::Slice { logits, temperature, token_ids, .. } = slice;
            Ok((rows, logits, Intake::open(&self.slices, rows, Side { temperature, chosen: token_ids })?))
        });
        let count = opened.as_ref().map_or(0, |(rows, ..)| u32::try_from(rows.count()).unwrap_or(u32::MAX));
        let permit = Arc::clone(&self.rows).acquire_many_owned(count).await.expect("it is never closed");
        let intake = match opened {
            Ok((_, logits, mut intake)) => {
                intake.push(&logits).await;
                Ok(intake)
            }
            Err(error) => Err(error),
        };
        Asked { id, chosen, intake, _rows: permit }
    }
}

/// What a slice says it is.
fn rows(slice: &pb::Slice) -> Result<Rows, Misshapen> {
    let (dtype, vocab) = (slice.dtype, slice.vocab);
    let stored = match pb::Dtype::try_from(dtype) {
        Ok(pb::Dtype::F32) => Dtype::F32,
        Ok(pb::Dtype::Bf16) => Dtype::Bf16,
        Ok(pb::Dtype::F16) => Dtype::F16,
        Ok(pb::Dtype::Unspecified) | Err(_) => {
            let message = format!("dtype {dtype} is none of DTYPE_F32 (1), DTYPE_BF16 (2) and DTYPE_F16 (3)");
            return Err(Misshapen::Shape(message));
        }
    };
    let width = (vocab as usize).saturating_mul(stored.bytes());
    if width == 0 || !slice.logits.len().is_multiple_of(width) {
        let (bytes, name) = (slice.logits.len(), stored.name());
        let message = format!("logits of {bytes} bytes are no whole rows of {vocab} values in {name}");
        return Err(Misshapen::Shape(message));
    }
    Rows::try_new(stored, slice.logits.len() / width, vocab as usize, MAX_ROWS)
}

impl Asked {
    /// A wrong slice is answered like any other, so that it costs its neighbours nothing.
    async fn answer(self) -> pb::Measurement {
        let Self { id, chosen, intake, _rows } = self;
        let measured = match intake {
            Ok(intake) => intake.rest().await.map_err(|error| (code(error), error.to_string())),
            Err(error) => Err((Code::InvalidArgument, error.to_string())),
        };
        let stats = match measured {
            Ok(stats) => stats,
            Err((code, message)) => {
                let code = u32::try_from(i32::from(code)).unwrap_or_default();
                let error = Some(pb::EntropyError { code, message });
                return pb::Measurement { id, error, ..pb::Measurement::default() };
            }
        };
        let column = |of: fn(&RowStats) -> f64| stats.iter().map(of).collect();
        pb::Measurement {
            id,
            entropy: column(|row| row.entropy),
            log_z: column(|row| row.log_z),
            p_max: column(|row| row.p_max),
            varentropy: column(|row| row.varentropy),
            surprisal: if chosen { column(|row| row.surprisal) } else { Vec::new() },
            error: None,
        }
    }
}

fn code(error: Unmeasured) -> Code {
    match error {
        Unmeasured::Panicked => Code::Internal,
        Unmeasured::Stuck | Unmeasured::Ending => Code::Unavailable,
    }
}
