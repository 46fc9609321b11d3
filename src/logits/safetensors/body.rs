// SPDX-License-Identifier: Apache-2.0
//! Parses a safetensors body incrementally, in pieces of any size; rows are submitted while the body is still being received.

use std::sync::Arc;
use std::time::{Duration, Instant};

use safetensors::tensor::Dtype as TensorDtype;

use super::header::{Header, LONGEST, Tensor, TensorRole};
use crate::entropy::RowStats;
use crate::logits::slices::{Intake, InvalidSlice, MeasureError, SliceColumns, SliceShape, Slices};

/// Why a body was not measured.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// The body is invalid; the message is for its sender.
    #[error("{0}")]
    Bad(String),
    /// The body exceeds a limit; the message is for its sender.
    #[error("{0}")]
    TooLarge(String),
    /// An internal failure.
    #[error(transparent)]
    Measure(#[from] MeasureError),
}

impl SafetensorsError {
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::Bad(message.into())
    }
}

impl From<InvalidSlice> for SafetensorsError {
    fn from(error: InvalidSlice) -> Self {
        match error {
            InvalidSlice::Shape(message) => Self::Bad(message),
            InvalidSlice::Room(message) => Self::TooLarge(message),
        }
    }
}

/// A body that is being read.
#[derive(Debug)]
pub struct Body {
    slices: Arc<Slices>,
    /// The largest size in bytes.
    limit: u64,
    /// The largest number of rows.
    most: usize,
    stage: Stage,
    /// Bytes of the current stage, until it is complete.
    collected: Vec<u8>,
}

#[derive(Debug)]
enum Stage {
    /// The eight bytes with the length of the header.
    Length,
    /// A header of this length in bytes.
    Header(usize),
    /// The tensors.
    Tensors(Box<Tensors>),
}

#[derive(Debug)]
struct Tensors {
    rows: SliceShape,
    left: std::vec::IntoIter<Tensor>,
    tensor: Option<Tensor>,
    columns: SliceColumns,
    /// Open from the first byte of the logits.
    intake: Option<Intake>,
    /// `temperature` or `token_ids` follow the logits.
    late: bool,
    /// The body has `token_ids`.
    chosen: bool,
}

impl Body {
    /// Creates the parser of a body of at most `limit` bytes and `most` rows.
    #[must_use]
    pub fn new(slices: &Arc<Slices>, limit: u64, most: usize) -> Self {
        Self { slices: Arc::clone(slices), limit, most, stage: Stage::Length, collected: Vec::new() }
    }

    /// Whether the header lists `token_ids`; false until the header is parsed.
    #[must_use]
    pub fn has_chosen(&self) -> bool {
        matches!(&self.stage, Stage::Tensors(tensors) if tensors.chosen)
    }

    /// Parses the next bytes. Waits while no slot is free for rows.
    ///
    /// # Errors
    /// [`SafetensorsError`] if the bytes are invalid or exceed a limit.
    pub async fn push(&mut self, mut bytes: &[u8]) -> Result<(), SafetensorsError> {
        while !bytes.is_empty() {
            match &mut self.stage {
                Stage::Length => {
                    if let Some(length) = collect(&mut self.collected, &mut bytes, 8) {
                        let length = length.try_into().map(u64::from_le_bytes).expect("eight bytes were asked for");
                        if !(2..=LONGEST).contains(&length) {
                            let message = format!(
                                "not a safetensors file: the first eight bytes give a header length of {length} bytes, not 2 to {LONGEST}"
                            );
                            return Err(SafetensorsError::bad(message));
                        }
                        self.stage = Stage::Header(usize::try_from(length).unwrap_or(usize::MAX));
                    }
                }
                Stage::Header(length) => {
                    if let Some(json) = collect(&mut self.collected, &mut bytes, *length) {
                        let header = Header::parse(&json, self.most)?;
                        let whole = header.bytes() + json.len() as u64 + 8;
                        if whole > self.limit {
                            let limit = self.limit;
                            let message = format!("{whole} bytes are more than the limit of {limit}");
                            return Err(SafetensorsError::TooLarge(message));
                        }
                        let mut tensors = Box::new(Tensors::new(header));
                        tensors.next(&self.slices).await?;
                        self.stage = Stage::Tensors(tensors);
                    }
                }
                Stage::Tensors(tensors) => {
                    let Some(tensor) = tensors.tensor else {
                        let message = format!("{} bytes or more follow the last tensor", bytes.len());
                        return Err(SafetensorsError::bad(message));
                    };
                    if let Some(intake) = tensors.intake.as_mut().filter(|_| tensor.role == TensorRole::Logits) {
                        let taken = intake.push(bytes).await;
                        bytes = &bytes[taken..];
                        if !intake.is_whole() {
                            continue;
                        }
                    } else {
                        let Some(values) = collect(&mut self.collected, &mut bytes, tensor.bytes) else { continue };
                        tensors.keep(tensor.role, &values);
                    }
                    tensors.next(&self.slices).await?;
                }
            }
        }
        Ok(())
    }

