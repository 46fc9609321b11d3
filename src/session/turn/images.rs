// SPDX-License-Identifier: Apache-2.0
//! The pictures of a turn's prompt, and the keys by which prompts with pictures are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Turn;
use crate::images::{Image, ImageDigest};

/// The bit that distinguishes the key of a picture's token from ids. Vocabularies have fewer ids.
const PICTURE: u32 = 1 << 31;

/// The pictures of a session, by their digests.
pub(in crate::session) type SessionImages = BTreeMap<ImageDigest, Arc<Image>>;

/// A picture of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnImage {
    /// The picture.
    pub image: Arc<Image>,
    /// The position of its first token in the prompt of the turn.
    pub start: u32,
    /// The number of its tokens.
    pub tokens: u32,
    /// Whether the record of the turn has the bytes. Of the pictures with the same digest in a session the first
    /// has them, and a later one if the log rejected the record of the first.
    pub is_stored: bool,
}

/// The pictures of a prompt, in its order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PromptImages {
    /// The pictures. Their ranges do not overlap.
    pub list: Vec<TurnImage>,
    /// The settings of the processor that expanded them, JSON text; `None` if they are not known. A trainer needs them for equal pixel values.
    pub settings: Option<Arc<str>>,
    /// The ids of the prompt, with digits of the pictures' digests in place of their first tokens: ids do not identify a picture. Samples of one
    /// prompt share them.
    #[serde(skip)]
    keys: Arc<[u32]>,
    /// The settings are those of the pictures from this token on. A turn has 0: only the pictures of a path may have other settings before.
    #[serde(skip)]
    settings_since: u32,
}

/// The tokens of a path as an engine gets them: it replaces the placeholder of each picture by the picture's tokens.
#[derive(Debug, Default)]
pub struct UnexpandedPath {
    /// The ids, with one placeholder for each picture.
    pub ids: Vec<u32>,
    /// The pictures, in the order of their placeholders.
    pub images: Vec<ImageDigest>,
    /// The number of tokens with those of the pictures.
    pub expanded: usize,
}

impl UnexpandedPath {
    /// Appends a turn.
    pub(in crate::session) fn append(&mut self, turn: &Turn) {
        let mut from = 0;
        for TurnImage { image, start, tokens, .. } in turn.about.images.iter().flat_map(|images| &images.list) {
            let start = *start as usize;
            // the numbers of a damaged log may have any size
            self.ids.extend_from_slice(turn.prompt.get(from..=start).unwrap_or_default());
            self.images.push(image.digest);
            from = start.saturating_add(*tokens as usize);
        }
        self.ids.extend_from_slice(turn.prompt.get(from..).unwrap_or_default());
        self.ids.extend_from_slice(&turn.response);
        self.expanded += turn.prompt.len() + turn.response.len();
    }
}

impl PromptImages {
    /// The pictures of a prompt with these ids. Each has the tokens of its range.
    #[must_use]
    pub fn new(ids: &[u32], images: impl IntoIterator<Item = (Arc<Image>, Range<u32>)>) -> Self {
        let turn_image = |(image, range): (Arc<Image>, Range<u32>)| {
            let is_stored = image.bytes.is_some();
            TurnImage { image, start: range.start, tokens: range.end - range.start, is_stored }
        };
        let list: Vec<_> = images.into_iter().map(turn_image).collect();
        let keys = keys(ids, &list);
        Self { list, settings: None, keys, settings_since: 0 }
    }

    /// The same with the settings of the processor.
    #[must_use]
    pub fn with_settings(self, settings: Option<Arc<str>>) -> Self {
        Self { settings, ..self }
    }

    /// What the prompt is compared by: its ids, and the digests of its pictures.
    #[must_use]
    pub fn keys(&self) -> &[u32] {
        &self.keys
    }

    /// Computes the keys again, after the pictures were read without them.
    pub(in crate::session) fn set_keys(&mut self, ids: &[u32]) {
        self.keys = keys(ids, &self.list);
    }

    /// Shares the keys of another sample of the prompt.
    pub(super) fn share_keys(&mut self, same: &Self) {
        self.keys = Arc::clone(&same.keys);
    }

