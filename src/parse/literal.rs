// SPDX-License-Identifier: Apache-2.0
//! Parses calls in Python's syntax, with literals as arguments.
//!
//! Supported literals: strings (also raw and triple-quoted), decimal numbers, `True`, `False`, `None`, and lists and dicts of these. Not
//! supported: other expressions, tuples and sets, other string prefixes, adjacent strings, named escapes (`\N{…}`), underscores and other
//! bases in numbers, comments, and nesting deeper than [`MAX_DEPTH`]. Keys of a dict are compared as `json.dumps` writes them, so `1` and
//! `True` are two keys.

use super::ToolCall;
use super::value::{Dict, PythonValue, escape, push_escaped, push_escaped_char};
use crate::json::{MAX_DEPTH, python};

/// Parses `text`. Returns `None` unless the whole text is a list of one or more calls.
pub(super) fn calls(text: &str) -> Option<Vec<ToolCall>> {
    let mut source = Source { rest: text };
    source.take("[").then_some(())?;
    let mut calls = Vec::new();
    source.separated("]", |source| {
        calls.push(source.call()?);
        Some(())
    })?;
    (source.skip_space().is_empty() && !calls.is_empty()).then_some(calls)
}

/// Parses `text` as one literal, as Python's `ast.literal_eval` does. Returns `None` if it is another expression.
pub(super) fn value(text: &str) -> Option<PythonValue> {
    let mut source = Source { rest: text };
    let value = source.value(0)?;
    source.skip_space().is_empty().then_some(value)
}

/// Whether `text` is a Python identifier.
pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_') && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

struct Source<'a> {
    rest: &'a str,
}

