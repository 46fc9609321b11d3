//! The pictures that were decoded and are still in memory. An agent sends all pictures of its conversation in each call, so a picture is
//! found by a hash of its base64 text and compared with its bytes, which takes less time than its digest.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock, Weak};

use foldhash::quality::RandomState;
use parking_lot::Mutex;

use super::Image;

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
    RECENT.pictures.lock().insert(hash, &image);
    Some(image)
}

impl Pictures {
    fn insert(&mut self, hash: u64, image: &Arc<Image>) {
        if self.by_text.len() >= self.full {
            self.by_text.retain(|_, image| image.strong_count() > 0);
            self.full = LEAST_FULL.max(2 * self.by_text.len());
        }
        self.by_text.insert(hash, Arc::downgrade(image));
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
        let removed = Arc::downgrade(&first);
        drop(first);
        assert!(removed.upgrade().is_none(), "the table keeps no picture");
        assert_eq!(*decode(text(&long).as_bytes()).unwrap().bytes.as_ref().unwrap(), long);
    }

    #[test]
    fn entries_of_removed_pictures_are_removed() {
        let mut pictures = Pictures::default();
        let kept = Arc::new(Image::new(b"kept"[..].into()));
        for hash in 0..100_000 {
            let image = Arc::new(Image::new(b"removed"[..].into()));
            pictures.insert(hash, if hash % 100 == 0 { &kept } else { &image });
        }
        assert!((1000..=2048).contains(&pictures.by_text.len()), "{}", pictures.by_text.len());
        assert_eq!(pictures.by_text.values().filter(|image| image.strong_count() > 0).count(), 1000);
    }
}
