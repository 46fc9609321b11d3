// SPDX-License-Identifier: Apache-2.0
//! The token that a template writes for a picture, and that the engine replaces by the tokens of the picture.

use super::{Renderer, Setting};
use crate::images::ImagePlaceholder;
use crate::json::Value;
use crate::tokenizer::TokenizerError;

/// Why the placeholder of a picture is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoPlaceholder {
    /// `config.json` names no such token.
    #[error("the config.json of the model names no token for pictures")]
    NotNamed,
    /// The template does not write it once for each picture.
    #[error("the chat template does not write the model's token for pictures once for each picture")]
    NotWritten,
}

impl Renderer {
    /// The token that stands for a picture in a prompt.
    ///
    /// # Errors
    /// [`NoPlaceholder`].
    pub fn image_placeholder(&self) -> Result<ImagePlaceholder, NoPlaceholder> {
        self.image_placeholder
    }

    /// Whether the text of a prompt has the name of a placeholder where its ids have none. Many processors search the decoded prompt for
    /// placeholders.
    ///
    /// # Errors
    /// [`TokenizerError`] if the ids cannot be decoded.
    pub fn spells_placeholder(&self, ids: &[u32], placeholder: u32) -> Result<bool, TokenizerError> {
        let decode = |ids: &[u32]| self.folder.tokenizer.decode(ids, false);
        let placeholders = ids.iter().filter(|id| **id == placeholder).count();
        Ok(decode(ids)?.matches(&decode(&[placeholder])?).count() != placeholders)
    }

    /// A prompt with one picture.
    ///
    /// # Errors
    /// [`NoPlaceholder`].
    pub fn image_prompt(&self) -> Result<Vec<u32>, NoPlaceholder> {
        self.image_placeholder?;
        self.encode_images(1).ok_or(NoPlaceholder::NotWritten)
    }

    /// Finds the token by rendering a message with one picture, and one with two.
    pub(super) fn detect_image_placeholder(&self) -> Result<ImagePlaceholder, NoPlaceholder> {
        let named = &self.folder.image_tokens;
        if named.is_empty() {
            return Err(NoPlaceholder::NotNamed);
        }
        let [one, two] = [1, 2].map(|images| self.encode_images(images));
        let (Some(one), Some(two)) = (one, two) else { return Err(NoPlaceholder::NotWritten) };
        let count = |ids: &[u32], token: u32| ids.iter().filter(|id| **id == token).count();
        let mut written = named.iter().filter(|token| (count(&one, **token), count(&two, **token)) == (1, 2));
        let id = *written.next().ok_or(NoPlaceholder::NotWritten)?;
        let frame = one.windows(3).find_map(|ids| match *ids {
            [before, middle, after] if middle == id => Some([before, after]),
            _ => None,
        });
        let is_special = |ids: &[u32; 2]| ids.iter().all(|id| self.folder.tokenizer.is_special(*id));
        Ok(ImagePlaceholder { id, frame: frame.filter(is_special) })
    }

    /// The ids of a user message with pictures.
    fn encode_images(&self, images: usize) -> Option<Vec<u32>> {
        let text = Value::object([("type", "text".into()), ("text", "T".into())]);
        let image = std::iter::repeat_n(Value::object([("type", "image".into())]), images);
        let content = Value::Array(image.chain([text]).collect());
        let message = Value::object([("role", "user".into()), ("content", content)]);
        let setting = Setting { tools: None, generation_prompt: true, extra: &[] };
        let text = self.render_text(&[message], setting).ok()?;
        self.folder.tokenizer.encode_rendered(&text).ok()
    }
}
