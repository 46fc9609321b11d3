//! A slice in a file that another process on the node has left, as a rule in shared memory.
//!
//! It is read, never mapped: when another process truncates a mapped file, an access past its end kills this process. Seals prevent that
//! only for memory without a name. A read just finds the end of the file early.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use serde::Deserialize;

use super::safetensors::{Body, SafetensorsError};

/// Bytes read at a time: enough for the way to another thread and back to cost little, few enough to hold for every request.
const PIECE: usize = 256 << 10;

/// The longest name of a file.
const LONGEST_NAME: usize = 128;

/// Where in the folder a slice lies.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The file: 1 to 128 of `A-Z a-z 0-9 . _ -`, no dot first.
    pub name: String,
    /// The byte at which the slice begins.
    #[serde(default)]
    pub offset: u64,
    /// How long the slice is; without it, to the end of the file as it is when it is opened.
    pub bytes: Option<u64>,
}

/// Why a file is not measured.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    /// The name is not plain.
    #[error("the name of a file is 1 to {LONGEST_NAME} of A-Z a-z 0-9 . _ -, and its first is no dot")]
    Name,
    /// There is no such file.
    #[error("there is no file of this name in --shm-dir")]
    Missing,
    /// It is a folder, a link, a pipe, a socket or a device.
    #[error("what has this name in --shm-dir is no regular file")]
    Irregular,
    /// It ends before the slice does; the words say where.
    #[error("the file ends early: {0}")]
    Early(String),
    /// What it holds is not measured.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// The system does not give it.
    #[error("the file cannot be read: {0}")]
    Failed(#[from] io::Error),
}

/// A slice that is open.
#[derive(Debug)]
struct Source {
    file: File,
    at: u64,
    end: u64,
    /// What was read last.
    piece: Vec<u8>,
}

impl Place {
    /// Reads the slice into `body`, as fast as there is room for its rows, away from the threads that serve sockets. Dropped, it stops
    /// with the piece that is being read.
    ///
    /// # Errors
    /// [`Unread`] when the file cannot be read, or what it holds is refused.
    pub async fn read(self, folder: &Path, body: &mut Body) -> Result<(), Unread> {
        let folder = folder.to_owned();
        let mut source = aside(move || Source::open(&folder, &self)).await?;
        while source.at < source.end {
            source = aside(move || source.next()).await?;
            body.push(&source.piece).await?;
        }
        Ok(())
    }
}

impl Source {
    fn open(folder: &Path, place: &Place) -> Result<Self, Unread> {
        if !is_plain(&place.name) {
            return Err(Unread::Name);
        }
        // a link is not followed out of the folder, a pipe is not waited for, a terminal does not become the process's own
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(folder.join(&place.name));
        let file = opened.map_err(unopened)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(Unread::Irregular);
        }
        let (length, offset) = (found.len(), place.offset);
        let end = place.bytes.map_or(Some(length), |bytes| offset.checked_add(bytes));
        match end.filter(|end| (offset..=length).contains(end)) {
            Some(end) => Ok(Self { file, at: offset, end, piece: Vec::new() }),
            None => {
                let bytes = place.bytes.map_or_else(String::new, |bytes| format!(" with {bytes} bytes"));
                Err(Unread::Early(format!("it has {length} bytes, and the slice is to begin at {offset}{bytes}")))
            }
        }
    }

    /// Reads the next piece.
    fn next(mut self) -> Result<Self, Unread> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        self.piece.resize(left.min(PIECE), 0);
        self.file.read_exact_at(&mut self.piece, self.at).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Unread::Early(format!("it was cut below {} bytes while it was read", self.end)),
            _ => Unread::Failed(error),
        })?;
        self.at += self.piece.len() as u64;
        Ok(self)
    }
}

fn is_plain(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn unopened(error: io::Error) -> Unread {
    match error.raw_os_error() {
        Some(libc::ENOENT) => Unread::Missing,
        // a link, which the open flag refuses; a socket
        Some(libc::ELOOP | libc::ENXIO) => Unread::Irregular,
        _ => Unread::Failed(error),
    }
}

/// Runs work that may wait for a disk on a blocking thread, so that no other task waits for it.
async fn aside(work: impl FnOnce() -> Result<Source, Unread> + Send + 'static) -> Result<Source, Unread> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_between_two_pieces_ends_early() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slice");
        std::fs::write(&path, vec![7; 3 * PIECE]).unwrap();
        let place = |offset, bytes| Place { name: "slice".to_owned(), offset, bytes };
        let first = Source::open(folder.path(), &place(10, None)).unwrap().next().unwrap();
        assert_eq!((first.at, first.end, &*first.piece), ((PIECE + 10) as u64, 3 * PIECE as u64, &[7; PIECE][..]));
        File::options().write(true).open(&path).unwrap().set_len(2 * PIECE as u64).unwrap();
        let error = first.next().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the file ends early: it was cut below {} bytes while it was read", 3 * PIECE)
        );
        // and what was cut before it was opened is never begun
        let error = Source::open(folder.path(), &place(0, Some(3 * PIECE as u64))).unwrap_err();
        assert!(matches!(error, Unread::Early(_)), "{error}");
    }

    #[test]
    fn only_plain_names_are_looked_for() {
        let longest = "x".repeat(LONGEST_NAME);
        for name in ["slice-1", "a", "-", "_.", "A.b_c-9", &longest] {
            assert!(is_plain(name), "{name:?}");
        }
        let longer = "x".repeat(LONGEST_NAME + 1);
        for name in ["", ".", "..", ".hidden", "a/b", "/etc", "a\\b", "a b", "a\0", "é", "a\n", &longer] {
            assert!(!is_plain(name), "{name:?}");
        }
    }
}
