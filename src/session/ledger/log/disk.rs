//! The file operations of the log, behind a trait, so that a test can simulate a failing disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// A file that is being written.
pub(super) trait Medium: Send {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Truncates the file to `bytes`. It is not written to afterwards.
    fn truncate(&mut self, bytes: u64) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
    /// Whether `path` no longer names this file: it was removed or renamed, so a restart would not read it.
    fn is_detached(&self, path: &Path) -> bool;
}

/// Creates a file that must not exist yet.
pub(super) type Create = Box<dyn FnMut(&Path) -> io::Result<Box<dyn Medium>> + Send>;

/// Real files.
pub(super) fn files() -> Create {
    Box::new(|path| Ok(Box::new(OpenOptions::new().write(true).create_new(true).open(path)?)))
}

impl Medium for File {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        Write::write_all(self, bytes)
    }

    fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    #[cfg(unix)]
    fn is_detached(&self, path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        let identity = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        match std::fs::metadata(path) {
            Ok(named) => self.metadata().is_ok_and(|own| identity(own) != identity(named)),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    // other systems neither remove nor rename an open file
    #[cfg(not(unix))]
    fn is_detached(&self, _: &Path) -> bool {
        false
    }
}

/// Syncs the names of new files in `dir`.
pub(super) fn sync_names(dir: &Path) -> io::Result<()> {
    // other systems cannot open a directory as a file
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}
