// SPDX-License-Identifier: Apache-2.0
//! The parts of a message that are not text.

use std::borrow::Cow;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::canonical::canonical;
use crate::images::Image;
use crate::json::Value;

/// A part of a message that is not text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaPart {
    /// The number of texts of the message before the part.
    pub at: usize,
    /// Its content.
    pub media: Media,
}

/// The content of a part that is not text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Media {
    /// A picture whose bytes are in the request.
    Image(InlineImage),
    /// A part that only the engine can render, in the format of its chat endpoint. tokentap does not read it.
    Other(Value),
}

/// A picture whose bytes are in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InlineImage {
    /// The picture.
    pub image: Arc<Image>,
    /// What comes before the base64 text in its URL.
    prefix: Box<str>,
    /// The resolution that the client asks for. No processor of SGLang reads it.
    detail: Option<Box<str>>,
}

/// The type of a part with a picture, and its member.
const IMAGE_URL: &str = "image_url";

/// The members of `image_url` with which SGLang processes a picture in another way.
const ENGINE_MEMBERS: [&str; 4] = ["max_dynamic_patch", "min_dynamic_patch", "max_long_side_pixel", "content_hash"];

/// The first member of a picture that only the engine interprets. SGLang ignores those that it does not know.
pub(super) fn engine_member(part: &Value) -> Option<&'static str> {
    let is_set = |name: &str| part.get(IMAGE_URL)?.get(name).filter(|value| **value != Value::Null);
    // `image` is the default
    let has_modality = part.get_str("modalities").is_some_and(|modality| modality != "image");
    ENGINE_MEMBERS.into_iter().find(|name| is_set(name).is_some()).or(has_modality.then_some("modalities"))
}

impl MediaPart {
    /// A picture after `at` texts. `url` may be a `data:` URL. `detail` is the resolution that the client asks for.
    #[must_use]
    pub fn image(at: usize, url: &str, detail: Option<&str>) -> Self {
        let media = match InlineImage::decode(url, detail) {
            Some(image) => Media::Image(image),
            None => Media::Other(image_part(url, detail)),
        };
        Self { at, media }
    }

    /// A part of a chat. A picture with a member that changes how the engine processes it is for the engine.
    #[must_use]
    pub fn of_chat(at: usize, part: Value) -> Self {
        let image = part.get(IMAGE_URL).filter(|_| part.get_str("type") == Some(IMAGE_URL));
        let image = image.filter(|_| engine_member(&part).is_none());
        let image = image.and_then(|image| InlineImage::decode(image.get_str("url")?, image.get_str("detail")));
        Self { at, media: image.map_or(Media::Other(part), Media::Image) }
    }
}

impl Media {
    /// The part as the engine's chat endpoint gets it.
    #[must_use]
    pub fn part(&self) -> Cow<'_, Value> {
        match self {
            Self::Image(image) => Cow::Owned(image_part(&image.url(), image.detail.as_deref())),
            Self::Other(part) => Cow::Borrowed(part),
        }
    }

    /// `type` of the part.
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::Image(_) => IMAGE_URL,
            Self::Other(part) => part.get_str("type").unwrap_or_default(),
        }
    }

    /// The value of a picture for the chat template.
    pub(super) fn template_value(&self) -> Option<Value> {
        matches!(self, Self::Image(_)).then(|| Value::object([("type", "image".into())]))
    }

    /// A digest of what it means.
    pub(super) fn digest(&self) -> [u8; 32] {
        match self {
            Self::Image(InlineImage { image, detail, .. }) => {
                let mut hash = Sha256::new_with_prefix(image.digest.0);
                hash.update(detail.as_deref().unwrap_or_default());
                hash.finalize().into()
            }
            Self::Other(part) => Sha256::digest(canonical(part)).into(),
        }
    }
}

impl InlineImage {
    fn decode(url: &str, detail: Option<&str>) -> Option<Self> {
        let image = Image::decode(url.as_bytes())?;
        let prefix = url.split_once(',').map_or("", |(before, _)| &url[..=before.len()]).into();
        Some(Self { image, prefix, detail: detail.map(Into::into) })
    }

    /// Its URL, with its bytes.
    fn url(&self) -> String {
        let bytes = self.image.bytes.as_deref().unwrap_or_default();
        let mut url = self.prefix.to_string();
        base64_simd::STANDARD.encode_append(bytes, &mut url);
        url
    }
}

/// A picture in the format of chats.
fn image_part(url: &str, detail: Option<&str>) -> Value {
    let image = [("url", url)].into_iter().chain(detail.map(|detail| ("detail", detail)));
    let image = Value::object(image.map(|(name, text)| (name, text.into())));
    Value::object([("type", IMAGE_URL.into()), (IMAGE_URL, image)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "data:image/x-unknown;base64,iVBORw0KGgo=";

    #[test]
    fn picture_keeps_its_url() {
        for (url, detail) in [(URL, None), (URL, Some("low")), ("iVBORw0KGgo=", None), ("https://host/a.png", None)] {
            let MediaPart { media, .. } = MediaPart::image(0, url, detail);
            assert_eq!(*media.part(), image_part(url, detail), "{url}");
            assert_eq!(matches!(media, Media::Image(_)), !url.starts_with("https"), "{url}");
        }
    }

    #[test]
    fn part_with_members_that_the_engine_interprets_is_for_the_engine() {
        let cached = r#"{"type":"image_url","image_url":{"url":"iVBORw0KGgo="},"cache_control":{"type":"ephemeral"},"modalities":"image"}"#;
        let MediaPart { media, .. } = MediaPart::of_chat(0, Value::parse(cached.as_bytes()).unwrap());
        assert_eq!(*media.part(), image_part("iVBORw0KGgo=", None), "the engine ignores the others");
        for (part, is_image) in [
            (r#"{"type":"image_url","image_url":{"url":"iVBORw0KGgo="}}"#, true),
            (r#"{"type":"image_url","image_url":{"url":"iVBORw0KGgo=","detail":"auto"}}"#, true),
            (r#"{"type":"image_url","image_url":{"url":"iVBORw0KGgo=","max_dynamic_patch":2}}"#, false),
            (r#"{"type":"image_url","image_url":{"url":"iVBORw0KGgo="},"modalities":"multi"}"#, false),
            (r#"{"type":"image_url","image_url":{"url":"!"}}"#, false),
            (r#"{"type":"image_url","image_url":"iVBORw0KGgo="}"#, false),
            (r#"{"type":"video_url","video_url":{"url":"iVBORw0KGgo="}}"#, false),
        ] {
            let part = Value::parse(part.as_bytes()).unwrap();
            let MediaPart { media, .. } = MediaPart::of_chat(0, part.clone());
            assert_eq!(matches!(media, Media::Image(_)), is_image, "{part:?}");
            assert_eq!(*media.part(), part);
        }
    }

    #[test]
    fn digest_is_that_of_the_bytes() {
        let digest = |url, detail| MediaPart::image(0, url, detail).media.digest();
        assert_eq!(digest(URL, None), digest("iVBORw0KGgo=", None));
        assert_ne!(digest(URL, None), digest("aGVsbG8=", None));
        assert_ne!(digest(URL, None), digest(URL, Some("low")));
    }
}
