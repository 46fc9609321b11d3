//! A safetensors body as it comes, in pieces of any size: rows go straight on to be measured.

use std::sync::Arc;
use std::time::{Duration, Instant};

use safetensors::tensor::Dtype as Stored;

use super::header::{Header, LONGEST, Tensor, What};
use crate::entropy::RowStats;
use crate::logits::slices::{Intake, Misshapen, Rows, Side, Slices, Unmeasured};

/// Why a body is not measured.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// It is not what it should be; the words are for its sender.
    #[error("{0}")]
    Bad(String),
    /// It is more than there ever is room for; the words are for its sender.
    #[error("{0}")]
    TooLarge(String),
    /// tokentap's own fault.
    #[error(transparent)]
    Unmeasured(#[from] Unmeasured),
}

impl SafetensorsError {
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::Bad(message.into())
    }
}

impl From<Misshapen> for SafetensorsError {
    fn from(error: Misshapen) -> Self {
        match error {
            Misshapen::Shape(message) => Self::Bad(message),
            Misshapen::Room(message) => Self::TooLarge(message),
        }
    }
}

/// A body that is being read.
#[derive(Debug)]
pub struct Body {
    slices: Arc<Slices>,
    /// Bytes it may have.
    limit: u64,
    /// Rows it may have.
    most: usize,
    stage: Stage,
    /// What a stage collects.
    collected: Vec<u8>,
}

#[derive(Debug)]
enum Stage {
    /// The eight bytes that say how long the header is.
    Length,
    /// A header of so many bytes.
    Header(usize),
    /// The tensors.
    Tensors(Box<Tensors>),
}

#[derive(Debug)]
struct Tensors {
    rows: Rows,
    left: std::vec::IntoIter<Tensor>,
    tensor: Option<Tensor>,
    side: Side,
    /// Open from the first byte of the logits on.
    intake: Option<Intake>,
    late: bool,
    chosen: bool,
}

impl Body {
    /// A body of at most `limit` bytes and `most` rows, nothing of which has come.
    #[must_use]
    pub fn new(slices: &Arc<Slices>, limit: u64, most: usize) -> Self {
        Self { slices: Arc::clone(slices), limit, most, stage: Stage::Length, collected: Vec::new() }
    }

    /// Whether token ids come with the rows, or have come.
    #[must_use]
    pub fn has_chosen(&self) -> bool {
        matches!(&self.stage, Stage::Tensors(tensors) if tensors.chosen)
    }

    /// Takes the next bytes. Waits where there is no room for more rows.
    ///
    /// # Errors
    /// [`SafetensorsError`] when they cannot be right.
    pub async fn push(&mut self, mut bytes: &[u8]) -> Result<(), SafetensorsError> {
        while !bytes.is_empty() {
            match &mut self.stage {
                Stage::Length => {
                    if let Some(length) = collect(&mut self.collected, &mut bytes, 8) {
                        let length = length.try_into().map(u64::from_le_bytes).expect("eight bytes were asked for");
                        if !(2..=LONGEST).contains(&length) {
                            let message = format!(
                                "this is no safetensors file: its first eight bytes say that its header has {length} bytes, not 2 to {LONGEST}"
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
                    if let Some(intake) = tensors.intake.as_mut().filter(|_| tensor.what == What::Logits) {
                        let taken = intake.push(bytes).await;
                        bytes = &bytes[taken..];
                        if !intake.is_whole() {
                            continue;
                        }
                    } else {
                        let Some(values) = collect(&mut self.collected, &mut bytes, tensor.bytes) else { continue };
                        tensors.keep(tensor.what, &values);
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

    /// Numbers of rows that are known by now, in order, while more than `waiting` parts are being measured.
    ///
    /// # Errors
    /// [`SafetensorsError`] when a part could not be measured.
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

    /// The body has ended: the numbers of all rows not taken by [`Body::ready`].
    ///
    /// # Errors
    /// [`SafetensorsError`] when it ended early, or there are no numbers.
    pub async fn finish(self) -> Result<Vec<RowStats>, SafetensorsError> {
        let early = |what: &str| SafetensorsError::bad(format!("the body ends early, in {what}"));
        let tensors = match self.stage {
            Stage::Length => return Err(early("the length of its header")),
            Stage::Header(_) => return Err(early("its header")),
            Stage::Tensors(tensors) => tensors,
        };
        match tensors.tensor.map(|tensor| tensor.what) {
            Some(What::Logits) => return Err(early("logits")),
            Some(What::Temperature(_)) => return Err(early("temperature")),
            Some(What::TokenIds(_)) => return Err(early("token_ids")),
            None => {}
        }
        match tensors.intake {
            Some(intake) => Ok(intake.rest().await?),
            None => Ok(Vec::new()),
        }
    }
}

/// Moves bytes until there are `count`; those, when there are.
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
        let chosen = tensors.iter().any(|tensor| matches!(tensor.what, What::TokenIds(_)));
        Self { rows, left: tensors.into_iter(), tensor: None, side: Side::default(), intake: None, late, chosen }
    }

    /// Turns to the next tensor with any bytes; behind the last one, the side is known.
    async fn next(&mut self, slices: &Arc<Slices>) -> Result<(), SafetensorsError> {
        loop {
            self.tensor = self.left.next();
            match self.tensor.map(|tensor| tensor.what) {
                Some(What::Logits) if self.late => self.intake = Some(Intake::open_late(slices, self.rows).await?),
                Some(What::Logits) => {
                    self.intake = Some(Intake::open(slices, self.rows, std::mem::take(&mut self.side))?);
                }
                Some(_) => {}
                None if self.late => {
                    let intake = self.intake.as_mut().expect("there is a tensor of logits, and it is not the last");
                    return Ok(intake.set_side(std::mem::take(&mut self.side))?);
                }
                None => return Ok(()),
            }
            if self.tensor.is_some_and(|tensor| tensor.bytes > 0) {
                return Ok(());
            }
        }
    }

    fn keep(&mut self, what: What, values: &[u8]) {
        match what {
            What::Logits => unreachable!("logits go to the intake"),
            What::Temperature(Stored::F64) => {
                self.side.temperature = numbers(values, |bytes| f64::from_le_bytes(bytes) as f32);
            }
            What::Temperature(_) => self.side.temperature = numbers(values, f32::from_le_bytes),
            What::TokenIds(Stored::I32) => {
                self.side.chosen = numbers(values, |bytes| i64::from(i32::from_le_bytes(bytes)));
            }
            What::TokenIds(Stored::U32) => {
                self.side.chosen = numbers(values, |bytes| i64::from(u32::from_le_bytes(bytes)));
            }
            What::TokenIds(_) => self.side.chosen = numbers(values, i64::from_le_bytes),
        }
    }
}

fn numbers<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|bytes| read(*bytes)).collect()
}
