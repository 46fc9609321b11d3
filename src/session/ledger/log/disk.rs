// SPDX-License-Identifier: Apache-2.0
//! The file operations of the log, behind a trait, so that a test can simulate a failing disk.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The modes of the directory and of its files: other users of the machine must not read the texts of agents and models.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The permission of every user to create, rename and remove files in a directory.
const OTHERS_WRITE: u32 = 0o002;

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
    Box::new(|path| Ok(Box::new(OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?)))
}

/// Creates a directory and its parents. One that exists keeps its mode, which may be that of a mounted volume.
pub(super) fn create_directory(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(dir)?;
    if std::fs::metadata(dir)?.permissions().mode() & OTHERS_WRITE != 0 {
        tracing::warn!(dir = %dir.display(), "every user of the machine may replace files in the folder of the log: chmod o-w prevents that");
    }
    Ok(())
}

/// Opens or creates a file that is never read. Does not follow a link.
pub(super) fn open_lock(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW;
    OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).custom_flags(flags).open(path)
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

    fn is_detached(&self, path: &Path) -> bool {
        let identity = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        match std::fs::metadata(path) {
            Ok(named) => self.metadata().is_ok_and(|own| identity(own) != identity(named)),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// Syncs the names of new files in `dir`.
pub(super) fn sync_names(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_not_followed() {
        let dir = std::env::temp_dir().join(format!("tokentap-links-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let [target, link, missing] = ["target", "link", "missing"].map(|name| dir.join(name));
        std::fs::write(&target, "text").unwrap();
        symlink(&target, &link).unwrap();
        assert!(open_lock(&link).is_err());
        symlink(dir.join("elsewhere"), &missing).unwrap();
        assert!(open_lock(&missing).is_err() && !dir.join("elsewhere").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
