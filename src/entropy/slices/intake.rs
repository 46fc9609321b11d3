//! Rows on their way in, in pieces of any size, and their numbers on the way out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::entry::{Entry, Measured, Shape};
use super::{Home, MAX_VOCAB, SLOT_BYTES, SLOT_ROWS, Slices, Slot, Unmeasured};
use crate::entropy::{Dtype, RowStats};

/// What is going to be pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    dtype: Dtype,
    vocab: usize,
    rows: usize,
}

/// What SGLang takes for greedy sampling lies below, and there is no division by it in 32 bits; above, every row is uniform.
const TEMPERATURES: std::ops::RangeInclusive<f32> = 1e-6..=1e6;

/// What goes with the rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Side {
    /// One a row, one for all, or none, which is 1. From 1e-6 to 1e6.
    pub temperature: Vec<f32>,
    /// The sampled token of each row, negative where there is none; or none at all.
    pub chosen: Vec<i64>,
}

/// What cannot be measured, in words for the sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misshapen {
    /// It is no slice.
    #[error("{0}")]
    Shape(String),
    /// There never is so much room.
    #[error("{0}")]
    Room(String),
}

/// One slice on its way through.
#[derive(Debug)]
pub struct Intake {
    slices: Arc<Slices>,
    home: Arc<Home>,
    rows: Rows,
    /// `None` until it is known: it may come behind the rows.
    side: Option<Side>,
    slot: Option<Slot>,
    /// When that slot was taken; where all are reserved, when they were.
    opened: Instant,
    /// Taken beforehand, where full ones are held until the side is known.
    reserved: Vec<Slot>,
    held: Vec<Slot>,
    /// Rows handed in.
    handed: usize,
    pushed: usize,
    numbers: VecDeque<oneshot::Receiver<Measured>>,
}

impl Rows {
    /// # Errors
    /// [`Misshapen`] when there are more than `most`, or they are too wide.
    pub fn try_new(dtype: Dtype, rows: usize, vocab: usize, most: usize) -> Result<Self, Misshapen> {
        let wrong = |text: String| Err(Misshapen::Shape(text));
        if vocab == 0 || vocab > MAX_VOCAB {
            return wrong(format!("a row has 1 to {MAX_VOCAB} logits, not {vocab}"));
        }
        if rows > most {
            return wrong(format!("a slice has at most {most} rows, not {rows}"));
        }
        let rows = Self { dtype, vocab, rows };
        if rows.rows.checked_mul(rows.row_bytes()).is_none() {
            return wrong(format!("{} rows of {vocab} logits are more than there is memory for", rows.rows));
        }
        Ok(rows)
    }

    /// How many there are.
    #[must_use]
    pub fn count(self) -> usize {
        self.rows
    }

    /// Bytes of all rows.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.rows * self.row_bytes()
    }

    fn row_bytes(self) -> usize {
        self.vocab * self.dtype.bytes()
    }

    /// Bytes of as many whole rows as a slot holds.
    pub(in crate::entropy) fn slot_bytes(self) -> usize {
        (SLOT_BYTES / self.row_bytes()).min(SLOT_ROWS) * self.row_bytes()
    }

    /// How many slots all rows fill.
    fn slots(self) -> usize {
        self.bytes().div_ceil(self.slot_bytes())
    }
}

impl Side {
    /// Whether it fits `rows`.
    ///
    /// # Errors
    /// [`Misshapen`] when it does not.
    pub fn check(&self, rows: Rows) -> Result<(), Misshapen> {
        let wrong = |text: String| Err(Misshapen::Shape(text));
        let count = self.temperature.len();
        if count > 1 && count != rows.rows {
            return wrong(format!("temperature has {count} values for {} rows: one a row, or one for all", rows.rows));
        }
        if let Some(at) = self.temperature.iter().position(|value| !TEMPERATURES.contains(value)) {
            return wrong(format!("temperature[{at}] is {}: it is from 1e-6 to 1e6", self.temperature[at]));
        }
        if !self.chosen.is_empty() && self.chosen.len() != rows.rows {
            return wrong(format!("token_ids has {} values for {} rows: one a row", self.chosen.len(), rows.rows));
        }
        let outside = |id: &i64| *id >= 0 && usize::try_from(*id).map_or(true, |id| id >= rows.vocab);
        if let Some(at) = self.chosen.iter().position(outside) {
            return wrong(format!("token_ids[{at}] is {}: the rows have {} logits", self.chosen[at], rows.vocab));
        }
        Ok(())
    }

