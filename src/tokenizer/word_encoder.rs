//! Encodes text with a byte-level BPE vocabulary by looking up its words.
//!
//! The `tokenizers` crate also computes which characters each token covers. That takes most of its time, and prompts do not need it. This
//! encoder returns the same ids. It finds the added tokens, splits the text between them into words, and looks the words up; the model of
//! the crate encodes only words that are not known yet. Tokenizers with other steps have no word encoder.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{PoisonError, RwLock};

use tokenizers::utils::SysRegex;
use tokenizers::{
    Model, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    pre_tokenizers::split::SplitPattern,
};

use super::char_of_byte;
use super::word_pattern::{GPT2, WordPattern};

/// The maximum number of known words. When it is reached, all are forgotten.
const MAX_WORDS: usize = 1 << 15;

/// The maximum length of a known word in bytes. Longer words rarely repeat.
const MAX_WORD: usize = 64;

/// An encoder for one tokenizer.
#[derive(Debug)]
pub(super) struct WordEncoder {
    /// The added tokens by their first byte, the longest first.
    added: Vec<Vec<(Box<str>, u32)>>,
    /// The first bytes of added tokens, if there are at most three.
    first_bytes: Vec<u8>,
    regex: SysRegex,
    /// The regular expression, if `WordPattern` matches it in ASCII text.
    pattern: Option<WordPattern>,
    /// The tokenizer normalizes text to NFC.
    normalizes: bool,
    /// The ids of words. The lock is held to look up the words of a text up to the next unknown one, or to add one word.
    words: RwLock<HashMap<Box<str>, Box<[u32]>>>,
}

/// The marks in a text that are removed before its words are encoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks<'a> {
    pub(super) mark: char,
    /// The ids that no word may become.
    pub(super) special: &'a HashSet<u32>,
}

impl WordEncoder {
    /// An encoder that returns the same ids as `inner` without special tokens at the ends; `None` if `inner` has steps that it lacks.
    pub(super) fn new(inner: &tokenizers::Tokenizer) -> Option<Self> {
        let normalizes = match inner.get_normalizer() {
            None => false,
            Some(NormalizerWrapper::NFC(_)) => true,
            Some(_) => return None,
        };
        let ModelWrapper::BPE(model) = inner.get_model() else { return None };
        if model.dropout.is_some_and(|share| share > 0.0) {
            return None;
        }
        let regex = match inner.get_pre_tokenizer()? {
            PreTokenizerWrapper::ByteLevel(bytes) if bytes.use_regex && !bytes.add_prefix_space => GPT2,
            PreTokenizerWrapper::Sequence(steps) => match steps.as_ref() {
                [PreTokenizerWrapper::Split(split), PreTokenizerWrapper::ByteLevel(bytes)]
                    if !bytes.use_regex
                        && !bytes.add_prefix_space
                        && !split.invert
                        && split.behavior == SplitDelimiterBehavior::Isolated =>
                {
                    let SplitPattern::Regex(regex) = &split.pattern else { return None };
                    regex
                }
                _ => return None,
            },
            _ => return None,
        };
        let mut added: Vec<Vec<(Box<str>, u32)>> = vec![Vec::new(); 256];
        for (id, token) in inner.get_added_vocabulary().get_added_tokens_decoder() {
            if token.single_word || token.lstrip || token.rstrip || token.normalized {
                return None;
            }
            let first = token.content.bytes().next()?;
            added[usize::from(first)].push((Box::from(&*token.content), *id));
        }
        for tokens in &mut added {
            tokens.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        }
        let first_bytes: Vec<u8> = (0..=u8::MAX).filter(|byte| !added[usize::from(*byte)].is_empty()).collect();
        Some(Self {
            first_bytes: Some(first_bytes).filter(|bytes| bytes.len() <= 3).unwrap_or_default(),
            added,
            regex: SysRegex::new(regex).ok()?,
            pattern: WordPattern::of(regex),
            normalizes,
            words: RwLock::default(),
        })
    }

    /// The ids of a text. `None` if the text may not be in NFC, or if it has marks and a word becomes a special token.
    pub(super) fn encode(
        &self,
        model: &ModelWrapper,
        text: &str,
        marks: Option<Marks<'_>>,
    ) -> tokenizers::Result<Option<Vec<u32>>> {
        let mark = marks.map(|marks| marks.mark);
        if self.normalizes && !text.is_ascii() && !text.chars().all(|c| is_normal(c) || Some(c) == mark) {
            return Ok(None);
        }
        let mut ids = Vec::with_capacity(text.len() / 2);
        let mut rest = text;
        loop {
            let (part, token, after) = self.split_at_added(rest);
            let part = match mark {
                Some(mark) if part.contains(mark) => Cow::Owned(part.replace(mark, "")),
                _ => Cow::Borrowed(part),
            };
            let start = ids.len();
            self.encode_part(model, &part, &mut ids)?;
            if marks.is_some_and(|marks| ids[start..].iter().any(|id| marks.special.contains(id))) {
                return Ok(None);
            }
            let Some(token) = token else { return Ok(Some(ids)) };
            ids.push(token);
            rest = after;
        }
    }

