// SPDX-License-Identifier: Apache-2.0
//! The data that a turn of a chat records, so that the next call of the conversation finds the tokens of the turn.

mod stored_item;
mod stored_request;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{Fingerprint, HistoryChange, ReplyChanges, SamplingSources};
pub use stored_item::StoredItem;
pub use stored_request::{CallerKey, SharedItems, StoredRequest};

/// The digest of a prefix of a conversation. Prefixes with the same meaning have the same digest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest([u8; 16]);

/// The data of a turn that answers a chat request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Chat {
    /// The digest of the messages that the turn answers.
    pub conversation: Digest,
    /// Whether the prompt contains the tools.
    pub tools: bool,
    /// How its text was parsed. Together with the tokens it determines the message that the client received.
    pub reading: ParseOptions,
    /// Whether the prompt contains text that was sampled in this session and had to be tokenized again.
    pub retokenised: bool,
    /// Whether the prompt contains assistant text that was not sampled in this session, such as examples, a prefill or a fixed greeting.
    pub foreign_text: bool,
    /// The number of end-of-turn tokens that the prompt adds after the previous turn, which ended by length.
    pub inserted_end_of_turn: u32,
    /// What the client changed in replies whose sampled tokens the prompt contains. The replies in the prompts of earlier turns do not count.
    pub reply_changes: ReplyChanges,
    /// Digests that later calls are compared with.
    pub fingerprint: Fingerprint,
    /// The sources of the sampling parameters that the client did not set. `None` if they are not known.
    pub sampling_sources: Option<SamplingSources>,
    /// The request, if the response is stored.
    pub stored: Option<Arc<StoredRequest>>,
    /// [`Session::number`](super::Session::number) of the session whose turns the fields of this chat name by their numbers.
    #[serde(skip)]
    pub session_number: Option<u64>,
    /// The changes to earlier conversations that may begin a branch. The first that no earlier call made becomes the cause and the
    /// predecessor of the turn.
    #[serde(skip)]
    pub history_changes: Vec<HistoryChange>,
}

/// How the text of one reply is parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParseOptions {
    /// The format of the tool calls; `None` if tool calls are not parsed.
    pub format: Option<Box<str>>,
    /// The types of the parameters of the tools, if the format needs them, as `parse::ParameterTypes` writes them.
    pub parameters: Option<Arc<str>>,
    /// Whether the thinking is separated from the text.
    pub separate: bool,
    /// Whether the prompt ends with an open thought.
    pub opened: bool,
    /// Whether special tokens are left out of the text.
    pub skip_special: bool,
    /// Whether the stop token is part of the text.
    pub keep_stop: bool,
}

impl Digest {
    /// The first 16 bytes of the SHA-256 of `bytes`.
    #[must_use]
    pub fn sha256(bytes: &[u8]) -> Self {
        Self::of(&Sha256::digest(bytes))
    }

    /// The first 16 bytes of a hash.
    #[must_use]
    pub fn of(hash: &[u8]) -> Self {
        let mut bytes = [0; 16];
        let length = hash.len().min(16);
        bytes[..length].copy_from_slice(&hash[..length]);
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
