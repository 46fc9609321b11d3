// SPDX-License-Identifier: Apache-2.0
//! Encodes text with a byte-level BPE vocabulary by looking up its words.
//!
//! The `tokenizers` crate also computes which characters each token covers. That takes most of its time, and prompts do not need it. This
//! encoder returns the same ids. It finds the added tokens, splits the text between them into words, and looks the words up; the model of
//! the crate encodes only words that are not known yet. Tokenizers with other steps have no word encoder.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use parking_lot::RwLock;
use tokenizers::utils::SysRegex;
use tokenizers::{
    Model, ModelWrapper, NormalizedString, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    pre_tokenizers::split::SplitPattern,
};

use super::longest::NFC_SHORTENS;
use super::word_pattern::{GPT2, WordPattern};
use super::{Content, EncodeLimits, TokenizerError, char_of_byte};

/// The maximum number of known words. When it is reached, all are forgotten.
const MAX_WORDS: usize = 1 << 15;

/// The maximum length of a known word in bytes. Longer words rarely repeat.
const MAX_WORD: usize = 64;

/// Bytes of text between two checks of the limits.
const PIECE: usize = 64 << 10;

/// The memory that the model takes for a word, as a multiple of its length.
const WORD_FACTOR: usize = 96;

/// The memory that the normalizer takes for a piece, as a multiple of its length.
const NFC_FACTOR: usize = 40;

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
    /// The length in bytes of the longest token, if it is bounded.
    longest: Option<usize>,
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
    /// `longest` is the length in bytes of the longest token, if it is bounded.
    pub(super) fn new(inner: &tokenizers::Tokenizer, longest: Option<usize>) -> Option<Self> {
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
            longest,
            added,
            regex: SysRegex::new(regex).ok()?,
            pattern: WordPattern::find(regex),
            normalizes,
            words: RwLock::default(),
        })
    }

    /// The ids of a text; `None` if it has marks and a word becomes a special token.
    pub(super) fn encode(
        &self,
        model: &ModelWrapper,
        text: &str,
        marks: Option<Marks<'_>>,
        limits: &EncodeLimits<'_>,
    ) -> Result<Option<Vec<u32>>, TokenizerError> {
        let mut ids = Vec::new();
        let mut rest = text;
        // bytes that become no token
        let mut unseen = marks.map_or(0, |_| Content::mark_bytes(text));
        let shortens = if self.normalizes && !text.is_ascii() { NFC_SHORTENS } else { 1 };
        loop {
            let (part, token, after) = self.split_at_added(rest);
            let marked = marks.map_or(0, |_| Content::mark_bytes(part));
            unseen -= marked;
            let least = |bytes: usize| self.least_tokens(bytes / shortens);
            let least_after = least(after.len() - unseen);
            limits.check(ids.len(), least(part.len() - marked) + least_after)?;
            let _copies = limits.work.take(if self.is_changed(part, marks) { 2 * part.len() } else { 0 })?;
            let part = if self.is_normalized(part) { Cow::Borrowed(part) } else { nfc(part, limits)?.into() };
            let part = match marks.map(|marks| marks.mark) {
                Some(mark) if part.contains(mark) => Cow::Owned(part.replace(mark, "")),
                _ => part,
            };
            let start = ids.len();
            self.encode_part(model, &part, least_after, limits, &mut ids)?;
            if marks.is_some_and(|marks| ids[start..].iter().any(|id| marks.special.contains(id))) {
                return Ok(None);
            }
            let Some(token) = token else { return Ok(Some(ids)) };
            ids.push(token);
            rest = after;
        }
    }

    /// A number of tokens that a normalized text of this many bytes has at least.
    fn least_tokens(&self, bytes: usize) -> usize {
        self.longest.map_or(0, |longest| bytes / longest)
    }

    /// Whether a part of a text is copied before it is encoded.
    fn is_changed(&self, part: &str, marks: Option<Marks<'_>>) -> bool {
        !self.is_normalized(part) || marks.is_some_and(|marks| part.contains(marks.mark))
    }

    /// Whether the normalizer certainly leaves a text as it is.
    fn is_normalized(&self, text: &str) -> bool {
        !self.normalizes || text.is_ascii() || text.chars().all(|c| is_normal(c) || c == Content::MARK)
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

    /// Appends the ids of a text without added tokens, after which at least `after` tokens follow.
    fn encode_part(
        &self,
        model: &ModelWrapper,
        text: &str,
        after: usize,
        limits: &EncodeLimits<'_>,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut words = self.words_of(text);
        let (mut done, mut check_at) = (0, 0);
        loop {
            if done >= check_at {
                limits.check(ids.len(), self.least_tokens(text.len() - done) + after)?;
                check_at = done + PIECE;
            }
            let mut is_known = true;
            let word = {
                let known = self.words.read();
                // a word that is not known, or the last one of the piece
                words.find(|word| {
                    done += word.len();
                    match known.get(*word) {
                        Some(found) => ids.extend_from_slice(found),
                        None => is_known = false,
                    }
                    !is_known || done >= check_at
                })
            };
            let Some(word) = word else { return Ok(()) };
            if is_known {
                continue;
            }
            let _memory = limits.work.take(if word.len() > PIECE { WORD_FACTOR * word.len() } else { 0 })?;
            let alphabet: String = word.bytes().map(char_of_byte).collect();
            let found: Vec<u32> =
                model.tokenize(&alphabet).map_err(TokenizerError::Encode)?.iter().map(|token| token.id).collect();
            ids.extend_from_slice(&found);
            if word.len() <= MAX_WORD {
                let mut known = self.words.write();
                if known.len() >= MAX_WORDS {
                    known.clear();
                }
                known.insert(word.into(), found.into());
            }
        }
    }

    fn words_of<'a>(&'a self, text: &'a str) -> Words<'a> {
        Words { encoder: self, text, at: 0, ascii_end: 0, window: None }
    }
}

