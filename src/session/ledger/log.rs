//! The append-only log that lets sessions survive a crash.
//!
//! Records go into numbered files of one directory, each record with its own checksum. A process never writes to a file of an
//! earlier one, so that what a crash has torn stays at the end of a file, where reading stops. Old files are removed as wholes when the
//! log is at its bound: what is read back may begin in the middle of a session, and lacks what was lost while the log was degraded.

mod directory;
mod disk;
#[cfg(test)]
pub(super) mod fake;
mod frame;
mod health;
mod replay;
mod salvage;
mod segment;
mod tail;
mod writer;

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

pub use directory::Directory;
pub use health::LogStats;
pub use replay::{Damaged, Replayed, TornFile, read};

use super::{Ack, AppendError, Health, Ledger, LedgerStats, Record};
use disk::Create;
use frame::Framing;
use health::{Shared, add};
use segment::{Header, StoreId};
use tail::Tail;
use writer::{Job, Writer};

/// How long a log that has failed is left alone.
const RETRY: Duration = Duration::from_secs(1);

/// Where a log is, and its bounds.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its directory; created if it does not exist.
    pub dir: PathBuf,
    /// A file that has this many bytes is followed by another.
    pub segment_bytes: u64,
    /// Bytes of all files; the oldest are removed above it.
    pub total_bytes: u64,
    /// When what was written is made to last.
    pub fsync: Fsync,
    /// Records that may wait to be written.
    pub queue_records: usize,
    /// Their bytes.
    pub queue_bytes: u64,
}

/// When what was written is made to survive the machine's crash; that of the process it survives always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// When the system likes.
    Never,
    /// At most this long after it was written.
    Interval(Duration),
    /// Before it is acknowledged.
    Always,
}

/// Why a log cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// One directory, one process.
    #[error("{} is in use by another tokentap: give each its own directory", .0.display())]
    Locked(PathBuf),
    /// The system refuses.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// A verb.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The error message.
        #[source]
        cause: io::Error,
    },
}

/// A log that is written. Dropping it writes what waits, syncs unless that is never done, and releases the directory.
#[derive(Debug)]
pub struct Log {
    shared: Arc<Shared>,
    store: StoreId,
    queue_bytes: u64,
    /// `None` while it is being dropped: the writer ends when all senders are dropped.
    queue: Option<SyncSender<Job>>,
    writer: Option<JoinHandle<()>>,
    /// Released when it is closed, which is after the writer has ended.
    _lock: File,
}

impl Options {
    /// The log in `dir` with bounds that suit most.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            segment_bytes: 64 << 20,
            total_bytes: 16 << 30,
            fsync: Fsync::Interval(Duration::from_secs(1)),
            queue_records: 16 * 1024,
            queue_bytes: 64 << 20,
        }
    }
}

impl OpenError {
    fn new(action: &'static str, path: &Path, cause: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), cause }
    }
}

/// The id of a store that has no log, as one with a log would get it.
pub(crate) fn fresh_store() -> Box<str> {
    StoreId::fresh().0
}

impl Log {
    /// Hands every record of the log to `each`, in the order they were written, then opens it for more. Blocks; a directory that is
    /// there but full gives a log that is [degraded](Health::Degraded).
    ///
    /// # Errors
    /// When another process has the directory, or it cannot be made, locked or listed.
    pub fn open(options: &Options, mut each: impl FnMut(Record)) -> Result<(Self, Replayed), OpenError> {
        let opened = Directory::lock(options)?.open(&mut |_, record| {
            record.into_iter().for_each(&mut each);
            ControlFlow::Continue(())
        })?;
        Ok(opened.expect("nothing broke it off"))
    }

    fn start(
        directory: Directory,
        store: Option<Box<str>>,
        create: Create,
        retry: Duration,
    ) -> Result<Self, OpenError> {
        let Directory { options, lock, segments, encoder, .. } = directory;
        let store = store.map_or_else(StoreId::fresh, StoreId);
        let header = Header { store: store.clone(), framing: Framing::Marked(encoder.marker()) };
        let shared = Arc::<Shared>::default();
        let (queue, jobs) = sync_channel(options.queue_records.max(1));
        let mut writer = Writer {
            jobs,
            tail: Tail::new(&options, &header, segments, create, Arc::clone(&shared)),
            encoder,
            shared: Arc::clone(&shared),
            fsync: options.fsync,
            group_bytes: Writer::group_bytes(options.segment_bytes),
            retry,
            failed: None,
            due: None,
        };
        writer.begin();
        let writer = std::thread::Builder::new().name("tokentap-log".to_owned()).spawn(|| writer.run());
        let writer = Some(writer.map_err(|cause| OpenError::new("write", &options.dir, cause))?);
        Ok(Self { shared, store, queue_bytes: options.queue_bytes, queue: Some(queue), writer, _lock: lock })
    }

