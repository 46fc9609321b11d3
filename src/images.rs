// SPDX-License-Identifier: Apache-2.0
//! Pictures of prompts: their bytes, which are never interpreted, and the digests that identify them.

mod recent;

use std::fmt::{self, Debug, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::named_enum::named_enum;

/// The SHA-256 of a picture's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ImageDigest(pub [u8; 32]);

named_enum! {
    /// The format of a picture, by its first bytes. What a client declares is not trusted.
    #[expect(missing_docs, reason = "the names are those of the formats")]
    pub enum MediaType {
        Png = "image/png",
        Jpeg = "image/jpeg",
        Gif = "image/gif",
        WebP = "image/webp",
        Bmp = "image/bmp",
        /// Any other content, such as SVG.
        Other = "application/octet-stream",
    }
}

/// The token that stands for a picture in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImagePlaceholder {
    /// The token.
    pub id: u32,
    /// The special tokens that the chat template writes before and after it, if it does.
    pub frame: Option<[u32; 2]>,
}

/// A picture. Equal pictures have equal digests.
#[derive(Clone, Serialize, Deserialize)]
pub struct Image {
    /// Identifies it.
    pub digest: ImageDigest,
    /// Its format.
    pub media_type: MediaType,
    /// Its length in bytes.
    pub size: u64,
    /// Its bytes; `None` if only the reference is known.
    #[serde(skip)]
    pub bytes: Option<Bytes>,
}

impl Image {
    /// A picture with these bytes.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        let digest = ImageDigest(Sha256::digest(&bytes).into());
        Self { digest, media_type: MediaType::of(&bytes), size: bytes.len() as u64, bytes: Some(bytes) }
    }

    /// Decodes a data URI, or base64 with padding, as SGLang does: the media type of a URI is ignored. `None` for any other text. Returns
    /// the copy in memory of a picture that was decoded before, without computing its digest again.
    #[must_use]
    pub fn decode(text: &[u8]) -> Option<Arc<Self>> {
        recent::decode(encoded_bytes(text)?)
    }

    /// Lets [`Self::decode`] return this copy of a picture that was not decoded, such as one of a log.
    pub fn remember(self: &Arc<Self>) {
        recent::remember(self);
    }

    /// Whether this is the base64 text of its bytes.
    #[must_use]
    pub fn is_written(&self, encoded: &[u8]) -> bool {
        const CHUNK: usize = 3072;
        let Some(bytes) = &self.bytes else { return false };
        if encoded.len() != bytes.len().div_ceil(3) * 4 {
            return false;
        }
        let mut place = [0; CHUNK];
        encoded.chunks(CHUNK / 3 * 4).zip(bytes.chunks(CHUNK)).all(|(text, bytes)| {
            let place = base64_simd::Out::from_slice(&mut place);
            base64_simd::STANDARD.decode(text, place).is_ok_and(|decoded| *decoded == *bytes)
        })
    }

    /// The number of bytes that the base64 text of a picture stands for. `None` for other texts.
    #[must_use]
    pub fn encoded_size(text: &[u8]) -> Option<u64> {
        let encoded = encoded_bytes(text)?;
        let padding = encoded.iter().rev().take_while(|byte| **byte == b'=').count();
        Some((encoded.len() / 4 * 3).saturating_sub(padding) as u64)
    }

    /// Whether [`Self::decode`] returns a picture.
    #[must_use]
    pub fn is_encoded(text: &[u8]) -> bool {
        encoded_bytes(text).is_some_and(|encoded| !encoded.is_empty() && base64_simd::STANDARD.check(encoded).is_ok())
    }
}

/// The base64 text of a picture. SGLang reads a text that begins with `/` as the name of a file.
fn encoded_bytes(text: &[u8]) -> Option<&[u8]> {
    match text {
        [b'd', b'a', b't', b'a', b':', uri @ ..] => {
            uri.iter().position(|byte| *byte == b',').map(|comma| &uri[comma + 1..])
        }
        [b'/', ..] => None,
        _ => Some(text),
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        (self.digest, self.bytes.is_some()) == (other.digest, other.bytes.is_some())
    }
}

impl Eq for Image {}

impl Hash for Image {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl Debug for Image {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { digest, media_type, size, bytes } = self;
        write!(f, "Image({digest}, {}, {size} bytes, {})", media_type.name(), bytes.is_some())
    }
}

impl Display for ImageDigest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text is not a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 64 hexadecimal digits")]
pub struct NoDigest;

