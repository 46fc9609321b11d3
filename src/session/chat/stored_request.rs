// SPDX-License-Identifier: Apache-2.0
//! The request of a stored response. With the tokens of its turn it suffices to return the response, or to continue it.

use serde::{Deserialize, Serialize};

use super::StoredItem;
use crate::images::Image;
use crate::session::{Digest, TurnKey};

/// The request of a stored response. Members and items that an earlier request of the session has are not repeated, so that the requests of a
/// conversation take as much memory as the conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRequest {
    /// The members of the body except the input, as the text of a JSON object. `None` if another request has the same.
    pub members: Option<Box<str>>,
    /// The turn whose request has the same members.
    pub members_of: Option<u32>,
    /// The input has items that add tools.
    pub adds_tools: bool,
    /// A response that ends by length is complete for the client.
    pub completes_at_length: bool,
    /// The response that it continues, if the client named one.
    pub previous: Option<TurnKey>,
    /// The first items of the input.
    pub shared: Option<SharedItems>,
    /// The other items of the input.
    pub items: Vec<StoredItem>,
    /// The API key of the caller.
    pub caller: CallerKey,
}

/// Items that a request shares with an earlier request of its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedItems {
    /// The turn of the earlier request.
    pub turn: u32,
    /// The number of its first items that are shared.
    pub count: u32,
}

/// A salted hash of the API key of a caller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallerKey {
    salt: Digest,
    hash: Digest,
}

impl CallerKey {
    /// Hashes the key of a caller. `salt` is random. A caller without a key has an empty key.
    #[must_use]
    pub fn new(salt: &[u8], key: &[u8]) -> Self {
        let salt = Digest::sha256(salt);
        Self { salt, hash: Self::hash(&salt, key) }
    }

    /// Whether a caller has this key.
    #[must_use]
    pub fn is(&self, key: &[u8]) -> bool {
        Self::hash(&self.salt, key) == self.hash
    }

    fn hash(salt: &Digest, key: &[u8]) -> Digest {
        Digest::sha256(&[b"caller\n", salt.as_bytes(), key].concat())
    }
}

impl StoredRequest {
    /// The same without these pictures.
    #[must_use]
    pub fn without_pictures(&self, images: &[&Image]) -> Self {
        let items = self.items.iter().map(|item| item.without_pictures(images)).collect();
        Self { items, ..self.clone() }
    }

    /// The bytes that it takes, and an entry of an index.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let items: usize = self.items.iter().map(StoredItem::bytes).sum();
        size_of::<Self>() + self.members.as_ref().map_or(0, |members| members.len()) + items + 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_caller_is_recognised() {
        let caller = CallerKey::new(b"random", b"secret");
        assert!(caller.is(b"secret"));
        assert!(!caller.is(b"Secret") && !caller.is(b""));
        assert_ne!(caller, CallerKey::new(b"other", b"secret"), "equal keys have different hashes");
        let text = serde_json::to_string(&caller).unwrap();
        assert!(serde_json::from_str::<CallerKey>(&text).unwrap().is(b"secret"));
        assert!(!text.contains("secret"));
    }
}
