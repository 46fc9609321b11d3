//! The key of a turn: an opaque text that the client gets with the reply and returns in later calls.
//!
//! A key is a hash of the engine's random request id, which the turn records. So it cannot be guessed, and it stays valid after a restart.
//! It is only compared with the keys of turns in the session of the call. The ids of tool calls are such keys too.

use sha2::{Digest as _, Sha256};

/// The key of the sequence `index` of the request `rid`.
#[must_use]
pub fn turn_key(rid: &str, index: usize) -> Box<str> {
    let hash = Sha256::new().chain_update(b"turn\n").chain_update(rid.as_bytes());
    let hash = hash.chain_update((index as u64).to_le_bytes()).finalize();
    let digits: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("turn_{digits}").into()
}
