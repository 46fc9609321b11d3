//! Request ids that look like the engine's own: 32 hex digits, all of one length, so that none is a prefix of another.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a new id, random enough that two tokentaps in front of one engine do not collide.
#[must_use]
pub(crate) fn fresh() -> String {
    static KEYS: OnceLock<(RandomState, RandomState)> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // SipHash under keys from the system's entropy: a counter in, 128 scattered bits out
    let (high, low) = KEYS.get_or_init(|| (RandomState::new(), RandomState::new()));
    let at = NEXT.fetch_add(1, Ordering::Relaxed);
    let seed = (at, std::process::id());
    format!("{:016x}{:016x}", high.hash_one(seed), low.hash_one(seed))
}

#[cfg(test)]
mod tests {
    #[test]
    fn ids_are_distinct_and_of_one_length() {
        let ids: std::collections::HashSet<String> = (0..1000).map(|_| super::fresh()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())));
    }
}
