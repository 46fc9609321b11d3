// SPDX-License-Identifier: Apache-2.0
//! Receives the rows of a slice, in pieces of any size, and returns their numbers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::job::{Measured, SlotJob, SlotLayout};
use super::slot::Reserved;
use super::{InvalidSlice, MeasureError, SLOT_BYTES, SliceColumns, SliceShape, Slices, Slot, SlotPool};
use crate::entropy::RowStats;

/// A slice that is being received and measured.
#[derive(Debug)]
pub struct Intake {
    slices: Arc<Slices>,
    slot_pool: Arc<SlotPool>,
    rows: SliceShape,
    /// `None` until they are received: they may follow the rows.
    columns: Option<SliceColumns>,
    slot: Option<Slot>,
    /// When that slot was taken; if all slots are reserved, when they were.
    opened: Instant,
    /// Slots taken in advance, if full ones are held until the columns are received.
    reserved: Reserved,
    held: Vec<Slot>,
    /// The number of rows submitted.
    submitted: usize,
    /// The number of bytes received.
    pushed: usize,
    numbers: VecDeque<PendingRows>,
}

/// Rows that have been submitted.
#[derive(Debug)]
pub(super) struct PendingRows {
    pub(super) numbers: oneshot::Receiver<Measured>,
    /// They are in a slot of the device.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "no device without this feature"))]
    pub(super) on_device: bool,
}

impl Intake {
    /// Opens a slice whose columns are known.
    ///
    /// # Errors
    /// [`InvalidSlice`] if the columns do not fit the rows.
    pub fn open(slices: &Arc<Slices>, rows: SliceShape, columns: SliceColumns) -> Result<Self, InvalidSlice> {
        columns.check(rows)?;
        Ok(Self::new(slices, rows, Some(columns)))
    }

    /// Opens a slice whose columns follow its rows. Waits for slots for all rows.
    ///
    /// # Errors
    /// [`InvalidSlice`] if the rows need more slots than can be reserved.
    pub async fn open_late(slices: &Arc<Slices>, rows: SliceShape) -> Result<Self, InvalidSlice> {
        let mut intake = Self::new(slices, rows, None);
        let needed = rows.slots();
        if needed > intake.slot_pool.most_reserved() {
            // a device may have fewer slots than the heap
            intake.slot_pool = Arc::clone(&slices.heap);
        }
        let most = intake.slot_pool.most_reserved();
        if needed > most {
            return Err(InvalidSlice::Room(format!(
                "logits that come before other tensors are buffered, and these need {needed} slots of {SLOT_BYTES} bytes where at most \
                 {most} are available, half of the memory for rows: send fewer rows, or temperature and token_ids before the logits"
            )));
        }
        intake.reserved = slices.slots(&mut intake.slot_pool, needed, true).await;
        intake.opened = Instant::now();
        Ok(intake)
    }

    fn new(slices: &Arc<Slices>, rows: SliceShape, columns: Option<SliceColumns>) -> Self {
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

    /// Consumes the next bytes of the rows and returns how many: all of `bytes`, unless the rows end first. Waits for free slots.
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
            let slot = self.slot.as_mut().expect("one slot was requested");
            let count = slot.push(rest, limit);
            rest = &rest[count..];
            self.pushed += count;
            if slot.filled().len() == limit || self.pushed == self.rows.bytes() {
                let slot = self.slot.take().expect("it has just been written to");
                self.submit_slot(slot);
            }
        }
        taken
    }

    /// Sets the columns that followed the rows, and submits the rows.
    ///
    /// # Errors
    /// [`InvalidSlice`] if the columns do not fit the rows.
    pub fn set_columns(&mut self, columns: SliceColumns) -> Result<(), InvalidSlice> {
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
        let shape = SlotLayout { dtype: self.rows.dtype, vocab: self.rows.vocab, temperature, chosen };
        let on_device = !Arc::ptr_eq(slot.slot_pool(), &self.slices.heap);
        self.numbers.push_back(PendingRows { numbers, on_device });
        self.slices.submit(SlotJob { slot, shape, since: Instant::now(), reply });
    }

    /// The deadline for the next bytes, with `patience` for each slot that is taken and not full; `None` if no slot is.
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

    /// The number of parts whose numbers have not been returned.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.numbers.len()
    }

    /// The numbers of the next rows, in order; `None` if all submitted rows have been returned. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Vec<RowStats>, MeasureError>> {
        let numbers = self.slices.numbers(self.numbers.front_mut()?).await;
        self.numbers.pop_front();
        Some(numbers)
    }

    /// The numbers of all submitted rows that have not been returned.
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
