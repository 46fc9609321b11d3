// SPDX-License-Identifier: Apache-2.0
//! What happens to submitted rows when a device is dropped, with a fake driver that runs on the CPU. A process loads a driver only once,
//! so each of these tests starts this program again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use tokio::sync::oneshot;

use super::batch::MOST_ROWS;
use super::*;
use crate::entropy::Dtype;
use crate::logits::slices::{Measured, SlotLayout};

/// At least the timeout of one batch, and less than that of two.
const ONE_TIMEOUT: std::ops::Range<Duration> = Duration::from_secs(5)..Duration::from_millis(9500);

/// Runs an ignored test of this file with the fake driver.
fn again(test: &str, environment: &[(&str, &str)]) {
    let program = std::env::current_exe().unwrap();
    // in the build folder, shared with the integration tests
    let folder = program.ancestors().nth(3).unwrap().join("tmp/stand-in");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/stand_in.sh");
    let built = Command::new("bash").arg(script).arg(&folder).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // a test that hangs is killed
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).args(["--ignored", "--exact", &format!("logits::cuda::tests::{test}")]);
    command.env("LD_LIBRARY_PATH", folder).envs(environment.iter().copied());
    let done = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{}: {text}\n{}", done.status, String::from_utf8_lossy(&done.stderr));
    assert!(text.contains("1 passed"), "{test} names no test: {text}");
}

fn open(slots: usize, deadline: Duration) -> (Cuda, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new(NAME));
    let settings = Settings { device: None, memory: (slots * SLOT_BYTES) as u64, deadline };
    (Cuda::open(&settings, &metrics).unwrap_or_else(|error| panic!("{error}")), metrics)
}

/// Submits equal logits, whose entropy depends on `vocab`.
fn submit(cuda: &Cuda, rows: usize, vocab: usize) -> oneshot::Receiver<Measured> {
    let mut slot = cuda.slot_pool().try_take(1).unwrap().pop().unwrap();
    slot.push(&vec![0; rows * vocab * 4], SLOT_BYTES);
    let shape = SlotLayout { dtype: Dtype::F32, vocab, temperature: Vec::new(), chosen: Vec::new() };
    let (reply, numbers) = oneshot::channel();
    assert!(cuda.submit(SlotJob { slot, shape, since: Instant::now(), reply }).is_none());
    numbers
}

fn check(measured: Measured, rows: usize, vocab: usize) {
    let stats = measured.unwrap();
    assert_eq!(stats.len(), rows);
    let wrong = stats.iter().find(|row| (row.entropy - (vocab as f64).ln()).abs() > 5e-6);
    assert!(wrong.is_none(), "uniform over {vocab}: {wrong:?}");
}

#[test]
fn dropped_device_answers_its_jobs() {
    again("submitted_jobs_are_answered_before_the_device_is_dropped", &[]);
}

#[test]
#[ignore = "needs the fake driver"]
fn submitted_jobs_are_answered_before_the_device_is_dropped() {
    let (cuda, metrics) = open(8, Duration::from_micros(200));
    let rows = 50;
    let submitted: Vec<_> = (20..28).map(|vocab| (submit(&cuda, rows, vocab), vocab)).collect();
    drop(cuda);
    for (mut numbers, vocab) in submitted {
        check(numbers.try_recv().expect("the rows are answered"), rows, vocab);
    }
    assert_eq!(metrics.slices.rows.with_label_values(&[NAME]).get(), 8 * rows as u64, "all on the device");
    assert_eq!(Arc::strong_count(&metrics), 1, "its thread has ended");
}

#[test]
fn drop_does_not_wait_for_a_hung_device() {
    again("hung_device_times_out_once_and_drop_does_not_join_its_thread", &[("STAND_IN_HANG", "1")]);
}

#[test]
#[ignore = "needs the fake driver, set to hang"]
fn hung_device_times_out_once_and_drop_does_not_join_its_thread() {
    // a deadline so long that each batch is full before it is launched
    let (cuda, metrics) = open(3, Duration::from_secs(60));
    let begin = Instant::now();
    let waiting = [2, 3, 4].map(|vocab| (submit(&cuda, MOST_ROWS, vocab), vocab));
    for (numbers, vocab) in waiting {
        check(numbers.blocking_recv().expect("the CPU measures them"), MOST_ROWS, vocab);
    }
    assert!(ONE_TIMEOUT.contains(&begin.elapsed()), "{:?}: both running batches share one timeout", begin.elapsed());
    assert!(cuda.is_lost());
    for (reason, batches) in [("device_error", 1), ("device_lost", 2)] {
        let count = metrics.slices.fallbacks.with_label_values(&[reason]).get();
        assert_eq!(count, (batches * MOST_ROWS) as u64, "{reason}");
    }
    // its thread blocks in the driver while the device hangs
    let begin = Instant::now();
    drop(cuda);
    assert!(begin.elapsed() < ONE_TIMEOUT.start, "{:?}: drop does not join that thread", begin.elapsed());
}
