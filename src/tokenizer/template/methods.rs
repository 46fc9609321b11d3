// SPDX-License-Identifier: Apache-2.0
//! Methods of Python's strings, lists and dicts that `pycompat` lacks, or whose positions it counts in bytes.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::data::{self, PythonIterable};
use super::python::splitlines;
use super::source;
use crate::json::python::is_space;

/// The ends of a text that [`strip`] strips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    Both,
    Start,
    End,
}

/// Calls a method that minijinja does not know.
pub(super) fn call_method(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if method == source::SLICE_METHOD {
        return slice(value, arguments);
    }
    match value.kind() {
        ValueKind::String => {
            let result = string_method(value.as_str().unwrap_or_default(), method, arguments);
            result.unwrap_or_else(|| pycompat::unknown_method_callback(state, value, method, arguments))
        }
        ValueKind::Map | ValueKind::Seq if method == "copy" => Ok(value.clone()),
        ValueKind::Map if matches!(method, "keys" | "values" | "items") => {
            let view = pycompat::unknown_method_callback(state, value, method, arguments)?;
            Ok(PythonIterable::view(view.try_iter()?.collect()))
        }
        ValueKind::Seq if method == "index" => {
            let (wanted,): (&Value,) = from_args(arguments)?;
            let at = value.try_iter()?.position(|item| item == *wanted);
            at.map(Value::from).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "it is not in the list"))
        }
        _ => pycompat::unknown_method_callback(state, value, method, arguments),
    }
}

/// `value[start:stop:step]`.
fn slice(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let (start, stop, step): (Option<i64>, Option<i64>, Option<i64>) = from_args(arguments)?;
    let step = step.unwrap_or(1);
    if step == 0
        || PythonIterable::is(value)
        || !matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable)
    {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("{} cannot be sliced so", value.kind())));
    }
    if let (Some(text), 1) = (value.as_str(), step) {
        // as values, the characters of a long text would take many times its length
        let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        let clamped = |at: i64| (if at < 0 { at.saturating_add(length) } else { at }).clamp(0, length);
        let (start, stop) = (start.map_or(0, clamped), stop.map_or(length, clamped));
        let [before, count] = [start, stop - start].map(|count| usize::try_from(count).unwrap_or(0));
        return Ok(text.chars().skip(before).take(count).collect::<String>().into());
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    // the range of `start` and `stop`, to which Python clamps them
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamped = |at: i64| (if at < 0 { at.saturating_add(length) } else { at }).clamp(low, high);
    let (mut at, stop) = match step > 0 {
        true => (start.map_or(low, clamped), stop.map_or(high, clamped)),
        false => (start.map_or(high, clamped), stop.map_or(low, clamped)),
    };
    let mut selected = Vec::new();
    while if step > 0 { at < stop } else { at > stop } {
        selected.extend(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned());
        at = at.saturating_add(step);
    }
    Ok(match value.kind() {
        ValueKind::String => selected.iter().filter_map(Value::as_str).collect::<String>().into(),
        _ => data::list(selected),
    })
}

/// Calls a method of strings; `None` for a method that is left to pycompat.
fn string_method(text: &str, method: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
    let all_characters =
        |test: fn(char) -> bool| from_args(arguments).map(|()| Value::from(!text.is_empty() && text.chars().all(test)));
    let has_case = |is: fn(char) -> bool, is_not: fn(char) -> bool| {
        from_args(arguments).map(|()| Value::from(text.chars().any(is) && !text.chars().any(is_not)))
    };
    Some(match method {
        "strip" => strip_method(text, Ends::Both, arguments),
        "lstrip" => strip_method(text, Ends::Start, arguments),
        "rstrip" => strip_method(text, Ends::End, arguments),
        "split" => split(text, arguments, false),
        "rsplit" => split(text, arguments, true),
        "splitlines" => from_args::<(Option<bool>, Kwargs)>(arguments).and_then(|(keep_ends, kwargs)| {
            let keep_ends = keep_ends.or(kwargs.get("keepends")?).unwrap_or(false);
            Ok(splitlines(text, keep_ends).into_iter().map(Value::from).collect())
        }),
        "partition" => partition(text, arguments, |text, separator| {
            text.split_once(separator).map_or([text, "", ""], |(before, after)| [before, separator, after])
        }),
        "rpartition" => partition(text, arguments, |text, separator| {
            text.rsplit_once(separator).map_or(["", "", text], |(before, after)| [before, separator, after])
        }),
        "find" => find(text, arguments, |text, part| text.find(part)),
        "rfind" => find(text, arguments, |text, part| text.rfind(part)),
        "index" => find(text, arguments, |text, part| text.find(part)).and_then(require_found),
        "rindex" => find(text, arguments, |text, part| text.rfind(part)).and_then(require_found),
        "removeprefix" => from_args(arguments).map(|(part,): (&str,)| text.strip_prefix(part).unwrap_or(text).into()),
        "removesuffix" => from_args(arguments).map(|(part,): (&str,)| text.strip_suffix(part).unwrap_or(text).into()),
        "isspace" => all_characters(is_space),
        "isdigit" | "isnumeric" | "isdecimal" => all_characters(char::is_numeric),
        "isalpha" => all_characters(char::is_alphabetic),
        "isalnum" => all_characters(char::is_alphanumeric),
        "islower" => has_case(char::is_lowercase, char::is_uppercase),
        "isupper" => has_case(char::is_uppercase, char::is_lowercase),
        _ => return None,
    })
}

