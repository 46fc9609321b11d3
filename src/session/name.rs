//! The rule for session names, which are used in paths, headers and file names.

/// Characters of the longest name.
pub const LONGEST_NAME: usize = 128;

/// Whether a name is a valid session name. `.` and `..` are not: clients and file systems resolve them in paths.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
        && !matches!(name, "." | "..")
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-'))
}
