// SPDX-License-Identifier: Apache-2.0
//! Chains of manifests: where an archiver continues, and how it adds a range.

use std::collections::VecDeque;

use super::manifest::{Manifest, folder, name};
use super::{ArchiveError, FinishedSource, Position, Storage};

/// The name of a chain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainName {
    /// The id of the store.
    pub store: String,
    /// The partition, and the generation if it is not the first: `0`, `0.1`.
    pub part: String,
}

/// The end of a chain, to which an archiver adds manifests.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    pub(super) name: ChainName,
    /// The position after which the next manifest begins.
    pub(super) position: Position,
    /// Whether it has a manifest.
    pub(super) has_begun: bool,
}

/// The outcome of an attempt to add a manifest to a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AddOutcome {
    /// This manifest.
    Own,
    /// The manifest of another archiver.
    Other(Box<Manifest>),
}

impl Chain {
    /// Finds the end of a partition's latest chain.
    ///
    /// A source that lost positions gives them to other paths. Then its chain ends, and a chain of the next generation begins where the
    /// source was when it was opened.
    pub(super) async fn open<S: FinishedSource>(
        storage: &Storage,
        source: &S,
        partition: u32,
    ) -> Result<Self, ArchiveError> {
        let store = source.store_id();
        let mut generation = 0;
        for folder in storage.folders(&format!("manifest/store={store}")).await? {
            let part = folder.strip_prefix("part=").and_then(parse_part);
            if let Some((_, found)) = part.filter(|(own, _)| *own == partition) {
                generation = found.max(generation);
            }
        }
        let name = ChainName { store: store.clone(), part: format_part(partition, generation) };
        let mut chain = Self { name, position: source.start(), has_begun: false };
        chain.follow(storage).await?;
        if !chain.has_begun {
            check_other_stores(storage, &store).await?;
        }
        let recovered = source.recovered(partition).filter(|recovered| chain.has_begun && chain.position > *recovered);
        if let Some(recovered) = recovered {
            tracing::warn!(
                archived = %chain.position,
                restored = %recovered,
                "the log lost paths that are archived; the archive continues with a new chain"
            );
            let part = format_part(partition, generation + 1);
            chain = Self { name: ChainName { store, part }, position: recovered, has_begun: false };
        }
        Ok(chain)
    }

    /// Moves the end after all manifests of the chain.
    pub(super) async fn follow(&mut self, storage: &Storage) -> Result<(), ArchiveError> {
        if let Some(last) = storage.names(&folder(&self.name.store, &self.name.part)).await?.pop() {
            let manifest = read(storage, &last).await?.ok_or_else(|| vanished(&last))?;
            self.pass(&manifest);
            // a listing may lack manifests that were added lately
            while let Some(manifest) = self.next(storage).await? {
                self.pass(&manifest);
            }
        }
        Ok(())
    }

    /// The manifest after the end, if another archiver has added one.
    pub(super) async fn next(&self, storage: &Storage) -> Result<Option<Manifest>, ArchiveError> {
        read(storage, &name(&self.name.store, &self.name.part, &self.position)).await
    }

    /// Moves the end after this manifest.
    pub(super) fn pass(&mut self, manifest: &Manifest) {
        self.position = manifest.last.clone();
        self.has_begun = true;
    }

    /// Adds a manifest whose data files are stored, unless the chain has another one in its place.
    ///
    /// # Errors
    /// When the outcome is unknown. The caller tries again with the same manifest.
    pub(super) async fn add(storage: &Storage, manifest: &Manifest) -> Result<AddOutcome, ArchiveError> {
        let (name, content) = (manifest.name(), manifest.to_bytes());
        let refusal = match storage.create(&name, content.clone()).await {
            Ok(true) => return Ok(AddOutcome::Own),
            Ok(false) => None,
            Err(error) => Some(error),
        };
        // the answer to a put that was carried out may be lost, and a repeated put is refused then
        match storage.get(&name).await? {
            Some(found) if found == content => Ok(AddOutcome::Own),
            Some(found) => Ok(AddOutcome::Other(Box::new(Manifest::read(&name, &found)?))),
            None => Err(refusal.unwrap_or_else(|| vanished(&name))),
        }
    }
}

/// How many other stores are compared before a chain begins. An archive has manifests of one version, so one would do if no manifest is damaged.
const OTHER_STORES: usize = 4;

