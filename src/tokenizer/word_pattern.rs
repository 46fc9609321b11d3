// SPDX-License-Identifier: Apache-2.0
//! Splits ASCII text into words as the regular expressions of well-known tokenizers do, without a regex engine.

/// The regular expression of GPT-2, which `ByteLevel` applies.
pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The regular expression of Qwen.
pub(super) const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The regular expression of Llama 3.
pub(super) const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A regular expression that is matched without a regex engine. It matches all of an ASCII text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WordPattern {
    /// [`GPT2`].
    Gpt2,
    /// [`QWEN`] and [`LLAMA3`], which differ in the number of digits of a word.
    Tiktoken {
        /// The maximum number of digits.
        digits: usize,
    },
}

/// The class of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CharacterClass {
    Letter,
    Digit,
    Space,
    Other,
}

impl CharacterClass {
    fn of(byte: u8) -> Self {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => Self::Letter,
            b'0'..=b'9' => Self::Digit,
            b'\t'..=b'\r' | b' ' => Self::Space,
            _ => Self::Other,
        }
    }
}

impl WordPattern {
    /// The pattern of a regular expression; `None` if it is unknown.
    pub(super) fn find(regex: &str) -> Option<Self> {
        match regex {
            GPT2 => Some(Self::Gpt2),
            QWEN => Some(Self::Tiktoken { digits: 1 }),
            LLAMA3 => Some(Self::Tiktoken { digits: 3 }),
            _ => None,
        }
    }

    /// The length of the word at the start of a text, which is ASCII and not empty.
    pub(super) fn word(self, text: &[u8]) -> usize {
        match self {
            Self::Gpt2 => gpt2_word(text),
            Self::Tiktoken { digits } => tiktoken_word(text, digits),
        }
    }
}

/// The number of characters of this class from `from` on.
fn run(text: &[u8], from: usize, class: CharacterClass) -> usize {
    text[from.min(text.len())..].iter().take_while(|byte| CharacterClass::of(**byte) == class).count()
}

fn gpt2_word(text: &[u8]) -> usize {
    if let Some(length) = contraction(text, |byte| byte) {
        return length;
    }
    let space = usize::from(text[0] == b' ');
    if let Some(class) =
        text.get(space).map(|byte| CharacterClass::of(*byte)).filter(|class| *class != CharacterClass::Space)
    {
        return space + run(text, space, class);
    }
    space_word(text)
}

fn tiktoken_word(text: &[u8], digits: usize) -> usize {
    if let Some(length) = contraction(text, |byte| byte.to_ascii_lowercase()) {
        return length;
    }
    let first = CharacterClass::of(text[0]);
    if first == CharacterClass::Letter {
        return run(text, 0, CharacterClass::Letter);
    }
    // one character before the letters belongs to the word, unless it is a digit or ends a line
    let letters = run(text, 1, CharacterClass::Letter);
    if letters > 0 && first != CharacterClass::Digit && !is_line_end(text[0]) {
        return 1 + letters;
    }
    if first == CharacterClass::Digit {
        return run(text, 0, CharacterClass::Digit).min(digits);
    }
    let space = usize::from(text[0] == b' ');
    let others = run(text, space, CharacterClass::Other);
    if others > 0 {
        let end = space + others;
        return end + text[end..].iter().take_while(|byte| is_line_end(**byte)).count();
    }
    let spaces = &text[..run(text, 0, CharacterClass::Space)];
    match spaces.iter().rposition(|byte| is_line_end(*byte)) {
        Some(last) => last + 1,
        None => space_word(text),
    }
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

/// The length of a contraction such as `'ll` at the start of a text.
fn contraction(text: &[u8], fold: impl Fn(u8) -> u8) -> Option<usize> {
    let letters = text.strip_prefix(b"'")?;
    let letter = |at: usize| letters.get(at).map(|byte| fold(*byte));
    match (letter(0)?, letter(1)) {
        (b's' | b't' | b'm' | b'd', _) => Some(2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(3),
        _ => None,
    }
}

/// The length of the white space at the start of a text, without its last character if a word follows.
fn space_word(text: &[u8]) -> usize {
    match run(text, 0, CharacterClass::Space) {
        spaces if spaces == text.len() || spaces == 1 => spaces,
        spaces => spaces - 1,
    }
}
