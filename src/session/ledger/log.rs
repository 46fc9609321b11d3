// SPDX-License-Identifier: Apache-2.0
//! The append-only log from which sessions are restored after a restart or crash.
//!
//! Records are written to numbered files of one directory, each record with its own checksum. A process never appends to a file of an
//! earlier process, so that a record that a crash has torn is the last one of its file. When the log is at its size limit, its oldest
//! files are removed. So a log may begin in the middle of a session, and it lacks the records that were lost while it was degraded.

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

pub use directory::{Directory, DirectoryGuard};
pub use replay::{DamagedFile, ReplaySummary, TornFile, read, size};

use super::{Ack, AppendError, Health, LogRecord, RecordLog, RecordLogStats, SCHEMA};
use crate::session::ProcessId;
use disk::Create;
use frame::Marker;
use health::{LogStats, Shared, add};
use segment::Header;
use tail::Tail;
use writer::{Job, Writer};

/// The delay before the next write after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// The directory and the limits of a log.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory, which is created if it does not exist.
    pub dir: PathBuf,
    /// The size in bytes at which a new file begins.
    pub segment_bytes: u64,
    /// The largest size of all files in bytes. The oldest files are removed above it.
    pub total_bytes: u64,
    /// When written records are synced to disk.
    pub fsync: Fsync,
    /// The most records that wait to be written.
    pub queue_records: usize,
    /// The most bytes that wait to be written.
    pub queue_bytes: u64,
}

/// When written records are synced, so that they survive a crash of the machine. A crash of the process never loses written records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Never; the operating system decides.
    Never,
    /// At most this long after the write.
    Interval(Duration),
    /// Before each acknowledgement.
    Always,
}

/// Why a log cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process uses the directory.
    #[error("{} is in use by another tokentap: give each its own directory", .0.display())]
    Locked(PathBuf),
    /// A file has another schema than this build. It stays as it is.
    #[error(
        "{} has the schema {found}, and this build reads and writes the schema {SCHEMA}: export it with the build that wrote it \
         (tokentap export --data-dir), and give this one another folder",
        path.display()
    )]
    OtherSchema {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: u64,
    },
    /// A file has intact records that this build cannot read. It stays as it is.
    #[error(
        "{} has {records} intact records that this build cannot read: export it with the build that wrote it \
         (tokentap export --data-dir), and give this one another folder",
        path.display()
    )]
    UnknownRecords {
        /// The first such file.
        path: PathBuf,
        /// The number of such records of all files.
        records: u64,
    },
    /// A file operation failed.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// The operation, a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        #[source]
        cause: io::Error,
    },
}

/// A log that is open for appending. Dropping it writes the waiting records, syncs unless syncing is off, and unlocks the directory.
#[derive(Debug)]
pub struct Log {
    dir: PathBuf,
    shared: Arc<Shared>,
    store: ProcessId,
    queue_bytes: u64,
    queue_records: usize,
    /// `None` during the drop: the writer ends when all senders are dropped.
    queue: Option<SyncSender<Job>>,
    writer: Option<JoinHandle<()>>,
    /// The locked file. Closing it, after the writer has ended, releases the lock.
    _lock: File,
}

impl Options {
    /// A log in `dir` with default limits.
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

impl Log {
    /// Calls `each` with every record of the log, in the order they were written, then opens it for appending. Blocks. If the disk is
    /// full, the log is [degraded](Health::Degraded).
    ///
    /// # Errors
    /// When another process uses the directory, this build cannot read the log, or the directory cannot be created, locked or listed.
    pub fn open(options: &Options, mut each: impl FnMut(LogRecord)) -> Result<(Self, ReplaySummary), OpenError> {
        let opened = Directory::lock(options)?.open(&mut |_, record| {
            record.into_iter().for_each(&mut each);
            ControlFlow::Continue(())
        })?;
        Ok(opened.expect("the visitor never breaks"))
    }

