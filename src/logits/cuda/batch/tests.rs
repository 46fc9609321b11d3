use std::sync::Arc;

use crossbeam_channel::bounded;
use tokio::sync::oneshot;

use super::*;
use crate::entropy::Dtype;
use crate::logits::slices::{Measured, SlotLayout, SlotPool};

const NO_DEADLINE: Duration = Duration::from_secs(3600);

/// Submits rows; returns the receiver of their numbers.
fn submit(jobs: &JobSender, slot_pool: &Arc<SlotPool>, count: usize, vocab: usize) -> oneshot::Receiver<Measured> {
    let mut slot = slot_pool.try_take(1).unwrap().pop().unwrap();
    slot.push(&vec![0; count * vocab * 4], SLOT_BYTES);
    let shape = SlotLayout { dtype: Dtype::F32, vocab, temperature: Vec::new(), chosen: Vec::new() };
    let (reply, numbers) = oneshot::channel();
    assert!(jobs.submit(SlotJob { slot, shape, since: Instant::now(), reply }).is_none());
    numbers
}

fn top_k(rows: usize, values: usize) -> TopKJob {
    let ins = vec![TopKIn { start: 0, k: 1, chosen: f32::NAN, vocab: 0 }; rows];
    TopKJob { values: vec![0.0; values], ins, since: Instant::now(), reply: bounded(1).0 }
}

/// The kind of a batch, and its number of rows.
fn is(batch: Option<Batch>) -> (&'static str, usize) {
    batch.map_or(("none", 0), |batch| (batch.work(), batch.count()))
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
    let batch = collector.wait();
    let Some(Batch::Rows(entries)) = &batch else { panic!("{batch:?}") };
    assert_eq!(entries.len(), 4);
    let rest = collector.now();
    assert_eq!(is(rest), ("rows", 1000));
    assert_eq!(is(collector.now()), ("none", 0));
    drop(batch);
    assert_eq!(waiting.len(), 5);
    assert!(slot_pool.try_take(8).is_some(), "their slots are free again");
}

#[test]
fn queued_rows_delay_top_k_rows_by_one_batch() {
    let slot_pool = slot_pool(40);
    let (jobs, mut collector) = Collector::new(NO_DEADLINE);
    let _waiting = [(); 40].map(|()| submit(&jobs, &slot_pool, 1, SLOT_BYTES / 4));
    assert_eq!(is(collector.wait()), ("rows", 8), "32 MiB");
    assert!(jobs.submit_top_k(top_k(1, 1)) && jobs.submit_top_k(top_k(2, 1)));
    assert_eq!(is(collector.now()), ("top_k", 3));
    // and vice versa: top-k rows do not starve rows
    assert!(jobs.submit_top_k(top_k(1, 1)));
    assert_eq!(is(collector.now()), ("rows", 8));
    assert_eq!(is(collector.now()), ("top_k", 1));
    for _ in 0..3 {
        assert_eq!(is(collector.now()), ("rows", 8));
    }
    assert_eq!(is(collector.now()), ("none", 0));
}

#[test]
fn top_k_batch_is_limited_in_rows_and_values() {
    let (jobs, mut collector) = Collector::new(NO_DEADLINE);
    for job in
        [top_k(MOST_ROWS - 1, 10), top_k(1, MOST_VALUES - 10), top_k(1, MOST_VALUES - 5), top_k(1, 6), top_k(1, 1)]
    {
        assert!(jobs.submit_top_k(job));
    }
    let counts: Vec<_> = (0..4).map(|_| is(collector.now())).collect();
    assert_eq!(counts, [("top_k", MOST_ROWS), ("top_k", 1), ("top_k", 2), ("none", 0)]);
}

#[test]
fn partial_batch_is_returned_at_the_deadline() {
    let slot_pool = slot_pool(1);
    let (jobs, mut collector) = Collector::new(Duration::from_micros(200));
    let _numbers = submit(&jobs, &slot_pool, 1, 1);
    assert_eq!(is(collector.wait()), ("rows", 1), "more rows could still be submitted");
}

#[test]
fn cancelled_jobs_are_skipped_and_wait_ends_with_the_senders() {
    let slot_pool = slot_pool(8);
    let (jobs, mut collector) = Collector::new(NO_DEADLINE);
    for _ in 0..3 {
        drop(submit(&jobs, &slot_pool, 10, 1));
    }
    let _numbers = submit(&jobs, &slot_pool, 7, 1);
    assert!(jobs.submit_top_k(top_k(5, 1)));
    drop(jobs);
    let mut both = [is(collector.wait()), is(collector.wait())];
    both.sort_unstable();
    assert_eq!(both, [("rows", 7), ("top_k", 5)]);
    assert!(collector.wait().is_none());
}