    /// As [`Intake::due`].
    #[must_use]
    pub fn due(&self, patience: Duration) -> Option<Instant> {
        match &self.stage {
            Stage::Tensors(tensors) => tensors.intake.as_ref()?.due(patience),
            Stage::Length | Stage::Header(_) => None,
        }
    }

    /// The numbers of the next rows, in order. Waits until at most `waiting` parts are still being measured.
    ///
    /// # Errors
    /// [`SafetensorsError`] if a part could not be measured.
    pub async fn ready(&mut self, waiting: usize) -> Result<Vec<RowStats>, SafetensorsError> {
        let mut ready = Vec::new();
        if let Stage::Tensors(tensors) = &mut self.stage
            && let Some(intake) = &mut tensors.intake
        {
            while intake.waiting() > waiting {
                ready.extend(intake.next().await.transpose()?.unwrap_or_default());
            }
        }
        Ok(ready)
    }

    /// Ends the body and returns the numbers of all rows that [`Body::ready`] has not returned.
    ///
    /// # Errors
    /// [`SafetensorsError`] if the body is incomplete, or a part could not be measured.
    pub async fn finish(self) -> Result<Vec<RowStats>, SafetensorsError> {
        let early = |what: &str| SafetensorsError::bad(format!("the body ends early, in {what}"));
        let tensors = match self.stage {
            Stage::Length => return Err(early("the length of its header")),
            Stage::Header(_) => return Err(early("its header")),
            Stage::Tensors(tensors) => tensors,
        };
        match tensors.tensor.map(|tensor| tensor.role) {
            Some(TensorRole::Logits) => return Err(early("logits")),
            Some(TensorRole::Temperature(_)) => return Err(early("temperature")),
            Some(TensorRole::TokenIds(_)) => return Err(early("token_ids")),
            None => {}
        }
        match tensors.intake {
            Some(intake) => Ok(intake.rest().await?),
            None => Ok(Vec::new()),
        }
    }
}

/// Moves bytes into `collected`; returns them once there are `count`.
fn collect(collected: &mut Vec<u8>, bytes: &mut &[u8], count: usize) -> Option<Vec<u8>> {
    let (taken, rest) = bytes.split_at(bytes.len().min(count - collected.len()));
    collected.extend_from_slice(taken);
    *bytes = rest;
    (collected.len() == count).then(|| std::mem::take(collected))
}

impl Tensors {
    fn new(header: Header) -> Self {
        let late = header.is_late();
        let Header { rows, tensors } = header;
        let chosen = tensors.iter().any(|tensor| matches!(tensor.role, TensorRole::TokenIds(_)));
        Self {
            rows,
            left: tensors.into_iter(),
            tensor: None,
            columns: SliceColumns::default(),
            intake: None,
            late,
            chosen,
        }
    }

    /// Advances to the next tensor that is not empty. After the last one, sets the columns of an intake that waits for them.
    async fn next(&mut self, slices: &Arc<Slices>) -> Result<(), SafetensorsError> {
        loop {
            self.tensor = self.left.next();
            match self.tensor.map(|tensor| tensor.role) {
                Some(TensorRole::Logits) if self.late => {
                    self.intake = Some(Intake::open_late(slices, self.rows).await?)
                }
                Some(TensorRole::Logits) => {
                    self.intake = Some(Intake::open(slices, self.rows, std::mem::take(&mut self.columns))?);
                }
                Some(_) => {}
                None if self.late => {
                    let intake = self.intake.as_mut().expect("late means that the logits come before another tensor");
                    return Ok(intake.set_columns(std::mem::take(&mut self.columns))?);
                }
                None => return Ok(()),
            }
            if self.tensor.is_some_and(|tensor| tensor.bytes > 0) {
                return Ok(());
            }
        }
    }

    fn keep(&mut self, role: TensorRole, values: &[u8]) {
        match role {
            TensorRole::Logits => unreachable!("logits go to the intake"),
            TensorRole::Temperature(TensorDtype::F64) => {
                self.columns.temperature = numbers(values, |bytes| f64::from_le_bytes(bytes) as f32);
            }
            TensorRole::Temperature(_) => self.columns.temperature = numbers(values, f32::from_le_bytes),
            TensorRole::TokenIds(TensorDtype::I32) => {
                self.columns.chosen = numbers(values, |bytes| i64::from(i32::from_le_bytes(bytes)));
            }
            TensorRole::TokenIds(TensorDtype::U32) => {
                self.columns.chosen = numbers(values, |bytes| i64::from(u32::from_le_bytes(bytes)));
            }
            TensorRole::TokenIds(_) => self.columns.chosen = numbers(values, i64::from_le_bytes),
        }
    }
}

fn numbers<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|bytes| read(*bytes)).collect()
}
