// SPDX-License-Identifier: Apache-2.0
//! Values that most turns of a process have in common. One copy of each is in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::session::{EntropyMethod, Labels, TurnMetadata};

/// The latest different values of a kind with which those of a turn are compared.
const KEPT: usize = 8;

/// The most bytes of a shared text. A longer one, such as one with a JSON schema, would stay in memory without being counted after the
/// session that paid for it has gone.
const LONGEST: usize = 4096;

/// The latest values.
#[derive(Debug, Default)]
pub(in crate::session) struct CommonValues {
    sampling: Latest<str>,
    labels: Latest<Labels>,
    measured: Latest<EntropyMethod>,
    image_settings: Latest<str>,
}

#[derive(Debug)]
struct Latest<T: ?Sized>(VecDeque<Arc<T>>);

impl<T: ?Sized> Default for Latest<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl CommonValues {
    /// Replaces the values of a turn that were seen before by their first copies. Returns the bytes that the turn takes less.
    pub(in crate::session) fn share(&mut self, about: &mut TurnMetadata) -> u64 {
        let sampling = self.sampling.share_text(&mut about.sampling);
        let labels = self.labels.share(&mut about.labels).map_or(0, |labels| labels.bytes());
        let measured = self.measured.share(&mut about.measured).map_or(0, size_of_val);
        let image_settings =
            about.images.as_mut().map_or(0, |images| self.image_settings.share_text(&mut images.settings));
        (sampling + labels + measured + image_settings) as u64
    }
}

impl Latest<str> {
    /// Shares a text that is not too long. Returns its bytes if it was seen before.
    fn share_text(&mut self, text: &mut Option<Arc<str>>) -> usize {
        let is_short = text.as_ref().is_some_and(|text| text.len() <= LONGEST);
        if is_short { self.share(text).map_or(0, str::len) } else { 0 }
    }
}

impl<T: ?Sized + PartialEq> Latest<T> {
    /// Returns the value if it was seen before.
    fn share<'a>(&mut self, value: &'a mut Option<Arc<T>>) -> Option<&'a T> {
        let value = value.as_mut()?;
        if let Some(known) = self.0.iter().find(|known| ***known == **value) {
            *value = Arc::clone(known);
            return Some(value);
        }
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Arc::clone(value));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::PromptImages;

    #[test]
    fn equal_values_of_turns_are_one_value() {
        let mut common = CommonValues::default();
        let about = |text: &str| TurnMetadata {
            sampling: Some(text.into()),
            labels: Some(Arc::default()),
            ..TurnMetadata::default()
        };
        let (mut first, mut second, mut third) = (about("{}"), about("{}"), about("{ }"));
        assert_eq!(common.share(&mut first), 0);
        assert_eq!(common.share(&mut second), 2 + size_of::<Labels>() as u64);
        assert_eq!(common.share(&mut third), size_of::<Labels>() as u64);
        let is_one = |a: &TurnMetadata, b: &TurnMetadata| {
            Arc::ptr_eq(a.sampling.as_ref().unwrap(), b.sampling.as_ref().unwrap())
        };
        assert!(is_one(&first, &second) && !is_one(&first, &third));
        let with_images = |settings: &str| TurnMetadata {
            images: Some(Box::new(PromptImages::default().with_settings(Some(settings.into())))),
            ..TurnMetadata::default()
        };
        assert_eq!([(); 2].map(|()| common.share(&mut with_images("{\"a\":1}"))), [0, 7]);
        for at in 0..KEPT {
            common.share(&mut about(&at.to_string()));
        }
        assert_eq!(common.share(&mut TurnMetadata { labels: None, ..about("{}") }), 0, "it was forgotten");
    }
}