    /// The text before the first added token, the token, and the text after it. Of several tokens at one place the longest counts.
    fn split_at_added<'t>(&self, text: &'t str) -> (&'t str, Option<u32>, &'t str) {
        let bytes = text.as_bytes();
        let mut at = 0;
        while let Some(found) = self.find_first_byte(&bytes[at..]) {
            at += found;
            let tokens = &self.added[usize::from(bytes[at])];
            // a token begins with the first byte of a character, so `at` is a boundary
            if let Some((token, id)) = tokens.iter().find(|(token, _)| bytes[at..].starts_with(token.as_bytes())) {
                return (&text[..at], Some(*id), &text[at + token.len()..]);
            }
            at += 1;
        }
        (text, None, "")
    }

    /// The position of the next byte with which an added token may begin.
    fn find_first_byte(&self, bytes: &[u8]) -> Option<usize> {
        match self.first_bytes[..] {
            [one] => memchr::memchr(one, bytes),
            [one, two] => memchr::memchr2(one, two, bytes),
            [one, two, three] => memchr::memchr3(one, two, three, bytes),
            _ => bytes.iter().position(|byte| !self.added[usize::from(*byte)].is_empty()),
        }
    }

    /// Appends the ids of a text without added tokens.
    fn encode_part(&self, model: &ModelWrapper, text: &str, ids: &mut Vec<u32>) -> tokenizers::Result<()> {
        let mut words = self.words_of(text).into_iter().peekable();
        while words.peek().is_some() {
            let unknown = {
                let known = self.words.read().unwrap_or_else(PoisonError::into_inner);
                words.find(|word| match known.get(*word) {
                    Some(found) => {
                        ids.extend_from_slice(found);
                        false
                    }
                    None => true,
                })
            };
            let Some(word) = unknown else { break };
            let alphabet: String = word.bytes().map(char_of_byte).collect();
            let found: Vec<u32> = model.tokenize(&alphabet)?.iter().map(|token| token.id).collect();
            ids.extend_from_slice(&found);
            if word.len() <= MAX_WORD {
                let mut known = self.words.write().unwrap_or_else(PoisonError::into_inner);
                if known.len() >= MAX_WORDS {
                    known.clear();
                }
                known.insert(word.into(), found.into());
            }
        }
        Ok(())
    }

    fn words_of<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::with_capacity(text.len() / 3);
        let Some(pattern) = self.pattern else {
            self.match_words(text, &mut words);
            return words;
        };
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < text.len() {
            // the part around a character outside ASCII is matched by the regex engine
            let other = bytes[at..].iter().position(|byte| !byte.is_ascii()).map_or(text.len(), |found| at + found);
            let start = match other == text.len() {
                true => other,
                false => (at + 1..=other).rev().find(|cut| is_boundary(bytes, *cut)).unwrap_or(at),
            };
            split_ascii(pattern, &text[at..start], &mut words);
            at = (other + 1..text.len()).find(|cut| is_boundary(bytes, *cut)).unwrap_or(text.len());
            self.match_words(&text[start..at], &mut words);
        }
        words
    }

    /// Appends the words of a text by the regex engine.
    fn match_words<'t>(&self, text: &'t str, words: &mut Vec<&'t str>) {
        let mut at = 0;
        for (start, end) in self.regex.find_iter(text) {
            // text between matches is a word too
            words.extend([&text[at..start], &text[start..end]].into_iter().filter(|word| !word.is_empty()));
            at = end;
        }
        words.extend(Some(&text[at..]).filter(|word| !word.is_empty()));
    }
}

/// Appends the words of an ASCII text.
fn split_ascii<'t>(pattern: WordPattern, text: &'t str, words: &mut Vec<&'t str>) {
    let mut at = 0;
    while at < text.len() {
        let end = at + pattern.word(&text.as_bytes()[at..]);
        words.push(&text[at..end]);
        at = end;
    }
}

/// Whether the parts of a text before and after `at` can be split alone: no word of a [`WordPattern`] continues after a character that is
/// not white space with a space.
fn is_boundary(text: &[u8], at: usize) -> bool {
    text[at..].first() == Some(&b' ') && text[..at].last().is_some_and(|before| matches!(before, b'!'..=b'~'))
}

