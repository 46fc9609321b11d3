// SPDX-License-Identifier: Apache-2.0
//! The key of a turn: an opaque text that the client gets with the reply and returns in later calls.
//!
//! A key is a hash of the engine's request id, which the turn records, so it stays valid after a restart. The id is random and the key cannot be
//! guessed, unless the client has chosen the id.
//! It is only compared with the keys of turns in the session of the call. The ids of tool calls contain the key.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::session::Digest;

/// Bytes of a key.
const LENGTH: usize = 10;

/// The text before a key.
const PREFIX: &str = "turn_";

/// The text before the id of a call, and the digits after its key, which are the index of the call.
const CALL_PREFIX: &str = "call_";
const CALL_DIGITS: usize = 4;

/// The text before a key in the id of a response.
const RESPONSE_PREFIX: &str = "resp_";

/// The key of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnKey([u8; LENGTH]);

impl TurnKey {
    /// The key of the sequence `index` of the request `rid`.
    #[must_use]
    pub fn of(rid: &str, index: usize) -> Self {
        let hash = Sha256::new().chain_update(b"turn\n").chain_update(rid.as_bytes());
        let hash = hash.chain_update((index as u64).to_le_bytes()).finalize();
        let mut key = [0; LENGTH];
        key.copy_from_slice(&hash[..LENGTH]);
        Self(key)
    }

    /// Reads a key. `None` if the text is not one, such as a text of another server.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::from_digits(text.strip_prefix(PREFIX)?)
    }

    /// Reads the key in the id of a tool call. `None` if the id has none.
    #[must_use]
    pub fn in_call_id(id: &str) -> Option<Self> {
        Self::before_index(id.strip_prefix(CALL_PREFIX)?)
    }

    /// The id of the call at index `at` of the turn.
    #[must_use]
    pub fn call_id(&self, at: usize) -> String {
        format!("{CALL_PREFIX}{}{at:04x}", self.digits())
    }

    /// The index of the call in an id that [`Self::call_id`] has made; 0 in other ids.
    #[must_use]
    pub fn call_index(id: &str) -> usize {
        let digits = id.len().checked_sub(CALL_DIGITS).and_then(|start| id.get(start..));
        digits.and_then(|digits| usize::from_str_radix(digits, 16).ok()).unwrap_or_default()
    }

    /// Reads the key in the id of an item, such as `msg_…`. `None` if the id has none.
    #[must_use]
    pub fn in_item_id(id: &str) -> Option<Self> {
        Self::before_index(id.split_once('_')?.1)
    }

    /// The id of the item at index `at` of the turn. `prefix` names the kind of the item.
    #[must_use]
    pub fn item_id(&self, prefix: &str, at: usize) -> String {
        format!("{prefix}_{}{at:04x}", self.digits())
    }

    /// Reads the key in the id of a response. `None` if the id has none.
    #[must_use]
    pub fn in_response_id(id: &str) -> Option<Self> {
        Self::from_digits(id.strip_prefix(RESPONSE_PREFIX)?)
    }

    /// The id of the response of the turn.
    #[must_use]
    pub fn response_id(&self) -> String {
        format!("{RESPONSE_PREFIX}{}", self.digits())
    }

    /// The key as a digest, for indexes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&self.0)
    }

    /// Reads the key before an index.
    fn before_index(digits: &str) -> Option<Self> {
        let (key, index) = digits.split_at_checked(2 * LENGTH)?;
        let is_index = index.len() == CALL_DIGITS && index.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_index { Self::from_digits(key) } else { None }
    }

    fn from_digits(digits: &str) -> Option<Self> {
        if digits.len() != 2 * LENGTH || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut key = [0; LENGTH];
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self(key))
    }

    fn digits(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for TurnKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.digits())
    }
}

impl FromStr for TurnKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or("not the key of a turn")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_read_from_its_text_and_from_ids_of_calls() {
        let key = TurnKey::of("rid", 1);
        assert_ne!(key, TurnKey::of("rid", 0));
        assert_eq!(TurnKey::parse(&key.to_string()), Some(key));
        assert_eq!(TurnKey::in_call_id(&key.call_id(0)), Some(key));
        assert_eq!(TurnKey::in_call_id(&key.call_id(65_535)), Some(key));
        assert_ne!(key.call_id(0), key.call_id(1));
        assert_eq!(TurnKey::call_index(&key.call_id(40_000)), 40_000);
        assert_eq!(TurnKey::in_item_id(&key.item_id("msg", 3)), Some(key));
        assert_eq!(TurnKey::in_item_id("msg_1"), None);
        assert_eq!(TurnKey::in_item_id(&format!("{}_100", key.response_id())), None);
        for other in ["", "turn_", "turn_00", "call_0", "toolu_01", "turn_ééééééééééééééééééééé", &"turn_zz".repeat(4)]
        {
            assert_eq!((TurnKey::parse(other), TurnKey::in_call_id(other)), (None, None), "{other}");
        }
    }
}
