// SPDX-License-Identifier: Apache-2.0
//! The pictures that were decoded and are still in memory. An agent sends all pictures of its conversation in each call, so a picture is
//! found by a hash of its base64 text and compared with its bytes, which takes less time than its digest.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock, Weak};

use foldhash::quality::RandomState;
use parking_lot::Mutex;

use super::{Image, ImageDigest};

static RECENT: LazyLock<Recent> = LazyLock::new(Recent::default);

#[derive(Debug, Default)]
struct Recent {
    hasher: RandomState,
    // locked for one operation
    pictures: Mutex<Pictures>,
}

#[derive(Debug, Default)]
struct Pictures {
    /// By the hash of the base64 text.
    by_text: HashMap<u64, Weak<Image>, RandomState>,
    by_digest: HashMap<ImageDigest, Weak<Image>, RandomState>,
    /// The number of entries at which those of removed pictures are removed.
    full: usize,
}

/// The least number of entries at which those of removed pictures are removed.
const LEAST_FULL: usize = 1024;

/// The picture with this base64 text. `None` if the text is empty or is not base64.
pub(super) fn decode(encoded: &[u8]) -> Option<Arc<Image>> {
    let hash = RECENT.hasher.hash_one(encoded);
    let known = RECENT.pictures.lock().by_text.get(&hash).and_then(Weak::upgrade);
    if let Some(known) = known.filter(|known| known.is_written(encoded)) {
        return Some(known);
    }
    let bytes = base64_simd::STANDARD.decode_to_vec(encoded).ok().filter(|bytes| !bytes.is_empty())?;
    let image = Arc::new(Image::new(bytes.into()));
    let mut pictures = RECENT.pictures.lock();
    // another call may have decoded it meanwhile
    let image = pictures.known(image.digest).unwrap_or(image);
    pictures.insert(Some(hash), &image);
    Some(image)
}

/// Lets later calls find a picture that was not decoded, such as one of a log.
pub(super) fn remember(image: &Arc<Image>) {
    let mut pictures = RECENT.pictures.lock();
    if image.bytes.is_some() && pictures.known(image.digest).is_none() {
        pictures.insert(None, image);
    }
}

impl Pictures {
    fn known(&self, digest: ImageDigest) -> Option<Arc<Image>> {
        self.by_digest.get(&digest)?.upgrade()
    }

    fn insert(&mut self, hash: Option<u64>, image: &Arc<Image>) {
        if self.by_text.len() + self.by_digest.len() >= self.full {
            self.by_text.retain(|_, image| image.strong_count() > 0);
            self.by_digest.retain(|_, image| image.strong_count() > 0);
            self.full = LEAST_FULL.max(2 * (self.by_text.len() + self.by_digest.len()));
        }
        self.by_digest.insert(image.digest, Arc::downgrade(image));
        if let Some(hash) = hash {
            self.by_text.insert(hash, Arc::downgrade(image));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn text(bytes: &[u8]) -> String {
        base64_simd::STANDARD.encode_to_string(bytes)
    }

    #[test]
    fn picture_in_memory_is_decoded_once() {
        let long = vec![7; 100_000];
        let first = decode(text(&long).as_bytes()).unwrap();
        let again: Vec<_> = (0..4)
            .map(|_| {
                thread::spawn({
                    let text = text(&long);
                    move || decode(text.as_bytes()).unwrap()
                })
            })
            .collect();
        assert!(again.into_iter().all(|image| Arc::ptr_eq(&image.join().unwrap(), &first)));
        let other = decode(text(&[&long[1..], &[8]].concat()).as_bytes()).unwrap();
        assert_ne!(other.digest, first.digest);
        // a picture of a log
        let restored = Arc::new(Image::new(vec![9; 50_000].into()));
        remember(&restored);
        assert!(Arc::ptr_eq(&decode(text(&[9; 50_000]).as_bytes()).unwrap(), &restored));
        let removed = Arc::downgrade(&first);
        drop(first);
        assert!(removed.upgrade().is_none(), "the table keeps no picture");
        assert_eq!(*decode(text(&long).as_bytes()).unwrap().bytes.as_ref().unwrap(), long);
    }

    #[test]
    fn calls_that_decode_a_picture_at_the_same_time_share_it() {
        let text = text(&[5; 300_000]);
        let images: Vec<_> = thread::scope(|scope| {
            let decoding: Vec<_> = (0..8).map(|_| scope.spawn(|| decode(text.as_bytes()).unwrap())).collect();
            decoding.into_iter().map(|image| image.join().unwrap()).collect()
        });
        assert!(images.iter().all(|image| Arc::ptr_eq(image, &images[0])));
    }

    #[test]
    fn entries_of_removed_pictures_are_removed() {
        let mut pictures = Pictures::default();
        let mut kept = Vec::new();
        for number in 0..100_000_u64 {
            let image = Arc::new(Image::new(number.to_le_bytes().to_vec().into()));
            pictures.insert(Some(number), &image);
            kept.extend((number % 100 == 0).then_some(image));
        }
        for held in [pictures.by_text.len(), pictures.by_digest.len()] {
            assert!((1000..=2048).contains(&held), "{held}");
        }
        assert!(kept.iter().all(|image| pictures.known(image.digest).is_some()));
    }
}
