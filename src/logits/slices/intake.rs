//! Rows on their way in, in pieces of any size, and their numbers on the way out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::entry::{Entry, Measured, Shape};
use super::slot::Reserved;
use super::{InvalidSlice, RowColumns, Rows, SLOT_BYTES, Slices, Slot, SlotPool, MeasureError};
use crate::entropy::RowStats;

/// One slice on its way through.
#[derive(Debug)]
pub struct Intake {
    slices: Arc<Slices>,
    slot_pool: Arc<SlotPool>,
    rows: Rows,
    /// `None` until it is known: it may come behind the rows.
    columns: Option<RowColumns>,
    slot: Option<Slot>,
    /// When that slot was taken; where all are reserved, when they were.
    opened: Instant,
    /// Taken beforehand, where full ones are held until the columns is known.
    reserved: Reserved,
    held: Vec<Slot>,
    /// Rows handed in.
    submitted: usize,
    pushed: usize,
    numbers: VecDeque<PendingRows>,
}

/// Rows that have been handed in.
#[derive(Debug)]
pub(super) struct PendingRows {
    pub(super) numbers: oneshot::Receiver<Measured>,
    /// They are in a slot of the device.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "no device without this feature"))]
    pub(super) on_device: bool,
}

impl Intake {
    /// A slice whose columns is known.
    ///
    /// # Errors
    /// [`InvalidSlice`] when the columns does not fit.
    pub fn open(slices: &Arc<Slices>, rows: Rows, columns: RowColumns) -> Result<Self, InvalidSlice> {
        columns.check(rows)?;
        Ok(Self::new(slices, rows, Some(columns)))
    }

    /// A slice whose columns comes behind its rows: room for all of them is waited for.
    ///
    /// # Errors
    /// [`InvalidSlice`] when there never is so much room.
    pub async fn open_late(slices: &Arc<Slices>, rows: Rows) -> Result<Self, InvalidSlice> {
        let mut intake = Self::new(slices, rows, None);
        let needed = rows.slots();
        if needed > intake.slot_pool.most_reserved() {
            // a device may have less room than the processor
            intake.slot_pool = Arc::clone(&slices.heap);
        }
        let most = intake.slot_pool.most_reserved();
        if needed > most {
            return Err(InvalidSlice::Room(format!(
                "logits with tensors behind them are held until those have come, and these need {needed} slots of {SLOT_BYTES} bytes \
                 where {most} can be had, half of the memory for rows: send fewer rows, or temperature and token_ids before the logits"
            )));
        }
        intake.reserved = slices.slots(&mut intake.slot_pool, needed, true).await;
        intake.opened = Instant::now();
        Ok(intake)
    }

    fn new(slices: &Arc<Slices>, rows: Rows, columns: Option<RowColumns>) -> Self {
        Self {
            slot_pool: Arc::clone(slices.slot_pool(rows)),
            slices: Arc::clone(slices),
            rows,
            columns,
            slot: None,
            opened: Instant::now(),
            reserved: Reserved::default(),
            held: Vec::new(),
            submitted: 0,
            pushed: 0,
            numbers: VecDeque::new(),
        }
    }

    /// Takes the next bytes of the rows, all of `bytes` unless the rows end before; says how many were taken. Waits for room.
    pub async fn push(&mut self, bytes: &[u8]) -> usize {
        let mut rest = &bytes[..bytes.len().min(self.rows.bytes() - self.pushed)];
        let taken = rest.len();
        while !rest.is_empty() {
            let limit = self.rows.slot_bytes();
            if self.slot.is_none() {
                self.slot = self.reserved.pop();
            }
            if self.slot.is_none() {
                self.slot = self.slices.slots(&mut self.slot_pool, 1, false).await.pop();
                self.opened = Instant::now();
            }
            let slot = self.slot.as_mut().expect("as many as asked for");
            let count = slot.push(rest, limit);
            rest = &rest[count..];
            self.pushed += count;
            if slot.filled().len() == limit || self.pushed == self.rows.bytes() {
                let slot = self.slot.take().expect("it has just been filled");
                self.submit_slot(slot);
            }
        }
        taken
    }

    /// The columns, which came behind the rows.
    ///
    /// # Errors
    /// [`InvalidSlice`] when it does not fit.
    pub fn set_columns(&mut self, columns: RowColumns) -> Result<(), InvalidSlice> {
        columns.check(self.rows)?;
        self.columns = Some(columns);
        self.reserved = Reserved::default();
        for slot in std::mem::take(&mut self.held) {
            self.submit_slot(slot);
        }
        Ok(())
    }

    fn submit_slot(&mut self, slot: Slot) {
        let Some(columns) = &self.columns else {
            self.held.push(slot);
            return;
        };
        let count = slot.filled().len() / self.rows.row_bytes();
        let (temperature, chosen) = columns.part(self.submitted, count);
        self.submitted += count;
        let (reply, numbers) = oneshot::channel();
        let shape = Shape { dtype: self.rows.dtype, vocab: self.rows.vocab, temperature, chosen };
        let on_device = !Arc::ptr_eq(slot.slot_pool(), &self.slices.heap);
        self.numbers.push_back(PendingRows { numbers, on_device });
        self.slices.submit(Entry { slot, shape, since: Instant::now(), reply });
    }

    /// When the next bytes must have come if room that is taken and not full is given `patience` a slot; `None` while none is.
    #[must_use]
    pub fn due(&self, patience: Duration) -> Option<Instant> {
        if self.columns.is_none() {
            let slots = u32::try_from(self.held.len() + 1).unwrap_or(u32::MAX);
            return Some(self.opened + patience.saturating_mul(slots));
        }
        self.slot.is_some().then(|| self.opened + patience)
    }

    /// Whether all rows have been pushed.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.pushed == self.rows.bytes()
    }

    /// How many parts of the slice are still being measured.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.numbers.len()
    }

    /// The numbers of the next rows, in order; dropped, it can be asked again. `None` when all that were handed in have been taken.
    pub async fn next(&mut self) -> Option<Result<Vec<RowStats>, MeasureError>> {
        let numbers = self.slices.numbers(self.numbers.front_mut()?).await;
        self.numbers.pop_front();
        Some(numbers)
    }

    /// The numbers of all rows that have been handed in and not taken.
    ///
    /// # Errors
    /// [`MeasureError`] if some rows have no numbers.
    pub async fn rest(mut self) -> Result<Vec<RowStats>, MeasureError> {
        let mut all = Vec::new();
        while let Some(numbers) = self.next().await {
            all.extend(numbers?);
        }
        Ok(all)
    }
}