    fn lost(&self, bytes: u64, error: AppendError) -> Ack {
        self.shared.waiting.fetch_sub(bytes, Ordering::Relaxed);
        if matches!(error, AppendError::QueueFull) {
            add(&self.shared.stats.dropped_queue_full, 1);
            if !self.shared.overrun.swap(true, Ordering::Relaxed) {
                tracing::error!("the log's disk is too slow: records are dropped, and a crash loses them");
            }
        } else {
            add(&self.shared.stats.failed, 1);
        }
        Ack::failed(error)
    }

    /// Counts since it was opened.
    #[must_use]
    pub fn counters(&self) -> &LogStats {
        &self.shared.stats
    }
}

impl Ledger for Log {
    /// Where too many bytes wait already, the record is lost and the answer is known at once.
    fn append(&self, record: Record) -> Ack {
        let Some(queue) = &self.queue else { return Ack::failed(AppendError::Closed) };
        let bytes = record.bytes();
        let before = self.shared.waiting.fetch_add(bytes, Ordering::Relaxed);
        // a record above the whole bound passes when it is alone, or it never would
        if before > 0 && before + bytes > self.queue_bytes {
            return self.lost(bytes, AppendError::QueueFull);
        }
        let (answer, awaited) = oneshot::channel();
        match queue.try_send(Job { record: Some(record), bytes, answer }) {
            Ok(()) => Ack::awaited(awaited),
            Err(TrySendError::Full(_)) => self.lost(bytes, AppendError::QueueFull),
            Err(TrySendError::Disconnected(_)) => self.lost(bytes, AppendError::Closed),
        }
    }

    fn written(&self) -> Ack {
        let Some(queue) = &self.queue else { return Ack::failed(AppendError::Closed) };
        let (answer, awaited) = oneshot::channel();
        // no record: where there is no room for it nothing is lost
        match queue.try_send(Job { record: None, bytes: 0, answer }) {
            Ok(()) => Ack::awaited(awaited),
            Err(_) => Ack::failed(AppendError::QueueFull),
        }
    }

    fn id(&self) -> &str {
        &self.store.0
    }

    fn health(&self) -> Health {
        self.shared.health()
    }

