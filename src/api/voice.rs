//! In which words a native reply is said.

use super::openai_chat::reply::Making;
use super::openai_chat::stream::Speaker;
use super::openai_completions::reply::TextSpeaker;
use super::sample::Sample;
use crate::tokenizer::TokenizerError;

/// How a reply is said: whole or in pieces, as a chat's or as a completion's.
#[derive(Debug)]
pub enum Voice {
    /// A chat.
    Chat(Making),
    /// A chat that streams.
    ChatStream(Speaker),
    /// A completion.
    Text(TextSpeaker),
    /// A completion that streams.
    TextStream(TextSpeaker),
}

impl Voice {
    /// The body of a reply that is whole.
    ///
    /// # Errors
    /// When the tokenizer fails on what was sampled.
    pub fn whole(&self, samples: &[Sample<'_>]) -> Result<String, TokenizerError> {
        match self {
            Self::Chat(making) => making.whole(samples),
            Self::ChatStream(speaker) => speaker.making().whole(samples),
            Self::Text(speaker) | Self::TextStream(speaker) => Ok(speaker.whole(samples)),
        }
    }

    /// How many tokens of a sequence have been heard.
    #[must_use]
    pub fn known(&self, index: usize) -> usize {
        match self {
            Self::ChatStream(speaker) => speaker.known(index),
            Self::TextStream(speaker) => speaker.known(index),
            Self::Chat(_) | Self::Text(_) => 0,
        }
    }

    /// The chunks that an event becomes. A reply that was to be whole has none.
    ///
    /// # Errors
    /// When the tokenizer fails on what was sampled.
    pub fn event(&mut self, sample: &Sample<'_>, out: &mut String) -> Result<(), TokenizerError> {
        match self {
            Self::ChatStream(speaker) => speaker.event(sample, out),
            Self::TextStream(speaker) => {
                speaker.event(sample, out);
                Ok(())
            }
            Self::Chat(_) | Self::Text(_) => Ok(()),
        }
    }

    /// The engine has said that it failed.
    pub fn fail(&mut self) {
        if let Self::ChatStream(speaker) = self {
            speaker.fail();
        }
    }

    /// The chunks at the end.
    pub fn finish(&mut self, out: &mut String) {
        match self {
            Self::ChatStream(speaker) => speaker.finish(out),
            Self::TextStream(speaker) => speaker.finish(out),
            Self::Chat(_) | Self::Text(_) => {}
        }
    }
}