    fn start(
        directory: Directory,
        store: Option<ProcessId>,
        create: Create,
        retry: Duration,
    ) -> Result<Self, OpenError> {
        let Directory { options, lock, segments } = directory;
        let store = store.unwrap_or_else(ProcessId::random);
        let header = Header { store, marker: Marker::random() };
        let shared = Arc::<Shared>::default();
        let (queue, jobs) = sync_channel(options.queue_records.max(1));
        let mut writer = Writer {
            jobs,
            tail: Tail::new(&options, &header, segments, create, Arc::clone(&shared)),
            marker: header.marker,
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
        let Options { dir, queue_bytes, queue_records, .. } = options;
        Ok(Self { dir, shared, store, queue_bytes, queue_records, queue: Some(queue), writer, _lock: lock })
    }

    fn reject(&self, bytes: u64, error: AppendError) -> Ack {
        self.shared.remove_waiting(bytes);
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

    #[cfg(test)]
    fn counters(&self) -> &LogStats {
        &self.shared.stats
    }
}

impl RecordLog for Log {
    /// Rejects the record at once if the queue is full.
    fn append(&self, record: LogRecord) -> Ack {
        let Some(queue) = &self.queue else { return Ack::failed(AppendError::Closed) };
        let bytes = record.bytes();
        let before = self.shared.waiting.fetch_add(bytes, Ordering::Relaxed);
        self.shared.waiting_records.fetch_add(1, Ordering::Relaxed);
        // a record larger than the limit is accepted if the queue is empty, or it could never be written
        if before > 0 && before + bytes > self.queue_bytes {
            return self.reject(bytes, AppendError::QueueFull);
        }
        let (answer, awaited) = oneshot::channel();
        match queue.try_send(Job { record: Some(record), bytes, answer }) {
            Ok(()) => Ack::awaited(awaited),
            Err(TrySendError::Full(_)) => self.reject(bytes, AppendError::QueueFull),
            Err(TrySendError::Disconnected(_)) => self.reject(bytes, AppendError::Closed),
        }
    }

    fn written(&self) -> Ack {
        let Some(queue) = &self.queue else { return Ack::failed(AppendError::Closed) };
        let (answer, awaited) = oneshot::channel();
        // a barrier carries no record, so nothing is lost if the queue is full
        match queue.try_send(Job { record: None, bytes: 0, answer }) {
            Ok(()) => Ack::awaited(awaited),
            Err(_) => Ack::failed(AppendError::QueueFull),
        }
    }

    fn read(&self, each: &mut dyn FnMut(LogRecord)) -> io::Result<()> {
        // records that are being written are not stored yet
        read(&self.dir, |_, record| each(record)).map(drop).map_err(io::Error::other)
    }

    fn id(&self) -> ProcessId {
        self.store
    }

    fn health(&self) -> Health {
        self.shared.health()
    }

    fn stats(&self) -> RecordLogStats {
        let LogStats { records, failed, dropped_queue_full, bytes_on_disk, .. } = &self.shared.stats;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RecordLogStats { records: of(records), lost: of(failed) + of(dropped_queue_full), bytes: of(bytes_on_disk) }
    }

    /// Whether a quarter of the queue is used. Never while the log is degraded: waiting does not help then.
    fn is_behind(&self) -> bool {
        if !matches!(self.shared.health(), Health::Ok) {
            return false;
        }
        let Shared { waiting, waiting_records, .. } = &*self.shared;
        waiting.load(Ordering::Relaxed) > self.queue_bytes / 4
            || waiting_records.load(Ordering::Relaxed) > self.queue_records / 4
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            // a panic of the writer was reported when it happened
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
    use crate::session::ledger::{Change, ProcessRecord, Record};

    const NO_RETRY: Duration = Duration::from_secs(3600);

    fn options(dir: &TempDir) -> Options {
        Options { fsync: Fsync::Never, ..Options::new(dir.path()) }
    }

    fn open(options: &Options) -> (Log, ReplaySummary, Vec<LogRecord>) {
        let mut records = Vec::new();
        let (log, replayed) = Log::open(options, |record| records.push(record)).unwrap();
        (log, replayed, records)
    }

    fn fake(options: &Options, disk: &Disk, retry: Duration) -> Log {
        Log::start(Directory::lock(options).unwrap(), None, disk.create(), retry).unwrap()
    }

    fn contents(dir: &TempDir) -> (Vec<LogRecord>, ReplaySummary) {
        let mut records = Vec::new();
        let replayed = read(dir.path(), |_, record| records.push(record)).unwrap();
        (records, replayed)
    }

    fn files(dir: &TempDir) -> Vec<PathBuf> {
        segment::Segment::list(dir.path()).unwrap().into_iter().map(|segment| segment.path).collect()
    }

    fn is_resolved(ack: &mut Ack) -> bool {
        matches!(pin!(ack).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
    }

    fn count(counter: &std::sync::atomic::AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn only_the_owner_can_read_the_log() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let parent = tempdir().unwrap();
        let dir = parent.path().join("data");
        let options = Options { fsync: Fsync::Never, ..Options::new(&dir) };
        let modes = || {
            let mut paths: Vec<PathBuf> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
            paths.sort();
            paths.iter().map(|path| mode(path)).collect::<Vec<_>>()
        };
        let (log, ..) = open(&options);
        log.append(finished(0)).await.unwrap();
        drop(log);
        assert_eq!((mode(&dir), modes()), (0o700, vec![0o600; 2]), "a segment and the lock");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (log, ..) = open(&options);
        log.append(finished(1)).await.unwrap();
        drop(log);
        assert_eq!((mode(&dir), modes()), (0o755, vec![0o600; 3]), "a directory that exists is left as it is");
    }

    #[tokio::test]
    async fn acknowledged_records_survive_a_restart() {
        let dir = tempdir().unwrap();
        let written = [turn("a", 0, 5), turn("b", 0, 900), finished(0)];
        let (log, replayed, before) = open(&options(&dir));
        assert!(before.is_empty());
        assert_eq!(replayed, ReplaySummary::default());
        let store = log.id();
        for record in &written {
            log.append(record.clone()).await.unwrap();
        }
        // the log is not dropped, like in a crash, and another process reads it
        assert_eq!(contents(&dir).0, written);
        assert_eq!(count(&log.counters().records), 3);
        let bytes = count(&log.counters().bytes_on_disk);
        assert_eq!(bytes, std::fs::metadata(&files(&dir)[0]).unwrap().len());
        drop(log);
        let (log, replayed, after) = open(&options(&dir));
        assert_eq!(after, written);
        assert_eq!((replayed.records, replayed.segments, replayed.bytes), (3, 1, bytes));
        assert_eq!((log.id(), replayed.store), (store, Some(store)));
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
        assert_eq!(count(&log.counters().records), 200, "a barrier is not a record");
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
    fn directory_has_one_writer_and_any_number_of_readers() {
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
    fn path_that_is_not_a_directory_is_refused() {
        let dir = tempdir().unwrap();
        let missing = dir.path().join("missing");
        assert!(read(&missing, |_, _| ()).unwrap_err().to_string().starts_with("cannot read "));
        assert!(!missing.exists(), "a reader creates nothing");
        std::fs::write(&missing, "").unwrap();
        assert!(Log::open(&Options::new(&missing), |_| ()).unwrap_err().to_string().starts_with("cannot create "));
    }

    #[test]
    fn restarts_remove_empty_files_and_keep_the_store_id() {
        let dir = tempdir().unwrap();
        let store = open(&options(&dir)).0.id();
        for _ in 0..3 {
            let (log, replayed, _) = open(&options(&dir));
            assert_eq!((log.id(), replayed.segments), (store, 1));
            assert_eq!(files(&dir).len(), 1);
        }
    }

    #[tokio::test]
    async fn torn_file_stays_unchanged_and_the_next_file_continues() {
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
        let zeros_after = [bytes.clone(), vec![0; 5000]].concat();
        let blocks = (0..bytes.len()).step_by(512).map(zeros_from);
        for content in cut_in_line.chain(blocks).chain([zeros_after]) {
            std::fs::write(&file, &content).unwrap();
            let (_, replayed) = contents(&dir);
            assert_eq!(replayed.damaged_regions(), 0, "{:?}", replayed.torn);
        }
        // a flipped bit is damage, and so are zeros inside a sector
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
    async fn records_with_invalid_sessions_and_turns_are_skipped() {
        let dir = tempdir().unwrap();
        let (log, ..) = open(&options(&dir));
        let record = |session, change| LogRecord::from(fake::record(session, change));
        let deleted = |session| record(session, Change::Deleted);
        let foreign = [
            deleted("../../etc/passwd"),
            deleted("a\r\nset-cookie: b"),
            deleted(""),
            turn("s", u32::MAX, 1),
            record("s", Change::Freeze { turns: u32::MAX }),
            record("s", Change::Finished { leaf: 7, turns: 7, number: 1 }),
            ProcessRecord::Settled { session: "../../etc/passwd".into() }.into(),
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
    async fn frame_inside_a_prompt_is_not_read() {
        let (dir, own) = (tempdir().unwrap(), tempdir().unwrap());
        // frames that a client can know: those of another log
        let (log, ..) = open(&options(&own));
        log.append(finished(666)).await.unwrap();
        drop(log);
        let mut frames = std::fs::read(&files(&own)[0]).unwrap();
        frames.resize(frames.len().next_multiple_of(4), 0);
        let prompt = frames.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
        let planted = Change::Turn(Arc::new(Turn { prompt, ..fake::bare_turn(0) }));
        let planted = LogRecord::from(fake::record("s", planted));
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
    async fn corrupt_file_does_not_hide_the_next() {
        let dir = tempdir().unwrap();
        let options = Options { segment_bytes: 1, ..options(&dir) };
        let (log, ..) = open(&options);
        for number in 0..4 {
            log.append(finished(number)).await.unwrap();
        }
        drop(log);
        let files = files(&dir);
        assert_eq!(files.len(), 4, "each group begins a file");
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
    async fn log_of_another_schema_is_refused_and_stays_as_it_is() {
        for (number, members) in [(1, "0123456789abcdef"), (3, "0123456789abcdef 0123456789abcdef"), (99, "x")] {
            let dir = tempdir().unwrap();
            open(&options(&dir)).0.append(finished(0)).await.unwrap();
            let text = format!("tokentap-log {number} {members}");
            let other = format!("{text} {:08x}\nrecords of that schema", crc32c::crc32c(text.as_bytes()));
            let path = dir.path().join("segment-0000000000000009.log");
            std::fs::write(&path, &other).unwrap();
            let before = files(&dir);
            let errors = [Log::open(&options(&dir), |_| ()).unwrap_err(), read(dir.path(), |_, _| ()).unwrap_err()];
            for error in errors {
                assert!(matches!(&error, OpenError::OtherSchema { found, .. } if *found == number), "{error}");
                let line = error.to_string();
                assert!(line.starts_with(&format!("{} has the schema {number}, ", path.display())), "{line}");
                assert!(line.contains("the schema 8: export it with the build that wrote it"), "{line}");
            }
            assert_eq!((files(&dir), std::fs::read_to_string(&path).unwrap()), (before, other));
        }
    }

    #[tokio::test]
    async fn log_with_an_unknown_record_is_refused_and_stays_as_it_is() {
        let dir = tempdir().unwrap();
        open(&options(&dir)).0.append(finished(0)).await.unwrap();
        let path = files(&dir).remove(0);
        let mut bytes = std::fs::read(&path).unwrap();
        // a kind of record that this build does not have
        let (kind, payload) = (9_u8, b"of a later build");
        bytes.extend_from_within(segment::FIRST_LINE as usize..segment::FIRST_LINE as usize + 8);
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(crc32c::crc32c_append(crc32c::crc32c(&[kind]), payload).to_le_bytes());
        bytes.push(kind);
        bytes.extend(payload);
        std::fs::write(&path, &bytes).unwrap();
        let imported = Directory::lock(&options(&dir)).unwrap().read(|_, _| ());
        let errors = [
            Log::open(&options(&dir), |_| ()).map(drop).unwrap_err(),
            read(dir.path(), |_, _| ()).map(drop).unwrap_err(),
            imported.map(drop).unwrap_err(),
        ];
        for error in errors {
            let line = error.to_string();
            let expected = format!("{} has 1 intact records that this build cannot read: export it", path.display());
            assert!(line.starts_with(&expected), "{line}");
        }
        assert_eq!((files(&dir).len(), std::fs::read(&path).unwrap()), (1, bytes));
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
    async fn oldest_files_are_removed_at_the_size_limit() {
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
        assert!(removed.0 > 10 && removed.1 + replayed.bytes > 100 * 40, "{removed:?}");
        // a smaller limit applies from the start
        let (log, ..) = open(&Options { total_bytes: 300, ..options });
        assert!(count(&log.counters().bytes_on_disk) <= 300);
        assert!(files(&dir).len() <= 2);
    }

    #[test]
    fn ack_resolves_after_the_write_and_a_group_keeps_its_order() {
        let dir = tempdir().unwrap();
        let disk = Disk::default();
        let log = fake(&options(&dir), &disk, NO_RETRY);
        disk.set(|state| state.gated = true);
        let before = disk.state().begun;
        let mut first = log.append(finished(0));
        drop(disk.until(|state| state.begun > before));
        let mut acks: Vec<Ack> = (1..200).map(|number| log.append(finished(number))).collect();
        assert!(!is_resolved(&mut first) && !acks.iter_mut().any(is_resolved), "nothing is written yet");
        assert!(contents(&dir).0.is_empty());
        let writes = disk.state().writes;
        disk.set(|state| state.gated = false);
        drop(log);
        assert!(is_resolved(&mut first) && acks.iter_mut().all(is_resolved));
        assert_eq!(disk.state().writes - writes, 2, "waiting records are one write");
        assert_eq!(contents(&dir).0, (0..200).map(finished).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn log_syncs_as_configured() {
        for fsync in [Fsync::Never, Fsync::Always, Fsync::Interval(Duration::from_millis(1))] {
            let (dir, disk) = (tempdir().unwrap(), Disk::default());
            let log = fake(&Options { fsync, ..options(&dir) }, &disk, NO_RETRY);
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
        let log = fake(&Options { fsync: Fsync::Interval(Duration::MAX), ..options(&dir) }, &disk, NO_RETRY);
        log.append(finished(0)).await.unwrap();
        let before = disk.state().syncs;
        drop(log);
        assert_eq!(disk.state().syncs, before + 1, "closing syncs");
    }

    #[tokio::test]
    async fn full_queue_rejects_at_once() {
        let dir = tempdir().unwrap();
        let small = finished(0).bytes();
        // one record is being written, and four wait
        let by_count = Options { queue_records: 4, ..options(&dir) };
        let by_bytes = Options { queue_bytes: 4 * small, ..options(&dir) };
        for options in [by_count, by_bytes] {
            let disk = Disk::default();
            let log = fake(&options, &disk, NO_RETRY);
            let before = disk.state().begun;
            disk.set(|state| state.gated = true);
            let mut acks = vec![log.append(finished(0))];
            drop(disk.until(|state| state.begun > before));
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
            assert_eq!(log.health(), Health::Ok, "a full queue does not degrade the log");
        }
    }

    #[tokio::test]
    async fn full_disk_degrades_the_log_until_there_is_space() {
        for untruncatable in [false, true] {
            let (dir, disk) = (tempdir().unwrap(), Disk::default());
            let log = fake(&options(&dir), &disk, Duration::ZERO);
            log.append(turn("s", 0, 10)).await.unwrap();
            disk.set(|state| (state.room, state.untruncatable) = (Some(30), untruncatable));
            let since = std::time::SystemTime::now();
            for number in 1..4 {
                let error = log.append(finished(number)).await.unwrap_err();
                assert!(matches!(error, AppendError::Write(_)), "{error}");
                let Health::Degraded { since: begun, message } = log.health() else { panic!("the log is degraded") };
                assert!(begun >= since && message.contains("no storage space"), "{message}");
            }
            disk.set(|state| state.room = None);
            log.append(finished(4)).await.unwrap();
            assert_eq!(log.health(), Health::Ok);
            assert_eq!((count(&log.counters().records), count(&log.counters().failed)), (2, 3));
            drop(log);
            let (records, replayed) = contents(&dir);
            assert_eq!(records, [turn("s", 0, 10), finished(4)], "failed records are not in the log");
            assert_eq!(
                replayed.torn.len(),
                usize::from(untruncatable),
                "the file is truncated to the last whole record"
            );
        }
    }

    #[tokio::test]
    async fn degraded_log_is_not_written_before_the_retry_delay() {
        let (dir, disk) = (tempdir().unwrap(), Disk::default());
        let log = fake(&options(&dir), &disk, NO_RETRY);
        disk.set(|state| state.room = Some(0));
        assert!(matches!(log.append(finished(0)).await, Err(AppendError::Write(_))));
        let tried = disk.state().begun;
        for number in 1..10 {
            assert!(matches!(log.append(finished(number)).await, Err(AppendError::Degraded)));
        }
        assert_eq!(disk.state().begun, tried, "nothing is written");
        assert_eq!(count(&log.counters().failed), 10);
        assert!(files(&dir).is_empty(), "a file without records is removed");
    }

    #[tokio::test]
    async fn log_that_cannot_create_its_first_file_tries_again() {
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
    async fn failed_background_sync_degrades_the_log() {
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

    #[tokio::test]
    async fn removed_or_renamed_file_loses_only_its_records() {
        for renamed in [false, true] {
            let (dir, disk) = (tempdir().unwrap(), Disk::default());
            let log = fake(&options(&dir), &disk, NO_RETRY);
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
    async fn full_device_degrades_the_log() {
        let dir = tempdir().unwrap();
        let mut created = 0;
        let create: Create = Box::new(move |path| {
            created += 1;
            // the second of three files is a device that is always full
            let path = if created == 2 { Path::new("/dev/full") } else { path };
            Ok(Box::new(OpenOptions::new().write(true).create(created != 2).open(path)?))
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
    fn concurrent_callers_keep_their_order() {
        let dir = tempdir().unwrap();
        let options = Options { segment_bytes: 4096, ..options(&dir) };
        let (log, ..) = open(&options);
        std::thread::scope(|scope| {
            for caller in 0..8_u32 {
                let log = &log;
                scope.spawn(move || {
                    for number in 0..300 {
                        let finished = Change::Finished { leaf: caller, turns: 8, number };
                        drop(log.append(fake::record(&caller.to_string(), finished).into()));
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
            let LogRecord::Session(Record { change: Change::Finished { leaf, number, .. }, .. }) = record else {
                panic!("nothing else was written")
            };
            assert_eq!(number, std::mem::replace(&mut next[leaf as usize], number + 1), "caller {leaf}");
        }
    }

    #[test]
    fn ack_without_a_log_is_done() {
        assert!(is_resolved(&mut Ack::done()) && Ack::done().is_done());
        assert!(!Ack::failed(AppendError::QueueFull).is_done(), "a failure must be reported");
    }
}
