// SPDX-License-Identifier: Apache-2.0
//! An entry as an element of a list: `uid [u8; 16], crc32c u32, body`, big-endian.
//!
//! The scripts compare the uid, so it is the first. The checksum covers the body.

use bytes::Bytes;

use super::super::Entry;
use crate::session::Uid;

/// Bytes of uid and checksum.
const HEAD: usize = 16 + 4;
/// Bytes of the largest body.
pub(super) const MAX_BODY: usize = 256 << 20;

/// Why an element cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidElement {
    #[error("an element is too short")]
    Short,
    #[error("the checksum of an element does not match")]
    Checksum,
}

/// The element of an entry.
pub(super) fn encode(entry: &Entry) -> Vec<u8> {
    let mut element = Vec::with_capacity(HEAD + entry.body.len());
    element.extend(entry.uid.to_bytes());
    element.extend(crc32c::crc32c(&entry.body).to_be_bytes());
    element.extend(&entry.body);
    element
}

/// The entry of an element.
pub(super) fn decode(element: &[u8]) -> Result<Entry, InvalidElement> {
    let (uid, rest) = element.split_first_chunk().ok_or(InvalidElement::Short)?;
    let (expected, body) = rest.split_first_chunk().ok_or(InvalidElement::Short)?;
    if u32::from_be_bytes(*expected) != crc32c::crc32c(body) {
        return Err(InvalidElement::Checksum);
    }
    Ok(Entry { uid: Uid::from_bytes(*uid), body: Bytes::copy_from_slice(body) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(body: Vec<u8>) -> Entry {
        Entry { uid: Uid::unique(), body: body.into() }
    }

    proptest! {
        #[test]
        fn every_entry_survives(body in proptest::collection::vec(any::<u8>(), 0..3000), zeros in 0..2000_usize) {
            let entry = entry([body, vec![0; zeros]].concat());
            let element = encode(&entry);
            prop_assert_eq!(&element[..16], &entry.uid.to_bytes()[..]);
            prop_assert_eq!(decode(&element), Ok(entry));
        }

        #[test]
        fn damage_is_found(body in proptest::collection::vec(any::<u8>(), 0..600), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let mut element = encode(&entry(body));
            let at = 16 + at.index(element.len() - 16);
            element[at] ^= 1_u8 << bit;
            prop_assert!(decode(&element).is_err());
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