impl FromStr for ImageDigest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; 32];
        if !rest.is_empty() || pairs.len() != bytes.len() {
            return Err(NoDigest);
        }
        for (byte, pair) in bytes.iter_mut().zip(pairs) {
            let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
            *byte = high.zip(low).and_then(|(high, low)| u8::try_from(16 * high + low).ok()).ok_or(NoDigest)?;
        }
        Ok(Self(bytes))
    }
}

impl Debug for ImageDigest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

impl MediaType {
    /// The format of a picture that begins with these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        match bytes {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Self::Png,
            [0xff, 0xd8, 0xff, ..] => Self::Jpeg,
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Self::Gif,
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Self::WebP,
            [b'B', b'M', ..] => Self::Bmp,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn format_is_that_of_the_first_bytes() {
        for (bytes, media_type) in [
            (&b"\x89PNG\r\n\x1a\nrest"[..], MediaType::Png),
            (b"\xff\xd8\xff\xe0", MediaType::Jpeg),
            (b"GIF89a", MediaType::Gif),
            (b"GIF87a", MediaType::Gif),
            (b"RIFF\0\0\0\0WEBPVP8 ", MediaType::WebP),
            (b"BM", MediaType::Bmp),
            (b"<svg xmlns='http://www.w3.org/2000/svg'/>", MediaType::Other),
            (b"<html><script>", MediaType::Other),
            (b"\x89PNG", MediaType::Other),
            (b"", MediaType::Other),
        ] {
            assert_eq!(MediaType::of(bytes), media_type, "{bytes:?}");
        }
    }

    #[test]
    fn same_bytes_are_the_same_picture_however_they_are_written() {
        let plain = Image::decode(b"iVBORw0KGgo=").unwrap();
        assert_eq!((plain.media_type, plain.size), (MediaType::Png, 8));
        for text in ["data:image/png;base64,iVBORw0KGgo=", "data:text/html,iVBORw0KGgo=", "data:,iVBORw0KGgo="] {
            assert_eq!(Image::decode(text.as_bytes()).unwrap(), plain, "{text}");
        }
        let hello = Image::decode(b"aGVsbG8=").unwrap();
        let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert_eq!((hello.digest.to_string(), hello.media_type), (sha256.to_owned(), MediaType::Other));
    }

    #[test]
    fn digest_is_read_from_its_digits() {
        let digest = Image::decode(b"aGVsbG8=").unwrap().digest;
        assert_eq!(digest.to_string().parse(), Ok(digest));
        let digits = digest.to_string();
        for text in [
            "",
            "2c",
            &digits[1..],
            &format!("{digits}0"),
            &format!("x{}", &digits[1..]),
            &format!("é{}", &digits[2..]),
        ] {
            assert_eq!(text.parse::<ImageDigest>(), Err(NoDigest), "{text}");
        }
    }

    #[test]
    fn text_that_the_engine_does_not_decode_is_refused() {
        for text in [
            "",
            "data:",
            "data:image/png;base64,",
            "data:image/png;base64;iVBORw0KGgo=",
            "iVBORw0KGgo",
            // bits after the last byte
            "iVBORw0KGgp=",
            "iVBORw0K Ggo=",
            "iVBORw0K\nGgo=",
            "_-8=",
            "/9j/4AAQ",
            "https://host/a.png",
            "file:///a.png",
            "picture.png",
        ] {
            assert!(Image::decode(text.as_bytes()).is_none() && !Image::is_encoded(text.as_bytes()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_is_that_of_its_bytes_only(
            bytes in prop::collection::vec(any::<u8>(), 1..10_000),
            at: prop::sample::Index,
            replacement: u8,
        ) {
            let image = Image::new(bytes.clone().into());
            let mut encoded = base64_simd::STANDARD.encode_to_string(&bytes).into_bytes();
            prop_assert!(image.is_written(&encoded));
            prop_assert!(!image.is_written(&encoded[..encoded.len() - 4]));
            let at = at.index(encoded.len());
            encoded[at] = replacement;
            let decoded = base64_simd::STANDARD.decode_to_vec(&encoded);
            prop_assert_eq!(image.is_written(&encoded), decoded.is_ok_and(|decoded| decoded == bytes));
        }

        #[test]
        fn any_bytes_are_kept(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
            let uri = format!("data:image/png;base64,{}", base64_simd::STANDARD.encode_to_string(&bytes));
            prop_assert!(Image::is_encoded(uri.as_bytes()));
            prop_assert_eq!(Image::encoded_size(uri.as_bytes()), Some(bytes.len() as u64));
            let image = Image::decode(uri.as_bytes()).unwrap();
            prop_assert_eq!(image.bytes.as_deref(), Some(&bytes[..]));
        }

        #[test]
        fn any_text_is_decoded_or_not(text in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(Image::is_encoded(&text), Image::decode(&text).is_some());
        }
    }
}