impl<'a> Source<'a> {
    /// Skips the white space that Python allows within brackets, and returns the rest of the text.
    fn skip_space(&mut self) -> &'a str {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\x0c', '\n', '\r']);
        self.rest
    }

    /// Consumes `token` if it is next after white space.
    fn take(&mut self, token: &str) -> bool {
        let after = self.skip_space().strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// Parses items separated by commas, with an optional comma at the end, and then `close`.
    fn separated(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        loop {
            if self.take(close) {
                return Some(());
            }
            item(self)?;
            if !self.take(",") {
                return self.take(close).then_some(());
            }
        }
    }

    fn call(&mut self) -> Option<ToolCall> {
        let mut name = self.name()?.to_owned();
        while self.take(".") {
            name.push('.');
            name.push_str(self.name()?);
        }
        self.take("(").then_some(())?;
        let mut arguments = Dict::default();
        self.separated(")", |source| {
            let key = escape(source.name()?);
            source.take("=").then_some(())?;
            let value = source.value(0)?;
            // a repeated argument is a syntax error in Python too
            (!arguments.has(&key)).then(|| arguments.set(key, value))
        })?;
        Some(ToolCall::with_arguments(name, Some(&PythonValue::Dict(arguments))))
    }

    fn name(&mut self) -> Option<&'a str> {
        let text = self.skip_space();
        let length = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        let (name, rest) = text.split_at(length);
        self.rest = rest;
        is_name(name).then_some(name)
    }

    fn value(&mut self, depth: usize) -> Option<PythonValue> {
        match self.skip_space().chars().next()? {
            '[' | '{' if depth == MAX_DEPTH => None,
            '[' => self.list(depth + 1),
            '{' => self.dict(depth + 1),
            '"' | '\'' => self.string(false),
            'r' | 'R' if self.rest[1..].starts_with(['"', '\'']) => {
                self.rest = &self.rest[1..];
                self.string(true)
            }
            '-' | '.' | '0'..='9' => self.number(),
            _ => match self.name()? {
                "True" => Some(PythonValue::Bool(true)),
                "False" => Some(PythonValue::Bool(false)),
                "None" => Some(PythonValue::Null),
                _ => None,
            },
        }
    }

    fn list(&mut self, depth: usize) -> Option<PythonValue> {
        self.take("[").then_some(())?;
        let mut items = Vec::new();
        self.separated("]", |source| {
            items.push(source.value(depth)?);
            Some(())
        })?;
        Some(PythonValue::List(items))
    }

    /// Parses a dict. Keys that are not strings are converted as by `json.dumps`.
    fn dict(&mut self, depth: usize) -> Option<PythonValue> {
        self.take("{").then_some(())?;
        let mut dict = Dict::default();
        self.separated("}", |source| {
            let key = match source.value(depth)? {
                PythonValue::Text(key) => key,
                PythonValue::List(_) | PythonValue::Dict(_) => return None,
                key => key.dumps(),
            };
            source.take(":").then_some(())?;
            dict.set(key, source.value(depth)?);
            Some(())
        })?;
        Some(PythonValue::Dict(dict))
    }

    fn number(&mut self) -> Option<PythonValue> {
        let start = self.rest;
        self.rest = start.strip_prefix('-').unwrap_or(start);
        let integer = self.skip_digits();
        let mut float = false;
        let mut fraction = 0;
        if let Some(after) = self.rest.strip_prefix('.') {
            self.rest = after;
            (float, fraction) = (true, self.skip_digits());
        }
        if let Some(after) = self.rest.strip_prefix(['e', 'E']) {
            self.rest = after.strip_prefix(['+', '-']).unwrap_or(after);
            float = true;
            (self.skip_digits() > 0).then_some(())?;
        }
        let text = &start[..start.len() - self.rest.len()];
        let digits = text.trim_start_matches('-');
        let octal = !float && digits.starts_with('0') && digits.contains(|c| c != '0');
        (integer + fraction > 0 && !octal).then(|| python::number(text).map(PythonValue::Number))?
    }

    /// Skips digits and returns their number.
    fn skip_digits(&mut self) -> usize {
        let after = self.rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let count = self.rest.len() - after.len();
        self.rest = after;
        count
    }

    fn string(&mut self, raw: bool) -> Option<PythonValue> {
        let single = self.rest.get(..1)?;
        let triple = self.rest.get(..3).filter(|quotes| quotes.bytes().all(|byte| single.as_bytes() == [byte]));
        let close = triple.unwrap_or(single);
        self.rest = &self.rest[close.len()..];
        let special = [close.chars().next()?, '\\', '\n'];
        let mut out = String::new();
        loop {
            let plain = self.rest.find(special).unwrap_or(self.rest.len());
            push_escaped(&self.rest[..plain], &mut out);
            self.rest = &self.rest[plain..];
            if let Some(after) = self.rest.strip_prefix(close) {
                self.rest = after;
                return Some(PythonValue::Text(out));
            }
            match self.next()? {
                '\\' if raw => {
                    push_escaped_char('\\', &mut out);
                    if self.rest.starts_with(special) {
                        push_escaped_char(self.next()?, &mut out);
                    }
                }
                '\\' => self.escape(&mut out)?,
                '\n' if triple.is_none() => return None,
                c => push_escaped_char(c, &mut out),
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Option<()> {
        let escape = self.rest;
        let c = self.next()?;
        match c {
            '\n' => {}
            '\\' | '\'' | '"' => push_escaped_char(c, out),
            'a' => push_escaped_char('\x07', out),
            'b' => push_escaped_char('\x08', out),
            'f' => push_escaped_char('\x0c', out),
            'n' => push_escaped_char('\n', out),
            'r' => push_escaped_char('\r', out),
            't' => push_escaped_char('\t', out),
            'v' => push_escaped_char('\x0b', out),
            'x' => self.push_code_point(2, out)?,
            'u' => self.push_code_point(4, out)?,
            'U' => self.push_code_point(8, out)?,
            'N' => return None,
            '0'..='7' => {
                let mut code = c.to_digit(8)?;
                for _ in 0..2 {
                    let Some(digit) = self.rest.chars().next().and_then(|c| c.to_digit(8)) else { break };
                    code = code * 8 + digit;
                    self.next();
                }
                push_escaped_char(char::from_u32(code)?, out);
            }
            // an unknown escape is two characters of text, as in Python
            _ => {
                push_escaped_char('\\', out);
                self.rest = escape;
            }
        }
        Some(())
    }

    /// Appends the code point of the next `count` hexadecimal digits, which may be a surrogate.
    fn push_code_point(&mut self, count: usize, out: &mut String) -> Option<()> {
        let digits = self.rest.get(..count).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        self.rest = &self.rest[count..];
        let code = u32::from_str_radix(digits, 16).ok()?;
        match (char::from_u32(code), u16::try_from(code)) {
            (Some(c), _) => push_escaped_char(c, out),
            (None, Ok(surrogate)) => python::push_escaped_unit(out, surrogate),
            (None, Err(_)) => return None,
        }
        Some(())
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }
}
