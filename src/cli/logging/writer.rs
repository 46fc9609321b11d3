// SPDX-License-Identifier: Apache-2.0
//! Writes log lines on a separate thread, many lines in one system call.
//!
//! A write per line costs a request several microseconds, and a full pipe blocks the thread that logs. Here a line is copied into a buffer,
//! and a thread writes the buffer. If the reader of the pipe stops, lines are dropped and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The time for which lines are collected before they are written together.
const DELAY: Duration = Duration::from_millis(10);

/// The maximum bytes of buffered lines.
const CAPACITY: usize = 1 << 20;

/// The maximum time that [`LogWriter::close`] waits for the last lines.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A buffer of lines that a thread writes. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct LogWriter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    // locked while a line is copied
    lines: Mutex<Lines>,
    /// Notified when the buffer has lines, or when the writer is closed.
    filled: Condvar,
    /// Notified when all lines are written after the writer was closed.
    written: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    text: Vec<u8>,
    /// Lines that were dropped since the last write.
    dropped: u64,
    is_closed: bool,
    is_written: bool,
}

impl LogWriter {
    /// Starts the thread that writes to `output`. The thread calls `on_dropped` with the number of dropped lines once it can write again.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn start(
        output: impl Write + Send + 'static,
        on_dropped: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared { lines: Mutex::default(), filled: Condvar::new(), written: Condvar::new() });
        let writing = Arc::clone(&shared);
        thread::Builder::new()
            .name("tokentap-stderr".to_owned())
            .spawn(move || writing.write_to(output, on_dropped))?;
        Ok(Self(shared))
    }

    /// Writes the lines so far, and waits for at most a second until they are written. Later lines are lost.
    pub(super) fn close(&self) {
        let mut lines = self.0.lines.lock();
        lines.is_closed = true;
        self.0.filled.notify_one();
        self.0.written.wait_while_for(&mut lines, |lines| !lines.is_written, CLOSE_TIMEOUT);
    }
}

impl Write for LogWriter {
    /// Adds a line. Never blocks on the output.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.lines.lock();
        // a line that is longer than the capacity is buffered if the buffer is empty
        if !lines.text.is_empty() && lines.text.len() + line.len() > CAPACITY {
            lines.dropped += 1;
            return Ok(line.len());
        }
        let was_empty = lines.text.is_empty();
        lines.text.extend_from_slice(line);
        drop(lines);
        if was_empty {
            self.0.filled.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn write_to(&self, mut output: impl Write, on_dropped: impl Fn(u64)) {
        let mut text = Vec::new();
        let mut lines = self.lines.lock();
        loop {
            let is_idle = |lines: &mut Lines| lines.text.is_empty() && !lines.is_closed;
            self.filled.wait_while(&mut lines, is_idle);
            // collects the lines of the next milliseconds
            self.filled.wait_while_for(&mut lines, |lines| !lines.is_closed, DELAY);
            if lines.text.is_empty() {
                break;
            }
            let dropped = std::mem::take(&mut lines.dropped);
            std::mem::swap(&mut lines.text, &mut text);
            drop(lines);
            // an error of standard error cannot be reported
            let _ = output.write_all(&text);
            text.clear();
            if dropped > 0 {
                on_dropped(dropped);
            }
            lines = self.lines.lock();
        }
        lines.is_written = true;
        self.written.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// An output that sends each write to a channel. A write waits for a permit.
    struct Output {
        writes: Sender<Vec<u8>>,
        permits: Receiver<()>,
    }

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.permits.recv().ok();
            self.writes.send(bytes.to_vec()).ok();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns a writer, the channel of its writes, and the sender of permits. The number of dropped lines is sent as a write, too.
    fn start() -> (LogWriter, Receiver<Vec<u8>>, Sender<()>) {
        let (writes, written) = channel();
        let (permit, permits) = channel();
        let dropped = writes.clone();
        let report = move |count: u64| drop(dropped.send(count.to_string().into_bytes()));
        (LogWriter::start(Output { writes, permits }, report).unwrap(), written, permit)
    }

    #[test]
    fn lines_are_written_in_order_with_few_writes() {
        let (mut log, written, permit) = start();
        drop(permit);
        for line in 0..1000 {
            writeln!(log, "{line}").unwrap();
        }
        log.close();
        let writes: Vec<Vec<u8>> = written.try_iter().collect();
        let expected: String = (0..1000).map(|line| format!("{line}\n")).collect();
        assert_eq!(String::from_utf8(writes.concat()).unwrap(), expected);
        assert!(writes.len() < 100, "{} writes", writes.len());
    }

    #[test]
    fn lines_beyond_the_capacity_are_dropped_and_counted_while_the_output_blocks() {
        let (mut log, written, permit) = start();
        log.write_all(b"first\n").unwrap();
        // the thread has taken the first line once it is blocked in its write
        let is_taken = || log.0.lines.lock().text.is_empty();
        while !is_taken() {
            thread::yield_now();
        }
        let line = vec![b'x'; 1 << 10];
        for _ in 0..2 * (CAPACITY >> 10) {
            log.write_all(&line).unwrap();
        }
        drop(permit);
        log.close();
        let text = written.try_iter().collect::<Vec<_>>().concat();
        assert!(text.starts_with(b"first\nxxx") && text.ends_with(b"x1024"));
        assert_eq!(text.len(), b"first\n".len() + CAPACITY + b"1024".len());
    }

    #[test]
    fn line_is_written_without_waiting_for_another() {
        let (mut log, written, permit) = start();
        permit.send(()).unwrap();
        log.write_all(b"line\n").unwrap();
        assert_eq!(written.recv().unwrap(), b"line\n");
    }
}
