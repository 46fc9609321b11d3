// SPDX-License-Identifier: Apache-2.0
//! The most bytes of a text that become one token, with which a text that has too many tokens is refused before it is encoded.

use tokenizers::{
    AddedToken, Model, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper, PreTokenizerWrapper,
    SplitDelimiterBehavior,
};

use super::char_of_byte;

/// NFC shortens no text by more than this factor. U+1FBE, U+0308 and U+0301 of 7 bytes become U+0390 of 2.
pub(super) const NFC_SHORTENS: usize = 4;

/// The length in bytes of the longest character.
const MAX_CHARACTER: usize = 4;

/// The longest token of a tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LongestToken {
    /// The most bytes of a normalized text that become one token.
    pub(super) bytes: usize,
    /// The normalizer shortens no text by more than this factor.
    shortens: usize,
}

impl LongestToken {
    /// The longest token of a tokenizer. `None` if text of any length may become one token, or none.
    pub(super) fn find(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        let normalizer = tokenizer.get_normalizer();
        let shortens = normalizer.map_or(Some(1), shortens)?;
        let is_byte_level = tokenizer.get_pre_tokenizer().map_or(Some(false), is_byte_level)?;
        let added = tokenizer.get_added_tokens_decoder();
        let added: Option<Vec<usize>> = added.values().map(|token| added_bytes(token, normalizer)).collect();
        let longest = longest_of_model(tokenizer.get_model(), is_byte_level)?;
        Some(Self { bytes: added?.into_iter().fold(longest, usize::max), shortens })
    }

    /// A number of tokens that a text of this many bytes has at least.
    pub(super) fn least_tokens(self, bytes: usize) -> usize {
        bytes / (self.bytes * self.shortens)
    }
}

/// The factor by which a normalizer shortens a text at most. `None` if it removes text, or the factor is not known.
fn shortens(normalizer: &NormalizerWrapper) -> Option<usize> {
    match normalizer {
        NormalizerWrapper::NFC(_) => Some(NFC_SHORTENS),
        NormalizerWrapper::Prepend(_) => Some(1),
        NormalizerWrapper::Replace(replace) => {
            // the pattern is private; a regular expression has another name
            let json = serde_json::to_value(replace).ok()?;
            let pattern = json["pattern"]["String"].as_str()?;
            (!replace.content.is_empty()).then(|| pattern.len().div_ceil(replace.content.len()).max(1))
        }
        NormalizerWrapper::Sequence(steps) => {
            steps.as_ref().iter().try_fold(1_usize, |factor, step| Some(factor * shortens(step)?))
        }
        _ => None,
    }
}

/// Whether the text is mapped to the byte-level alphabet. `None` if a step removes text.
fn is_byte_level(step: &PreTokenizerWrapper) -> Option<bool> {
    let keeps = |behavior: SplitDelimiterBehavior| (behavior != SplitDelimiterBehavior::Removed).then_some(false);
    match step {
        PreTokenizerWrapper::ByteLevel(_) => Some(true),
        PreTokenizerWrapper::Metaspace(_) | PreTokenizerWrapper::Digits(_) | PreTokenizerWrapper::UnicodeScripts(_) => {
            Some(false)
        }
        PreTokenizerWrapper::Split(split) => keeps(split.behavior),
        PreTokenizerWrapper::Punctuation(split) => keeps(split.behavior),
        PreTokenizerWrapper::Sequence(steps) => {
            steps.as_ref().iter().try_fold(false, |found, step| Some(is_byte_level(step)? || found))
        }
        _ => None,
    }
}

/// The most bytes that become an added token. `None` if it takes the white space around it.
fn added_bytes(token: &AddedToken, normalizer: Option<&NormalizerWrapper>) -> Option<usize> {
    if token.lstrip || token.rstrip {
        return None;
    }
    let mut text = NormalizedString::from(token.content.as_str());
    if let Some(normalizer) = normalizer.filter(|_| token.normalized) {
        normalizer.normalize(&mut text).ok()?;
    }
    Some(text.get().len())
}