/// Refuses to add a chain to an archive of another version: the readers of both builds would refuse the whole archive then.
async fn check_other_stores(storage: &Storage, store: &str) -> Result<(), ArchiveError> {
    let own = format!("store={store}");
    let mut compared = 0;
    for store in storage.folders("manifest").await?.into_iter().filter(|folder| *folder != own) {
        let Some(part) = storage.folders(&format!("manifest/{store}")).await?.pop() else { continue };
        let Some(last) = storage.names(&format!("manifest/{store}/{part}")).await?.pop() else { continue };
        match read(storage, &last).await {
            Ok(_) => compared += 1,
            // a damaged one has no version
            Err(ArchiveError::Manifest { .. }) => {}
            Err(error) => return Err(error),
        }
        if compared == OTHER_STORES {
            break;
        }
    }
    Ok(())
}

/// All chains of an archive.
///
/// # Errors
/// When the archive cannot be read.
pub async fn chains(storage: &Storage) -> Result<Vec<ChainName>, ArchiveError> {
    let mut found = Vec::new();
    for store in storage.folders("manifest").await? {
        for part in storage.folders(&format!("manifest/{store}")).await? {
            if let (Some(store), Some(part)) = (store.strip_prefix("store="), part.strip_prefix("part=")) {
                found.push(ChainName { store: store.to_owned(), part: part.to_owned() });
            }
        }
    }
    Ok(found)
}

/// Reads the manifests of a chain in order.
#[derive(Debug)]
pub struct Manifests<'a> {
    storage: &'a Storage,
    chain: ChainName,
    /// The names that a listing had.
    listed: VecDeque<String>,
    /// The end of the last manifest that was read.
    end: Option<Position>,
}

impl<'a> Manifests<'a> {
    /// Lists the manifests of a chain.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub async fn list(storage: &'a Storage, chain: ChainName) -> Result<Self, ArchiveError> {
        let names = storage.names(&folder(&chain.store, &chain.part)).await?;
        let listed = names.into_iter().filter(|name| name.ends_with(".json")).collect();
        Ok(Self { storage, chain, listed, end: None })
    }

    /// The next manifest, and the problem of its place in the chain, if it has one. `None` at the end.
    ///
    /// # Errors
    /// When the archive cannot be read, or the object is not a manifest; the next one can still be read.
    pub async fn next(&mut self) -> Result<Option<(Manifest, Option<String>)>, ArchiveError> {
        let end = self.end.take();
        // a listing that was read while manifests were added may lack one
        let following = end.as_ref().map(|end| name(&self.chain.store, &self.chain.part, end));
        if let Some(following) = following.filter(|following| self.listed.front().is_some_and(|next| next > following))
        {
            self.listed.push_front(following);
        }
        while let Some(name) = self.listed.pop_front() {
            if let Some(manifest) = read(self.storage, &name).await? {
                let problem = problem(end.as_ref(), &manifest);
                self.end = Some(manifest.last.clone());
                return Ok(Some((manifest, problem)));
            }
        }
        Ok(None)
    }
}

/// The problem of the place of a manifest, if it does not follow the end of the previous one.
fn problem(end: Option<&Position>, manifest: &Manifest) -> Option<String> {
    let Manifest { after, begins, .. } = manifest;
    match end {
        None if *begins => None,
        None => Some(format!("the manifests up to {after} are missing")),
        Some(end) if end == after && !begins => None,
        Some(end) if end < after => Some(format!("a gap between {end} and {after}")),
        Some(end) => Some(format!("the manifest after {after} overlaps the one that ends at {end}")),
    }
}

/// Reads the manifest with this name; `None` if it does not exist.
///
/// # Errors
/// When the archive cannot be read, or the object is not a manifest.
pub(super) async fn read(storage: &Storage, name: &str) -> Result<Option<Manifest>, ArchiveError> {
    storage.get(name).await?.map(|content| Manifest::read(name, &content)).transpose()
}

/// An object exists for one request and does not for the next one.
fn vanished(name: &str) -> ArchiveError {
    ArchiveError::Manifest { name: name.to_owned(), cause: "it was listed and cannot be read".to_owned() }
}

fn format_part(partition: u32, generation: u32) -> String {
    if generation == 0 { partition.to_string() } else { format!("{partition}.{generation}") }
}

fn parse_part(text: &str) -> Option<(u32, u32)> {
    let (partition, generation) = text.split_once('.').unwrap_or((text, "0"));
    Some((partition.parse().ok()?, generation.parse().ok()?))
}
