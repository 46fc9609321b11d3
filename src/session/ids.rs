// SPDX-License-Identifier: Apache-2.0
//! Ids of turns, sessions and processes, and the names of sessions.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Characters of the longest name.
pub const LONGEST_NAME: usize = 128;

/// Whether a name is a valid session name. Names are used in paths, headers and file names. `.` and `..` are invalid: clients and file
/// systems resolve them in paths.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
        && !matches!(name, "." | "..")
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-'))
}

/// Whether a name contains `part`; upper and lower case are the same.
pub(super) fn has_part(name: &str, part: &str) -> bool {
    let is_part = |bytes: &[u8]| bytes.eq_ignore_ascii_case(part.as_bytes());
    part.is_empty() || name.as_bytes().windows(part.len()).any(is_part)
}

/// The key by which routers recognise the calls of a session: the first half of SHA-256 of its name, the same in every process. The name
/// itself may be a client's key, and routers log what they route by.
#[must_use]
pub(crate) fn routing_key(session: &str) -> String {
    Sha256::digest(session).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// An id that is unique among all processes: 64 random bits of the process that made it, and a number that rises within the process. Its
/// text is 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "[u8; 16]", into = "[u8; 16]")]
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

    pub(super) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

impl From<[u8; 16]> for Uid {
    fn from(bytes: [u8; 16]) -> Self {
        Self::from_bytes(bytes)
    }
}

impl From<Uid> for [u8; 16] {
    fn from(id: Uid) -> Self {
        id.to_bytes()
    }
}

impl Default for Uid {
    /// The next id of this process.
    fn default() -> Self {
        Self::unique()
    }
}

/// The process that has a store and counts policy epochs. It is the id of its local log, which a restart does not change, or a random number
/// of a process without one. Its text is 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId(NonZeroU64);

impl ProcessId {
    pub(super) fn random() -> Self {
        // SipHash under keys from the system's entropy
        let hash = RandomState::new().hash_one(std::process::id());
        Self(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN))
    }
}

/// A text with other characters than lower-case hexadecimal digits, or with another number of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id is {digits} hexadecimal digits")]
pub struct InvalidId {
    digits: usize,
}

/// The number of a text with this many hexadecimal digits.
fn parse_digits(text: &str, digits: usize) -> Result<u128, InvalidId> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let number = (text.len() == digits && text.bytes().all(is_digit)).then(|| u128::from_str_radix(text, 16).ok());
    number.flatten().ok_or(InvalidId { digits })
}

impl FromStr for Uid {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        parse_digits(text, 32).map(Self)
    }
}

impl FromStr for ProcessId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let number = u64::try_from(parse_digits(text, 16)?).ok().and_then(NonZeroU64::new);
        number.map(Self).ok_or(InvalidId { digits: 16 })
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_are_unique_and_survive_their_text() {
        let ids: Vec<Uid> = (0..3).map(|_| Uid::unique()).collect();
        assert!(ids[0] < ids[1] && ids[1] < ids[2], "they rise within a process");
        for id in ids {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for text in ["", "1", "g0000000000000000000000000000000", "+0000000000000000000000000000000"] {
            assert_eq!(text.parse::<Uid>(), Err(InvalidId { digits: 32 }), "{text}");
        }
    }

    #[test]
    fn process_id_survives_its_text() {
        for text in ["0123456789abcdef", "0000000000000001", "ffffffffffffffff"] {
            let id: ProcessId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
        }
        for text in ["", "1", "0000000000000000", "0123456789ABCDEF", "+123456789abcdef", "0123456789abcdef0"] {
            assert_eq!(text.parse::<ProcessId>(), Err(InvalidId { digits: 16 }), "{text}");
        }
        assert_eq!(size_of::<Option<ProcessId>>(), 8, "every span has one");
    }
}
