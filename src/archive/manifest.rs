// SPDX-License-Identifier: Apache-2.0
//! A manifest: the list of data files of one range of finished paths. Storing it adds the range to the archive.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{ArchiveError, Position};

/// The version of the layout of the archive and of the members of manifests. It rises when a reader must change.
pub(super) const ARCHIVE_VERSION: u32 = 1;

/// The data files of the range of positions after `after`, up to and including `last`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the archive's layout.
    pub archive_version: u32,
    /// The id of the store.
    pub store: String,
    /// The partition, and the generation of its chain.
    pub part: String,
    /// Whether it is the first manifest of its chain.
    pub begins: bool,
    /// The `last` of the manifest before.
    pub after: Position,
    /// The last position of the range.
    pub last: Position,
    /// The version of the schema of the data files.
    pub schema_version: i64,
    /// The version of tokentap that wrote the files.
    pub tokentap_version: String,
    /// The rows of all files.
    pub rows: u64,
    /// The data files.
    pub files: Vec<DataFile>,
    /// The large extras and the pictures, which are stored as blobs.
    pub blobs: Vec<Blob>,
    /// The numbers of paths that are not rows, by reason.
    pub excluded: BTreeMap<String, u64>,
    /// Paths that were gone before they could be archived.
    pub missed: Vec<MissedPaths>,
}

/// The member that manifests of all versions have.
#[derive(Deserialize)]
struct Versioned {
    archive_version: u64,
}

/// A Parquet file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFile {
    /// Its name below the archive's prefix. The last component is the SHA-256 of its content.
    pub path: String,
    /// The label of the policy that sampled the ends of its rows.
    pub policy_label: Option<String>,
    /// The number of its rows.
    pub rows: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The lowest `row_key`.
    pub min_row_key: String,
    /// The highest `row_key`.
    pub max_row_key: String,
}

/// A large member of a turn's extras, or a picture.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Blob {
    /// The SHA-256 of the content, which is the name below `blobs/`.
    pub sha256: String,
    /// The size in bytes.
    pub bytes: u64,
}

/// Paths that the source no longer had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissedPaths {
    /// The position of the last one.
    pub last: Position,
    /// Their number; `None` if it is unknown.
    pub count: Option<u64>,
    /// `evicted`, `deleted`, `unlisted` or `unreadable`.
    pub reason: String,
    /// Their session, if it is known.
    pub session: Option<String>,
}

impl Manifest {
    /// The name below the archive's prefix.
    #[must_use]
    pub fn name(&self) -> String {
        name(&self.store, &self.part, &self.after)
    }

    /// The number of missed paths, as far as it is known.
    #[must_use]
    pub fn missed_paths(&self) -> u64 {
        self.missed.iter().filter_map(|missed| missed.count).sum()
    }

    /// The bytes of the data files and blobs.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let files: u64 = self.files.iter().map(|file| file.bytes).sum();
        files + self.blobs.iter().map(|blob| blob.bytes).sum::<u64>()
    }

    /// The content of the object.
    pub(super) fn to_bytes(&self) -> Bytes {
        let mut text = serde_json::to_vec_pretty(self).expect("a manifest has only texts and numbers");
        text.push(b'\n');
        text.into()
    }

    /// Reads the object with this name.
    pub(super) fn read(name: &str, content: &[u8]) -> Result<Self, ArchiveError> {
        let broken = |cause: String| ArchiveError::Manifest { name: name.to_owned(), cause };
        // another version may have other members
        if let Ok(Versioned { archive_version: found }) = serde_json::from_slice(content)
            && found != u64::from(ARCHIVE_VERSION)
        {
            return Err(ArchiveError::OtherVersion { name: name.to_owned(), found });
        }
        let manifest: Self = serde_json::from_slice(content).map_err(|error| broken(error.to_string()))?;
        if manifest.name() != name {
            return Err(broken(format!("its members give it the name {}", manifest.name())));
        }
        if manifest.last <= manifest.after {
            return Err(broken(format!("it ends at {}, where it begins", manifest.last)));
        }
        Ok(manifest)
    }
}

/// The name of the manifest after this position.
pub(super) fn name(store: &str, part: &str, after: &Position) -> String {
    format!("{}/{after}.json", folder(store, part))
}

/// The folder of a chain.
pub(super) fn folder(store: &str, part: &str) -> String {
    format!("manifest/store={store}/part={part}")
}
