// SPDX-License-Identifier: Apache-2.0
use std::sync::Arc;

use tokio::sync::oneshot;

use super::*;
use crate::entropy::Dtype;
use crate::logits::slices::{Measured, SlotLayout, SlotPool};

const NO_DEADLINE: Duration = Duration::from_secs(3600);

/// Submits rows; returns the receiver of their numbers.
fn submit(
    jobs: &Sender<SlotJob>,
    slot_pool: &Arc<SlotPool>,
    count: usize,
    vocab: usize,
) -> oneshot::Receiver<Measured> {
    let mut slot = slot_pool.try_take(1).unwrap().pop().unwrap();
    slot.push(&vec![0; count * vocab * 4], SLOT_BYTES);
    let shape = SlotLayout { dtype: Dtype::F32, vocab, temperature: Vec::new(), chosen: Vec::new() };
    let (reply, numbers) = oneshot::channel();
    jobs.send(SlotJob { slot, shape, since: Instant::now(), reply }).unwrap();
    numbers
}

/// The number of rows of a batch; 0 for none.
fn rows(batch: Option<Vec<SlotJob>>) -> usize {
    batch.into_iter().flatten().map(|job| job.rows()).sum()
}

fn slot_pool(slots: usize) -> Arc<SlotPool> {
    Arc::new(SlotPool::heap((slots * SLOT_BYTES) as u64))
}

#[test]
fn full_batch_is_returned_before_the_deadline() {
    let slot_pool = slot_pool(8);
    let (jobs, mut collector) = Collector::new(NO_DEADLINE);
    let waiting = [(); 5].map(|()| submit(&jobs, &slot_pool, 1000, 1));
    // the deadline is an hour away
    let batch = collector.wait().unwrap();
    assert_eq!(batch.len(), 4);
    assert_eq!(rows(collector.now()), 1000);
    assert_eq!(rows(collector.now()), 0);
    drop(batch);
    assert_eq!(waiting.len(), 5);
    assert!(slot_pool.try_take(8).is_some(), "their slots are free again");
}

#[test]
fn batch_is_limited_in_bytes_and_rows() {
    let slot_pool = slot_pool(20);
    let (jobs, mut collector) = Collector::new(NO_DEADLINE);
    let wide = [(); 17].map(|()| submit(&jobs, &slot_pool, 1, SLOT_BYTES / 4));
    assert_eq!(rows(collector.wait()), 8, "32 MiB");
    assert_eq!(rows(collector.now()), 8);
    drop(wide);
    let _narrow = [MOST_ROWS - 1, 1, 1].map(|count| submit(&jobs, &slot_pool, count, 1));
    assert_eq!(rows(collector.now()), MOST_ROWS, "the cancelled one is skipped");
    assert_eq!(rows(collector.now()), 1);
    assert_eq!(rows(collector.now()), 0);
}

#[test]
fn partial_batch_is_returned_at_the_deadline() {
    let slot_pool = slot_pool(1);
    let (jobs, mut collector) = Collector::new(Duration::from_micros(200));
    let _numbers = submit(&jobs, &slot_pool, 1, 1);
    assert_eq!(rows(collector.wait()), 1, "more rows could still be submitted");
}

#[test]
fn cancelled_jobs_are_skipped_and_wait_ends_with_the_senders() {
    let slot_pool = slot_pool(8);
    let (jobs, mut collector) = Collector::new(NO_DEADLINE);
    for _ in 0..3 {
        drop(submit(&jobs, &slot_pool, 10, 1));
    }
    let _numbers = submit(&jobs, &slot_pool, 7, 1);
    drop(jobs);
    assert_eq!(rows(collector.wait()), 7);
    assert!(collector.wait().is_none());
}
