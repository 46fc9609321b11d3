//! Methods of Python's strings, lists and dicts, where those of `pycompat` are missing or count bytes.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::data::{self, Iterated};
use super::python::lines;
use super::source;
use crate::json::python::is_space;

/// Which ends of a text are stripped.
pub(super) const BOTH: (bool, bool) = (true, true);
const START: (bool, bool) = (true, false);
const END: (bool, bool) = (false, true);

/// What a method gives that minijinja does not know.
pub(super) fn call(state: &State<'_, '_>, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    if method == source::SLICED {
        return sliced(value, arguments);
    }
    match value.kind() {
        ValueKind::String => {
            let known = string(value.as_str().unwrap_or_default(), method, arguments);
            known.unwrap_or_else(|| pycompat::unknown_method_callback(state, value, method, arguments))
        }
        ValueKind::Map | ValueKind::Seq if method == "copy" => Ok(value.clone()),
        ValueKind::Map if matches!(method, "keys" | "values" | "items") => {
            let view = pycompat::unknown_method_callback(state, value, method, arguments)?;
            Ok(Iterated::view(view.try_iter()?.collect()))
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
fn sliced(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let (start, stop, step): (Option<i64>, Option<i64>, Option<i64>) = from_args(arguments)?;
    let step = step.unwrap_or(1);
    if step == 0
        || Iterated::is(value)
        || !matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable)
    {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("{} cannot be sliced so", value.kind())));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    // the places before the first and after the last one that a step may come to
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place = |at: i64| (if at < 0 { at.saturating_add(length) } else { at }).clamp(low, high);
    let (mut at, stop) = match step > 0 {
        true => (start.map_or(low, place), stop.map_or(high, place)),
        false => (start.map_or(high, place), stop.map_or(low, place)),
    };
    let mut kept = Vec::new();
    while if step > 0 { at < stop } else { at > stop } {
        kept.extend(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned());
        at = at.saturating_add(step);
    }
    Ok(match value.kind() {
        ValueKind::String => kept.iter().filter_map(Value::as_str).collect::<String>().into(),
        _ => data::list_of(kept),
    })
}

/// A method of strings; `None` where pycompat's does.
fn string(text: &str, method: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
    let all =
        |test: fn(char) -> bool| from_args(arguments).map(|()| Value::from(!text.is_empty() && text.chars().all(test)));
    let cased = |is: fn(char) -> bool, is_not: fn(char) -> bool| {
        from_args(arguments).map(|()| Value::from(text.chars().any(is) && !text.chars().any(is_not)))
    };
    Some(match method {
        "strip" => stripped(text, BOTH, arguments),
        "lstrip" => stripped(text, START, arguments),
        "rstrip" => stripped(text, END, arguments),
        "split" => split(text, arguments, false),
        "rsplit" => split(text, arguments, true),
        "splitlines" => from_args::<(Option<bool>, Kwargs)>(arguments).and_then(|(ends, named)| {
            let ends = ends.or(named.get("keepends")?).unwrap_or(false);
            Ok(lines(text, ends).into_iter().map(Value::from).collect())
        }),
        "partition" => divided(text, arguments, |text, by| {
            text.split_once(by).map_or([text, "", ""], |(before, behind)| [before, by, behind])
        }),
        "rpartition" => divided(text, arguments, |text, by| {
            text.rsplit_once(by).map_or(["", "", text], |(before, behind)| [before, by, behind])
        }),
        "find" => found(text, arguments, |text, part| text.find(part)),
        "rfind" => found(text, arguments, |text, part| text.rfind(part)),
        "index" => found(text, arguments, |text, part| text.find(part)).and_then(there),
        "rindex" => found(text, arguments, |text, part| text.rfind(part)).and_then(there),
        "removeprefix" => from_args(arguments).map(|(part,): (&str,)| text.strip_prefix(part).unwrap_or(text).into()),
        "removesuffix" => from_args(arguments).map(|(part,): (&str,)| text.strip_suffix(part).unwrap_or(text).into()),
        "isspace" => all(is_space),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "islower" => cased(char::is_lowercase, char::is_uppercase),
        "isupper" => cased(char::is_uppercase, char::is_lowercase),
        _ => return None,
    })
}

/// A text without the characters, or without space, at its ends.
pub(super) fn strip<'a>(text: &'a str, characters: Option<&str>, (start, end): (bool, bool)) -> &'a str {
    let goes = |c: char| characters.map_or_else(|| is_space(c), |characters| characters.contains(c));
    let text = if start { text.trim_start_matches(goes) } else { text };
    if end { text.trim_end_matches(goes) } else { text }
}

