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
    /// Whether `path` no longer names it: what is written to it then is not read after a restart.
    fn has_left(&self, path: &Path) -> bool;
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
    fn has_left(&self, path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        let identity = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        match std::fs::metadata(path) {
            Ok(named) => self.metadata().is_ok_and(|own| identity(own) != identity(named)),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    // elsewhere a file that is open can be neither removed nor renamed
    #[cfg(not(unix))]
    fn has_left(&self, _: &Path) -> bool {
        false
    }
}

/// Makes the names of new files in `dir` last.
pub(super) fn sync_names(dir: &Path) -> io::Result<()> {
    // elsewhere a directory cannot be opened as a file
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}
