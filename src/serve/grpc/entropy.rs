// SPDX-License-Identifier: Apache-2.0
//! `tokentap.v1.Entropy`: receives slices of logits and replies their measurements.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, yield_now};
use tonic::{Code, Request, Response, Status, Streaming, async_trait};

use super::call_slots::{CallSlot, MAX_CALLS};
use super::pb::entropy_server::Entropy;
use super::{ReplyStream, pb, status};
use crate::entropy::{Dtype, RowStats};
use crate::logits::slices::{
    Intake, InvalidSlice, MAX_ROWS, MeasureError, SLOT_BYTES, SliceColumns, SliceShape, Slices,
};
use crate::serve::connection::Phase;

/// The maximum number of a call's slices that are being measured or whose replies the client has not read. More are not read.
const AHEAD: usize = 16;

/// The maximum number of rows of these slices, which bounds the memory of unread replies.
const ROWS_AHEAD: usize = MAX_ROWS;

/// The maximum bytes of a message: the rows of a slot, an id of at most ten bytes and a temperature for each of the maximum number of
/// rows, and the small fields. The buffer of a call stays as large as its largest message. Decoded ids take up to eight times their
/// encoded size, so ids that do not match the rows are dropped before the call waits.
pub(super) const LARGEST_SLICE: usize = SLOT_BYTES + MAX_ROWS * (10 + 4) + 1024;

#[derive(Debug)]
pub(super) struct EntropyService {
    pub(super) slices: Arc<Slices>,
    pub(super) slot: Arc<CallSlot>,
    pub(super) phase: watch::Receiver<Phase>,
}

#[async_trait]
impl Entropy for EntropyService {
    type ComputeStream = ReplyStream<pb::Measurement>;

    async fn compute(&self, request: Request<Streaming<pb::Slice>>) -> Result<Response<Self::ComputeStream>, Status> {
        let (sender, pending) = mpsc::channel(AHEAD);
        let reader = SliceReader {
            messages: request.into_inner(),
            slices: Arc::clone(&self.slices),
            slot: Arc::clone(&self.slot),
            phase: self.phase.clone(),
            rows: Arc::new(Semaphore::new(ROWS_AHEAD)),
            sender,
        };
        // A task waits for slots, not the reply stream. If the client does not read, the stream is not polled, and a wait in it would block
        // the other calls in the queue.
        let task = tokio::spawn(reader.run());
        let replies = Measurements { pending, task, slot: Arc::clone(&self.slot), unread: 0 };
        let replies =
            stream::unfold(replies, |mut replies| async move { replies.next().await.map(|reply| (reply, replies)) });
        Ok(Response::new(replies.boxed()))
    }
}

/// The replies of a call. Dropping them ends the call.
struct Measurements {
    pending: mpsc::Receiver<Result<PendingSlice, Status>>,
    task: JoinHandle<()>,
    slot: Arc<CallSlot>,
    /// Replies that were returned and that the client may not have read.
    unread: usize,
}

impl Measurements {
    async fn next(&mut self) -> Option<Result<pb::Measurement, Status>> {
        if self.pending.is_empty() {
            self.record_read().await;
        }
        let slice = match self.pending.recv().await? {
            Ok(slice) => slice,
            Err(status) => {
                self.record_read().await;
                return Some(Err(status));
            }
        };
        self.unread += 1;
        Some(Ok(slice.measure().await))
    }

    /// The connection polls for more, so the replies before were sent.
    async fn record_read(&mut self) {
        yield_now().await;
        self.slot.record_read(std::mem::take(&mut self.unread));
    }
}

