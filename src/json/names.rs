// SPDX-License-Identifier: Apache-2.0
//! Sets of member names.

use super::Text;

/// A set of names. A [`hash`] of the key excludes most other members without a comparison.
#[derive(Debug)]
pub(crate) struct Names<const N: usize> {
    names: [&'static str; N],
    /// A bit for the hash of each name.
    hashes: u64,
}

impl<const N: usize> Names<N> {
    /// The set of these names.
    #[must_use]
    pub(crate) const fn new(names: [&'static str; N]) -> Self {
        let mut hashes = 0;
        let mut at = 0;
        while at < N {
            hashes |= 1 << hash(names[at].as_bytes());
            at += 1;
        }
        Self { names, hashes }
    }

    /// Whether one of the names may have this [`hash`].
    #[inline]
    #[must_use]
    pub(super) fn may_contain(&self, hash: u8) -> bool {
        self.hashes >> hash & 1 == 1
    }

    /// Whether the unescaped key is one of the names.
    #[must_use]
    pub(crate) fn contains(&self, key: &Text<'_>) -> bool {
        self.names.iter().any(|name| key.is(name))
    }
}

/// A number below 64 that differs for most names.
#[inline]
#[must_use]
pub(super) const fn hash(name: &[u8]) -> u8 {
    let [first, .., last] = name else { return name.len() as u8 };
    ((name.len() as u8).wrapping_mul(5)).wrapping_add(first.wrapping_mul(3)).wrapping_add(*last) % 64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Object;

    #[test]
    fn members_are_found_by_their_unescaped_keys() {
        static NAMES: Names<3> = Names::new(["a", "ab", "output_ids"]);
        let is_found = |key: &str| {
            let text = format!("{{\"{key}\":1}}");
            let object = Object::parse(text.as_bytes()).unwrap();
            object.is_one_of(text.as_bytes(), &object.members[0], &NAMES)
        };
        for name in ["a", "ab", "output_ids", "\\u0061", "a\\u0062"] {
            assert!(is_found(name), "{name}");
        }
        for name in ["", "b", "aa", "output_idz", "output_ids_", "\\u0062"] {
            assert!(!is_found(name), "{name}");
        }
    }
}
