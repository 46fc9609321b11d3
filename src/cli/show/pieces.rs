// SPDX-License-Identifier: Apache-2.0
//! Pieces of text: a token, or the neighbouring tokens that share a character.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::path::Path;
use super::texts::{LOST, Texts};

/// The maximum number of neighbouring tokens that are decoded together.
const RUN: usize = 64;

/// Tokens and their text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// The indices of the tokens.
    pub(super) tokens: Range<usize>,
    /// `None` if the engine does not decode them.
    pub(super) text: Option<String>,
}

/// All tokens of a path, in order.
#[derive(Debug)]
pub(super) struct Pieces(pub(super) Vec<Piece>);

impl Pieces {
    /// Decodes the tokens of a path. Tokens of different segments do not share a piece.
    pub(super) async fn decode(path: &Path, texts: &mut Texts<'_>) -> Self {
        let ids: Vec<u32> = path.ids.iter().copied().collect::<BTreeSet<u32>>().into_iter().collect();
        let alone = texts.alone(&ids, &path.ids).await;
        let mut pieces = Vec::new();
        // tokens that are part of a character, as ranges that are not decoded yet
        let mut open: Vec<Range<usize>> = Vec::new();
        for (_, range) in path.segments() {
            let mut at = range.start;
            while at < range.end {
                let end = (at..range.end).find(|&token| !is_part(&alone, path.ids[token])).unwrap_or(range.end);
                if end == at {
                    pieces.push(Piece { tokens: at..at + 1, text: alone.get(&path.ids[at]).cloned() });
                    at += 1;
                } else {
                    open.push(at..end);
                    at = end;
                }
            }
        }
        while !open.is_empty() {
            let runs: Vec<Range<usize>> =
                open.iter().map(|range| range.start..range.end.min(range.start + RUN)).collect();
            let mut rest = Vec::new();
            // each prefix of a run is decoded: where it ends with a complete character, a piece ends
            let lists: Vec<Vec<u32>> =
                runs.iter().flat_map(|run| run.clone().map(|end| path.ids[run.start..=end].to_vec())).collect();
            let mut prefixes = texts.joint(&lists).await.into_iter();
            for (run, whole) in runs.into_iter().zip(open) {
                let prefixes: Vec<String> = prefixes.by_ref().take(run.len()).collect();
                let end = split(&run, &prefixes, run.end == whole.end, &mut pieces);
                if end < whole.end {
                    rest.push(end..whole.end);
                }
            }
            open = rest;
        }
        pieces.sort_by_key(|piece| piece.tokens.start);
        Self(pieces)
    }
}

/// Whether a token alone is not complete characters.
fn is_part(alone: &HashMap<u32, String>, id: u32) -> bool {
    alone.get(&id).is_some_and(|text| text.contains(LOST))
}

/// Splits a run where its prefixes end with complete characters. Returns the end of the last piece, which is after the run's first token.
/// `prefixes` are the texts of its first token, its first two tokens, and so on.
fn split(run: &Range<usize>, prefixes: &[String], is_last: bool, pieces: &mut Vec<Piece>) -> usize {
    if prefixes.len() < run.len() {
        pieces.extend(run.clone().map(|token| Piece { tokens: token..token + 1, text: None }));
        return run.end;
    }
    let (mut start, mut before) = (run.start, "");
    let mut push = |end: usize, text: &str, start: &mut usize| {
        pieces.push(Piece { tokens: *start..end, text: Some(text.to_owned()) });
        *start = end;
    };
    for (end, prefix) in (run.start + 1..).zip(prefixes) {
        match prefix.strip_prefix(before) {
            Some(text) if !prefix.ends_with(LOST) => {
                push(end, text, &mut start);
                before = prefix;
            }
            _ => {}
        }
    }
    // invalid UTF-8, or a character that is truncated at the end
    if start == run.start || (is_last && start < run.end) {
        let whole = prefixes.last().map_or("", String::as_str);
        push(run.end, whole.strip_prefix(before).unwrap_or(whole), &mut start);
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(prefixes: &[&str], is_last: bool) -> (Vec<(Range<usize>, String)>, usize) {
        let prefixes: Vec<String> = prefixes.iter().map(|text| (*text).to_owned()).collect();
        let mut found = Vec::new();
        let end = split(&(5..5 + prefixes.len()), &prefixes, is_last, &mut found);
        (found.into_iter().map(|piece| (piece.tokens, piece.text.unwrap())).collect(), end)
    }

    #[test]
    fn run_is_split_between_characters() {
        let found = pieces(&["\u{fffd}", "\u{e9}", "\u{e9}\u{fffd}", "\u{e9}\u{4e2d}"], true);
        assert_eq!(found, (vec![(5..7, "\u{e9}".to_owned()), (7..9, "\u{4e2d}".to_owned())], 9));
    }

    #[test]
    fn character_that_is_cut_stays_for_the_next_run_or_is_shown_as_lost() {
        let cut = ["\u{fffd}", "\u{e9}", "\u{e9}\u{fffd}"];
        assert_eq!(pieces(&cut, false), (vec![(5..7, "\u{e9}".to_owned())], 7));
        let all = vec![(5..7, "\u{e9}".to_owned()), (7..8, "\u{fffd}".to_owned())];
        assert_eq!(pieces(&cut, true), (all, 8));
        assert_eq!(pieces(&["\u{fffd}", "\u{fffd}\u{fffd}"], false).1, 7, "a run without a character makes progress");
    }
}
