// SPDX-License-Identifier: Apache-2.0
//! `--teacher` and `--teacher-host`: the engines that score recorded tokens.

use std::net::Ipv6Addr;

use super::Secret;

/// A teacher's engine.
#[derive(Debug, Clone)]
pub struct Teacher {
    /// Its name in requests and in recorded scores.
    pub name: String,
    /// Its URL, `http://HOST:PORT`.
    pub url: String,
    /// The key of its engine.
    pub key: Option<Secret>,
}

/// The name of the upstream as a teacher.
pub const SELF: &str = "self";

/// Parses the items of the setting: `NAME=URL`, each followed by `key=@FILE` if the engine wants a key. A key itself is refused, because
/// `tokentap config` and the list of processes would show it.
///
/// # Errors
/// Error message if an item has another form, or a name is not usable or occurs twice.
pub(super) fn parse(items: &[String]) -> Result<Vec<Teacher>, String> {
    let mut teachers: Vec<Teacher> = Vec::new();
    for item in items {
        let form = || format!("--teacher: {item:?} is not NAME=URL or key=@FILE");
        let (name, value) = item.split_once('=').ok_or_else(form)?;
        if name == "key" {
            let last =
                teachers.last_mut().ok_or_else(|| "--teacher: key= follows the teacher that it is for".to_owned())?;
            if !value.starts_with('@') {
                return Err(format!("--teacher: the key of {} is given as key=@FILE", last.name));
            }
            last.key = Some(Secret::parse(value).map_err(|error| format!("--teacher: key of {}: {error}", last.name))?);
            continue;
        }
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) || name == SELF {
            return Err(format!(
                "--teacher: {name:?} cannot be a name: it is at most 64 of A-Z a-z 0-9 . _ -, and not self"
            ));
        }
        if teachers.iter().any(|known| known.name == name) {
            return Err(format!("--teacher: {name} is given twice"));
        }
        teachers.push(Teacher { name: name.to_owned(), url: value.to_owned(), key: None });
    }
    Ok(teachers)
}

/// The host of an item of `--teacher-host` without brackets, and its port: `HOST`, which is every port, or `HOST:PORT`. An IPv6 address with
/// a port is in brackets. `None` for another form.
#[must_use]
pub fn host_and_port(item: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = if item.parse::<Ipv6Addr>().is_ok() {
        (item, "")
    } else if let Some(rest) = item.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        host.parse::<Ipv6Addr>().ok()?;
        (host, port)
    } else {
        let (host, port) = item.split_at(item.find(':').unwrap_or(item.len()));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        host.bytes().any(|byte| byte != b'.').then_some(())?;
        host.bytes().all(is_plain).then_some((host, port))?
    };
    if port.is_empty() {
        return Some((host, None));
    }
    let digits = port.strip_prefix(':').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    Some((host, Some(digits.parse().ok().filter(|port| *port > 0)?)))
}

/// Checks the items of `--teacher-host`.
///
/// # Errors
/// Error message if an item has another form.
pub(super) fn check_hosts(items: &[String]) -> Result<(), String> {
    match items.iter().find(|item| host_and_port(item).is_none()) {
        Some(item) => Err(format!(
            "--teacher-host: {item:?} is not HOST, .DOMAIN or HOST:PORT, without a scheme and a path; IPv6 with a port is [ADDRESS]:PORT"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_has_every_port_or_one() {
        for (item, expected) in [
            ("a", ("a", None)),
            ("10.0.0.2", ("10.0.0.2", None)),
            (".teachers.svc", (".teachers.svc", None)),
            (".teachers.svc:30000", (".teachers.svc", Some(30000))),
            ("a_b-c.d:1", ("a_b-c.d", Some(1))),
            ("::1", ("::1", None)),
            ("[::1]", ("::1", None)),
            ("[::1]:65535", ("::1", Some(65535))),
        ] {
            assert_eq!(host_and_port(item), Some(expected), "{item}");
        }
        for item in [
            "", ".", ":1", "a:", "a:0", "a:65536", "a:x", "a:+1", "a:1:2", "http://a", "a/b", "[a]", "[::1", "[::1]1",
            "[::1]:", "u@a",
        ] {
            assert_eq!(host_and_port(item), None, "{item}");
            let error = check_hosts(&["a".to_owned(), item.to_owned()]).unwrap_err();
            assert!(error.contains(&format!("{item:?} is not HOST")), "{error}");
        }
        assert_eq!(check_hosts(&["a".to_owned(), "a:1".to_owned()]), Ok(()));
    }

    fn parsed(items: &[&str]) -> Result<Vec<(String, String, bool)>, String> {
        let items: Vec<String> = items.iter().map(|item| (*item).to_owned()).collect();
        let teachers = parse(&items)?;
        Ok(teachers.into_iter().map(|teacher| (teacher.name, teacher.url, teacher.key.is_some())).collect())
    }

    #[test]
    fn key_belongs_to_the_teacher_before_it() {
        let found = parsed(&["a=http://x:1", "key=@Cargo.toml", "b=http://y:2"]).unwrap();
        let expected = [("a", "http://x:1", true), ("b", "http://y:2", false)];
        assert_eq!(found, expected.map(|(name, url, key)| (name.to_owned(), url.to_owned(), key)));
        assert!(parsed(&[]).unwrap().is_empty());
    }

    #[test]
    fn other_forms_are_refused() {
        for (items, part) in [
            (&["http://x"][..], "NAME=URL"),
            (&["key=@x"], "follows"),
            (&["a=http://x", "key=secret"], "key=@FILE"),
            (&["self=http://x"], "not self"),
            (&["a b=http://x"], "cannot be a name"),
            (&["a=http://x", "a=http://y"], "twice"),
            (&["a=http://x", "key=@/nonexistent"], "cannot read"),
        ] {
            let error = parsed(items).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