    /// The pictures after the first `known` tokens; `None` without any. `same` has them already, if the prompt was sampled before. Their settings
    /// are unknown if they do not have the same.
    pub(in crate::session) fn after(&self, known: usize, same: Option<&Self>) -> Option<Box<Self>> {
        let rebase = |image: &TurnImage| {
            let start = (image.start as usize).checked_sub(known)?;
            Some(TurnImage { start: u32::try_from(start).ok()?, ..image.clone() })
        };
        let list: Vec<_> = self.list.iter().filter_map(rebase).collect();
        let keys = || same.map_or_else(|| self.keys[known..].into(), |same| Arc::clone(&same.keys));
        let first = list.first()?.start as usize + known;
        let settings = self.settings.clone().filter(|_| first >= self.settings_since as usize);
        Some(Box::new(Self { list, settings, keys: keys(), settings_since: 0 }))
    }

    /// The pictures of a path from its root to the prompt of its last turn. That prompt, from the root on, has these ids. The settings are those
    /// of the last pictures.
    pub(in crate::session) fn of_path(path: &[Arc<Turn>], ids: &[u32]) -> Option<Box<Self>> {
        let (mut before, mut settings_since) = (0_u32, 0);
        let mut settings = None;
        let mut images = Vec::new();
        for turn in path {
            if let Some(of_turn) = &turn.about.images {
                if !images.is_empty() && of_turn.settings != settings {
                    settings_since = before;
                }
                settings.clone_from(&of_turn.settings);
                for TurnImage { image, start, tokens, .. } in &of_turn.list {
                    // the numbers of a damaged log may have any size
                    let start = start.saturating_add(before);
                    images.push((Arc::clone(image), start..start.saturating_add(*tokens)));
                }
            }
            let length = u32::try_from(turn.prompt.len() + turn.response.len()).unwrap_or(u32::MAX);
            before = before.saturating_add(length);
        }
        let all = Self::new(ids, images).with_settings(settings);
        (!all.list.is_empty()).then(|| Box::new(Self { settings_since, ..all }))
    }

    /// Marks the pictures whose bytes the record of the turn has: those that no earlier record of its session has.
    pub(in crate::session) fn mark_stored(&mut self, is_stored_before: impl Fn(ImageDigest) -> bool) {
        let mut new = BTreeSet::new();
        for TurnImage { image, is_stored, .. } in &mut self.list {
            *is_stored = image.bytes.is_some() && !is_stored_before(image.digest) && new.insert(image.digest);
        }
    }

    /// The bytes of the list, the settings and the keys. Those of the pictures are counted by the store.
    pub(super) fn bytes(&self) -> usize {
        let settings = self.settings.as_ref().map_or(0, |settings| settings.len());
        let list = self.list.len() * (size_of::<TurnImage>() + size_of::<Image>());
        size_of::<Self>() + list + settings + 4 * self.keys.len()
    }

    /// The pictures whose bytes the record of the turn has.
    pub(in crate::session) fn stored(&self) -> impl Iterator<Item = &Image> {
        self.list.iter().filter(|image| image.is_stored).map(|image| &*image.image)
    }

    /// The pictures whose bytes follow in a record that is being read.
    pub(in crate::session) fn stored_mut(&mut self) -> impl Iterator<Item = &mut Image> {
        self.list.iter_mut().filter(|image| image.is_stored).map(|image| Arc::make_mut(&mut image.image))
    }

    /// The bytes of the pictures that a record has.
    pub(in crate::session) fn stored_bytes(&self) -> u64 {
        self.stored().map(|image| image.size).sum()
    }
}