    /// What goes with rows `from..from + count`.
    fn part(&self, from: usize, count: usize) -> (Vec<f32>, Vec<i64>) {
        let temperature =
            if self.temperature.len() > 1 { &self.temperature[from..from + count] } else { &self.temperature };
        let chosen = if self.chosen.is_empty() { &[] } else { &self.chosen[from..from + count] };
        (temperature.to_vec(), chosen.to_vec())
    }
}

impl Intake {
    /// A slice whose side is known.
    ///
    /// # Errors
    /// [`Misshapen`] when the side does not fit.
    pub fn open(slices: &Arc<Slices>, rows: Rows, side: Side) -> Result<Self, Misshapen> {
        side.check(rows)?;
        Ok(Self::new(slices, rows, Some(side)))
    }

    /// A slice whose side comes behind its rows: room for all of them is waited for.
    ///
    /// # Errors
    /// [`Misshapen`] when there never is so much room.
    pub async fn open_late(slices: &Arc<Slices>, rows: Rows) -> Result<Self, Misshapen> {
        let mut intake = Self::new(slices, rows, None);
        let needed = rows.slots();
        if needed > intake.home.most_reserved() {
            // a device may have less room than the processor
            intake.home = Arc::clone(&slices.heap);
        }
        let most = intake.home.most_reserved();
        if needed > most {
            return Err(Misshapen::Room(format!(
                "logits with tensors behind them are held until those have come, and these need {needed} slots of {SLOT_BYTES} bytes \
                 where {most} can be had, half of --slice-memory: send fewer rows, or temperature and token_ids before the logits"
            )));
        }
        intake.reserved = intake.home.take(needed).await;
        intake.opened = Instant::now();
        Ok(intake)
    }

    fn new(slices: &Arc<Slices>, rows: Rows, side: Option<Side>) -> Self {
        Self {
            home: Arc::clone(slices.home(rows)),
            slices: Arc::clone(slices),
            rows,
            side,
            slot: None,
            opened: Instant::now(),
            reserved: Vec::new(),
            held: Vec::new(),
            handed: 0,
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
            let slot = match &mut self.slot {
                Some(slot) => slot,
                None => {
                    let reserved = self.reserved.pop();
                    let slot = match reserved {
                        Some(slot) => slot,
                        None => {
                            let slot = self.home.take(1).await.pop().expect("as many as asked for");
                            self.opened = Instant::now();
                            slot
                        }
                    };
                    self.slot.insert(slot)
                }
            };
            let count = slot.push(rest, limit);
            rest = &rest[count..];
            self.pushed += count;
            if slot.filled().len() == limit || self.pushed == self.rows.bytes() {
                let slot = self.slot.take().expect("it has just been filled");
                self.hand_in(slot);
            }
        }
        taken
    }

    /// The side, which came behind the rows.
    ///
    /// # Errors
    /// [`Misshapen`] when it does not fit.
    pub fn set_side(&mut self, side: Side) -> Result<(), Misshapen> {
        side.check(self.rows)?;
        self.side = Some(side);
        for slot in std::mem::take(&mut self.held) {
            self.hand_in(slot);
        }
        Ok(())
    }

    fn hand_in(&mut self, slot: Slot) {
        let Some(side) = &self.side else {
            self.held.push(slot);
            return;
        };
        let count = slot.filled().len() / self.rows.row_bytes();
        let (temperature, chosen) = side.part(self.handed, count);
        self.handed += count;
        let (reply, numbers) = oneshot::channel();
        let shape = Shape { dtype: self.rows.dtype, vocab: self.rows.vocab, temperature, chosen };
        self.numbers.push_back(numbers);
        self.slices.put(Entry { slot, shape, since: Instant::now(), reply });
    }

    /// When the next bytes must have come if room that is taken and not full is given `patience` a slot; `None` while none is.
    #[must_use]
    pub fn due(&self, patience: Duration) -> Option<Instant> {
        if self.side.is_none() {
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
    pub async fn next(&mut self) -> Option<Result<Vec<RowStats>, Unmeasured>> {
        let numbers = self.numbers.front_mut()?.await;
        self.numbers.pop_front();
        Some(numbers.unwrap_or(Err(Unmeasured::Ending)))
    }

    /// The numbers of all rows that have been handed in and not taken.
    ///
    /// # Errors
    /// [`Unmeasured`] when there are none of some of them.
    pub async fn rest(mut self) -> Result<Vec<RowStats>, Unmeasured> {
        let mut all = Vec::with_capacity(self.rows.rows);
        while let Some(numbers) = self.next().await {
            all.extend(numbers?);
        }
        Ok(all)
    }
}
