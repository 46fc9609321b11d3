//! Where an export goes: a file that is whole or not there.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::{Path, PathBuf};

/// A file in the making. Dropped before [`Target::finish`] it leaves nothing behind.
#[derive(Debug)]
pub(super) struct Target {
    out: Out,
    /// The temporary file, until it has its name.
    temporary: Option<PathBuf>,
    path: PathBuf,
    written: u64,
}

#[derive(Debug)]
enum Out {
    File(File),
    Standard(BufWriter<StdoutLock<'static>>),
}

/// The name of a target in a sentence.
pub(super) fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard output".to_owned() } else { path.display().to_string() }
}

impl Target {
    /// `-` is standard output. A file is written beside its place, where renaming it is one step.
    pub(super) fn create(path: &Path) -> Result<Self, String> {
        let target = |out, temporary| Self { out, temporary, path: path.to_owned(), written: 0 };
        if path == Path::new("-") {
            return Ok(target(Out::Standard(BufWriter::new(io::stdout().lock())), None));
        }
        let failed = |error: io::Error| format!("--out {}: {error}", path.display());
        match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(format!("--out {}: is a folder", path.display())),
            // a device or a pipe is written to; a file in its place would be something else
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

    /// Whether something is to be tidied up when the export ends early.
    pub(super) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    pub(super) fn write(&mut self, chunk: &[u8]) -> Result<(), String> {
        self.written += chunk.len() as u64;
        let done = match &mut self.out {
            Out::File(file) => file.write_all(chunk),
            Out::Standard(out) => out.write_all(chunk),
        };
        done.map_err(|error| self.failed(&error))
    }

    /// Gives the file its name; returns its bytes.
    pub(super) fn finish(mut self) -> Result<u64, String> {
        let done = match (&mut self.out, &self.temporary) {
            // sync to disk before the file replaces an existing one
            (Out::File(file), Some(temporary)) => file.sync_all().and_then(|()| std::fs::rename(temporary, &self.path)),
            (Out::File(_), None) => Ok(()),
            (Out::Standard(out), _) => out.flush(),
        };
        done.map_err(|error| self.failed(&error))?;
        self.temporary = None;
        Ok(self.written)
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("{}: {error}", name(&self.path))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // the export has failed with an error; a file that cannot be removed does not have the requested name
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
        assert!(target.is_temporary() && files(dir.path()).len() == 2, "it is beside its place");
        drop(target);
        assert_eq!(files(dir.path()), ["rows.parquet"]);
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
        let mut target = Target::create(&path).unwrap();
        target.write(b"wh").unwrap();
        target.write(b"ole").unwrap();
        assert_eq!(target.finish(), Ok(5));
        assert_eq!(files(dir.path()), ["rows.parquet"]);
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
    }

    #[test]
    fn folders_and_missing_paths_are_refused_and_devices_are_written() {
        let dir = tempdir().unwrap();
        assert!(Target::create(dir.path()).unwrap_err().ends_with("is a folder"));
        let line = Target::create(&dir.path().join("missing/rows")).unwrap_err();
        assert!(line.starts_with("--out ") && line.contains("No such file"), "{line}");
        let mut device = Target::create(Path::new("/dev/null")).unwrap();
        device.write(b"x").unwrap();
        assert!(!device.is_temporary(), "a device stays what it is");
        assert_eq!(device.finish(), Ok(1));
    }
}
