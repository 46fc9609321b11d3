//! Calls in Python's syntax, with literals as arguments.
//!
//! Supported are strings (also raw and triple-quoted), decimal numbers, `True`, `False`, `None`, lists and dicts of them. Not supported are
//! other expressions, tuples and sets, other prefixes of strings, strings side by side, escapes by name (`\N{…}`), underscores and other
//! bases in numbers, comments, and nesting deeper than [`MAX_DEPTH`]. Keys of a dict are compared as `json.dumps` writes them,
//! so that `1` and `True` are two keys.

use super::ToolCall;
use super::value::{Dict, PythonValue, escaped, push_char};
use crate::json::{MAX_DEPTH, python};

/// Reads `text`, which must be a list of calls and nothing else; otherwise `None`.
pub(super) fn calls(text: &str) -> Option<Vec<ToolCall>> {
    let mut source = Source { rest: text };
    source.take("[").then_some(())?;
    let mut calls = Vec::new();
    source.separated("]", |source| {
        calls.push(source.call()?);
        Some(())
    })?;
    (source.visible().is_empty() && !calls.is_empty()).then_some(calls)
}

/// Whether `text` may name a function or an argument.
pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_') && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

struct Source<'a> {
    rest: &'a str,
}

impl<'a> Source<'a> {
    /// The rest of the text, without the white space that Python allows within brackets.
    fn visible(&mut self) -> &'a str {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\x0c', '\n', '\r']);
        self.rest
    }

    /// Consumes `token` if it is next.
    fn take(&mut self, token: &str) -> bool {
        let behind = self.visible().strip_prefix(token);
        self.rest = behind.unwrap_or(self.rest);
        behind.is_some()
    }

    /// Consumes items separated by commas, with an optional comma at the end, and then `close`.
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
            let key = escaped(source.name()?);
            source.take("=").then_some(())?;
            let value = source.value(0)?;
            // a syntax error in Python too
            (!arguments.has(&key)).then(|| arguments.set(key, value))
        })?;
        Some(ToolCall::read(name, Some(&PythonValue::Dict(arguments))))
    }

    fn name(&mut self) -> Option<&'a str> {
        let visible = self.visible();
        let length = visible.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(visible.len());
        let (name, rest) = visible.split_at(length);
        self.rest = rest;
        is_name(name).then_some(name)
    }

    fn value(&mut self, depth: usize) -> Option<PythonValue> {
        match self.visible().chars().next()? {
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

    /// Keys that are not strings are converted as by `json.dumps`.
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
        let whole = self.digits();
        let mut float = false;
        let mut fraction = 0;
        if let Some(behind) = self.rest.strip_prefix('.') {
            self.rest = behind;
            (float, fraction) = (true, self.digits());
        }
        if let Some(behind) = self.rest.strip_prefix(['e', 'E']) {
            self.rest = behind.strip_prefix(['+', '-']).unwrap_or(behind);
            float = true;
            (self.digits() > 0).then_some(())?;
        }
        let text = &start[..start.len() - self.rest.len()];
        let digits = text.trim_start_matches('-');
        let octal = !float && digits.starts_with('0') && digits.contains(|c| c != '0');
        (whole + fraction > 0 && !octal).then(|| python::number(text).map(PythonValue::Number))?
    }

    fn digits(&mut self) -> usize {
        let behind = self.rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let count = self.rest.len() - behind.len();
        self.rest = behind;
        count
    }

    fn string(&mut self, raw: bool) -> Option<PythonValue> {
        let single = self.rest.get(..1)?;
        let triple = self.rest.get(..3).filter(|quotes| quotes.bytes().all(|byte| single.as_bytes() == [byte]));
        let close = triple.unwrap_or(single);
        self.rest = &self.rest[close.len()..];
        let mut out = String::new();
        loop {
            if let Some(behind) = self.rest.strip_prefix(close) {
                self.rest = behind;
                return Some(PythonValue::Text(out));
            }
            match self.next()? {
                '\\' if raw => {
                    push_char('\\', &mut out);
                    push_char(self.next()?, &mut out);
                }
                '\\' => self.escape(&mut out)?,
                '\n' if triple.is_none() => return None,
                c => push_char(c, &mut out),
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Option<()> {
        let c = self.next()?;
        match c {
            '\n' => {}
            '\\' | '\'' | '"' => push_char(c, out),
            'a' => push_char('\x07', out),
            'b' => push_char('\x08', out),
            'f' => push_char('\x0c', out),
            'n' => push_char('\n', out),
            'r' => push_char('\r', out),
            't' => push_char('\t', out),
            'v' => push_char('\x0b', out),
            'x' => self.code(2, out)?,
            'u' => self.code(4, out)?,
            'U' => self.code(8, out)?,
            'N' => return None,
            '0'..='7' => {
                let mut code = c.to_digit(8)?;
                for _ in 0..2 {
                    let Some(digit) = self.rest.chars().next().and_then(|c| c.to_digit(8)) else { break };
                    code = code * 8 + digit;
                    self.next();
                }
                push_char(char::from_u32(code)?, out);
            }
            // an unknown escape stays unchanged
            _ => {
                push_char('\\', out);
                push_char(c, out);
            }
        }
        Some(())
    }

    /// The code point of `count` hexadecimal digits, which may be a surrogate.
    fn code(&mut self, count: usize, out: &mut String) -> Option<()> {
        let digits = self.rest.get(..count).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        self.rest = &self.rest[count..];
        let code = u32::from_str_radix(digits, 16).ok()?;
        match (char::from_u32(code), u16::try_from(code)) {
            (Some(c), _) => push_char(c, out),
            (None, Ok(half)) => python::escaped_unit(out, half),
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
