//! Ids that are unique among all processes.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// A unique id: 64 random bits of the process that made it, and a number that rises within the process. Its text is 32 hexadecimal
/// digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid(u128);

impl Uid {
    /// The next id of this process.
    pub(crate) fn unique() -> Self {
        // SipHash under keys from the system's entropy
        static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(u128::from(*PROCESS) << 64 | u128::from(NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// A unique id that depends on this one and on `parts` only.
    pub(super) fn derive(self, parts: &[&[u8]]) -> Self {
        let digest = Sha256::new().chain_update(self.to_bytes());
        let digest = parts.iter().fold(digest, |digest, part| digest.chain_update(part));
        Self::from_bytes(*digest.finalize().first_chunk().expect("a digest is longer"))
    }

    /// Its bytes, big-endian.
    pub(super) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The id of these bytes.
    pub(super) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

impl Default for Uid {
    /// The next id of this process.
    fn default() -> Self {
        Self::unique()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is not 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id is 32 hexadecimal digits")]
pub struct InvalidUid;

impl FromStr for Uid {
    type Err = InvalidUid;

    fn from_str(text: &str) -> Result<Self, InvalidUid> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(is_digit) {
            return Err(InvalidUid);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| InvalidUid)
    }
}

impl Serialize for Uid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Uid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_survive_their_text() {
        let ids: Vec<Uid> = (0..3).map(|_| Uid::unique()).collect();
        assert!(ids[0] < ids[1] && ids[1] < ids[2], "they rise within a process");
        for id in ids {
            assert_eq!(id.to_string().parse(), Ok(id));
            assert_eq!(serde_json::from_str::<Uid>(&serde_json::to_string(&id).unwrap()).unwrap(), id);
        }
        for text in ["", "1", "g0000000000000000000000000000000", "+0000000000000000000000000000000"] {
            assert_eq!(text.parse::<Uid>(), Err(InvalidUid), "{text}");
        }
    }
}
