//! An entry as an element of a list: `uid [u8; 16], crc32c u32, flags u8, body`, big-endian.
//!
//! The scripts compare the uid, so it is the first and never compressed. The checksum covers all bytes after it.

use std::io;

use bytes::Bytes;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::get_frame_content_size;

use super::super::Entry;
use crate::session::Uid;

/// Bytes of uid, checksum and flags.
const HEAD: usize = 16 + 4 + 1;
/// The flag of a compressed body.
const ZSTD: u8 = 1;
/// Bodies up to this size are not compressed.
const PLAIN_UP_TO: usize = 256;
/// Bytes of the largest body.
pub(super) const MAX_BODY: usize = 256 << 20;

/// Why an element cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidElement {
    #[error("an element is too short")]
    Short,
    #[error("the checksum of an element does not match")]
    Checksum,
    #[error("an element has unknown flags")]
    Flags,
    #[error("an element cannot be decompressed")]
    Compression,
}

/// Encodes entries.
pub(super) struct Encoder(Compressor<'static>);

impl Encoder {
    pub(super) fn try_new() -> io::Result<Self> {
        // the level of the log
        Compressor::new(1).map(Self)
    }

    /// The element of an entry. Its body is compressed if this makes it shorter.
    pub(super) fn encode(&mut self, entry: &Entry) -> Vec<u8> {
        let packed = (entry.body.len() > PLAIN_UP_TO)
            .then(|| self.0.compress(&entry.body).ok())
            .flatten()
            .filter(|packed| packed.len() < entry.body.len());
        let (flags, body) = packed.as_ref().map_or((0, &entry.body[..]), |packed| (ZSTD, &packed[..]));
        let mut element = Vec::with_capacity(HEAD + body.len());
        element.extend(entry.uid.to_bytes());
        element.extend(checksum(flags, body).to_be_bytes());
        element.push(flags);
        element.extend(body);
        element
    }
}

/// The entry of an element.
pub(super) fn decode(element: &[u8]) -> Result<Entry, InvalidElement> {
    let (uid, rest) = element.split_first_chunk().ok_or(InvalidElement::Short)?;
    let (expected, rest) = rest.split_first_chunk().ok_or(InvalidElement::Short)?;
    let (&flags, body) = rest.split_first().ok_or(InvalidElement::Short)?;
    if u32::from_be_bytes(*expected) != checksum(flags, body) {
        return Err(InvalidElement::Checksum);
    }
    let body = match flags {
        0 => Bytes::copy_from_slice(body),
        ZSTD => decompress(body).ok_or(InvalidElement::Compression)?.into(),
        _ => return Err(InvalidElement::Flags),
    };
    Ok(Entry { uid: Uid::from_bytes(*uid), body })
}

fn decompress(body: &[u8]) -> Option<Vec<u8>> {
    let size = usize::try_from(get_frame_content_size(body).ok().flatten()?).ok().filter(|size| *size <= MAX_BODY)?;
    let plain = Decompressor::new().ok()?.decompress(body, size).ok()?;
    (plain.len() == size).then_some(plain)
}

fn checksum(flags: u8, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&[flags]), body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(body: Vec<u8>) -> Entry {
        Entry { uid: Uid::unique(), body: body.into() }
    }

    #[test]
    fn a_body_is_compressed_if_this_makes_it_shorter() {
        let mut encoder = Encoder::try_new().unwrap();
        let zeros = encoder.encode(&entry(vec![0; 100_000]));
        assert!(zeros.len() < 200 && zeros[20] == ZSTD, "{}", zeros.len());
        let noise: Vec<u8> = (0..1000_u32).flat_map(|i| crc32c::crc32c(&i.to_le_bytes()).to_le_bytes()).collect();
        let stored = encoder.encode(&entry(noise.clone()));
        assert_eq!((stored.len(), stored[20]), (HEAD + noise.len(), 0));
    }

    #[test]
    fn a_later_flag_is_told_from_damage() {
        let mut element = Encoder::try_new().unwrap().encode(&entry(b"text".to_vec()));
        element[20] = 2;
        assert_eq!(decode(&element), Err(InvalidElement::Checksum));
        element[16..20].copy_from_slice(&checksum(2, b"text").to_be_bytes());
        assert_eq!(decode(&element), Err(InvalidElement::Flags));
        element[20] = ZSTD;
        element[16..20].copy_from_slice(&checksum(ZSTD, b"text").to_be_bytes());
        assert_eq!(decode(&element), Err(InvalidElement::Compression));
    }

    proptest! {
        #[test]
        fn every_entry_survives(body in proptest::collection::vec(any::<u8>(), 0..3000), zeros in 0..2000_usize) {
            let entry = entry([body, vec![0; zeros]].concat());
            let element = Encoder::try_new().unwrap().encode(&entry);
            prop_assert_eq!(&element[..16], &entry.uid.to_bytes()[..]);
            prop_assert_eq!(decode(&element), Ok(entry));
        }

        #[test]
        fn damage_is_found(body in proptest::collection::vec(any::<u8>(), 0..600), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let mut element = Encoder::try_new().unwrap().encode(&entry(body));
            let at = 16 + at.index(element.len() - 16);
            element[at] ^= 1_u8 << bit;
            prop_assert!(decode(&element).is_err());
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            if let Some((head, body)) = bytes.split_first_chunk::<16>() {
                // with a checksum that matches, so that the decompressor reads them
                let element = [&head[..], &checksum(ZSTD, body).to_be_bytes(), &[ZSTD], body].concat();
                let _ = decode(&element);
            }
        }
    }
}
