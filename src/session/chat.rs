//! What a turn of a chat was asked, so that the conversation's next call finds its tokens.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Cause, Fingerprint};

/// A digest of a conversation up to some message: equal for conversations with the same meaning, otherwise different.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Digest([u8; 16]);

/// The part of a turn that only a chat has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Chat {
    /// The messages that the turn answers.
    pub conversation: Digest,
    /// Its context shows the tools.
    #[serde(default)]
    pub tools: bool,
    /// How its text was parsed. Together with the tokens it determines the message that the client received.
    pub reading: Reading,
    /// Its prompt holds text that was sampled in this session and had to be tokenised anew. Logs of version 0.1 say it of any text
    /// of an assistant.
    #[serde(default)]
    pub retokenised: bool,
    /// Its prompt holds text of an assistant that was not sampled in this session: examples, a prefill, a fixed greeting.
    #[serde(default)]
    pub foreign_text: bool,
    /// Tokens of its prompt that end the turn before, which ended by length.
    #[serde(default)]
    pub inserted_end_of_turn: u32,
    /// What a later call is compared with; turns of older logs have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// What the call changed in an earlier conversation, if it begins a branch; becomes the turn's cause.
    #[serde(skip)]
    pub departure: Option<Cause>,
}

/// How the text of a reply is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// The format of its tool calls; `None` where none are looked for.
    pub format: Option<Box<str>>,
    /// Its thinking is separated from the text.
    pub separate: bool,
    /// The prompt had opened a thought.
    pub opened: bool,
    /// Special tokens are no part of its text.
    pub skip_special: bool,
    /// The stop token is part of its text.
    pub keep_stop: bool,
}

impl Digest {
    /// From the bytes of a hash, of which the first sixteen are kept.
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
