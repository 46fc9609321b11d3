// SPDX-License-Identifier: Apache-2.0
//! The pictures of one prompt of a request, from the request to the echo that shows their tokens.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::expansion::{self, EchoedPrompt};
use crate::engine::sglang::request::{GenerateRequest, ImageError, ImageItem};
use crate::images::Image;
use crate::session::{Fault, PromptImages};

/// The pictures of one prompt.
#[derive(Debug)]
pub enum RequestedImages {
    /// The prompt has none.
    Absent,
    /// They were sent with these ids, which have one placeholder for each.
    Sent {
        /// The ids.
        ids: Arc<[u32]>,
        /// The pictures, in the order of their placeholders.
        images: Vec<Arc<Image>>,
    },
    /// They have these tokens of the prompt.
    Placed(Box<PromptImages>),
    /// The turn is not trained.
    Unrecorded(Fault),
}

impl RequestedImages {
    /// The pictures of each prompt. Each is decoded once, if the memory has room for all.
    pub(super) fn of_request<'a>(request: &'a GenerateRequest, has_room: bool) -> Vec<Self> {
        let mut decoded: HashMap<&ImageItem, Result<Arc<Image>, Fault>> = HashMap::new();
        let mut decode = |item: &'a ImageItem| {
            if !has_room {
                return Err(Fault::ImagesTooLarge);
            }
            let decode = || Ok(item.decode(&request.bytes)?);
            decoded.entry(item).or_insert_with(decode).clone()
        };
        (0..request.batch().unwrap_or(1)).map(|at| Self::of_prompt(request, at, &mut decode)).collect()
    }

    /// The pictures of prompt `at`.
    fn of_prompt<'a>(
        request: &'a GenerateRequest,
        at: usize,
        decode: &mut impl FnMut(&'a ImageItem) -> Result<Arc<Image>, Fault>,
    ) -> Self {
        if request.other_media {
            return Self::Unrecorded(Fault::MediaUnrecorded);
        }
        let items = request.images(at);
        if items.is_empty() {
            return Self::Absent;
        }
        let decoded: Result<Vec<_>, _> = items.into_iter().map(decode).collect();
        match (decoded, request.prompt_ids(at)) {
            (Err(fault), _) => Self::Unrecorded(fault),
            (Ok(images), Some(ids)) if request.echo_shows_images() => Self::Sent { ids, images },
            (Ok(_), _) => Self::Unrecorded(Fault::ImagesUnverified),
        }
    }

    /// Compares the ids that were sent with the prompt that the engine echoes.
    pub(super) fn place(&mut self, prompt: EchoedPrompt<'_>, settings: Option<&Arc<str>>) {
        let Self::Sent { ids, images } = self else { return };
        *self = match expansion::walk(ids, prompt, images.len()) {
            Ok(ranges) => {
                let images = PromptImages::new(prompt.ids, std::mem::take(images).into_iter().zip(ranges));
                Self::Placed(Box::new(images.with_settings(settings.cloned())))
            }
            Err(error) => {
                tracing::debug!(%error, "the turn is not trained, because the tokens of its pictures are not known");
                Self::Unrecorded(Fault::ImagesUnverified)
            }
        };
    }

    /// The pictures whose tokens are known.
    pub(super) fn placed(&self) -> Option<&PromptImages> {
        if let Self::Placed(images) = self { Some(images) } else { None }
    }

    /// Why the turn is not trained, if its prompt is known.
    pub(super) fn fault(&self) -> Option<Fault> {
        if let Self::Unrecorded(fault) = self { Some(*fault) } else { None }
    }
}

impl From<ImageError> for Fault {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Remote => Self::ImageRemote,
            ImageError::Processed => Self::ImageProcessed,
        }
    }
}