/// The words of a text.
struct Words<'a> {
    encoder: &'a WordEncoder,
    text: &'a str,
    /// The end of the words so far.
    at: usize,
    /// The end of the ASCII text from `at` on that a [`WordPattern`] splits.
    ascii_end: usize,
    /// The matches of the regex engine, and the end of the text that it splits. Text between matches is a word too.
    window: Option<(Window<'a>, usize)>,
}

/// The ranges of matches, and the next one.
type Window<'a> = std::iter::Peekable<Box<dyn Iterator<Item = (usize, usize)> + 'a>>;

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            if self.at < self.ascii_end {
                let pattern = self.encoder.pattern?;
                return Some(self.word_to(self.at + pattern.word(&self.text.as_bytes()[self.at..self.ascii_end])));
            }
            let Some((matches, end)) = &mut self.window else {
                if self.at == self.text.len() {
                    return None;
                }
                self.next_window();
                continue;
            };
            let word_end = match matches.peek() {
                Some((start, _)) if *start > self.at => *start,
                Some((_, found)) => {
                    let found = *found;
                    matches.next();
                    found
                }
                None => *end,
            };
            let is_over = word_end == *end;
            if word_end > self.at {
                return Some(self.word_to(word_end));
            }
            if is_over {
                self.window = None;
            }
        }
    }
}

impl<'a> Words<'a> {
    fn word_to(&mut self, end: usize) -> &'a str {
        &self.text[std::mem::replace(&mut self.at, end)..end]
    }

    /// Finds the next part that the pattern splits, or the part around a character outside ASCII, which the regex engine splits.
    fn next_window(&mut self) {
        let (text, at) = (self.text, self.at);
        let bytes = text.as_bytes();
        let end = if self.encoder.pattern.is_none() {
            text.len()
        } else {
            let other = bytes[at..].iter().position(|byte| !byte.is_ascii()).map_or(text.len(), |found| at + found);
            let start = match other == text.len() {
                true => other,
                false => (at + 1..=other).rev().find(|cut| is_boundary(bytes, *cut)).unwrap_or(at),
            };
            if start > at {
                self.ascii_end = start;
                return;
            }
            (other + 1..text.len()).find(|cut| is_boundary(bytes, *cut)).unwrap_or(text.len())
        };
        let matches = self.encoder.regex.find_iter(&text[at..end]).map(move |(from, to)| (at + from, at + to));
        let matches: Box<dyn Iterator<Item = (usize, usize)> + 'a> = Box::new(matches);
        self.window = Some((matches.peekable(), end));
    }
}

