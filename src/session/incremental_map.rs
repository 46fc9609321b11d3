//! A hash map that grows by one bucket at a time, so that no insertion moves more than the entries of one bucket.
//!
//! A `HashMap` moves all entries when it grows. For the index of a session with a million turns that takes more than 100 ms, while the
//! session is locked. This map is linear hashing: buckets are split in order, one split for each [`BUCKET`] insertions.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};

/// The average number of entries of a bucket.
const BUCKET: usize = 1024;

/// The map.
#[derive(Debug)]
pub(super) struct IncrementalMap<K, V> {
    /// The first bucket, and the only one of a small map.
    first: HashMap<K, V>,
    rest: Vec<HashMap<K, V>>,
    length: usize,
    /// Selects the bucket.
    hasher: RandomState,
}

impl<K, V> Default for IncrementalMap<K, V> {
    fn default() -> Self {
        Self { first: HashMap::new(), rest: Vec::new(), length: 0, hasher: RandomState::new() }
    }
}

impl<K: Hash + Eq, V> IncrementalMap<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        match self.bucket(key) {
            0 => self.first.get(key),
            at => self.rest[at - 1].get(key),
        }
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// Sets the value of a key. Returns the value that it replaces.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let at = self.bucket(&key);
        let replaced = self.at(at).insert(key, value);
        if replaced.is_none() {
            self.length += 1;
            self.grow();
        }
        replaced
    }

    /// The value of a key, which is `new` if the map does not have it.
    pub(super) fn get_or_insert(&mut self, key: K, new: V) -> &mut V
    where
        K: Clone,
    {
        if !self.contains(&key) {
            self.insert(key.clone(), new);
        }
        let at = self.bucket(&key);
        self.at(at).get_mut(&key).expect("it was inserted before")
    }

    fn at(&mut self, bucket: usize) -> &mut HashMap<K, V> {
        match bucket {
            0 => &mut self.first,
            at => &mut self.rest[at - 1],
        }
    }

    /// The bucket of a key. Buckets below the next one to split are selected by one more bit of the hash.
    fn bucket(&self, key: &K) -> usize {
        let buckets = 1 + self.rest.len();
        if buckets == 1 {
            return 0;
        }
        let hash = self.hasher.hash_one(key) as usize;
        let wide = buckets.next_power_of_two();
        let at = hash & (wide - 1);
        if at < buckets { at } else { hash & (wide / 2 - 1) }
    }

    /// Splits a bucket if the buckets are full on average.
    fn grow(&mut self) {
        let buckets = 1 + self.rest.len();
        if self.length <= buckets * BUCKET {
            return;
        }
        let split = buckets - (buckets + 1).next_power_of_two() / 2;
        let entries = std::mem::take(self.at(split));
        self.rest.push(HashMap::new());
        for (key, value) in entries {
            let at = self.bucket(&key);
            self.at(at).insert(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(map: &IncrementalMap<u32, u32>) -> usize {
        map.rest.iter().chain([&map.first]).map(HashMap::len).max().expect("there is a first bucket")
    }

    #[test]
    fn entries_are_found_while_the_map_grows() {
        let mut map = IncrementalMap::default();
        for key in 0..20_000_u32 {
            assert_eq!(map.insert(key, key), None);
            assert_eq!(map.get(&(key / 2)), Some(&(key / 2)));
            assert!(!map.contains(&(key + 1)));
        }
        assert_eq!(map.insert(7, 8), Some(7));
        *map.get_or_insert(7, 0) += 1;
        *map.get_or_insert(20_000, 3) += 1;
        assert_eq!((map.get(&7), map.get(&20_000), map.length), (Some(&9), Some(&4), 20_001));
        assert!((0..20_000).all(|key| map.contains(&key)));
    }

    #[test]
    fn an_insertion_splits_at_most_one_bucket() {
        let mut map = IncrementalMap::default();
        for key in 0..50 * BUCKET as u32 {
            let buckets = map.rest.len();
            map.insert(key, key);
            assert!(map.rest.len() <= buckets + 1);
        }
        // an average of one bucket, and twice that before its turn to be split
        assert!(longest(&map) < 3 * BUCKET, "{} entries", longest(&map));
    }
}
