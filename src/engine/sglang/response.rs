//! Parses one object of a reply: a whole reply, an element of a list, or an event of a stream.
//!
//! Only numbers are copied. Other members are ranges of the raw bytes, which `generation` splices.

mod array;

use std::ops::Range;

pub use array::Array;
use array::{array, count_numbers, optional, skip_numbers};

use crate::engine::sglang::scan;
use crate::json::{Cursor, Malformed, Object, for_each_member};
use crate::logprobs::Rows;

/// How a sequence ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// `stop`, `length`, `abort`, or another name of the engine.
    pub kind: String,
    /// The range of `matched`, if it is present and not null.
    pub matched: Option<Range<usize>>,
    /// `status_code`, if it is an HTTP status: the engine failed. An abort that was requested has none.
    pub status_code: Option<u16>,
    /// The range of `message`, if it is present and not null.
    pub message: Option<Range<usize>>,
}

/// The length of a short element of `output_token_logprobs`, in bytes: `[-0.1234567,1234,null],`.
const SHORTEST_TRIPLE: usize = 24;

/// The largest number of tokens for which memory is reserved before they are read.
const MOST_RESERVED: usize = 4096;

/// The numbers of one object, in reusable buffers.
#[derive(Debug, Default)]
pub struct Numbers {
    /// Logprobs of the chosen tokens, NaN for null.
    pub chosen: Vec<f32>,
    /// Their ids.
    pub ids: Vec<u32>,
    /// Top-k rows.
    pub rows: Rows,
    /// Entropies that the engine's plugin measured, in nats; NaN for null.
    pub exact: Vec<f32>,
    /// Logprobs of the support from which each token was sampled.
    pub support: Rows,
}

impl Numbers {
    fn clear(&mut self) {
        self.chosen.clear();
        self.ids.clear();
        self.rows.clear();
        self.exact.clear();
        self.support.clear();
    }
}

/// Resumes parsing in a cumulative stream: returns how many leading bytes of an array's content were parsed in an earlier event.
pub trait KnownPrefix {
    /// For `output_token_logprobs`; `bytes` begins after the bracket.
    fn chosen(&self, bytes: &[u8]) -> usize;
    /// For `output_top_logprobs`; `bytes` begins after the bracket.
    fn top(&self, bytes: &[u8]) -> usize;
    /// For the plugin's `output_token_entropy`; `bytes` begins after the bracket.
    fn exact(&self, bytes: &[u8]) -> usize;
}

/// No known prefix, as in a reply that does not stream.
#[derive(Debug, Clone, Copy)]
pub struct NoKnownPrefix;

impl KnownPrefix for NoKnownPrefix {
    fn chosen(&self, _: &[u8]) -> usize {
        0
    }
    fn top(&self, _: &[u8]) -> usize {
        0
    }
    fn exact(&self, _: &[u8]) -> usize {
        0
    }
}

/// The known prefixes of the lists, and the buffers for the rest.
type ListContext<'a> = (&'a dyn KnownPrefix, &'a mut Numbers);

/// One object of a reply.
#[derive(Debug, Default)]
pub struct Chunk {
    /// The members of `meta_info`; `None` in an error event.
    pub meta: Option<Object>,
    /// `index`; 0 if absent.
    pub index: usize,
    /// `meta_info.id`.
    pub rid: Option<String>,
    /// `meta_info.finish_reason`; `None` if absent or null.
    pub finish: Option<Finish>,
    /// `meta_info.prompt_tokens`.
    pub prompt_tokens: Option<u64>,
    /// `meta_info.completion_tokens`, counted from the start of the sequence in every streaming mode.
    pub completion_tokens: Option<u64>,
    /// `output_token_logprobs`.
    pub chosen: Option<Array>,
    /// `output_top_logprobs` in its nested form.
    pub top: Option<Array>,
    /// The plugin's `output_token_entropy`.
    pub exact: Option<Array>,
    /// Whether the object has `output_token_sampling_logprobs`.
    pub has_support: bool,
    /// The range of `output_ids`, including brackets.
    pub output_ids: Option<Range<usize>>,
    /// The range of `prompt_token_ids`, including brackets.
    pub prompt_ids: Option<Range<usize>>,
    /// The members of the object itself.
    pub object: Object,
}

