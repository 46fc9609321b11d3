//! What is recorded of a turn that answers a chat request, so that the next call of the conversation finds its tokens.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Cause, Fingerprint};

/// A digest of a conversation up to some message. Conversations with the same meaning have the same digest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Digest([u8; 16]);

/// The part of a turn that only chat requests have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Chat {
    /// The messages that the turn answers.
    pub conversation: Digest,
    /// Whether the prompt shows the tools.
    #[serde(default)]
    pub tools: bool,
    /// How its text was parsed. Together with the tokens it determines the message that the client received.
    pub reading: Reading,
    /// Whether the prompt holds text that was sampled in this session and had to be tokenised again. Logs of version 0.1 set it for
    /// any assistant text.
    #[serde(default)]
    pub retokenised: bool,
    /// Whether the prompt holds assistant text that was not sampled in this session: examples, a prefill, a fixed greeting.
    #[serde(default)]
    pub foreign_text: bool,
    /// Tokens that the prompt adds to end the previous turn, which ended by length.
    #[serde(default)]
    pub inserted_end_of_turn: u32,
    /// Compared with later calls. Turns of older logs have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// The change to an earlier conversation that begins a branch, if any. It becomes the turn's cause.
    #[serde(skip)]
    pub departure: Option<Cause>,
}

/// How the text of a reply is parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// The format of its tool calls; `None` if tool calls are not parsed.
    pub format: Option<Box<str>>,
    /// Whether the thinking is separated from the text.
    pub separate: bool,
    /// Whether the prompt ends inside an open think tag.
    pub opened: bool,
    /// Whether special tokens are left out of the text.
    pub skip_special: bool,
    /// Whether the stop token is part of the text.
    pub keep_stop: bool,
}

impl Digest {
    /// The digest of a hash: its first 16 bytes.
    #[must_use]
    pub fn of(hash: &[u8]) -> Self {
        let mut bytes = [0; 16];
        let kept = hash.len().min(16);
        bytes[..kept].copy_from_slice(&hash[..kept]);
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", u128::from_be_bytes(self.0)))
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let number = u128::from_str_radix(&text, 16).map_err(serde::de::Error::custom)?;
        Ok(Self(number.to_be_bytes()))
    }
}
