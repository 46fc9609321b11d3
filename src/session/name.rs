//! The rule for names of sessions, which are used in paths, headers and file names.

/// Characters of the longest name.
pub const LONGEST_NAME: usize = 128;

/// Whether a name can be a session's. Dots alone cannot: whatever reads a path with them resolves it.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
        && !matches!(name, "." | "..")
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-'))
}
