//! Added tokens in `tokenizer_config.json`, which complement those of `tokenizer.json`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The settings of an added token. Texts are split at its occurrences.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct AddedTokenConfig {
    /// The text of the token.
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

/// The tokens that transformers adds: those of `added_tokens_decoder` in the order of their ids, then the special tokens that are neither
/// among them nor known to `is_known`. The latter get new ids.
pub(super) fn added_tokens(
    decoder: BTreeMap<String, AddedTokenConfig>,
    specials: impl Iterator<Item = String>,
    is_known: impl Fn(&str) -> bool,
) -> Vec<AddedTokenConfig> {
    let mut by_id: Vec<(u64, AddedTokenConfig)> =
        decoder.into_iter().map(|(id, token)| (id.parse().unwrap_or(u64::MAX), token)).collect();
    by_id.sort_by_key(|(id, _)| *id);
    let mut tokens: Vec<AddedTokenConfig> = by_id.into_iter().map(|(_, token)| token).collect();
    for content in specials {
        match tokens.iter_mut().find(|token| token.content == content) {
            Some(token) => token.special |= !is_known(&content),
            None if !is_known(&content) => tokens.push(AddedTokenConfig {
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