impl Drop for Measurements {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads the slices of a call.
struct SliceReader {
    messages: Streaming<pb::Slice>,
    slices: Arc<Slices>,
    slot: Arc<CallSlot>,
    phase: watch::Receiver<Phase>,
    /// Row permits of this call alone, so that no call waits for another.
    rows: Arc<Semaphore>,
    sender: mpsc::Sender<Result<PendingSlice, Status>>,
}

/// A slice that is being measured, or an invalid one.
struct PendingSlice {
    id: u64,
    chosen: bool,
    intake: Result<Intake, InvalidSlice>,
    /// Row permits of the call, held until the reply is sent.
    _rows: OwnedSemaphorePermit,
}

impl SliceReader {
    /// Submits slices in order, until the stream ends or the reply stream is dropped.
    async fn run(mut self) {
        loop {
            let slice = tokio::select! {
                slice = self.messages.message() => slice.map_err(status::oversize).transpose(),
                () = self.slot.revoked() => {
                    let message = format!(
                        "{MAX_CALLS} calls of Entropy.Compute are running, and this one was idle longest: call again with the next slice"
                    );
                    Some(Err(Status::unavailable(message)))
                }
                // an error means that the server has ended
                _ = self.phase.wait_for(|phase| *phase >= Phase::Draining) => {
                    Some(Err(Status::unavailable("tokentap is stopping")))
                }
            };
            let pending = match slice {
                None => return,
                Some(Ok(slice)) => {
                    self.slot.record_slice();
                    Ok(self.submit(slice).await)
                }
                Some(Err(status)) => Err(status),
            };
            let last = pending.is_err();
            if self.sender.send(pending).await.is_err() || last {
                return;
            }
        }
    }

    /// Waits for device slots, copies the rows of a slice into them and drops the message.
    async fn submit(&self, slice: pb::Slice) -> PendingSlice {
        let (id, chosen) = (slice.id, !slice.token_ids.is_empty());
        let opened = rows(&slice).and_then(|rows| {
            let pb::Slice { logits, temperature, token_ids, .. } = slice;
            Ok((rows, logits, Intake::open(&self.slices, rows, SliceColumns { temperature, chosen: token_ids })?))
        });
        let count = opened.as_ref().map_or(0, |(rows, ..)| u32::try_from(rows.count()).unwrap_or(u32::MAX));
        let permit = Arc::clone(&self.rows).acquire_many_owned(count).await.expect("the semaphore is never closed");
        let intake = match opened {
            Ok((_, logits, mut intake)) => {
                intake.push(&logits).await;
                Ok(intake)
            }
            Err(error) => Err(error),
        };
        PendingSlice { id, chosen, intake, _rows: permit }
    }
}

/// Parses the shape of a slice.
fn rows(slice: &pb::Slice) -> Result<SliceShape, InvalidSlice> {
    let (dtype, vocab) = (slice.dtype, slice.vocab);
    let stored = match pb::Dtype::try_from(dtype) {
        Ok(pb::Dtype::F32) => Dtype::F32,
        Ok(pb::Dtype::Bf16) => Dtype::Bf16,
        Ok(pb::Dtype::F16) => Dtype::F16,
        Ok(pb::Dtype::Unspecified) | Err(_) => {
            let message = format!("dtype {dtype} is not one of DTYPE_F32 (1), DTYPE_BF16 (2) and DTYPE_F16 (3)");
            return Err(InvalidSlice::Shape(message));
        }
    };
    let width = (vocab as usize).saturating_mul(stored.bytes());
    if width == 0 || !slice.logits.len().is_multiple_of(width) {
        let (bytes, name) = (slice.logits.len(), stored.name());
        let message = format!("logits of {bytes} bytes are no whole rows of {vocab} values in {name}");
        return Err(InvalidSlice::Shape(message));
    }
    SliceShape::try_new(stored, slice.logits.len() / width, vocab as usize, MAX_ROWS)
}

impl PendingSlice {
    /// Returns the measurement. An invalid slice gets a reply with an error, so that the other slices are not affected.
    async fn measure(self) -> pb::Measurement {
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

fn code(error: MeasureError) -> Code {
    match error {
        MeasureError::Panicked => Code::Internal,
        MeasureError::Stuck | MeasureError::Ending => Code::Unavailable,
    }
}