    fn stats(&self) -> LedgerStats {
        let LogStats { records, failed, dropped_queue_full, bytes_on_disk, .. } = &self.shared.stats;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LedgerStats { records: of(records), lost: of(failed) + of(dropped_queue_full), bytes: of(bytes_on_disk) }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            // its panic was reported when it happened
            _ = writer.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tempfile::{TempDir, tempdir};

    use super::fake::{Disk, finished, turn};
    use super::*;
    use crate::session::Turn;

    const NEVER_AGAIN: Duration = Duration::from_secs(3600);

    fn options(dir: &TempDir) -> Options {
        Options { fsync: Fsync::Never, ..Options::new(dir.path()) }
    }

    fn open(options: &Options) -> (Log, Replayed, Vec<Record>) {
        let mut records = Vec::new();
        let (log, replayed) = Log::open(options, |record| records.push(record)).unwrap();
        (log, replayed, records)
    }

    fn fake(options: &Options, disk: &Disk, retry: Duration) -> Log {
        Log::start(Directory::lock(options).unwrap(), None, disk.create(), retry).unwrap()
    }

    fn contents(dir: &TempDir) -> (Vec<Record>, Replayed) {
        let mut records = Vec::new();
        let replayed = read(dir.path(), |record| records.push(record)).unwrap();
        (records, replayed)
    }

    fn files(dir: &TempDir) -> Vec<PathBuf> {
        segment::Segment::list(dir.path()).unwrap().into_iter().map(|segment| segment.path).collect()
    }

    fn is_known(ack: &mut Ack) -> bool {
        matches!(pin!(ack).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
    }

    fn count(counter: &std::sync::atomic::AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn acknowledged_records_survive_a_restart() {
        let dir = tempdir().unwrap();
        let written = [turn("a", 0, 5), turn("b", 0, 900), finished(0)];
        let (log, replayed, before) = open(&options(&dir));
        assert!(before.is_empty());
        assert_eq!(replayed, Replayed::default());
        let store = log.id().to_owned();
        for record in &written {
            log.append(record.clone()).await.unwrap();
        }
        // no drop: the process has crashed, and another one reads
        assert_eq!(contents(&dir).0, written);
        assert_eq!(count(&log.counters().records), 3);
        let bytes = count(&log.counters().bytes_on_disk);
        assert_eq!(bytes, std::fs::metadata(&files(&dir)[0]).unwrap().len());
        drop(log);
        let (log, replayed, after) = open(&options(&dir));
        assert_eq!(after, written);
        assert_eq!((replayed.records, replayed.segments, replayed.bytes), (3, 1, bytes));
        assert_eq!((log.id(), replayed.store.as_deref()), (&*store, Some(&*store)));
        assert!(replayed.torn.is_empty());
    }

    #[tokio::test]
    async fn barrier_waits_for_earlier_records() {
        let dir = tempdir().unwrap();
        let (log, ..) = open(&options(&dir));
        for number in 0..200 {
            drop(log.append(finished(number)));
        }
        log.written().await.unwrap();
        assert_eq!(contents(&dir).0.len(), 200);
        log.written().await.unwrap();
        assert_eq!(count(&log.counters().records), 200, "a mark is no record");
    }

    #[test]
    fn drop_flushes_pending_records() {
        let dir = tempdir().unwrap();
        let (log, ..) = open(&options(&dir));
        for number in 0..500 {
            drop(log.append(finished(number)));
        }
        drop(log);
        assert_eq!(contents(&dir).0, (0..500).map(finished).collect::<Vec<_>>());
    }

    #[test]
    fn a_directory_has_one_writer_and_any_readers() {
        let dir = tempdir().unwrap();
        let (log, ..) = open(&options(&dir));
        let error = Log::open(&options(&dir), |_| ()).unwrap_err();
        assert!(matches!(error, OpenError::Locked(_)), "{error}");
        assert!(error.to_string().contains("in use by another tokentap"), "{error}");
        assert_eq!(contents(&dir).1.segments, 1);
        drop(log);
        open(&options(&dir));
    }

    #[test]
    fn path_that_is_no_directory_is_refused() {
        let dir = tempdir().unwrap();
        let missing = dir.path().join("missing");
        assert!(read(&missing, |_| ()).unwrap_err().to_string().starts_with("cannot read "));
        assert!(!missing.exists(), "a reader makes nothing");
        std::fs::write(&missing, "").unwrap();
        assert!(Log::open(&Options::new(&missing), |_| ()).unwrap_err().to_string().starts_with("cannot make "));
    }

    #[test]
    fn restarts_do_not_heap_up_empty_files_and_keep_the_store() {
        let dir = tempdir().unwrap();
        let store = open(&options(&dir)).0.id().to_owned();
        for _ in 0..3 {
            let (log, replayed, _) = open(&options(&dir));
            assert_eq!((log.id(), replayed.segments), (&*store, 1));
            assert_eq!(files(&dir).len(), 1);
        }
    }

    #[tokio::test]
    async fn a_torn_file_is_left_as_it_is_and_the_next_one_goes_on() {
        let dir = tempdir().unwrap();
        let (log, ..) = open(&options(&dir));
        for number in 0..3 {
            log.append(finished(number)).await.unwrap();
        }
        drop(log);
        let path = files(&dir).remove(0);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
        for restart in 0..2 {
            let (log, replayed, records) = open(&options(&dir));
            assert_eq!(records[..2], [finished(0), finished(1)]);
            assert_eq!(records.len(), 2 + restart);
            let [torn] = &replayed.torn[..] else { panic!("one file is torn") };
            assert_eq!(torn.offset + torn.lost, bytes.len() as u64 - 5);
            assert!(torn.to_string().contains("it ends inside a record"), "{torn}");
            log.append(finished(7)).await.unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap().len(), bytes.len() - 5);
    }

    #[tokio::test]
    async fn crash_leftovers_are_not_damage() {
        let dir = tempdir().unwrap();
        let (log, ..) = open(&options(&dir));
        log.append(finished(0)).await.unwrap();
        log.append(turn("s", 0, 2_000)).await.unwrap();
        drop(log);
        let file = files(&dir).remove(0);
        let bytes = std::fs::read(&file).unwrap();
        let zeros_from = |at: usize| [&bytes[..at], &vec![0; bytes.len() - at][..]].concat();
        let first_line = segment::FIRST_LINE as usize;
        let cut_in_line = (0..first_line).map(|at| bytes[..at].to_vec());
        let zeros_behind = [bytes.clone(), vec![0; 5000]].concat();
        let blocks = (0..bytes.len()).step_by(512).map(zeros_from);
        for left in cut_in_line.chain(blocks).chain([zeros_behind]) {
            std::fs::write(&file, &left).unwrap();
            let (_, replayed) = contents(&dir);
            assert_eq!(replayed.damaged_regions(), 0, "{:?}", replayed.torn);
        }
        // a bit that has changed is damage, and so are zeros within a sector
        for at in [first_line + 20, bytes.len() - 1] {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            std::fs::write(&file, &changed).unwrap();
            assert_eq!(contents(&dir).1.damaged_regions(), 1, "at {at}");
        }
        std::fs::write(&file, zeros_from(bytes.len() - 3)).unwrap();
        assert_eq!(contents(&dir).1.damaged_regions(), 1);
    }

    #[tokio::test]
    async fn records_of_sessions_and_turns_that_cannot_be_are_passed_over() {
        let dir = tempdir().unwrap();
        let (log, ..) = open(&options(&dir));
        let deleted = |session: &str| Record::Deleted { session: session.into() };
        let foreign = [
            deleted("../../etc/passwd"),
            deleted("a\r\nset-cookie: b"),
            deleted(""),
            turn("s", u32::MAX, 1),
            Record::Freeze { session: "s".into(), turns: u32::MAX },
            Record::Finished { session: "s".into(), leaf: 7, turns: 7, number: 1 },
        ];
        log.append(finished(0)).await.unwrap();
        for record in foreign.clone() {
            log.append(record).await.unwrap();
        }
        log.append(finished(1)).await.unwrap();
        drop(log);
        let (records, replayed) = contents(&dir);
        assert_eq!(records, [finished(0), finished(1)]);
        assert_eq!((replayed.damaged_regions(), replayed.torn.len()), (foreign.len() as u64, 0));
    }

    #[tokio::test]
    async fn a_frame_that_a_prompt_spells_is_not_read() {
        let (dir, own) = (tempdir().unwrap(), tempdir().unwrap());
        // the frames that a client may know: those of another log
        let (log, ..) = open(&options(&own));
        log.append(finished(666)).await.unwrap();
        drop(log);
        let mut spelled = std::fs::read(&files(&own)[0]).unwrap();
        spelled.resize(spelled.len().next_multiple_of(4), 0);
        let prompt = spelled.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
        let planted = Record::Turn { session: "s".into(), turn: Arc::new(Turn { prompt, ..fake::bare_turn(0) }) };
        let (log, ..) = open(&options(&dir));
        let mut ends = vec![];
        for record in [finished(0), planted.clone(), finished(1)] {
            log.append(record).await.unwrap();
            ends.push(std::fs::metadata(&files(&dir)[0]).unwrap().len() as usize);
        }
        drop(log);
        let file = files(&dir).remove(0);
        let bytes = std::fs::read(&file).unwrap();
        for cut in ends[0]..ends[1] {
            std::fs::write(&file, &bytes[..cut]).unwrap();
            assert_eq!(contents(&dir).0, [finished(0)], "cut at {cut}");
        }
        for bit in 0..8 * 16 {
            let mut damaged = bytes.clone();
            damaged[ends[0] + bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(contents(&dir).0, [finished(0), finished(1)], "bit {bit}");
        }
    }

    #[tokio::test]
    async fn a_corrupt_file_does_not_hide_the_next() {
        let dir = tempdir().unwrap();
        let options = Options { segment_bytes: 1, ..options(&dir) };
        let (log, ..) = open(&options);
        for number in 0..4 {
            log.append(finished(number)).await.unwrap();
        }
        drop(log);
        let files = files(&dir);
        assert_eq!(files.len(), 4, "each group turns over");
        for (file, at, bits) in [(&files[1], 85, 4), (&files[2], 20, 0xff)] {
            let mut bytes = std::fs::read(file).unwrap();
            bytes[at] ^= bits;
            std::fs::write(file, bytes).unwrap();
        }
        let (records, replayed) = contents(&dir);
        assert_eq!(records, [finished(0), finished(2), finished(3)]);
        let torn: Vec<_> = replayed.torn.iter().map(|torn| (&torn.path, torn.offset, torn.reason)).collect();
        assert_eq!(torn, [(&files[1], segment::FIRST_LINE, "a checksum does not hold")]);
        let damaged: Vec<_> = replayed.damaged.iter().map(|damaged| (&damaged.path, damaged.offset)).collect();
        assert_eq!(damaged, [(&files[2], 0)], "the first line is damaged, and its record is read");
    }

    #[tokio::test]
    async fn files_of_another_store_are_not_mixed_in() {
        let (dir, other) = (tempdir().unwrap(), tempdir().unwrap());
        for (dir, number) in [(&dir, 1), (&other, 2)] {
            open(&options(dir)).0.append(finished(number)).await.unwrap();
        }
        std::fs::copy(&files(&other)[0], dir.path().join("segment-0000000000000009.log")).unwrap();
        let (records, replayed) = contents(&dir);
        assert_eq!(records, [finished(1)]);
        assert_eq!(replayed.torn[0].reason, "it belongs to another store");
    }

    #[tokio::test]
    async fn the_oldest_files_go_when_the_log_is_at_its_bound() {
        let dir = tempdir().unwrap();
        let options = Options { segment_bytes: 200, total_bytes: 1000, ..options(&dir) };
        let (log, ..) = open(&options);
        for number in 0..100 {
            log.append(finished(number)).await.unwrap();
            assert!(count(&log.counters().bytes_on_disk) <= 1000);
        }
        let removed = (count(&log.counters().segments_removed), count(&log.counters().bytes_removed));
        drop(log);
        let (records, replayed) = contents(&dir);
        let kept = records.len() as u64;
        assert!(kept > 2 && kept < 20, "{kept}");
        assert_eq!(records, (100 - kept..100).map(finished).collect::<Vec<_>>());
        assert!(removed.0 > 10 && removed.1 + replayed.bytes > 100 * 60, "{removed:?}");
        // a smaller bound holds from the start
        let (log, ..) = open(&Options { total_bytes: 300, ..options });
        assert!(count(&log.counters().bytes_on_disk) <= 300);
        assert!(files(&dir).len() <= 2);
    }

    #[test]
    fn an_answer_comes_after_the_write_and_a_group_keeps_its_order() {
        let dir = tempdir().unwrap();
        let disk = Disk::default();
        let log = fake(&options(&dir), &disk, NEVER_AGAIN);
        disk.set(|state| state.gated = true);
        let begun = disk.state().reached;
        let mut first = log.append(finished(0));
        drop(disk.until(|state| state.reached > begun));
        let mut acks: Vec<Ack> = (1..200).map(|number| log.append(finished(number))).collect();
        assert!(!is_known(&mut first) && !acks.iter_mut().any(is_known), "nothing is written yet");
        assert!(contents(&dir).0.is_empty());
        let writes = disk.state().writes;
        disk.set(|state| state.gated = false);
        drop(log);
        assert!(is_known(&mut first) && acks.iter_mut().all(is_known));
        assert_eq!(disk.state().writes - writes, 2, "what waited is one write");
        assert_eq!(contents(&dir).0, (0..200).map(finished).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn syncing_is_as_asked() {
        for fsync in [Fsync::Never, Fsync::Always, Fsync::Interval(Duration::from_millis(1))] {
            let (dir, disk) = (tempdir().unwrap(), Disk::default());
            let log = fake(&Options { fsync, ..options(&dir) }, &disk, NEVER_AGAIN);
            let before = disk.state().syncs;
            log.append(finished(0)).await.unwrap();
            match fsync {
                Fsync::Never => drop(log),
                Fsync::Always => assert_eq!(disk.state().syncs, before + 1, "before it is acknowledged"),
                Fsync::Interval(_) => drop(disk.until(|state| state.syncs == before + 1)),
            }
            assert_eq!(disk.state().syncs > 0, fsync != Fsync::Never);
        }
        let (dir, disk) = (tempdir().unwrap(), Disk::default());
        let log = fake(&Options { fsync: Fsync::Interval(Duration::MAX), ..options(&dir) }, &disk, NEVER_AGAIN);
        log.append(finished(0)).await.unwrap();
        let before = disk.state().syncs;
        drop(log);
        assert_eq!(disk.state().syncs, before + 1, "closing syncs");
    }

    #[tokio::test]
    async fn a_full_queue_fails_at_once() {
        let dir = tempdir().unwrap();
        let small = finished(0).bytes();
        // one that is being written, and four that wait
        let by_count = Options { queue_records: 4, ..options(&dir) };
        let by_bytes = Options { queue_bytes: 4 * small, ..options(&dir) };
        for options in [by_count, by_bytes] {
            let disk = Disk::default();
            let log = fake(&options, &disk, NEVER_AGAIN);
            let begun = disk.state().reached;
            disk.set(|state| state.gated = true);
            let mut acks = vec![log.append(finished(0))];
            drop(disk.until(|state| state.reached > begun));
            acks.extend((1..5).map(|number| log.append(finished(number))));
            for number in 5..8 {
                assert!(matches!(log.append(finished(number)).await, Err(AppendError::QueueFull)));
            }
            assert_eq!(count(&log.counters().dropped_queue_full), 3);
            disk.set(|state| state.gated = false);
            for ack in acks {
                ack.await.unwrap();
            }
            log.append(turn("larger than the queue", 0, 10_000)).await.unwrap();
            assert_eq!(log.health(), Health::Ok, "a queue is not a disk");
        }
    }

    #[tokio::test]
    async fn a_full_disk_degrades_the_log_and_room_brings_it_back() {
        for uncuttable in [false, true] {
            let (dir, disk) = (tempdir().unwrap(), Disk::default());
            let log = fake(&options(&dir), &disk, Duration::ZERO);
            log.append(turn("s", 0, 10)).await.unwrap();
            disk.set(|state| (state.room, state.uncuttable) = (Some(30), uncuttable));
            let since = std::time::SystemTime::now();
            for number in 1..4 {
                let error = log.append(finished(number)).await.unwrap_err();
                assert!(matches!(error, AppendError::Write(_)), "{error}");
                let Health::Degraded { since: begun, message } = log.health() else { panic!("it is degraded") };
                assert!(begun >= since && message.contains("no storage space"), "{message}");
            }
            disk.set(|state| state.room = None);
            log.append(finished(4)).await.unwrap();
            assert_eq!(log.health(), Health::Ok);
            assert_eq!((count(&log.counters().records), count(&log.counters().failed)), (2, 3));
            drop(log);
            let (records, replayed) = contents(&dir);
            assert_eq!(records, [turn("s", 0, 10), finished(4)], "what was refused is not there");
            assert_eq!(replayed.torn.len(), usize::from(uncuttable), "it is cut behind the last whole record");
        }
    }

    #[tokio::test]
    async fn a_degraded_log_is_left_alone_for_a_while() {
        let (dir, disk) = (tempdir().unwrap(), Disk::default());
        let log = fake(&options(&dir), &disk, NEVER_AGAIN);
        disk.set(|state| state.room = Some(0));
        assert!(matches!(log.append(finished(0)).await, Err(AppendError::Write(_))));
        let tried = disk.state().reached;
        for number in 1..10 {
            assert!(matches!(log.append(finished(number)).await, Err(AppendError::Degraded)));
        }
        assert_eq!(disk.state().reached, tried, "the disk is not asked");
        assert_eq!(count(&log.counters().failed), 10);
        assert!(files(&dir).is_empty(), "a file without a record goes");
    }

    #[tokio::test]
    async fn a_log_that_cannot_begin_begins_later() {
        let (dir, disk) = (tempdir().unwrap(), Disk::default());
        disk.set(|state| state.room = Some(7));
        let log = fake(&options(&dir), &disk, Duration::ZERO);
        assert!(matches!(log.health(), Health::Degraded { .. }));
        disk.set(|state| state.room = None);
        log.append(finished(0)).await.unwrap();
        assert_eq!(log.health(), Health::Ok);
        assert_eq!(contents(&dir).0, [finished(0)]);
    }

    #[tokio::test]
    async fn unsynced_records_are_neither_acknowledged_nor_kept() {
        let (dir, disk) = (tempdir().unwrap(), Disk::default());
        let log = fake(&Options { fsync: Fsync::Always, ..options(&dir) }, &disk, Duration::ZERO);
        log.append(finished(0)).await.unwrap();
        disk.set(|state| state.unsyncable = true);
        assert!(log.append(finished(1)).await.is_err());
        disk.set(|state| state.unsyncable = false);
        log.append(finished(2)).await.unwrap();
        assert_eq!(contents(&dir).0, [finished(0), finished(2)]);
        assert_eq!(files(&dir).len(), 2, "a file that failed to sync is not written to again");
    }

    #[tokio::test]
    async fn a_failed_sync_in_the_background_shows() {
        let (dir, disk) = (tempdir().unwrap(), Disk::default());
        let log = fake(&Options { fsync: Fsync::Interval(Duration::ZERO), ..options(&dir) }, &disk, Duration::ZERO);
        disk.set(|state| state.unsyncable = true);
        log.append(finished(0)).await.unwrap();
        while log.health() == Health::Ok {
            tokio::task::yield_now().await;
        }
        disk.set(|state| state.unsyncable = false);
        log.append(finished(1)).await.unwrap();
        drop(log);
        assert_eq!(contents(&dir).0, [finished(0), finished(1)]);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_removed_or_renamed_file_costs_the_records_in_it_and_no_others() {
        for renamed in [false, true] {
            let (dir, disk) = (tempdir().unwrap(), Disk::default());
            let log = fake(&options(&dir), &disk, NEVER_AGAIN);
            for number in 0..3 {
                log.append(finished(number)).await.unwrap();
            }
            let file = files(&dir).remove(0);
            if renamed {
                std::fs::rename(&file, dir.path().join("elsewhere")).unwrap();
            } else {
                std::fs::remove_file(&file).unwrap();
            }
            log.append(finished(3)).await.unwrap();
            assert_eq!(count(&log.counters().failed), 3, "renamed: {renamed}");
            assert_eq!(log.health(), Health::Ok);
            assert_eq!(contents(&dir).0, [finished(3)]);
            assert_eq!(count(&log.counters().bytes_on_disk), std::fs::metadata(&files(&dir)[0]).unwrap().len());
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_real_full_device_degrades_the_log() {
        let dir = tempdir().unwrap();
        let mut made = 0;
        let create: Create = Box::new(move |path| {
            made += 1;
            // the file between two good ones is the device that is always full
            let path = if made == 2 { Path::new("/dev/full") } else { path };
            Ok(Box::new(OpenOptions::new().write(true).create(made != 2).open(path)?))
        });
        let options = Options { segment_bytes: 1, ..options(&dir) };
        let log = Log::start(Directory::lock(&options).unwrap(), None, create, Duration::ZERO).unwrap();
        log.append(finished(0)).await.unwrap();
        let error = log.append(finished(1)).await.unwrap_err();
        assert!(error.to_string().contains("No space left on device"), "{error}");
        assert!(matches!(log.health(), Health::Degraded { .. }));
        log.append(finished(2)).await.unwrap();
        drop(log);
        assert_eq!(contents(&dir).0, [finished(0), finished(2)]);
    }

    #[test]
    fn callers_at_once_keep_their_own_order() {
        let dir = tempdir().unwrap();
        let options = Options { segment_bytes: 4096, ..options(&dir) };
        let (log, ..) = open(&options);
        std::thread::scope(|scope| {
            for caller in 0..8_u32 {
                let log = &log;
                scope.spawn(move || {
                    for number in 0..300 {
                        let session = (&*caller.to_string()).into();
                        drop(log.append(Record::Finished { session, leaf: caller, turns: 8, number }));
                    }
                });
            }
        });
        drop(log);
        let (records, replayed) = contents(&dir);
        assert_eq!(records.len(), 2400);
        assert!(replayed.segments > 2 && replayed.torn.is_empty());
        let mut next = [0_u64; 8];
        for record in records {
            let Record::Finished { leaf, number, .. } = record else { panic!("nothing else was written") };
            assert_eq!(number, std::mem::replace(&mut next[leaf as usize], number + 1), "caller {leaf}");
        }
    }

    #[test]
    fn no_log_is_always_done() {
        assert!(is_known(&mut Ack::done()) && Ack::done().is_done());
        assert!(!Ack::failed(AppendError::QueueFull).is_done(), "a failure is to be reported");
    }
}
