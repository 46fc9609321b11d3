// SPDX-License-Identifier: Apache-2.0
//! `image_data`: the pictures of the prompts.

use std::ops::Range;
use std::sync::Arc;

use serde::de::IgnoredAny;

use super::GenerateRequest;
use crate::images::Image;
use crate::json::{Cursor, Malformed, MemberWriter, Text};

/// The members that change what the engine's processor makes of pictures.
const OPTIONS: [&str; 5] =
    ["mm_processor_kwargs", "max_dynamic_patch", "image_max_dynamic_patch", "min_dynamic_patch", "images_config"];

impl GenerateRequest {
    /// What the request sets of the processor of its pictures, which is not interpreted: a JSON object with the members of the request. `None` if
    /// it sets nothing.
    #[must_use]
    pub fn image_options(&self) -> Option<String> {
        let mut text = b"{".to_vec();
        let mut members = MemberWriter::new(&mut text);
        for name in OPTIONS {
            let value = self.object.get(&self.bytes, name).filter(|value| *value != b"null");
            // the engine reads strict JSON
            let is_valid = |value: &&[u8]| serde_json::from_slice::<IgnoredAny>(value).is_ok();
            if let Some(value) = value.filter(is_valid) {
                members.put(name, value);
            }
        }
        text.push(b'}');
        String::from_utf8(text).ok().filter(|text| text != "{}")
    }
}

/// `image_data`. Pictures are ranges of the body, which are decoded when they are recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageData(Pictures);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Pictures {
    #[default]
    Absent,
    One(ImageItem),
    List(Vec<ListItem>),
}

/// An item of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ListItem {
    Null,
    Picture(ImageItem),
    Pictures(Vec<ImageItem>),
}

/// A picture of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ImageItem {
    /// A text: a data URI, base64, a URL, or the name of a file.
    Text {
        /// The range of its content in the body.
        span: Range<usize>,
        /// Whether the content has escapes.
        escaped: bool,
    },
    /// A picture that is decoded already.
    Decoded(Arc<Image>),
    /// Another value, such as the output of a processor.
    Other,
}

impl ImageData {
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Ok(Self(match cursor.peek() {
            Some(b'n') => cursor.skip().map(|_| Pictures::Absent)?,
            Some(b'[') => {
                let mut list = Vec::new();
                cursor.elements(|cursor| {
                    list.push(ListItem::read(cursor)?);
                    Ok(())
                })?;
                Pictures::List(list)
            }
            _ => Pictures::One(ImageItem::read(cursor)?),
        }))
    }

    /// The pictures of one prompt. With several samples they are those of a batch of one prompt.
    pub(super) fn decoded(images: &[Arc<Image>], is_batch: bool) -> Self {
        let items = images.iter().map(|image| ImageItem::Decoded(Arc::clone(image)));
        Self(Pictures::List(match is_batch {
            true => vec![ListItem::Pictures(items.collect())],
            false => items.map(ListItem::Picture).collect(),
        }))
    }

    /// Whether there is no picture.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(&self.0, Pictures::Absent)
            || matches!(&self.0, Pictures::List(list) if list.iter().all(|item| item.pictures().is_empty()))
    }

    /// Whether it has one item for each of this many prompts, or a picture of all.
    pub(super) fn has_items_for(&self, prompts: usize) -> bool {
        if let Pictures::List(list) = &self.0 { list.len() == prompts } else { true }
    }

    /// The most bytes that its pictures take when each is decoded once.
    #[must_use]
    pub fn decoded_bytes(&self) -> usize {
        match &self.0 {
            Pictures::Absent => 0,
            Pictures::One(item) => item.decoded_bytes(),
            Pictures::List(list) => list.iter().flat_map(ListItem::pictures).map(ImageItem::decoded_bytes).sum(),
        }
    }

    /// The pictures of prompt `at`, as SGLang assigns them: with several prompts, or with several samples of one, the list has one item per
    /// prompt, and a single picture belongs to all prompts.
    #[must_use]
    pub fn of_prompt(&self, at: usize, is_batch: bool) -> Vec<&ImageItem> {
        let list = match &self.0 {
            Pictures::Absent => return Vec::new(),
            Pictures::One(item) => return vec![item],
            Pictures::List(list) => list,
        };
        let items = if is_batch { list.get(at..=at).unwrap_or_default() } else { list };
        items.iter().flat_map(ListItem::pictures).collect()
    }
}

