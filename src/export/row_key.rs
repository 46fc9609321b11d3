//! A key of a row that is the same in every export.

use crate::session::{Path, Turn};

/// The key: 128 bits as hexadecimal digits. It is the uid of the path's last turn, which determines the path: turns and their parents never
/// change, except that a shared ledger that has lost turns may get them again in another order. The key does not depend on the version,
/// on other rows, or on the process, so the same path has the same key after a restart and on another replica.
///
/// A turn without a uid has a hash instead: of the session's name and of the recorded facts of the first and the last turn.
pub(crate) fn row_key(path: &Path) -> String {
    if let Some(uid) = path.leaf().about.uid {
        return uid.to_string();
    }
    let mut hash = Fnv1a::new();
    hash.add(path.session.as_bytes());
    let first = path.steps.first().map(|step| &*step.turn);
    for turn in first.into_iter().chain([path.leaf()]) {
        add_turn(&mut hash, turn);
    }
    format!("{:032x}", hash.0)
}

/// Adds the facts of a turn. Two sessions of one name differ in the times and request ids of their turns, or, without ids, in the tokens.
fn add_turn(hash: &mut Fnv1a, turn: &Turn) {
    hash.add(&turn.id.to_le_bytes());
    hash.add(&turn.about.started_ms.to_le_bytes());
    hash.add(turn.about.rid.as_deref().unwrap_or_default().as_bytes());
    hash.add(&turn.about.index.to_le_bytes());
    hash.add_ids(&turn.response);
}

/// FNV-1a, which a reader can easily compute. The key does not need a cryptographic hash.
struct Fnv1a(u128);

impl Fnv1a {
    fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    /// Adds a field and its end, so that no two lists of fields have the same bytes.
    fn add(&mut self, bytes: &[u8]) {
        self.bytes(bytes);
        self.bytes(&bytes.len().to_le_bytes());
    }

    fn add_ids(&mut self, ids: &[u32]) {
        ids.iter().for_each(|id| self.bytes(&id.to_le_bytes()));
        self.bytes(&ids.len().to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use super::*;
    use crate::export::fixture::{path, rows_of, turn, turns};

    #[test]
    fn hash_matches_the_specification() {
        let mut hash = Fnv1a::new();
        hash.bytes(b"foobar");
        assert_eq!(hash.0, 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    #[test]
    fn key_is_the_same_in_every_export_of_a_path() {
        let keys = || rows_of(turns()).iter().map(row_key).collect::<Vec<_>>();
        assert_eq!(keys(), keys());
        let mut changed = rows_of(turns());
        (changed[0].version, changed[0].reward, changed[0].incomplete) = (9, None, true);
        changed[0].steps.iter_mut().for_each(|step| step.trained = true);
        assert_eq!(row_key(&changed[0]), keys()[0], "later annotations are not part of the key");
    }

    #[test]
    fn key_does_not_depend_on_the_order_of_turns() {
        let uid = "0123456789abcdef0123456789abcdef";
        let key = |id| {
            let mut turn = turn(id, None, &[1], &[2]);
            turn.about.uid = Some(uid.parse().unwrap());
            row_key(&path(&[&Arc::new(turn)]))
        };
        assert_eq!((key(0), key(7)), (uid.to_owned(), uid.to_owned()));
    }

    #[test]
    fn paths_without_uids_that_differ_have_different_keys() {
        let one = |change: fn(&mut Turn)| {
            let mut turn = turn(0, None, &[1], &[2]);
            change(&mut turn);
            row_key(&path(&[&Arc::new(turn)]))
        };
        let mut keys: Vec<String> = rows_of(turns()).iter().map(row_key).collect();
        keys.extend([
            one(|_| {}),
            one(|turn| turn.about.started_ms = 1),
            one(|turn| turn.about.rid = Some("r".into())),
            one(|turn| turn.about.index = 1),
            one(|turn| turn.response = [3].into()),
        ]);
        let mut renamed = path(&[&turn(0, None, &[1], &[2]).into()]);
        renamed.session = "s2".into();
        keys.push(row_key(&renamed));
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len(), "{keys:?}");
    }
}