/// A text without these characters at its ends; without `characters`, without white space.
pub(super) fn strip<'a>(text: &'a str, characters: Option<&str>, ends: Ends) -> &'a str {
    let is_stripped = |c: char| characters.map_or_else(|| is_space(c), |characters| characters.contains(c));
    let text = if ends == Ends::End { text } else { text.trim_start_matches(is_stripped) };
    if ends == Ends::Start { text } else { text.trim_end_matches(is_stripped) }
}

fn strip_method(text: &str, ends: Ends, arguments: &[Value]) -> Result<Value, Error> {
    let (characters,): (Option<&str>,) = from_args(arguments)?;
    Ok(strip(text, characters, ends).into())
}

/// `split` and `rsplit`: splits at white space or at a separator, at most `maxsplit` times.
fn split(text: &str, arguments: &[Value], from_end: bool) -> Result<Value, Error> {
    let (separator, max_splits, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(arguments)?;
    let separator = separator.or(kwargs.get("sep")?);
    // a negative number means no limit
    let max_splits = max_splits.or(kwargs.get("maxsplit")?).and_then(|count| usize::try_from(count).ok());
    kwargs.assert_all_used()?;
    let max_splits = max_splits.unwrap_or(usize::MAX);
    let mut parts = match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(separator) if from_end => text.rsplitn(max_splits.saturating_add(1), separator).collect(),
        Some(separator) => text.splitn(max_splits.saturating_add(1), separator).collect(),
        None => words(text, max_splits, from_end),
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// The words of a text between white space; with `from_end`, the last word comes first. After `max_splits` splits, the rest is one word.
fn words(text: &str, max_splits: usize, from_end: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = strip(text, None, if from_end { Ends::End } else { Ends::Start });
    while !rest.is_empty() {
        let space = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = space.filter(|_| words.len() < max_splits) else {
            words.push(rest);
            break;
        };
        let width = rest[at..].chars().next().map_or(1, char::len_utf8);
        let (word, remaining) = if from_end { (&rest[at + width..], &rest[..at]) } else { (&rest[..at], &rest[at..]) };
        words.push(word);
        rest = strip(remaining, None, if from_end { Ends::End } else { Ends::Start });
    }
    words
}

/// Divides a text at a separator: the text before it, the separator, and the text after it.
type Partition = for<'a> fn(&'a str, &'a str) -> [&'a str; 3];

fn partition(text: &str, arguments: &[Value], divide: Partition) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(arguments)?;
    Ok(divide(text, separator).into_iter().map(Value::from).collect())
}

/// The index of a part in characters, or -1. `find_bytes` returns its index in bytes.
fn find(text: &str, arguments: &[Value], find_bytes: impl Fn(&str, &str) -> Option<usize>) -> Result<Value, Error> {
    let (part,): (&str,) = from_args(arguments)?;
    Ok(find_bytes(text, part).map_or(Value::from(-1), |at| Value::from(text[..at].chars().count())))
}

/// Returns the index, or an error for -1.
fn require_found(at: Value) -> Result<Value, Error> {
    if at == Value::from(-1) { Err(Error::new(ErrorKind::InvalidOperation, "substring not found")) } else { Ok(at) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_match_python_split_and_rsplit() {
        assert_eq!(words(" a  b c ", usize::MAX, false), ["a", "b", "c"]);
        assert_eq!(words(" a  b c ", 1, false), ["a", "b c "]);
        assert_eq!(words(" a  b c ", 1, true), ["c", " a  b"]);
        assert_eq!(words("  ", 1, false), [""; 0]);
        assert_eq!(words("a b", 0, false), ["a b"]);
    }

    #[test]
    fn slices_match_python() {
        let slice = |text: &str, [start, stop, step]: [Option<i64>; 3]| {
            let arguments: Vec<Value> = [start, stop, step].into_iter().map(Value::from).collect();
            super::slice(&Value::from(text), &arguments).unwrap().to_string()
        };
        for (text, arguments, expected) in [
            ("", [None, None, Some(-1)], ""),
            ("abcdef", [None, None, Some(-2)], "fdb"),
            ("abcdef", [None, Some(0), Some(-1)], "fedcb"),
            ("abcdef", [Some(1), Some(4), Some(-1)], ""),
            ("abcdef", [Some(-100), Some(100), Some(4)], "ae"),
            ("abcdef", [Some(4), Some(-100), Some(-1)], "edcba"),
            ("äöü", [Some(-2), None, None], "öü"),
            ("äöü", [Some(i64::MAX), Some(1), None], ""),
            ("äöü", [Some(1), Some(-1), Some(1)], "ö"),
            ("ab", [Some(i64::MIN), Some(i64::MAX), Some(i64::MAX)], "a"),
        ] {
            assert_eq!(slice(text, arguments), expected, "{text:?} {arguments:?}");
        }
    }

    #[test]
    fn strip_removes_python_whitespace() {
        assert_eq!(strip("\u{1c}\u{a0}a\u{85}", None, Ends::Both), "a");
        assert_eq!(strip("xyaxy", Some("yx"), Ends::End), "xya");
    }
}