/// The most bytes that become a token of the model. `None` if several characters without a token become one, or none.
fn longest_of_model(model: &ModelWrapper, is_byte_level: bool) -> Option<usize> {
    let vocab = model.get_vocab();
    // the bytes in UTF-8
    let mut bytes = (0..=0xf4_u8).filter(|byte| !matches!(byte, 0xc0 | 0xc1));
    let has = |token: &str| vocab.contains_key(token);
    let knows_all = if is_byte_level {
        bytes.all(|byte| has(char_of_byte(byte).encode_utf8(&mut [0; 4])))
    } else {
        bytes.all(|byte| has(&format!("<0x{byte:02X}>")) || byte.is_ascii() && has(&char::from(byte).to_string()))
    };
    let is_bounded = match model {
        ModelWrapper::BPE(model) => {
            let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
            // Qwen's files have empty ones
            let has_affix = affixes.into_iter().flatten().any(|affix| !affix.is_empty());
            let replaces_each = model.unk_token.is_some() && !model.fuse_unk;
            !has_affix && (knows_all && (is_byte_level || model.byte_fallback) || replaces_each)
        }
        ModelWrapper::Unigram(model) => knows_all && (is_byte_level || model.byte_fallback()),
        ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => false,
    };
    // each character of the byte-level alphabet is a byte of the text
    let length = |token: &String| if is_byte_level { token.chars().count() } else { token.len() };
    is_bounded.then(|| vocab.keys().map(length).fold(MAX_CHARACTER, usize::max))
}

#[cfg(test)]
mod tests {
    use super::super::{EncodeLimits, Tokenizer, TokenizerError, Work};
    use super::*;
    use serde_json::{Value, json};

    const DEMO: &[u8] = include_bytes!("../demo/assets/tokenizer.json");

    /// The tokenizer of the demo engine with other members.
    fn demo_with(members: Value) -> Tokenizer {
        let mut demo: Value = serde_json::from_slice(DEMO).unwrap();
        members.as_object().unwrap().iter().for_each(|(name, value)| demo[name] = value.clone());
        Tokenizer::from_bytes(demo.to_string().as_bytes()).unwrap()
    }

    fn split(regex: &str) -> Value {
        json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
    }

    /// A vocabulary in the manner of SentencePiece: characters, bytes, and runs of spaces.
    fn sentence_piece(kind: &str, steps: Value) -> Value {
        let pieces = [
            "<unk>",
            "<turn>",
            "a",
            "b",
            "ab",
            "\t",
            "\u{2581}",
            "\u{2581}\u{2581}",
            "\u{2581}\u{2581}\u{2581}\u{2581}",
        ];
        let bytes = (0..=255_u8).filter(|byte| *byte != b'\t').map(|byte| format!("<0x{byte:02X}>"));
        let pieces: Vec<String> = pieces.map(str::to_owned).into_iter().chain(bytes).collect();
        let mut model = match kind {
            "BPE" => {
                let vocab: serde_json::Map<String, Value> =
                    pieces.into_iter().enumerate().map(|(id, piece)| (piece, json!(id))).collect();
                let merges = json!([["a", "b"], ["\u{2581}", "\u{2581}"], ["\u{2581}\u{2581}", "\u{2581}\u{2581}"]]);
                json!({"vocab": vocab, "merges": merges, "unk_token": "<unk>", "fuse_unk": true})
            }
            _ => json!({"vocab": pieces.iter().map(|piece| json!([piece, -2.0])).collect::<Vec<_>>(), "unk_id": 0}),
        };
        model["type"] = json!(kind);
        model["byte_fallback"] = json!(true);
        let mut all = json!({"version": "1.0", "added_tokens": [added("<turn>")], "model": model});
        steps.as_object().unwrap().iter().for_each(|(name, value)| all[name] = value.clone());
        all
    }

