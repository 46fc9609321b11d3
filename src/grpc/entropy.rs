//! `tokentap.v1.Entropy`: slices of logits in, their numbers out.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Code, Request, Response, Status, Streaming, async_trait};

use super::pb::entropy_server::Entropy;
use super::{Answers, pb};
use crate::entropy::slices::{Intake, Misshapen, Rows, Side, Slices, Unmeasured};
use crate::entropy::{Dtype, RowStats};
use crate::error::Error;
use crate::http::Parts;

/// Slices of one call that are measured at a time; more are not read.
const AHEAD: usize = 64;

/// The service.
#[derive(Debug)]
pub(super) struct Measuring(pub(super) Arc<Parts>);

#[async_trait]
impl Entropy for Measuring {
    type ComputeStream = Answers<pb::Measurement>;

    async fn compute(&self, request: Request<Streaming<pb::Slice>>) -> Result<Response<Self::ComputeStream>, Status> {
        let parts = &self.0;
        // lives as long as the stream of answers
        let permit = Arc::clone(&parts.permits).try_acquire_owned().map_err(|_| {
            parts.metrics.shed.with_label_values(&["max_requests"]).inc();
            Status::unavailable(Error::Overloaded { limit: parts.config.limits.max_requests }.to_string())
        })?;
        let call = Call { asked: request.into_inner(), slices: Arc::clone(&parts.slices), _permit: permit };
        let measured = stream::unfold(Some(call), |call| async move {
            let mut call = call?;
            match call.next().await {
                Ok(Some(slice)) => Some((Ok(slice), Some(call))),
                Ok(None) => None,
                Err(status) => Some((Err(status), None)),
            }
        });
        let answers = measured.map(|slice| async move { Ok(slice?.answer().await) });
        Ok(Response::new(answers.buffer_unordered(AHEAD).boxed()))
    }
}

/// A call that goes on.
struct Call {
    asked: Streaming<pb::Slice>,
    slices: Arc<Slices>,
    _permit: OwnedSemaphorePermit,
}

/// A slice whose rows have been handed in, or one that is wrong.
struct Asked {
    id: u64,
    chosen: bool,
    intake: Result<Intake, Misshapen>,
}

impl Call {
    /// The next slice. Its message is gone when this returns: what is being measured lies in slots, and for those it waits.
    async fn next(&mut self) -> Result<Option<Asked>, Status> {
        let Some(slice) = self.asked.message().await? else { return Ok(None) };
        let (id, chosen) = (slice.id, !slice.token_ids.is_empty());
        Ok(Some(Asked { id, chosen, intake: hand_in(&self.slices, slice).await }))
    }
}

async fn hand_in(slices: &Arc<Slices>, slice: pb::Slice) -> Result<Intake, Misshapen> {
    let pb::Slice { id: _, dtype, vocab, logits, temperature, token_ids } = slice;
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
    if width == 0 || !logits.len().is_multiple_of(width) {
        let (bytes, name) = (logits.len(), stored.name());
        let message = format!("logits of {bytes} bytes are no whole rows of {vocab} values in {name}");
        return Err(Misshapen::Shape(message));
    }
    let rows = Rows::try_new(stored, logits.len() / width, vocab as usize)?;
    let mut intake = Intake::open(slices, rows, Side { temperature, chosen: token_ids })?;
    intake.push(&logits).await;
    Ok(intake)
}

impl Asked {
    /// A wrong slice is answered like any other, so that it costs its neighbours nothing.
    async fn answer(self) -> pb::Measurement {
        let Self { id, chosen, intake } = self;
        let measured = match intake {
            Ok(intake) => intake.rest().await.map_err(|error| (code(error), error.to_string())),
            Err(Misshapen::Shape(message)) => Err((Code::InvalidArgument, message)),
            Err(Misshapen::Room(message)) => Err((Code::ResourceExhausted, message)),
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
        Unmeasured::Ending => Code::Unavailable,
    }
}