impl ListItem {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Ok(match cursor.peek() {
            Some(b'n') => cursor.skip().map(|_| Self::Null)?,
            Some(b'[') => {
                let mut items = Vec::new();
                cursor.elements(|cursor| {
                    if cursor.peek() == Some(b'n') {
                        return cursor.skip().map(|_| ());
                    }
                    items.push(ImageItem::read(cursor)?);
                    Ok(())
                })?;
                Self::Pictures(items)
            }
            _ => Self::Picture(ImageItem::read(cursor)?),
        })
    }

    fn pictures(&self) -> &[ImageItem] {
        match self {
            Self::Null => &[],
            Self::Picture(item) => std::slice::from_ref(item),
            Self::Pictures(items) => items,
        }
    }
}

impl ImageItem {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        if cursor.peek() != Some(b'"') {
            return cursor.skip().map(|_| Self::Other);
        }
        let Text { raw, escaped } = cursor.string()?;
        let end = cursor.position() - 1;
        Ok(Self::Text { span: end - raw.len()..end, escaped })
    }

    /// The picture, from the body of its request.
    ///
    /// # Errors
    /// Why its content cannot be recorded.
    pub fn decode(&self, body: &[u8]) -> Result<Arc<Image>, ImageError> {
        let (span, escaped) = match self {
            Self::Text { span, escaped } => (span.clone(), *escaped),
            Self::Decoded(image) => return Ok(Arc::clone(image)),
            Self::Other => return Err(ImageError::Processed),
        };
        let text = Text { raw: &body[span], escaped };
        let image = if escaped { Image::decode(text.decode().as_bytes()) } else { Image::decode(text.raw) };
        image.ok_or(ImageError::Remote)
    }

    /// The number of its bytes, if the body of its request has them.
    pub(crate) fn size(&self, body: &[u8]) -> Option<u64> {
        match self {
            Self::Text { span, escaped: false } => Image::encoded_size(&body[span.clone()]),
            Self::Text { span, escaped: true } => {
                Image::encoded_size(Text { raw: &body[span.clone()], escaped: true }.decode().as_bytes())
            }
            Self::Decoded(image) => Some(image.size),
            Self::Other => None,
        }
    }

    /// Whether the body of its request has its bytes.
    pub(super) fn is_inline(&self, body: &[u8]) -> bool {
        let Self::Text { span, escaped } = self else { return matches!(self, Self::Decoded(_)) };
        let text = Text { raw: &body[span.clone()], escaped: *escaped };
        if *escaped { Image::is_encoded(text.decode().as_bytes()) } else { Image::is_encoded(text.raw) }
    }

    /// The most bytes that decoding it takes.
    fn decoded_bytes(&self) -> usize {
        match self {
            Self::Text { span, escaped } => span.len() / 4 * 3 + if *escaped { span.len() } else { 0 },
            Self::Decoded(image) => image.size as usize,
            Self::Other => 0,
        }
    }
}

/// Writes the value of `image_data` for one prompt. With several samples the engine reads a list per prompt.
pub(super) fn write_images(out: &mut Vec<u8>, images: &[Arc<Image>], is_batch: bool) {
    out.extend_from_slice(if is_batch { b"[[" } else { b"[" });
    for (at, image) in images.iter().enumerate() {
        out.extend_from_slice(if at > 0 { b",\"data:" } else { b"\"data:" });
        out.extend_from_slice(image.media_type.name().as_bytes());
        out.extend_from_slice(b";base64,");
        base64_simd::STANDARD.encode_append(image.bytes.as_deref().unwrap_or_default(), out);
        out.push(b'"');
    }
    out.extend_from_slice(if is_batch { b"]]" } else { b"]" });
}

