// SPDX-License-Identifier: Apache-2.0
//! The entries of one manifest: collected, then encoded as data files.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::chain::Chain;
use super::manifest::{ARCHIVE_VERSION, Blob, DataFile, Manifest, MissedPaths};
use super::{Content, Entry, Position};
use crate::export::{Annotate, SCHEMA_VERSION, parquet_file, row_key, verdict};
use crate::images::ImageDigest;
use crate::session::Path;

/// Entries of one batch. It bounds the size of a manifest.
const MOST_ENTRIES: usize = 65_536;

/// Extras above this size, in bytes of JSON, are stored as blobs.
pub(super) const LARGE_EXTRAS: usize = 32 << 10;

/// Entries that wait to be archived. The turns of a session that is evicted meanwhile stay in memory, so that its paths are not missed.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<Entry>,
    bytes: u64,
    /// The pictures of the entries, whose bytes count once.
    images: HashSet<ImageDigest>,
    /// When the first of them finished, at the earliest.
    pub(super) since: Option<Instant>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds this number of bytes, or as many entries as a batch may have.
    pub(super) fn is_full(&self, bytes: u64) -> bool {
        self.bytes >= bytes || self.entries.len() >= MOST_ENTRIES
    }

    /// The position of the last entry.
    pub(super) fn end(&self) -> Option<&Position> {
        self.entries.last().map(|entry| &entry.position)
    }

    /// Adds entries until the batch is full. Drops the others, which the source still has.
    pub(super) fn add(&mut self, entries: Vec<Entry>, bytes: u64) {
        for entry in entries {
            if self.is_full(bytes) {
                return;
            }
            if let Content::Path(path) = &entry.content {
                self.bytes += path.steps.iter().map(|step| step.turn.bytes()).sum::<u64>();
                // a reference takes no memory, and its size is what an entry says
                let held =
                    path.images().filter_map(|image| Some((image.image.digest, image.image.bytes.as_ref()?.len())));
                let new = held.filter(|(digest, _)| self.images.insert(*digest));
                self.bytes += new.map(|(_, bytes)| bytes as u64).sum::<u64>();
            }
            self.entries.push(entry);
        }
    }

    /// Replaces paths by their present state, which may have a reward. A path that is gone since stays as it was.
    pub(super) fn refresh(&mut self, entries: Vec<Entry>) {
        let mut present: HashMap<Position, Content> =
            entries.into_iter().map(|entry| (entry.position, entry.content)).collect();
        for entry in &mut self.entries {
            match present.remove(&entry.position) {
                Some(content @ Content::Path(_)) if matches!(entry.content, Content::Path(_)) => {
                    entry.content = content
                }
                _ => {}
            }
        }
    }
}

/// The objects of a range.
#[derive(Debug)]
pub(super) struct EncodedBatch {
    pub(super) manifest: Manifest,
    /// The names and contents of the data files and blobs.
    pub(super) objects: Vec<(String, Bytes)>,
}

/// Encodes a batch as the range after the end of `chain`. Takes long: not for a task.
pub(super) fn encode(batch: Batch, chain: &Chain, annotate: &Annotate) -> Option<EncodedBatch> {
    let last = batch.end()?.clone();
    let mut by_label: BTreeMap<Option<Arc<str>>, Vec<Path>> = BTreeMap::new();
    let mut excluded: BTreeMap<String, u64> = BTreeMap::new();
    let mut missed: Vec<MissedPaths> = Vec::new();
    let mut blobs = Blobs::default();
    for Entry { position, content } in batch.entries {
        match content {
            Content::Path(path) => match verdict(&path) {
                Ok(()) => {
                    blobs.add_images(&path);
                    by_label.entry(policy_label(&path)).or_default().push(blobs.move_large_extras(path));
                }
                Err(reason) => *excluded.entry(reason.to_owned()).or_default() += 1,
            },
            Content::Excluded(reason) => *excluded.entry(reason.to_owned()).or_default() += 1,
            Content::Missed { count, reason, session } => {
                let session = session.map(|session| session.to_string());
                missed.push(MissedPaths { last: position, count, reason: reason.to_owned(), session });
            }
        }
    }
    let mut objects: Vec<(String, Bytes)> = Vec::new();
    let mut files = Vec::new();
    for (label, paths) in by_label {
        let mut keys: Vec<String> = paths.iter().map(row_key).collect();
        keys.sort_unstable();
        let content = parquet_file(paths, Some(Arc::clone(annotate)));
        let folder = label_folder(label.as_deref());
        let file = DataFile {
            path: format!("data/policy_label={folder}/{}.parquet", sha256(&content)),
            policy_label: label.map(|label| label.to_string()),
            rows: keys.len() as u64,
            bytes: content.len() as u64,
            min_row_key: keys.first().cloned().unwrap_or_default(),
            max_row_key: keys.pop().unwrap_or_default(),
        };
        objects.push((file.path.clone(), content.into()));
        files.push(file);
    }
    let rows = files.iter().map(|file| file.rows).sum();
    let names = blobs.0.iter().map(|(sha256, content)| Blob { sha256: sha256.clone(), bytes: content.len() as u64 });
    let manifest = Manifest {
        archive_version: ARCHIVE_VERSION,
        store: chain.name.store.clone(),
        part: chain.name.part.clone(),
        begins: !chain.has_begun,
        after: chain.position.clone(),
        last,
        schema_version: SCHEMA_VERSION,
        tokentap_version: env!("CARGO_PKG_VERSION").to_owned(),
        rows,
        files,
        blobs: names.collect(),
        excluded,
        missed,
    };
    objects.extend(blobs.0.into_iter().map(|(sha256, content)| (blob_name(&sha256), content)));
    Some(EncodedBatch { manifest, objects })
}

