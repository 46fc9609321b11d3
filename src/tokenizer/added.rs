//! Added tokens that `tokenizer_config.json` names besides those of `tokenizer.json`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// An added token. Texts are split at its occurrences.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Added {
    /// Its text.
    pub(super) content: String,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) normalized: bool,
    #[serde(default)]
    pub(super) special: bool,
}

/// The tokens that transformers adds: those of `added_tokens_decoder` in the order of their ids, and special tokens that are not among them
/// and not known to `is_known`, which get new ids.
pub(super) fn tokens(
    decoder: BTreeMap<String, Added>,
    specials: impl Iterator<Item = String>,
    is_known: impl Fn(&str) -> bool,
) -> Vec<Added> {
    let mut numbered: Vec<(u64, Added)> =
        decoder.into_iter().map(|(id, token)| (id.parse().unwrap_or(u64::MAX), token)).collect();
    numbered.sort_by_key(|(id, _)| *id);
    let mut tokens: Vec<Added> = numbered.into_iter().map(|(_, token)| token).collect();
    for content in specials {
        match tokens.iter_mut().find(|token| token.content == content) {
            Some(token) => token.special |= !is_known(&content),
            None if !is_known(&content) => tokens.push(Added {
                content,
                single_word: false,
                lstrip: false,
                rstrip: false,
                normalized: false,
                special: true,
            }),
            None => {}
        }
    }
    tokens
}
