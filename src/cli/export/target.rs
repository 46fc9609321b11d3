// SPDX-License-Identifier: Apache-2.0
//! The output file of an export, which is created or replaced only when the export is complete.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::{Path, PathBuf};

/// An output file that is being written. If it is dropped before [`Target::finish`], the temporary file is removed.
#[derive(Debug)]
pub(super) struct Target {
    out: Out,
    /// The path of the temporary file, until it is renamed; `None` for standard output or a device.
    temporary: Option<PathBuf>,
    path: PathBuf,
    /// The number of bytes written.
    written: u64,
}

#[derive(Debug)]
enum Out {
    File(File),
    Standard(BufWriter<StdoutLock<'static>>),
}

/// The name of the output in messages.
pub(super) fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard output".to_owned() } else { path.display().to_string() }
}

impl Target {
    /// Creates the output; `-` is standard output. A file is written to a temporary file in the same folder, so that the rename is atomic.
    pub(super) fn create(path: &Path) -> Result<Self, String> {
        let target = |out, temporary| Self { out, temporary, path: path.to_owned(), written: 0 };
        if path == Path::new("-") {
            return Ok(target(Out::Standard(BufWriter::new(io::stdout().lock())), None));
        }
        let failed = |error: io::Error| format!("--out {}: {error}", path.display());
        match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(format!("--out {}: is a folder", path.display())),
            // a device or a pipe is written directly, because a rename would replace it with a file
            Ok(found) if !found.is_file() => {
                let device = OpenOptions::new().write(true).open(path).map_err(failed)?;
                return Ok(target(Out::File(device), None));
            }
            _ => {}
        }
        let file_name = path.file_name().ok_or_else(|| format!("--out {}: names no file", path.display()))?;
        let mut hidden = OsString::from(".");
        hidden.push(file_name);
        hidden.push(format!(".{}.part", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(failed)?;
        Ok(target(Out::File(file), Some(temporary)))
    }

    /// Whether there is a temporary file, which must be removed if the export fails.
    pub(super) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// Writes a chunk. Returns whether a process still reads the output.
    pub(super) fn write(&mut self, chunk: &[u8]) -> Result<bool, String> {
        self.written += chunk.len() as u64;
        let done = match &mut self.out {
            Out::File(file) => file.write_all(chunk),
            Out::Standard(out) => out.write_all(chunk),
        };
        self.is_read(done)
    }

    /// Whether a process reads the output. One that ends early, such as `head`, is no failure.
    fn is_read(&self, done: io::Result<()>) -> Result<bool, String> {
        match done {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(format!("{}: {error}", name(&self.path))),
        }
    }

    /// Renames the temporary file. Returns the number of bytes written; `None` if no process reads the output.
    pub(super) fn finish(mut self) -> Result<Option<u64>, String> {
        let done = match (&mut self.out, &self.temporary) {
            // sync to disk before the file replaces an existing one
            (Out::File(file), Some(temporary)) => file.sync_all().and_then(|()| std::fs::rename(temporary, &self.path)),
            (Out::File(_), None) => Ok(()),
            (Out::Standard(out), _) => out.flush(),
        };
        let is_read = self.is_read(done)?;
        self.temporary = None;
        Ok(is_read.then_some(self.written))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // the export has already returned an error, so a failed removal is ignored
            let _ = std::fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::*;

    fn files(dir: &Path) -> Vec<OsString> {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn only_a_finished_export_replaces_the_file() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("rows.parquet");
        std::fs::write(&path, "before").unwrap();
        let mut target = Target::create(&path).unwrap();
        target.write(b"half").unwrap();
        assert!(target.is_temporary() && files(dir.path()).len() == 2, "the temporary file is in the same folder");
        drop(target);
        assert_eq!(files(dir.path()), ["rows.parquet"]);
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
        let mut target = Target::create(&path).unwrap();
        target.write(b"wh").unwrap();
        target.write(b"ole").unwrap();
        assert_eq!(target.finish(), Ok(Some(5)));
        assert_eq!(files(dir.path()), ["rows.parquet"]);
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
    }

    #[test]
    fn folder_or_missing_path_is_refused_and_device_is_written() {
        let dir = tempdir().unwrap();
        assert!(Target::create(dir.path()).unwrap_err().ends_with("is a folder"));
        let line = Target::create(&dir.path().join("missing/rows")).unwrap_err();
        assert!(line.starts_with("--out ") && line.contains("No such file"), "{line}");
        let mut device = Target::create(Path::new("/dev/null")).unwrap();
        device.write(b"x").unwrap();
        assert!(!device.is_temporary(), "a device is written directly");
        assert_eq!(device.finish(), Ok(Some(1)));
    }
}
