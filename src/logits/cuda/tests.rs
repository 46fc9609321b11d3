//! What happens to submitted rows when a device is dropped, on the driver stand-in, which is not a GPU. A driver is loaded once a
//! process, so each of these tests runs this program again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crossbeam_channel::{Receiver, bounded};
use tokio::sync::oneshot;

use super::abi::{TopKIn, TopKOut};
use super::batch::{MOST_ROWS, TopKJob};
use super::*;
use crate::entropy::Dtype;
use crate::logits::slices::{Measured, Shape};

/// What a device is given for a batch, and less than for two.
const GIVEN: std::ops::Range<Duration> = Duration::from_secs(5)..Duration::from_millis(9500);

/// Runs an ignored test of this file with the stand-in for a driver.
fn again(test: &str, environment: &[(&str, &str)]) {
    let program = std::env::current_exe().unwrap();
    // in the folder of builds, where the other tests have it
    let folder = program.ancestors().nth(3).unwrap().join("tmp/stand-in");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/stand_in.sh");
    let built = Command::new("bash").arg(script).arg(&folder).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // what waits for ever is ended
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

/// Hands in equal logits, so that their entropy says how many there were.
fn submit(cuda: &Cuda, rows: usize, vocab: usize) -> oneshot::Receiver<Measured> {
    let mut slot = cuda.slot_pool().try_take(1).unwrap().pop().unwrap();
    slot.push(&vec![0; rows * vocab * 4], SLOT_BYTES);
    let shape = Shape { dtype: Dtype::F32, vocab, temperature: Vec::new(), chosen: Vec::new() };
    let (reply, numbers) = oneshot::channel();
    assert!(cuda.submit(Entry { slot, shape, since: Instant::now(), reply }).is_none());
    numbers
}

/// Hands in the top 2 of `vocab` equal ones.
fn submit_top_k(cuda: &Cuda, rows: usize, vocab: u32) -> Receiver<Vec<TopKOut>> {
    let ins = vec![TopKIn { start: 0, k: 2, chosen: f32::NAN, vocab }; rows];
    let (reply, numbers) = bounded(1);
    let values = vec![-(vocab as f32).ln(); 2];
    assert!(cuda.jobs().submit_top_k(TopKJob { values, ins, since: Instant::now(), reply }));
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
#[ignore = "needs the stand-in for a driver"]
fn submitted_jobs_are_answered_before_the_device_is_dropped() {
    let (cuda, metrics) = open(8, Duration::from_micros(200));
    // of the top-k rows more than fit two batches
    let (rows, few) = (50, MOST_ROWS / 3);
    let handed_in: Vec<_> =
        (20..28).map(|vocab| (submit(&cuda, rows, vocab), submit_top_k(&cuda, few, vocab as u32), vocab)).collect();
    drop(cuda);
    for (mut whole, top_k, vocab) in handed_in {
        check(whole.try_recv().expect("the rows are answered"), rows, vocab);
        let top_k = top_k.try_recv().expect("so are the top-k rows");
        assert_eq!(top_k.len(), few);
        for row in top_k {
            let all = (row.lower - (vocab as f32).ln()).abs().max((row.renormalized - 2f32.ln()).abs());
            assert!(all < 1e-5, "2 of {vocab} equal ones: {row:?}");
        }
    }
    for (work, count) in [("rows", rows), ("top_k", few)] {
        assert_eq!(metrics.slices.rows.with_label_values(&[NAME, work]).get(), 8 * count as u64, "{work}: all by it");
    }
    assert_eq!(Arc::strong_count(&metrics), 1, "its thread, which has one, has ended");
}

#[test]
fn a_device_that_hangs_is_let_go_of_at_once() {
    again("the_batches_of_a_device_that_hangs_are_waited_for_once_and_its_thread_is_not", &[("STAND_IN_HANG", "1")]);
}

#[test]
#[ignore = "needs the stand-in for a driver, and that it hangs"]
fn the_batches_of_a_device_that_hangs_are_waited_for_once_and_its_thread_is_not() {
    // so long that each batch has its rows before it goes
    let (cuda, metrics) = open(3, Duration::from_secs(60));
    let begin = Instant::now();
    let waiting = [2, 3, 4].map(|vocab| (submit(&cuda, MOST_ROWS, vocab), vocab));
    for (numbers, vocab) in waiting {
        check(numbers.blocking_recv().expect("the CPU goes on"), MOST_ROWS, vocab);
    }
    assert!(
        GIVEN.contains(&begin.elapsed()),
        "{:?}: two batches were on their way, and waited together",
        begin.elapsed()
    );
    assert!(cuda.is_lost());
    for (reason, batches) in [("device_error", 1), ("device_lost", 2)] {
        let count = metrics.slices.fallbacks.with_label_values(&[reason]).get();
        assert_eq!(count, (batches * MOST_ROWS) as u64, "{reason}");
    }
    // its thread gives back what the driver holds for as long as the device hangs
    let begin = Instant::now();
    drop(cuda);
    assert!(begin.elapsed() < GIVEN.start, "{:?}: nobody waits for that thread", begin.elapsed());
}