fn stripped(text: &str, ends: (bool, bool), arguments: &[Value]) -> Result<Value, Error> {
    let (characters,): (Option<&str>,) = from_args(arguments)?;
    Ok(strip(text, characters, ends).into())
}

/// `split` and `rsplit`: at space or at a separator, so often at most.
fn split(text: &str, arguments: &[Value], from_end: bool) -> Result<Value, Error> {
    let (by, most, named): (Option<&str>, Option<i64>, Kwargs) = from_args(arguments)?;
    let by = by.or(named.get("sep")?);
    let most = most.or(named.get("maxsplit")?).and_then(|most| usize::try_from(most).ok());
    named.assert_all_used()?;
    let most = most.unwrap_or(usize::MAX);
    let mut parts = match by {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(by) if from_end => text.rsplitn(most.saturating_add(1), by).collect(),
        Some(by) => text.splitn(most.saturating_add(1), by).collect(),
        None => words(text, most, from_end),
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// The words of a text, from its end where asked; after `most` of them what is left is one.
fn words(text: &str, most: usize, from_end: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = strip(text, None, if from_end { END } else { START });
    while !rest.is_empty() {
        let space = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = space.filter(|_| words.len() < most) else {
            words.push(rest);
            break;
        };
        let width = rest[at..].chars().next().map_or(1, char::len_utf8);
        let (word, left) = if from_end { (&rest[at + width..], &rest[..at]) } else { (&rest[..at], &rest[at..]) };
        words.push(word);
        rest = strip(left, None, if from_end { END } else { START });
    }
    words
}

type Divide = for<'a> fn(&'a str, &'a str) -> [&'a str; 3];

fn divided(text: &str, arguments: &[Value], divide: Divide) -> Result<Value, Error> {
    let (by,): (&str,) = from_args(arguments)?;
    Ok(divide(text, by).into_iter().map(Value::from).collect())
}

/// At which character a part begins, or -1.
fn found(text: &str, arguments: &[Value], find: impl Fn(&str, &str) -> Option<usize>) -> Result<Value, Error> {
    let (part,): (&str,) = from_args(arguments)?;
    Ok(find(text, part).map_or(Value::from(-1), |at| Value::from(text[..at].chars().count())))
}

fn there(at: Value) -> Result<Value, Error> {
    if at == Value::from(-1) { Err(Error::new(ErrorKind::InvalidOperation, "substring not found")) } else { Ok(at) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_python_splits_them() {
        assert_eq!(words(" a  b c ", usize::MAX, false), ["a", "b", "c"]);
        assert_eq!(words(" a  b c ", 1, false), ["a", "b c "]);
        assert_eq!(words(" a  b c ", 1, true), ["c", " a  b"]);
        assert_eq!(words("  ", 1, false), [""; 0]);
        assert_eq!(words("a b", 0, false), ["a b"]);
    }

    #[test]
    fn slices_match_python() {
        let sliced = |text: &str, [start, stop, step]: [Option<i64>; 3]| {
            let arguments: Vec<Value> = [start, stop, step].into_iter().map(Value::from).collect();
            super::sliced(&Value::from(text), &arguments).unwrap().to_string()
        };
        for (text, arguments, kept) in [
            ("", [None, None, Some(-1)], ""),
            ("abcdef", [None, None, Some(-2)], "fdb"),
            ("abcdef", [None, Some(0), Some(-1)], "fedcb"),
            ("abcdef", [Some(1), Some(4), Some(-1)], ""),
            ("abcdef", [Some(-100), Some(100), Some(4)], "ae"),
            ("abcdef", [Some(4), Some(-100), Some(-1)], "edcba"),
            ("äöü", [Some(-2), None, None], "öü"),
            ("ab", [Some(i64::MIN), Some(i64::MAX), Some(i64::MAX)], "a"),
        ] {
            assert_eq!(sliced(text, arguments), kept, "{text:?} {arguments:?}");
        }
    }

    #[test]
    fn strip_removes_python_whitespace() {
        assert_eq!(strip("\u{1c}\u{a0}a\u{85}", None, BOTH), "a");
        assert_eq!(strip("xyaxy", Some("yx"), END), "xya");
    }
}