    fn added(content: &str) -> Value {
        json!({"id": 1, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
    }

    fn load(value: &Value) -> Tokenizer {
        Tokenizer::from_bytes(value.to_string().as_bytes()).unwrap()
    }

    fn replace(pattern: &str, content: &str) -> Value {
        json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
    }

    #[test]
    fn each_kind_of_tokenizer_has_a_longest_token() {
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let deep_seek = json!([split(r"\p{N}{1,3}"), split("[一-龥ぁ-ゟ゠-ヿ]+"), split(r"\s+|\S+"), byte_level]);
        let deep_seek = json!({"type": "Sequence", "pretokenizers": deep_seek});
        let spaces = replace(" ", "\u{2581}");
        let llama = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"}, spaces]});
        let gemma =
            json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
        let metaspace =
            json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": false});
        let nfc = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, spaces]});
        let mut qwen: Value = serde_json::from_slice(DEMO).unwrap();
        qwen["normalizer"] = json!({"type": "NFC"});
        for affix in ["continuing_subword_prefix", "end_of_word_suffix"] {
            qwen["model"][affix] = json!("");
        }
        let cases = [
            ("byte-level", demo_with(json!({})), 1),
            ("Qwen", load(&qwen), NFC_SHORTENS),
            (
                "DeepSeek",
                demo_with(json!({"normalizer": {"type": "Sequence", "normalizers": []}, "pre_tokenizer": deep_seek})),
                1,
            ),
            ("Llama 2", load(&sentence_piece("BPE", json!({"normalizer": llama}))), 1),
            ("Gemma", load(&sentence_piece("BPE", json!({"normalizer": spaces, "pre_tokenizer": gemma}))), 1),
            ("Mistral", load(&sentence_piece("BPE", json!({"pre_tokenizer": metaspace}))), 1),
            ("with NFC", load(&sentence_piece("BPE", json!({"normalizer": nfc}))), NFC_SHORTENS),
            ("Unigram", load(&sentence_piece("Unigram", json!({"normalizer": spaces}))), 1),
        ];
        for (name, tokenizer, shortens) in &cases {
            let longest = tokenizer.longest.unwrap_or_else(|| panic!("{name} has none"));
            assert_eq!(longest.shortens, *shortens, "{name}");
            for text in [
                "ab",
                "    ",
                "\u{2581}\u{2581}\u{2581}\u{2581}",
                "日本",
                "<turn>",
                "<|im_end|>",
                "🙂",
                "\u{1fbe}\u{308}\u{301}",
                "\t",
                "a b1",
            ] {
                let text = text.repeat(1_000);
                let tokens = tokenizer.encode_rendered(&text).unwrap().len();
                assert!(tokenizer.least_tokens(text.len()) <= tokens, "{name}: {text:.20} has {tokens} tokens");
            }
            // without room for anything: a text that cannot fit is refused before it is encoded
            let (work, text) = (Work::new(&crate::budget::Budget::new(0)), "ab".repeat(100_000));
            let refused = tokenizer.encode_within(&text, &EncodeLimits { work: &work, tokens: Some(100) });
            assert!(matches!(refused, Err(TokenizerError::TooLong { tokens: 101.. })), "{name}: {refused:?}");
        }
        let [plain, qwen, _, llama, gemma, ..] = &cases;
        assert!([plain, qwen].iter().all(|(_, tokenizer, _)| tokenizer.words.is_some()), "words are looked up");
        assert_eq!([&llama.1, &gemma.1].map(|tokenizer| tokenizer.longest.unwrap().bytes), [12; 2]);
    }

    #[test]
    fn tokenizers_that_drop_text_have_none() {
        let with = |steps: Value| sentence_piece("BPE", steps);
        let changed = |change: &dyn Fn(&mut Value)| {
            let mut all = with(json!({}));
            change(&mut all);
            all
        };
        let removed = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": false});
        for (name, all) in [
            (
                "strips the text",
                with(json!({"normalizer": {"type": "Strip", "strip_left": true, "strip_right": true}})),
            ),
            ("removes a text", with(json!({"normalizer": replace(" ", "")}))),
            ("removes what it splits at", with(json!({"pre_tokenizer": removed}))),
            ("has words without white space", with(json!({"pre_tokenizer": {"type": "Whitespace"}}))),
            ("has a token that strips", changed(&|all| all["added_tokens"][0]["rstrip"] = json!(true))),
            ("fuses unknown characters", changed(&|all| all["model"]["byte_fallback"] = json!(false))),
            ("lacks a byte", changed(&|all| drop(all["model"]["vocab"].as_object_mut().unwrap().remove("<0xE6>")))),
        ] {
            let tokenizer = load(&all);
            assert_eq!((tokenizer.longest, tokenizer.least_tokens(1 << 30)), (None, 0), "{name}");
        }
        let separate = changed(&|all| {
            all["model"]["byte_fallback"] = json!(false);
            all["model"]["fuse_unk"] = json!(false);
        });
        assert_eq!(load(&separate).longest.map(|longest| longest.bytes), Some(12), "each unknown character is a token");
    }
}