/// The text in NFC. Characters that the normalizer leaves as they are, wherever they are, separate pieces.
fn nfc(text: &str, limits: &EncodeLimits<'_>) -> Result<String, TokenizerError> {
    let mut out = String::with_capacity(text.len());
    let mut start = 0;
    while start < text.len() {
        limits.work.check()?;
        let least = (start + PIECE..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        let end = text[least..].char_indices().find(|(_, c)| is_normal(*c)).map_or(text.len(), |(at, _)| least + at);
        let _memory = limits.work.take(if end - start > 2 * PIECE { NFC_FACTOR * (end - start) } else { 0 })?;
        let mut piece = NormalizedString::from(&text[start..end]);
        piece.nfc();
        out.push_str(piece.get());
        start = end;
    }
    Ok(out)
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
            // longer than a piece, with the ends of pieces in different places
            &"some words, ".repeat(15_000),
            &"日本語 e\u{301}te\u{301} 12345\n\n  x".repeat(5_000),
            &"<|im_end|> caf\u{e9} cafe\u{301}".repeat(5_000),
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
    fn a_text_can_be_normalized_in_pieces_before_each_normal_character() {
        let nfd = |text: &str| {
            let mut text = tokenizers::NormalizedString::from(text);
            text.nfd();
            text.get().to_owned()
        };
        for c in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
            let parts = nfd(c.encode_utf8(&mut [0; 4]));
            assert!(!parts.chars().skip(1).any(super::is_normal), "{c:?} is composed with a normal character");
            assert!(parts.len() <= super::NFC_SHORTENS * c.len_utf8(), "{c:?}");
            // U+0345 comes after almost all others that combine
            assert!(!super::is_normal(c) || nfd(&format!("\u{345}{c}")).starts_with('\u{345}'), "{c:?} combines");
        }
        let limits = super::EncodeLimits { work: &super::super::Work::unlimited(), tokens: None };
        for text in ["ne\u{301}e ".repeat(40_000), "\u{e01}\u{e33}\u{301}".repeat(40_000) + "x"] {
            let mut whole = tokenizers::NormalizedString::from(&*text);
            whole.nfc();
            assert!(super::nfc(&text, &limits).unwrap() == whole.get());
        }
    }

    #[test]
    fn an_encoding_stops_at_its_limits() {
        let budget = crate::budget::Budget::new(100 << 20);
        let (work, text) = (super::super::Work::new(&budget), "word ".repeat(100_000));
        for tokenizer in &*TOKENIZERS {
            let encode =
                |text: &str, tokens| tokenizer.encode_within(text, &super::EncodeLimits { work: &work, tokens });
            let ids = encode(&text, None).unwrap();
            assert_eq!(encode(&text, Some(ids.len())).unwrap(), ids);
            let Err(super::TokenizerError::TooLong { tokens }) = encode(&text, Some(50_000)) else { panic!() };
            assert!((50_001..=ids.len()).contains(&tokens), "{tokens}");
            let least = text.len() / tokenizer.words.as_ref().unwrap().longest.unwrap();
            let Err(super::TokenizerError::TooLong { tokens }) = encode(&text, Some(least - 1)) else { panic!() };
            assert_eq!(tokens, least, "nothing is encoded of a text that cannot fit");
            let (none, decomposed) = (crate::budget::Budget::new(0), "cafe\u{301} ".repeat(10_000));
            let limits = super::EncodeLimits { work: &super::super::Work::new(&none), tokens: Some(10) };
            let refused = tokenizer.encode_within(&decomposed, &limits);
            assert!(matches!(refused, Err(super::TokenizerError::TooLong { .. })), "nothing is copied of it");
            let word = encode(&"a".repeat(4 << 20), None);
            let too_large = crate::budget::Stopped::TooLarge { bytes: 96 * (4 << 20), most: 75 << 20 };
            assert!(matches!(word, Err(super::TokenizerError::Stopped(stopped)) if stopped == too_large), "{word:?}");
            assert_eq!(budget.taken(), 0);
            let abandoned = super::super::Work::new(&budget);
            drop(abandoned.until_dropped());
            let limits = super::EncodeLimits { work: &abandoned, tokens: None };
            assert!(matches!(tokenizer.encode_within(&text, &limits), Err(super::TokenizerError::Stopped(_))));
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