/// Whether a text of such characters is in NFC. Holds for the common characters that neither have a composition nor are a part of one.
fn is_normal(c: char) -> bool {
    matches!(c,
        '\0'..='\u{2ff}'
        | '\u{388}'..='\u{482}'
        | '\u{48a}'..='\u{52f}'
        | '\u{2010}'..='\u{205f}'
        | '\u{2190}'..='\u{2328}'
        | '\u{232b}'..='\u{2adb}'
        | '\u{2add}'..='\u{2bff}'
        | '\u{3001}'..='\u{3029}'
        | '\u{3041}'..='\u{3096}'
        | '\u{30a1}'..='\u{30fa}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{ff01}'..='\u{ff5e}'
        | '\u{1f300}'..='\u{1faff}')
}

#[cfg(test)]
mod tests {
    use super::super::word_pattern::{LLAMA3, QWEN};
    use super::super::{Content, Tokenizer};
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::sync::LazyLock;

    const DEMO: &[u8] = include_bytes!("../demo/assets/tokenizer.json");

    /// The tokenizer of the demo engine, with the steps of another one.
    fn with_steps(regex: &str) -> Tokenizer {
        let mut demo: Value = serde_json::from_slice(DEMO).unwrap();
        demo["normalizer"] = json!({"type": "NFC"});
        demo["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]});
        Tokenizer::from_bytes(demo.to_string().as_bytes()).unwrap()
    }

    static TOKENIZERS: LazyLock<[Tokenizer; 4]> = LazyLock::new(|| {
        [Tokenizer::from_bytes(DEMO).unwrap(), with_steps(QWEN), with_steps(LLAMA3), with_steps(r"\w+|[^\w\s]+")]
    });

    fn assert_same_ids(text: &str) {
        let marks = TOKENIZERS[0].content().mark(text, super::super::TextOrigin::Tool);
        for tokenizer in &*TOKENIZERS {
            assert!(tokenizer.words.is_some(), "it has a word encoder");
            let expected = tokenizer.inner.encode_fast(text, false).unwrap().get_ids().to_vec();
            // the second time all words are known
            for _ in (0..2).filter(|_| !Content::is_marked(text)) {
                assert_eq!(tokenizer.encode_rendered(text).unwrap(), expected, "{text:?}");
            }
            if Content::is_marked(&marks) {
                let ids = tokenizer.encode_marked(&marks, false).unwrap();
                let ids = ids.unwrap_or_else(|| tokenizer.encode_marked(&marks, true).unwrap().unwrap());
                assert_eq!(tokenizer.encode_rendered(&marks).unwrap(), ids, "{marks:?}");
            }
        }
    }

    #[test]
    fn ids_of_texts_are_those_of_the_crate() {
        for text in [
            "",
            " ",
            "\n",
            "It's 1234.5, we'LL see\r\n\r\n\tthe 'thing'  \n",
            "<|im_start|>user\nHi<|im_end|>\n<think>a</think><|im_end|><|im_end",
            "naïve façade — e\u{301}te\u{301} 日本語と한국어 🙂 \u{2126}",
            "a\u{fdd0}b",
            include_str!("word_encoder.rs"),
        ] {
            assert_same_ids(text);
        }
    }

    #[test]
    fn every_pair_of_ascii_characters_is_split_like_the_regular_expressions() {
        for first in 0..128_u8 {
            let text: String = (0..128_u8).flat_map(|second| ['x', first.into(), second.into(), '1']).collect();
            assert_same_ids(&text);
        }
    }

    #[test]
    fn normal_characters_are_in_nfc() {
        let tokenizer = &TOKENIZERS[1];
        let normal: String =
            (0..=u32::from(char::MAX)).filter_map(char::from_u32).filter(|c| super::is_normal(*c)).collect();
        let mut normalized = tokenizers::NormalizedString::from(&*normal);
        tokenizers::Normalizer::normalize(tokenizer.inner.get_normalizer().unwrap(), &mut normalized).unwrap();
        assert_eq!(normalized.get(), normal);
    }

    proptest! {
        #[test]
        fn ids_of_any_text_are_those_of_the_crate(text in "([ -~]|[\t\n\r\u{b}\u{c}]|  |\n\n|'(s|LL|re)|[a-c]{1,3}|[0-9]{1,5}|<\\|im_end\\|>|<think>|é|e\u{301}|日|🙂|\u{a0}|\u{85}){0,40}") {
            assert_same_ids(&text);
        }
    }
}
