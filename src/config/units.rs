// SPDX-License-Identifier: Apache-2.0
//! Sizes, times and secrets as they are written in a setting.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;

/// A key: never printed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The key itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl Secret {
    /// The key of a setting: itself, or `@` and the path of the file that holds it.
    ///
    /// # Errors
    /// Error message if the file cannot be read or the key is empty.
    pub fn parse(text: &str) -> Result<Self, String> {
        let key = match text.strip_prefix('@') {
            Some(path) => {
                let read = std::fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?;
                read.trim().to_owned()
            }
            None => text.to_owned(),
        };
        if key.is_empty() {
            return Err(
                "an empty key would be one that every client has: leave the setting out, or give a key".to_owned()
            );
        }
        Ok(Self(key))
    }
}

impl From<String> for Secret {
    fn from(key: String) -> Self {
        Self(key)
    }
}

impl From<&str> for Secret {
    fn from(key: &str) -> Self {
        Self(key.to_owned())
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// A URL for a message: without the user name and the password that it may have, also where it is not valid. What precedes the last `@` may
/// be a password, except in the path of a `file:///` URL.
#[must_use]
pub fn without_credentials(url: &str) -> Cow<'_, str> {
    let Some((before, host)) = url.rsplit_once('@').filter(|_| !url.starts_with("file:///")) else { return url.into() };
    let is_scheme = |text: &&str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match before.split_once("://").map(|(scheme, _)| scheme).filter(is_scheme) {
        Some(scheme) => format!("{scheme}://***@{host}").into(),
        None => format!("***@{host}").into(),
    }
}

/// The URL of an engine without a slash at its end. It may have a path, which the client of engines checks.
///
/// # Errors
/// What it must be, if it is another kind of URL, or has credentials, a query or a fragment.
pub fn server_url(url: &str) -> Result<String, String> {
    let url = url.trim_end_matches('/');
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.starts_with('/') && !rest.contains(['?', '#', '@']) => {
            Ok(url.to_owned())
        }
        _ => Err("it is http://HOST:PORT or https://HOST:PORT, perhaps with a path, without credentials and query"
            .to_owned()),
    }
}

/// Reads a size: bytes, or with `KiB`, `MiB`, `GiB` behind the number.
///
/// # Errors
/// Error message if `text` is not a size.
pub fn bytes(text: &str) -> Result<u64, String> {
    let units = [("KiB", 1_u64 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("", 1)];
    scaled(text, &units).ok_or_else(|| "a size is a number of bytes, or one with KiB, MiB or GiB behind it".to_owned())
}

/// Reads a time: seconds, or with `us`, `ms`, `s`, `m`, `h` behind the number.
///
/// # Errors
/// Error message if `text` is not a time.
pub fn duration(text: &str) -> Result<Duration, String> {
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("", 1_000_000)];
    scaled(text, &units)
        .map(Duration::from_micros)
        .ok_or_else(|| "a time is a number of seconds, or one with us, ms, s, m or h behind it".to_owned())
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("12"), Ok(12));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("200us"), Ok(Duration::from_micros(200)));
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "MiB", "-1", "1.5s", "99999999999GiB", "3 weeks"] {
            assert!(bytes(text).is_err() && duration(text).is_err(), "{text:?} is neither");
        }
    }

    #[test]
    fn credentials_of_a_url_are_not_printed() {
        for (url, shown) in [
            ("http://user:pass@host:1", "http://***@host:1"),
            ("http://pass@host", "http://***@host"),
            ("http://u:p@s/s?@host", "http://***@host"),
            ("s3://key:pass@bucket/a", "s3://***@bucket/a"),
            ("http://a:1,http://u:pass@b:2", "http://***@b:2"),
            ("user:hush@host:1", "***@host:1"),
            ("http:/user:hush@host", "***@host"),
            ("http:///user:hush@host", "http://***@host"),
            ("//user:hush@host", "***@host"),
            ("user:hu://sh@host", "***@host"),
            ("file://user:hush@host/a", "file://***@host/a"),
            ("a@b", "***@b"),
            ("http://host:1", "http://host:1"),
            ("file:///runs/a@b", "file:///runs/a@b"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert!(!format!("{:?}", Secret::from("hush")).contains("hush"));
    }
}
