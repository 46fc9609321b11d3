// SPDX-License-Identifier: Apache-2.0
//! Request ids that look like the engine's own: 32 hex digits, all of one length, so that none is a prefix of another.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// A request id on the stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InlineRid([[u8; 2]; 16]);

impl InlineRid {
    /// Returns a new id, random enough that two tokentaps in front of one engine do not collide.
    #[must_use]
    pub(crate) fn new() -> Self {
        static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // SipHash under keys from the system's entropy: a counter in, 128 scattered bits out
        let at = NEXT.fetch_add(1, Ordering::Relaxed);
        // `format!` takes ten times as long
        let mut digits = [[0; 2]; 16];
        for (half, key) in digits.chunks_exact_mut(8).zip(&*KEYS) {
            for (digits, byte) in half.iter_mut().zip(key.hash_one(at).to_be_bytes()) {
                *digits = HEX[usize::from(byte)];
            }
        }
        Self(digits)
    }

    #[must_use]
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(self.0.as_flattened()).unwrap_or_default()
    }
}

/// Returns a new id.
#[must_use]
pub(crate) fn fresh() -> Arc<str> {
    InlineRid::new().as_str().into()
}

/// The two hexadecimal digits of each byte.
static HEX: [[u8; 2]; 256] = {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let mut hex = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        hex[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    hex
};

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    #[test]
    fn ids_are_distinct_and_of_one_length() {
        let ids: std::collections::HashSet<Arc<str>> = (0..1000).map(|_| super::fresh()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())));
    }
}