/// The keys of a prompt. A picture of eight tokens or more has 248 bits of its digest, a smaller one 31 bits for each token.
fn keys(ids: &[u32], images: &[TurnImage]) -> Arc<[u32]> {
    let mut keys = ids.to_vec();
    for TurnImage { image, start, tokens, .. } in images {
        let range = *start as usize..(*start as usize).saturating_add(*tokens as usize).min(ids.len());
        let words = image.digest.0.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
        for (key, word) in keys.get_mut(range).into_iter().flatten().zip(words) {
            *key = PICTURE | (*key ^ word);
        }
    }
    keys.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::TurnMetadata;

    fn image(content: &'static [u8]) -> Arc<Image> {
        Arc::new(Image::new(content.into()))
    }

    #[test]
    fn path_as_sent_has_one_placeholder_for_each_picture() {
        let turn = |prompt: &[u32], response: &[u32], images: Vec<(&'static [u8], Range<u32>)>| {
            let images = images.into_iter().map(|(content, range)| (image(content), range));
            let images = Some(Box::new(PromptImages::new(prompt, images)));
            let about = TurnMetadata { images, ..TurnMetadata::default() };
            let (prompt, response) = (prompt.into(), response.into());
            Turn { id: 0, parent: None, prompt, response, logprobs: [].into(), entropy: [].into(), about }
        };
        let mut path = UnexpandedPath::default();
        path.append(&turn(&[1, 7, 9, 9, 9, 8, 7, 9, 9, 8], &[2], vec![(b"a", 2..5), (b"b", 7..9)]));
        path.append(&turn(&[7, 9, 9, 8], &[3, 4], vec![(b"a", 1..3)]));
        assert_eq!(path.ids, [1, 7, 9, 8, 7, 9, 8, 2, 7, 9, 8, 3, 4]);
        assert_eq!(path.images, [b"a", b"b", b"a"].map(|content| image(&content[..]).digest));
        assert_eq!(path.expanded, 17);
    }

    fn images(ids: &[u32], content: &'static [u8]) -> PromptImages {
        PromptImages::new(ids, [(image(content), 1..4)])
    }

    #[test]
    fn keys_are_those_of_the_ids_and_of_the_picture() {
        let ids = [7, 9, 9, 9, 8];
        let keys = images(&ids, b"a").keys;
        assert_eq!((keys.len(), keys[0], keys[4]), (5, 7, 8));
        assert!(keys[1..4].iter().all(|key| key & PICTURE != 0));
        assert_eq!(images(&ids, b"a").keys, keys);
        assert_ne!(images(&ids, b"b").keys[1..4], keys[1..4]);
        assert_ne!(images(&[7, 3, 3, 3, 8], b"a").keys[1..4], keys[1..4], "another placeholder");
    }

    #[test]
    fn pictures_after_a_turn_have_the_keys_of_the_rest() {
        let ids = [1, 2, 9, 9, 3, 9, 9, 4];
        let both = PromptImages::new(&ids, [(image(b"a"), 2..4), (image(b"b"), 5..7)]);
        let rest = both.after(4, None).unwrap();
        assert_eq!(rest.list.iter().map(|image| (image.start, image.tokens)).collect::<Vec<_>>(), [(1, 2)]);
        assert_eq!(*rest.keys, both.keys[4..]);
        assert!(both.after(7, None).is_none());
        let again = both.after(4, Some(&rest)).unwrap();
        assert!(Arc::ptr_eq(&again.keys, &rest.keys));
    }

    #[test]
    fn pictures_of_a_path_keep_settings_that_all_of_them_have() {
        let settings = |all: [Option<&'static str>; 2], known| {
            let turn = |settings: Option<&'static str>| {
                let images = images(&[7, 9, 9, 9, 8], b"a").with_settings(settings.map(Arc::from));
                let about = TurnMetadata { images: Some(Box::new(images)), ..TurnMetadata::default() };
                let (prompt, response) = ([7, 9, 9, 9, 8].into(), [2].into());
                Arc::new(Turn { id: 0, parent: None, prompt, response, logprobs: [].into(), entropy: [].into(), about })
            };
            let path = PromptImages::of_path(&all.map(turn), &[7, 9, 9, 9, 8, 2, 7, 9, 9, 9, 8]).unwrap();
            path.after(known, None).unwrap().settings
        };
        assert_eq!(settings([Some("{}"), Some("{}")], 0).as_deref(), Some("{}"));
        for all in [[Some("{1}"), Some("{}")], [None, Some("{}")]] {
            assert_eq!(settings(all, 0), None, "a root has the pictures of both turns");
            assert_eq!(settings(all, 6).as_deref(), Some("{}"), "only the pictures of the last turn");
        }
        assert_eq!(settings([Some("{}"), None], 0), None);
    }

    #[test]
    fn range_outside_of_the_prompt_has_no_key() {
        let mut read = images(&[7, 9, 9, 9, 8], b"a");
        for (start, tokens) in [(5, 1), (u32::MAX, u32::MAX), (4, u32::MAX)] {
            (read.list[0].start, read.list[0].tokens) = (start, tokens);
            read.set_keys(&[7, 9, 9, 9, 8]);
            assert_eq!(read.keys.len(), 5);
        }
    }
}
