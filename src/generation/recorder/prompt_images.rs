//! The pictures of one prompt of a request, from the request to the echo that shows their tokens.

use std::sync::Arc;

use crate::engine::expansion;
use crate::engine::sglang::request::{GenerateRequest, ImageError};
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
    /// The pictures of prompt `at`, which are decoded.
    pub(super) fn of_prompt(request: &GenerateRequest, at: usize) -> Self {
        if request.other_media {
            return Self::Unrecorded(Fault::MediaUnrecorded);
        }
        let items = request.images(at);
        if items.is_empty() {
            return Self::Absent;
        }
        let decoded: Result<Vec<_>, _> =
            items.into_iter().map(|item| item.decode(&request.bytes).map(Arc::new)).collect();
        match (decoded, request.prompt_ids(at)) {
            (Err(ImageError::Remote), _) => Self::Unrecorded(Fault::ImageRemote),
            (Err(ImageError::Processed), _) => Self::Unrecorded(Fault::ImageProcessed),
            // the engine uses the text of a request that has both, and continues its own session with an unknown prompt
            (Ok(images), Some(ids)) if !request.has_text() && request.session_params.is_none() => {
                Self::Sent { ids, images }
            }
            (Ok(_), _) => Self::Unrecorded(Fault::ImagesUnverified),
        }
    }

    /// Compares the ids that were sent with the prompt that the engine echoes.
    pub(super) fn place(&mut self, prompt: &[u32]) {
        let Self::Sent { ids, images } = self else { return };
        *self = match expansion::walk(ids, prompt, images.len()) {
            Ok(ranges) => {
                Self::Placed(Box::new(PromptImages::new(prompt, std::mem::take(images).into_iter().zip(ranges))))
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