/// The label of the policy that sampled the end of a path: the trainer's version, else the engine's.
fn policy_label(path: &Path) -> Option<Arc<str>> {
    let span = path.steps.iter().rev().find_map(|step| step.turn.about.policy.last())?;
    let label = span.version.as_deref().or(span.weight_version.as_deref())?;
    Some(label.into())
}

/// The name of a label's folder. A label with other characters than those of file names gets a part of its hash, so that two labels have
/// two folders.
fn label_folder(label: Option<&str>) -> String {
    let Some(label) = label else { return "none".to_owned() };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let plain: String = label.chars().take(64).map(|c| if is_plain(c) { c } else { '_' }).collect();
    if plain == label && !plain.starts_with('.') && !plain.is_empty() {
        return plain;
    }
    format!("_{plain}-{}", &sha256(label.as_bytes())[..12])
}

/// The name of a blob below the archive's prefix.
pub(super) fn blob_name(sha256: &str) -> String {
    format!("blobs/{sha256}")
}

/// The SHA-256 in hexadecimal digits.
pub(super) fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::with_capacity(64), |mut text, byte| {
        // writing to a String cannot fail
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The contents of blobs by their hashes.
#[derive(Debug, Default)]
struct Blobs(BTreeMap<String, Bytes>);

impl Blobs {
    /// Adds the pictures of a path, whose bytes are known. Its row has their digests.
    fn add_images(&mut self, path: &Path) {
        for image in path.images().map(|image| image.image) {
            let bytes = || image.bytes.clone().expect("the verdict of the path is that it has all pictures");
            self.0.entry(image.digest.to_string()).or_insert_with(bytes);
        }
    }

    /// Replaces each large member of the extras by an object that names a blob with its JSON.
    fn move_large_extras(&mut self, mut path: Path) -> Path {
        for step in &mut path.steps {
            let is_large = |value: &str| value.len() > LARGE_EXTRAS;
            let large: BTreeSet<Box<str>> = step
                .turn
                .about
                .extras
                .iter()
                .filter(|(_, value)| is_large(value))
                .map(|(name, _)| name.clone())
                .collect();
            if large.is_empty() {
                continue;
            }
            let mut turn = (*step.turn).clone();
            for name in large {
                let Some(value) = turn.about.extras.get_mut(&name) else { continue };
                let (hash, bytes) = (sha256(value.as_bytes()), value.len());
                self.0.entry(hash.clone()).or_insert_with(|| Bytes::copy_from_slice(value.as_bytes()));
                *value = format!(r#"{{"blob_sha256":"{hash}","bytes":{bytes}}}"#).into();
            }
            step.turn = Arc::new(turn);
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_folders_of_their_own() {
        assert_eq!(label_folder(Some("step-10.a_b")), "step-10.a_b");
        assert_eq!(label_folder(None), "none");
        let folders: BTreeSet<String> = ["a/b", "a_b", "a:b", "..", "", &"x".repeat(65), &"x".repeat(66)]
            .map(|label| label_folder(Some(label)))
            .into();
        assert_eq!(folders.len(), 7, "{folders:?}");
        assert!(folders.iter().all(|folder| !folder.contains('/') && !folder.starts_with('.')), "{folders:?}");
    }
}
