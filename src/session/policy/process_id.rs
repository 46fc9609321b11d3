//! The processes of a fleet, each of which counts policy epochs.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The process that counted an epoch. It is the id of its local log, which a restart does not change, or a random number of a process
/// without one. Its text is 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessId(NonZeroU64);

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A text that is not 16 hexadecimal digits, or that is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the id of a process is 16 hexadecimal digits")]
pub struct InvalidProcessId;

impl FromStr for ProcessId {
    type Err = InvalidProcessId;

    fn from_str(text: &str) -> Result<Self, InvalidProcessId> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 16 || !text.bytes().all(is_digit) {
            return Err(InvalidProcessId);
        }
        u64::from_str_radix(text, 16).ok().and_then(NonZeroU64::new).map(Self).ok_or(InvalidProcessId)
    }
}

impl Serialize for ProcessId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ProcessId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_survives_its_text() {
        for text in ["0123456789abcdef", "0000000000000001", "ffffffffffffffff"] {
            let id: ProcessId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
            assert_eq!(serde_json::from_str::<ProcessId>(&serde_json::to_string(&id).unwrap()).unwrap(), id);
        }
        for text in ["", "1", "0000000000000000", "0123456789ABCDEF", "+123456789abcdef", "0123456789abcdef0"] {
            assert_eq!(text.parse::<ProcessId>(), Err(InvalidProcessId), "{text}");
        }
        assert_eq!(size_of::<Option<ProcessId>>(), 8, "every span has one");
    }
}
