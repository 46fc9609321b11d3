// SPDX-License-Identifier: Apache-2.0
//! What a process knows of the pictures of a shared session in the ledger: which are stored, and which were not read.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::images::{Image, ImageDigest};
use crate::session::ledger::ImageKey;
use crate::session::turn::SessionImages;
use crate::session::{Turn, TurnImage};

/// The time after which the ledger is asked again for pictures that it lacked. Another process may be about to store them, so the first
/// times are shorter, from [`FIRST_RETRY`] on.
pub(super) const RETRY: Duration = Duration::from_secs(60);
pub(super) const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Pictures that the ledger lacks are no longer expected once the time between two requests has grown to this: after 15 seconds.
pub(super) const EXPECTED: Duration = Duration::from_secs(16);

/// How long paths wait at most for pictures that can be neither stored nor read.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Pictures that one command names.
pub(super) const AT_ONCE: usize = 256;

/// Bytes of pictures after which one command reads no more of them.
const READ_AT_ONCE: u64 = 4 << 20;

/// What this process knows of the pictures of a session in the ledger.
#[derive(Debug, Default)]
pub(super) struct ImageSync {
    /// When the ledger stored, or refused, all pictures that the session had in memory, and the suspicion at that time.
    shared: Option<(Instant, u64)>,
    /// The ledger may lack pictures, because it failed or they are large. They are stored later, and the session stays in memory until
    /// then.
    pub(super) is_failed: bool,
    /// The turns whose paths are to be finished once the pictures are settled: those before this number.
    pub(super) finish_due: Option<u32>,
    /// Since when these paths wait.
    waiting_since: Option<Instant>,
    /// The pictures of which the session has only references.
    unread: BTreeMap<ImageDigest, UnreadImage>,
    /// When the ledger was asked for all of these, and how long it is not asked again.
    asked: Option<(Instant, Duration)>,
}

/// A picture whose bytes were not read.
#[derive(Debug)]
struct UnreadImage {
    reference: Arc<Image>,
    /// The turns that have it.
    turns: Vec<u32>,
}

impl ImageSync {
    /// Notes the pictures of a turn whose bytes are not known.
    pub(super) fn note_references(&mut self, turn: &Turn, known: &SessionImages) {
        for TurnImage { image, .. } in turn.about.images.iter().flat_map(|images| &images.list) {
            if image.bytes.is_none() && !known.contains_key(&image.digest) {
                let unread = || UnreadImage { reference: Arc::clone(image), turns: Vec::new() };
                self.unread.entry(image.digest).or_insert_with(unread).turns.push(turn.id);
                self.asked = None;
                // others may have marked it as used long ago
                self.forget_shared();
            }
        }
    }

    /// Whether the ledger stored, or refused, all pictures in memory within this time, and has not been suspected since.
    pub(super) fn is_shared(&self, within: Duration, suspicion: u64) -> bool {
        self.shared.is_some_and(|(at, before)| at.elapsed() < within && before == suspicion)
    }

    /// Notes that the ledger stored, or refused, all pictures in memory.
    pub(super) fn note_shared(&mut self, suspicion: u64) {
        self.shared = Some((Instant::now(), suspicion));
    }

    /// Pictures in memory may not be in the ledger.
    pub(super) fn forget_shared(&mut self) {
        self.shared = None;
    }

    /// The pictures of which the session has only references.
    pub(super) fn unread(&self) -> impl Iterator<Item = &Arc<Image>> {
        self.unread.values().map(|unread| &unread.reference)
    }

    /// Whether the session has only a reference of this picture.
    pub(super) fn is_unread(&self, digest: ImageDigest) -> bool {
        self.unread.contains_key(&digest)
    }

    /// Notes that a picture was read. Returns the turns that had only a reference of it.
    pub(super) fn take_unread(&mut self, digest: ImageDigest) -> Vec<u32> {
        self.unread.remove(&digest).map_or_else(Vec::new, |unread| unread.turns)
    }

    /// Notes that the ledger lacks the pictures that were not read. Returns their number.
    pub(super) fn note_absent(&mut self) -> u64 {
        let pause = self.asked.map_or(FIRST_RETRY, |(_, pause)| (2 * pause).min(RETRY));
        self.asked = Some((Instant::now(), pause));
        self.unread.len() as u64
    }

    /// Whether the ledger has bytes that are not read, as far as is known.
    pub(super) fn has_unread(&self) -> bool {
        !self.unread.is_empty() && self.asked.is_none_or(|(asked, pause)| asked.elapsed() >= pause)
    }

    /// Whether the pictures are stored, as far as this process has them, and no other process is expected to store further ones. Paths are
    /// finished after that: an archiver excludes a path that lacks a picture, and does not look at it again. They do not wait for ever.
    pub(super) fn is_settled(&mut self) -> bool {
        let is_expected = || self.asked.is_none_or(|(_, pause)| pause < EXPECTED);
        if !self.is_failed && (self.unread.is_empty() || !is_expected()) {
            self.waiting_since = None;
            return true;
        }
        self.waiting_since.get_or_insert_with(Instant::now).elapsed() >= LONGEST_WAIT
    }

    /// The pictures that one command reads next: those after a digest, at least one.
    pub(super) fn next_unread(&self, after: Option<ImageDigest>) -> Vec<ImageKey> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut bytes = 0_u64;
        let unread = self.unread.range((from, Bound::Unbounded)).map(|(_, unread)| key(&unread.reference));
        let next = unread.take_while(|image| {
            let is_next = bytes < READ_AT_ONCE;
            bytes = bytes.saturating_add(image.size);
            is_next
        });
        next.take(AT_ONCE).collect()
    }
}

pub(super) fn key(image: &Image) -> ImageKey {
    ImageKey { digest: image.digest, size: image.size }
}
