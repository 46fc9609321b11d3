// SPDX-License-Identifier: Apache-2.0
//! An item of a stored request, without the pictures that its turn has.

use std::sync::Arc;

use memchr::{memchr, memmem};
use serde::{Deserialize, Serialize};

use crate::images::{Image, ImageDigest};

/// An item of the input of a stored request, JSON text. The base64 texts of pictures that its turn has are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredItem {
    text: Arc<str>,
    pictures: Box<[OmittedPicture]>,
}

/// A picture whose base64 text is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct OmittedPicture {
    /// Where the text continues after it.
    at: u32,
    digest: ImageDigest,
}

impl From<Arc<str>> for StoredItem {
    fn from(text: Arc<str>) -> Self {
        Self { text, pictures: Box::default() }
    }
}

impl StoredItem {
    /// The same without these pictures, of those in data URIs.
    pub(super) fn without_pictures(&self, images: &[&Image]) -> Self {
        const URI: &str = "\"data:";
        if !self.pictures.is_empty() {
            return self.clone();
        }
        let (mut text, mut pictures, mut from) = (String::new(), Vec::new(), 0);
        for start in memmem::find_iter(self.text.as_bytes(), URI) {
            let content = &self.text.as_bytes()[start + 1..];
            let Some(uri) = memchr(b'"', content).map(|end| &content[..end]) else { continue };
            let Some(comma) = memchr(b',', uri) else { continue };
            let encoded = &uri[comma + 1..];
            let Some(image) = images.iter().find(|image| start >= from && image.is_written(encoded)) else { continue };
            text.push_str(&self.text[from..=start + 1 + comma]);
            from = start + 1 + uri.len();
            let Ok(at) = u32::try_from(text.len()) else { return self.clone() };
            pictures.push(OmittedPicture { at, digest: image.digest });
        }
        if pictures.is_empty() {
            return self.clone();
        }
        text.push_str(&self.text[from..]);
        Self { text: text.into(), pictures: pictures.into() }
    }

    /// The JSON text without the base64 texts of the pictures.
    #[must_use]
    pub fn without_base64(&self) -> &str {
        &self.text
    }

    /// The pictures that are left out.
    pub fn pictures(&self) -> impl Iterator<Item = ImageDigest> {
        self.pictures.iter().map(|picture| picture.digest)
    }

    /// The JSON text, with the pictures. `None` if the bytes of one are not known.
    #[must_use]
    pub fn json(&self, find: impl Fn(ImageDigest) -> Option<Arc<Image>>) -> Option<Arc<str>> {
        if self.pictures.is_empty() {
            return Some(Arc::clone(&self.text));
        }
        let (mut json, mut from) = (String::with_capacity(self.json_bytes(&find)), 0);
        for OmittedPicture { at, digest } in &self.pictures {
            json.push_str(self.text.get(from..*at as usize)?);
            base64_simd::STANDARD.encode_append(find(*digest)?.bytes.as_deref()?, &mut json);
            from = *at as usize;
        }
        json.push_str(self.text.get(from..)?);
        Some(json.into())
    }

    /// The length of [`Self::json`] in bytes.
    #[must_use]
    pub fn json_bytes(&self, find: impl Fn(ImageDigest) -> Option<Arc<Image>>) -> usize {
        let pictures = self.pictures.iter().filter_map(|picture| find(picture.digest));
        self.text.len() + pictures.map(|image| encoded_bytes(&image)).sum::<usize>()
    }

    /// Whether [`Self::json`] is this text.
    #[must_use]
    pub fn is_json(&self, text: &str, find: impl Fn(ImageDigest) -> Option<Arc<Image>>) -> bool {
        let (mut rest, mut from) = (text.as_bytes(), 0);
        for OmittedPicture { at, digest } in &self.pictures {
            let before = self.text.as_bytes().get(from..*at as usize);
            let Some(after) = before.and_then(|before| rest.strip_prefix(before)) else { return false };
            let Some(image) = find(*digest) else { return false };
            let Some((encoded, after)) = after.split_at_checked(encoded_bytes(&image)) else { return false };
            if !image.is_written(encoded) {
                return false;
            }
            (rest, from) = (after, *at as usize);
        }
        self.text.as_bytes().get(from..) == Some(rest)
    }

    /// The bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.text.len() + size_of_val(&*self.pictures)
    }
}

/// The length of the base64 text of a picture.
fn encoded_bytes(image: &Image) -> usize {
    usize::try_from(image.size).unwrap_or(usize::MAX).div_ceil(3).saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uri(content: &str) -> String {
        format!("data:image/png;base64,{}", base64_simd::STANDARD.encode_to_string(content))
    }

    fn image(content: &str) -> Arc<Image> {
        Image::decode(uri(content).as_bytes()).unwrap()
    }

    #[test]
    fn pictures_of_the_turn_are_left_out() {
        let [first, second] = ["first", "second"].map(image);
        let find = |digest| [&first, &second].into_iter().find(|image| image.digest == digest).cloned();
        let [long, other] = [uri("first"), uri("another")];
        let json = format!(
            r#"{{"content":[{{"image_url":"{long}"}},{{"text":"data:,x"}},{{"image_url":"{other}"}},{{"image_url":"{}"}}]}}"#,
            uri("second")
        );
        let item = StoredItem::from(Arc::from(json.clone()));
        let stored = item.without_pictures(&[&first, &second]);
        assert_eq!(stored.text.len(), json.len() - "Zmlyc3Q=".len() - "c2Vjb25k".len());
        assert_eq!(stored.json(find).as_deref(), Some(&*json));
        assert_eq!(stored.json_bytes(find), json.len());
        assert!(stored.is_json(&json, find) && item.is_json(&json, find));
        for changed in ["Zmlyc3Q=", "content", "YW5vdGhlcg=="] {
            let changed = json.replace(changed, &"A".repeat(changed.len()));
            assert!(!stored.is_json(&changed, find), "{changed}");
        }
        assert!(!stored.is_json(&json[..json.len() - 1], find) && !stored.is_json(&format!("{json} "), find));
        // a picture that is not in memory any more
        let find = |digest| find(digest).filter(|image| image.digest == first.digest);
        assert_eq!(stored.json(find), None);
        assert!(!stored.is_json(&json, find));
        assert_eq!(item.without_pictures(&[]), item);
        assert_eq!(stored.without_pictures(&[&first]), stored);
    }

    proptest! {
        #[test]
        fn any_text_is_restored(parts in prop::collection::vec(prop_oneof![
            "[a-z\"\\\\,:]{0,8}",
            prop::sample::select(vec![uri("first"), uri("second"), uri("third"), "\"data:".to_owned()]),
        ], 0..12)) {
            let text = parts.concat();
            let [first, second] = ["first", "second"].map(image);
            let find = |digest| [&first, &second].into_iter().find(|image| image.digest == digest).cloned();
            let stored = StoredItem::from(Arc::from(text.clone())).without_pictures(&[&first, &second]);
            prop_assert!(stored.is_json(&text, find));
            prop_assert_eq!(stored.json(find), Some(Arc::from(text)));
        }
    }
}