/// The bytes that [`write_images`] appends at most.
pub(super) fn written_bytes(images: &[Arc<Image>]) -> usize {
    images.iter().map(|image| image.size as usize / 3 * 4 + 64).sum()
}

/// Why the content of a picture cannot be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// It is not in the request as base64.
    #[error("the picture is not in the request as base64")]
    Remote,
    /// It is not a text.
    #[error("the picture is not a text")]
    Processed,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The texts of the pictures of each prompt.
    fn pictures(value: &Value, prompts: usize, is_batch: bool) -> Vec<Vec<String>> {
        let body = value.to_string();
        let mut cursor = Cursor::new(body.as_bytes());
        let images = ImageData::read(&mut cursor).unwrap();
        cursor.end().unwrap();
        let text = |item: &ImageItem| match item {
            ImageItem::Text { span, .. } => body[span.clone()].to_owned(),
            ImageItem::Decoded(_) | ImageItem::Other => "?".to_owned(),
        };
        (0..prompts).map(|at| images.of_prompt(at, is_batch).into_iter().map(text).collect()).collect()
    }

    #[test]
    fn pictures_are_assigned_as_the_engine_does() {
        for (value, prompts, is_batch, expected) in [
            (json!(null), 1, false, json!([[]])),
            (json!([]), 1, false, json!([[]])),
            (json!("a"), 1, false, json!([["a"]])),
            (json!(["a", "b"]), 1, false, json!([["a", "b"]])),
            // several samples of one prompt are a batch
            (json!("a"), 1, true, json!([["a"]])),
            (json!([["a", "b"]]), 1, true, json!([["a", "b"]])),
            (json!(["a"]), 1, true, json!([["a"]])),
            (json!(["a", "b"]), 2, true, json!([["a"], ["b"]])),
            (json!([["a", "b"], null]), 2, true, json!([["a", "b"], []])),
            (json!([[null], ["b"]]), 2, true, json!([[], ["b"]])),
            (json!("a"), 2, true, json!([["a"], ["a"]])),
            (json!([{"format": "processor_output"}, "b"]), 1, false, json!([["?", "b"]])),
            (json!({"url": "a"}), 1, false, json!([["?"]])),
            // refused by the engine
            (json!(["a"]), 2, true, json!([["a"], []])),
        ] {
            assert_eq!(json!(pictures(&value, prompts, is_batch)), expected, "{value}");
        }
    }

    #[test]
    fn options_of_the_processor_are_those_of_the_request() {
        let options = |body: &'static str| GenerateRequest::parse(body.into()).unwrap().image_options();
        let body = r#"{"mm_processor_kwargs": {"max_pixels": 9, "other": [1]}, "input_ids": [1], "max_dynamic_patch": null,
            "image_max_dynamic_patch": 4, "video_max_dynamic_patch": 2}"#;
        let expected = r#"{"mm_processor_kwargs":{"max_pixels": 9, "other": [1]},"image_max_dynamic_patch":4}"#;
        assert_eq!(options(body).as_deref(), Some(expected));
        for body in ["{}", r#"{"mm_processor_kwargs": null}"#, r#"{"mm_processor_kwargs": {"a": NaN}}"#] {
            assert_eq!(options(body), None, "{body}");
        }
    }

    #[test]
    fn escaped_base64_is_decoded() {
        let body = r#"["data:image\/png;base64,iVBORw0KGgo=", "https:\/\/host/a.png", {"a": 1}]"#;
        let images = ImageData::read(&mut Cursor::new(body.as_bytes())).unwrap();
        let decoded: Vec<_> = images.of_prompt(0, false).iter().map(|item| item.decode(body.as_bytes())).collect();
        let expected = Image::decode(b"iVBORw0KGgo=").unwrap();
        assert_eq!(decoded, [Ok(expected), Err(ImageError::Remote), Err(ImageError::Processed)]);
    }
}
