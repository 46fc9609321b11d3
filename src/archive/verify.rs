// SPDX-License-Identifier: Apache-2.0
//! Checks an archive.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::batch::{blob_name, sha256};
use super::manifest::{Blob, Manifest};
use super::{ArchiveError, Manifests, Storage, chains};
use crate::export::parquet_row_texts;

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verification {
    /// Manifests.
    pub manifests: u64,
    /// Data files.
    pub files: u64,
    /// Rows of the data files.
    pub rows: u64,
    /// Bytes of the data files and blobs.
    pub bytes: u64,
    /// Paths that were gone before they could be archived, as the manifests say.
    pub missed: u64,
    /// Objects that no manifest names. An archiver that was interrupted, or that was not the first one, leaves them.
    pub unused: u64,
    /// The problems, a line each.
    pub problems: Vec<String>,
}

/// The lengths of the blobs that were read, by name; `None` for one that does not exist. Many manifests may name one.
type Blobs = HashMap<String, Option<u64>>;

/// Reads all manifests, data files and blobs, each once. Data files are read one at a time. Calls `progress` after each manifest and its
/// files.
///
/// # Errors
/// When the archive cannot be read.
pub async fn verify(storage: &Storage, mut progress: impl FnMut(&Verification)) -> Result<Verification, ArchiveError> {
    let mut found = Verification::default();
    let (mut keys, mut used, mut blobs) = (HashSet::new(), HashSet::new(), Blobs::new());
    for chain in chains(storage).await? {
        let place = format!("store={}/part={}", chain.store, chain.part);
        let mut manifests = Manifests::list(storage, chain).await?;
        loop {
            let manifest = match manifests.next().await {
                Ok(Some((manifest, problem))) => {
                    found.problems.extend(problem.map(|problem| format!("{place}: {problem}")));
                    manifest
                }
                Ok(None) => break,
                Err(error @ (ArchiveError::Manifest { .. } | ArchiveError::OtherVersion { .. })) => {
                    found.problems.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            found.manifests += 1;
            found.missed += manifest.missed_paths();
            check_files(storage, &manifest, &mut found, &mut keys).await?;
            for blob in &manifest.blobs {
                check_blob(storage, blob, &mut found, &mut blobs).await?;
            }
            used.extend(manifest.files.iter().map(|file| file.path.clone()));
            progress(&found);
        }
    }
    for folder in ["data", "blobs"] {
        let names = storage.names(folder).await?;
        found.unused += names.iter().filter(|name| !used.contains(*name) && !blobs.contains_key(*name)).count() as u64;
    }
    Ok(found)
}

async fn check_files(
    storage: &Storage,
    manifest: &Manifest,
    found: &mut Verification,
    keys: &mut HashSet<u128>,
) -> Result<(), ArchiveError> {
    let sum: u64 = manifest.files.iter().map(|file| file.rows).sum();
    if sum != manifest.rows {
        found.problems.push(format!("{}: rows is {}, and the files have {sum}", manifest.name(), manifest.rows));
    }
    for file in &manifest.files {
        found.files += 1;
        let Some(content) = storage.get(&file.path).await? else {
            found.problems.push(format!("{}: does not exist; {} names it", file.path, manifest.name()));
            continue;
        };
        found.bytes += content.len() as u64;
        let stem = file.path.rsplit('/').next().and_then(|name| name.strip_suffix(".parquet"));
        if stem != Some(&*sha256(&content)) {
            found.problems.push(format!("{}: the content has another hash", file.path));
        }
        if content.len() as u64 != file.bytes {
            found.problems.push(format!("{}: {} bytes instead of {}", file.path, content.len(), file.bytes));
        }
        // decoding a file takes long
        let texts = tokio::task::spawn_blocking(move || parquet_row_texts(content)).await;
        let (rows, images) = match texts {
            Ok(Ok(texts)) => (texts.keys, texts.images),
            Ok(Err(error)) => {
                found.problems.push(format!("{}: {error}", file.path));
                continue;
            }
            Err(error) => {
                found.problems.push(format!("{}: {error}", file.path));
                continue;
            }
        };
        found.rows += rows.len() as u64;
        if rows.len() as u64 != file.rows {
            found.problems.push(format!("{}: {} rows instead of {}", file.path, rows.len(), file.rows));
        }
        let range = (rows.iter().min(), rows.iter().max());
        if range != (Some(&file.min_row_key), Some(&file.max_row_key)) {
            found.problems.push(format!("{}: the row keys are outside the range in the manifest", file.path));
        }
        let named: HashSet<&str> = manifest.blobs.iter().map(|blob| &*blob.sha256).collect();
        let images: BTreeSet<String> = images.into_iter().collect();
        for sha256 in images.iter().filter(|image| !named.contains(&***image)) {
            let problem = format!("{}: picture {sha256} is not among the blobs of the manifest", file.path);
            found.problems.push(problem);
        }
        for key in rows {
            if u128::from_str_radix(&key, 16).is_ok_and(|key| !keys.insert(key)) {
                found.problems.push(format!("{}: row_key {key} is archived twice", file.path));
            }
        }
    }
    Ok(())
}

async fn check_blob(
    storage: &Storage,
    blob: &Blob,
    found: &mut Verification,
    blobs: &mut Blobs,
) -> Result<(), ArchiveError> {
    let name = blob_name(&blob.sha256);
    let length = match blobs.get(&name) {
        Some(length) => *length,
        None => {
            let content = storage.get(&name).await?;
            match &content {
                None => found.problems.push(format!("{name}: does not exist")),
                Some(content) if blob_name(&sha256(content)) != name => {
                    found.problems.push(format!("{name}: the content has another hash"));
                }
                Some(_) => {}
            }
            let length = content.map(|content| content.len() as u64);
            found.bytes += length.unwrap_or(0);
            blobs.insert(name.clone(), length);
            length
        }
    };
    if let Some(length) = length.filter(|length| *length != blob.bytes) {
        found.problems.push(format!("{name}: {length} bytes instead of {}", blob.bytes));
    }
    Ok(())
}
