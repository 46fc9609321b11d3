// SPDX-License-Identifier: Apache-2.0
//! A slice in a file that another process on the node wrote, usually in shared memory.
//!
//! The file is read, never mapped: if another process truncates a mapped file, an access past its end kills this process. Seals prevent
//! that only for anonymous memory. A read returns the end of the file early.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use serde::Deserialize;

use super::safetensors::{Body, SafetensorsError};

/// Bytes read at a time: enough that the switch to another thread costs little, few enough to buffer for every request.
const PIECE: usize = 256 << 10;

/// The longest file name, in bytes.
const LONGEST_NAME: usize = 128;

/// The file and byte range of a slice.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileRange {
    /// The file name: 1 to 128 characters of `A-Z a-z 0-9 . _ -`, the first one not a dot.
    pub name: String,
    /// The offset of the first byte.
    #[serde(default)]
    pub offset: u64,
    /// The length of the slice in bytes; by default, up to the end of the file when it is opened.
    pub bytes: Option<u64>,
}

/// Why a file was not measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShmError {
    /// The name has other characters, or is too long.
    #[error("a file name is 1 to {LONGEST_NAME} characters of A-Z a-z 0-9 . _ - and does not start with a dot")]
    Name,
    /// The file does not exist.
    #[error("--shm-dir has no file of this name")]
    Missing,
    /// It is a folder, a link, a pipe, a socket or a device.
    #[error("the entry of this name in --shm-dir is not a regular file")]
    Irregular,
    /// The file ends before the slice does; the message says where.
    #[error("the file ends early: {0}")]
    Early(String),
    /// The contents were not measured.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// Opening or reading the file failed.
    #[error("the file cannot be read: {0}")]
    Failed(#[from] io::Error),
}

/// An open slice.
#[derive(Debug)]
struct Source {
    file: File,
    at: u64,
    end: u64,
    /// The bytes of the last read.
    piece: Vec<u8>,
}

impl FileRange {
    /// Reads the slice into `body` on blocking threads, as fast as slots become free. When the future is dropped, reading stops after the
    /// current piece.
    ///
    /// # Errors
    /// [`ShmError`] if the file cannot be read, or its contents are rejected.
    pub(crate) async fn read(self, folder: &Path, body: &mut Body) -> Result<(), ShmError> {
        let folder = folder.to_owned();
        let mut source = run_blocking(move || Source::open(&folder, &self)).await?;
        while source.at < source.end {
            source = run_blocking(move || source.next()).await?;
            body.push(&source.piece).await?;
        }
        Ok(())
    }
}

impl Source {
    fn open(folder: &Path, range: &FileRange) -> Result<Self, ShmError> {
        if !is_plain_name(&range.name) {
            return Err(ShmError::Name);
        }
        // no symbolic link is followed, a pipe does not block, and a terminal does not become the controlling one
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(folder.join(&range.name));
        let file = opened.map_err(unopened)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(ShmError::Irregular);
        }
        let (length, offset) = (found.len(), range.offset);
        let end = range.bytes.map_or(Some(length), |bytes| offset.checked_add(bytes));
        match end.filter(|end| (offset..=length).contains(end)) {
            Some(end) => Ok(Self { file, at: offset, end, piece: Vec::new() }),
            None => {
                let bytes = range.bytes.map_or_else(String::new, |bytes| format!(" with {bytes} bytes"));
                Err(ShmError::Early(format!("it has {length} bytes, and the slice begins at {offset}{bytes}")))
            }
        }
    }

    /// Reads the next piece.
    fn next(mut self) -> Result<Self, ShmError> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        self.piece.resize(left.min(PIECE), 0);
        self.file.read_exact_at(&mut self.piece, self.at).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                ShmError::Early(format!("it was truncated below {} bytes while it was read", self.end))
            }
            _ => ShmError::Failed(error),
        })?;
        self.at += self.piece.len() as u64;
        Ok(self)
    }
}

fn is_plain_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn unopened(error: io::Error) -> ShmError {
    match error.raw_os_error() {
        Some(libc::ENOENT) => ShmError::Missing,
        // a symbolic link, which O_NOFOLLOW rejects; a socket
        Some(libc::ELOOP | libc::ENXIO) => ShmError::Irregular,
        _ => ShmError::Failed(error),
    }
}

/// Runs work that may wait for a disk on a blocking thread, so that other tasks continue.
async fn run_blocking(work: impl FnOnce() -> Result<Source, ShmError> + Send + 'static) -> Result<Source, ShmError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_truncated_between_reads_ends_early() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slice");
        std::fs::write(&path, vec![7; 3 * PIECE]).unwrap();
        let range = |offset, bytes| FileRange { name: "slice".to_owned(), offset, bytes };
        let first = Source::open(folder.path(), &range(10, None)).unwrap().next().unwrap();
        assert_eq!((first.at, first.end, &*first.piece), ((PIECE + 10) as u64, 3 * PIECE as u64, &[7; PIECE][..]));
        File::options().write(true).open(&path).unwrap().set_len(2 * PIECE as u64).unwrap();
        let error = first.next().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the file ends early: it was truncated below {} bytes while it was read", 3 * PIECE)
        );
        // a file that was truncated before it is opened is not read at all
        let error = Source::open(folder.path(), &range(0, Some(3 * PIECE as u64))).unwrap_err();
        assert!(matches!(error, ShmError::Early(_)), "{error}");
    }

    #[test]
    fn only_plain_file_names_are_accepted() {
        let longest = "x".repeat(LONGEST_NAME);
        for name in ["slice-1", "a", "-", "_.", "A.b_c-9", &longest] {
            assert!(is_plain_name(name), "{name:?}");
        }
        let longer = "x".repeat(LONGEST_NAME + 1);
        for name in ["", ".", "..", ".hidden", "a/b", "/etc", "a\\b", "a b", "a\0", "é", "a\n", &longer] {
            assert!(!is_plain_name(name), "{name:?}");
        }
    }
}
