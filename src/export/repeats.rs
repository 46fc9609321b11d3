// SPDX-License-Identifier: Apache-2.0
//! Finds samples with equal tokens and pictures.

use std::collections::HashSet;
use std::sync::Arc;

use crate::session::{Path, Row, Turn};

/// Whether each row has the tokens of an earlier row, with the same first prompt. Each turn is visited once, not once for each row that
/// holds it.
pub(crate) fn repeated_rows(rows: &[Row]) -> Vec<bool> {
    let mut seen = HashSet::new();
    let mut repeated = Vec::with_capacity(rows.len());
    for session in rows.chunk_by(Row::shares_turns) {
        let digests = digests(session[0].turns());
        repeated.extend(session.iter().map(|row| !seen.insert((row.prompt_len(), digests[row.leaf() as usize]))));
    }
    repeated
}

/// Whether each path has the tokens of an earlier path, with the same first prompt.
pub(crate) fn repeated_paths<'a>(paths: impl Iterator<Item = &'a Path>) -> Vec<bool> {
    let mut seen = HashSet::new();
    let turns = |path: &'a Path| path.steps.iter().map(|step| &*step.turn);
    paths.map(|path| !seen.insert((path.prompt_len(), turns(path).fold(EMPTY, digest)))).collect()
}

/// The digest of no tokens: the offset of FNV-1a with 128 bits.
const EMPTY: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;

/// The digest of the tokens up to each turn, by its number. A parent's number is below its children's.
fn digests(turns: &[Arc<Turn>]) -> Vec<u128> {
    let mut known: Vec<u128> = Vec::with_capacity(turns.len());
    for turn in turns {
        let before = turn.parent.map_or(EMPTY, |parent| known[parent as usize]);
        known.push(digest(before, turn));
    }
    known
}

/// The digest after the tokens of a turn. It depends on the tokens and the pictures, not on the boundaries of turns.
fn digest(before: u128, turn: &Turn) -> u128 {
    let ids = turn.prompt_keys().iter().chain(&turn.response);
    ids.fold(before, |digest, id| (digest ^ u128::from(*id)).wrapping_mul(0x100_0000_0000_0000_0000_013b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::facts::{groups, prompt_name};
    use crate::export::fixture::{path, rows, turn};
    use crate::images::Image;
    use crate::session::PromptImages;

    /// Paths of one session each: a prompt and a response.
    fn paths(samples: &[(&[u32], &[u32])]) -> Vec<Path> {
        let sample = |(at, (prompt, response)): (usize, &(&[u32], &[u32]))| Path {
            session: format!("s{at}").into(),
            ..path(&[&turn(0, None, prompt, response).into()])
        };
        samples.iter().enumerate().map(sample).collect()
    }

    #[test]
    fn equal_samples_of_one_prompt_are_found() {
        let paths = paths(&[(&[1, 2], &[3, 4]), (&[1, 2], &[3, 5]), (&[1, 2], &[3, 4]), (&[1], &[2, 3, 4])]);
        assert_eq!(repeated_paths(paths.iter()), [false, false, true, false], "another prompt is another sample");
        assert_eq!(repeated_rows(&rows(&paths)), [false, false, true, false]);
    }

    #[test]
    fn samples_with_other_pictures_of_the_same_ids_are_other_samples() {
        let sample = |content: &'static [u8]| {
            let mut turn = turn(0, None, &[1, 9, 9], &[2]);
            let picture = Arc::new(Image::new(content.into()));
            turn.about.images = Some(Box::new(PromptImages::new(&turn.prompt, [(picture, 1..3)])));
            path(&[&turn.into()])
        };
        let paths = [sample(b"a"), sample(b"b"), sample(b"a")];
        assert_eq!(repeated_paths(paths.iter()), [false, false, true]);
        let rows = rows(&paths);
        assert_eq!(repeated_rows(&rows), [false, false, true]);
        assert_eq!(groups(&rows), [0, 1, 0]);
        let names: Vec<String> = rows.iter().map(prompt_name).collect();
        assert!(names[0] != names[1] && names[0] == names[2], "{names:?}");
    }

    #[test]
    fn equal_samples_of_one_session_are_found() {
        let [first, a, b] = [turn(0, None, &[1], &[2]), turn(1, Some(0), &[3], &[4]), turn(2, Some(0), &[3], &[4])];
        let [first, a, b] = [first, a, b].map(Arc::new);
        let paths = [path(&[&first, &a]), path(&[&first, &b])];
        assert_eq!(repeated_rows(&rows(&paths)), [false, true]);
        let whole = Arc::new(turn(0, None, &[1], &[2, 3, 4]));
        let joined = [path(&[&first, &a]), path(&[&whole])];
        assert_eq!(repeated_paths(joined.iter()), [false, true], "the boundaries of turns do not count");
    }
}
