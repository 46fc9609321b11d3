//! What the log asks of a file, so that a test can be the disk that fails.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// A file that is being written.
pub(super) trait Medium: Send {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Cuts it to `bytes`; it is not written to afterwards.
    fn truncate(&mut self, bytes: u64) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
    /// Whether its last name is gone: what is written to it then is never read.
    fn is_removed(&self) -> bool;
}

/// Makes a file that must not exist yet.
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
    fn is_removed(&self) -> bool {
        self.metadata().is_ok_and(|meta| std::os::unix::fs::MetadataExt::nlink(&meta) == 0)
    }

    // elsewhere a file that is open cannot be removed
    #[cfg(not(unix))]
    fn is_removed(&self) -> bool {
        false
    }
}

/// Makes the names of new files in `dir` last.
pub(super) fn sync_names(dir: &Path) -> io::Result<()> {
    // elsewhere a directory cannot be opened as a file
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}