#[cfg(test)]
thread_local! {
    /// Objects that this thread has parsed.
    static READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The number of reply objects that this thread has parsed.
#[cfg(test)]
pub(crate) fn read_on_this_thread() -> usize {
    READ.with(std::cell::Cell::get)
}

impl Chunk {
    /// Parses the object at the cursor, and its numbers into `numbers`.
    ///
    /// # Errors
    /// When there is no object at the cursor, or its logprobs are not in SGLang's format.
    pub fn read(cursor: &mut Cursor<'_>, known: &dyn KnownPrefix, numbers: &mut Numbers) -> Result<Self, Malformed> {
        numbers.clear();
        Self::with(cursor, Some((known, numbers)))
    }

    /// Parses the object at the cursor without its lists of logprobs and entropies, which remain ordinary members.
    ///
    /// # Errors
    /// When there is no object at the cursor.
    pub fn outline(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Self::with(cursor, None)
    }

    fn with<'a>(cursor: &mut Cursor<'a>, mut lists: Option<ListContext<'_>>) -> Result<Self, Malformed> {
        #[cfg(test)]
        READ.with(|read| read.set(read.get() + 1));
        let bytes: &'a [u8] = cursor.bytes();
        let mut chunk = Self::default();
        let object = Object::read(&mut *cursor, |key, cursor| {
            match key.raw {
                b"meta_info" if cursor.peek() == Some(b'{') => chunk.meta_info(cursor, &mut lists)?,
                b"output_ids" if cursor.peek() == Some(b'[') => chunk.output_ids = Some(skip_numbers(cursor)?),
                b"prompt_token_ids" if cursor.peek() == Some(b'[') => chunk.prompt_ids = Some(skip_numbers(cursor)?),
                b"index" => {
                    let span = cursor.skip()?;
                    chunk.index = integer(&bytes[span]).and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
                }
                _ => {
                    cursor.skip()?;
                }
            }
            Ok(())
        })?;
        chunk.object = object;
        Ok(chunk)
    }

    /// The number of `output_ids`.
    #[must_use]
    pub fn count_ids(&self, bytes: &[u8]) -> usize {
        self.output_ids.clone().map_or(0, |span| count_numbers(&bytes[span]))
    }

    /// Appends the ids of the list at `span`.
    ///
    /// # Errors
    /// When they are not plain integers.
    pub fn ids(bytes: &[u8], span: &Range<usize>, out: &mut Vec<u32>) -> Result<(), Malformed> {
        scan::ids(bytes, span.start + 1, out).map(drop).map_err(|error| Malformed::new(error.at))
    }

    /// Whether the last id is listed once more than it was sampled, as in the last event of a stream whose waiting request SGLang aborts.
    /// `known` is the number of tokens of the earlier events. If it is 1, a list of all tokens that ends with two equal ids looks the same.
    #[must_use]
    pub fn repeats_last_id(&self, bytes: &[u8], known: usize) -> bool {
        let (Some(span), Some(all)) = (&self.output_ids, self.completion_tokens) else { return false };
        let is_abort = self.finish.as_ref().is_some_and(|finish| finish.kind == "abort");
        let new = usize::try_from(all).ok().and_then(|all| all.checked_sub(known));
        if !is_abort || all == 0 || new.is_none_or(|new| self.count_ids(bytes) != new + 1) {
            return false;
        }
        let mut last = Vec::new();
        let read = Self::last_ids(bytes, span, 2, &mut last);
        read.is_ok() && (last.len() == 1 || last[0] == last[1])
    }

    /// Appends the last `count` ids of a list, or all if it has fewer. Returns whether more precede them. Only the appended ids are parsed,
    /// however long the list is.
    ///
    /// # Errors
    /// When they are not plain integers.
    pub fn last_ids(bytes: &[u8], span: &Range<usize>, count: usize, out: &mut Vec<u32>) -> Result<bool, Malformed> {
        let content = span.start + 1..span.end - 1;
        if count == 0 {
            return Ok(count_numbers(&bytes[content]) > 0);
        }
        let before = memchr::memrchr_iter(b',', &bytes[content.clone()]).nth(count - 1);
        let start = before.map_or(content.start, |comma| content.start + comma + 1);
        scan::ids(bytes, start, out).map_err(|error| Malformed::new(error.at))?;
        Ok(before.is_some())
    }

    /// A member of `meta_info`, as text.
    #[must_use]
    pub fn member<'a>(&self, bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
        self.meta.as_ref()?.get(bytes, name).filter(|text| *text != b"null")
    }

    /// A member of `meta_info` that is a string.
    #[must_use]
    pub fn text(&self, bytes: &[u8], name: &str) -> Option<String> {
        let text = self.member(bytes, name).filter(|text| text.first() == Some(&b'"'))?;
        Some(Cursor::new(text).string().ok()?.decode().into_owned())
    }

    /// A member of `meta_info` that counts something.
    #[must_use]
    pub fn count(&self, bytes: &[u8], name: &str) -> Option<u64> {
        self.member(bytes, name).and_then(integer)
    }

    /// `weight_versions`: label, first token, end (exclusive). Empty if absent or not in SGLang's format.
    #[must_use]
    pub fn weight_versions(&self, bytes: &[u8]) -> Vec<(Box<str>, u32, u32)> {
        #[derive(serde::Deserialize)]
        struct WeightVersionSpan {
            version: Box<str>,
            start: u32,
            end: u32,
        }
        let text = self.member(bytes, "weight_versions").unwrap_or(b"[]");
        let spans: Vec<WeightVersionSpan> = serde_json::from_slice(text).unwrap_or_default();
        spans.into_iter().map(|span| (span.version, span.start, span.end)).collect()
    }

    fn meta_info(&mut self, cursor: &mut Cursor<'_>, lists: &mut Option<ListContext<'_>>) -> Result<(), Malformed> {
        let meta = Object::read(cursor, |key, cursor| {
            match key.raw {
                b"id" if cursor.peek() == Some(b'"') => {
                    self.rid = Some(cursor.string()?.decode().into_owned());
                    return Ok(());
                }
                b"prompt_tokens" => {
                    self.prompt_tokens = cursor.skip().map(|span| integer(&cursor.bytes()[span]))?;
                    return Ok(());
                }
                b"completion_tokens" => {
                    self.completion_tokens = cursor.skip().map(|span| integer(&cursor.bytes()[span]))?;
                    return Ok(());
                }
                b"finish_reason" => {
                    self.finish = cursor.skip().map(|span| finish(cursor.bytes(), span))?;
                    return Ok(());
                }
                _ => {}
            }
            let Some((known, numbers)) = lists else {
                cursor.skip()?;
                return Ok(());
            };
            match key.raw {
                b"output_token_logprobs" if cursor.peek() == Some(b'[') => {
                    let bytes = cursor.bytes();
                    let most = MOST_RESERVED.min((bytes.len() - cursor.position()) / SHORTEST_TRIPLE);
                    numbers.chosen.reserve(most);
                    numbers.ids.reserve(most);
                    self.chosen = Some(array(
                        cursor,
                        |at| known.chosen(&bytes[at..]),
                        |bytes, at| scan::triples(bytes, at, &mut numbers.chosen, &mut numbers.ids),
                    )?);
                }
                b"output_top_logprobs" if cursor.peek() == Some(b'[') => {
                    let bytes = cursor.bytes();
                    self.top = Some(array(
                        cursor,
                        |at| known.top(&bytes[at..]),
                        |bytes, at| scan::rows(bytes, at, &mut numbers.rows),
                    )?);
                }
                b"output_token_entropy" if cursor.peek() == Some(b'[') => {
                    let bytes = cursor.bytes();
                    // `chosen` counts the tokens, so both lists skip their known prefix or neither does
                    let together = self.chosen.as_ref().is_some_and(|chosen| chosen.known > 0);
                    self.exact = optional(cursor, |cursor| {
                        array(
                            cursor,
                            |at| if together { known.exact(&bytes[at..]) } else { 0 },
                            |bytes, at| scan::numbers(bytes, at, &mut numbers.exact),
                        )
                    })?;
                }
                b"output_token_sampling_logprobs" if cursor.peek() == Some(b'[') => {
                    let read = optional(cursor, |cursor| {
                        array(cursor, |_| 0, |bytes, at| scan::lists(bytes, at, &mut numbers.support))
                    })?;
                    self.has_support = read.is_some();
                }
                _ => {
                    cursor.skip()?;
                }
            }
            Ok(())
        })?;
        self.meta = Some(meta);
        Ok(())
    }
}

fn integer(text: &[u8]) -> Option<u64> {
    let digit = |value: u64, byte: &u8| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        value.checked_mul(10)?.checked_add(digit.into())
    };
    (!text.is_empty()).then(|| text.iter().try_fold(0, digit))?
}

fn finish(bytes: &[u8], span: Range<usize>) -> Option<Finish> {
    if &bytes[span.clone()] == b"null" {
        return None;
    }
    let mut cursor = Cursor::at(&bytes[..span.end], span.start);
    let (mut kind, mut matched, mut status_code, mut message) = (None, None, None, None);
    let not_null = |span: Range<usize>| Some(span).filter(|span| &bytes[span.clone()] != b"null");
    for_each_member(&mut cursor, |key, _, cursor| {
        let span = cursor.skip()?;
        match key.raw {
            b"type" => kind = Some(span),
            b"matched" => matched = not_null(span),
            b"status_code" => status_code = integer(&bytes[span]).and_then(|status| u16::try_from(status).ok()),
            b"message" => message = not_null(span),
            _ => {}
        }
        Ok(())
    })
    .ok()?;
    let kind = Cursor::at(bytes, kind?.start).string().ok()?.decode().into_owned();
    Some(Finish { kind, matched, status_code, message })
}
