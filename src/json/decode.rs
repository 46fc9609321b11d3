// SPDX-License-Identifier: Apache-2.0
//! Decodes a request into a type, with errors that name the member and say what it must be.

use std::fmt;

use serde::Deserialize;

/// Why a body cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    /// The path of the member, such as `groups[1].samples[0].reward`; empty for the whole body.
    pub at: String,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", if self.at.is_empty() { "the body" } else { &self.at }, self.message)
    }
}

/// Decodes a JSON object.
///
/// # Errors
/// [`DecodeError`] if the text is not JSON, is a list, or does not have the members of the type.
pub fn decode<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, DecodeError> {
    let whole = |message: String| DecodeError { at: String::new(), message };
    // serde reads the members of a list by their place
    if text.trim_ascii_start().starts_with(b"[") {
        return Err(whole("must be an object, not a list".to_owned()));
    }
    let error = match serde_json::from_slice(text) {
        Ok(decoded) => return Ok(decoded),
        Err(error) => error,
    };
    if error.is_syntax() || error.is_eof() {
        return Err(whole(error.to_string()));
    }
    // the path is found by decoding again, so that valid bodies are decoded at full speed
    let again = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_slice(text));
    let at = again.err().map(|error| error.path().to_string()).filter(|path| path != ".").unwrap_or_default();
    Err(DecodeError { at, message: plain(&error.to_string()) })
}

/// The message of serde in terms of JSON, without the position, which the path replaces.
fn plain(message: &str) -> String {
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    let rest = ["invalid type: ", "invalid value: ", "invalid "].iter().find_map(|prefix| message.strip_prefix(prefix));
    match rest.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, expected)) => format!("must be {}, not {}", wanted(expected), value(found)),
        None => message.to_owned(),
    }
}

fn wanted(expected: &str) -> &str {
    match expected {
        "u32" => "an integer from 0 to 4294967295",
        "u8" | "u16" | "u64" | "usize" => "an integer from 0",
        "i32" | "i64" => "an integer",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

fn value(found: &str) -> String {
    match found.split_once(' ') {
        None if found == "sequence" => "a list".to_owned(),
        None if found == "map" => "an object".to_owned(),
        Some(("floating", number)) => number.trim_start_matches("point ").trim_matches('`').to_owned(),
        Some(("integer" | "boolean", value)) => value.trim_matches('`').to_owned(),
        Some(("string", text)) => format!("the string {text}"),
        Some(("length", count)) => format!("a list of {count}"),
        _ => found.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only errors are compared")]
    struct Outer {
        items: Vec<Inner>,
        flag: Option<bool>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only errors are compared")]
    struct Inner {
        count: u32,
        weight: f64,
    }

    #[test]
    fn errors_name_the_member_in_terms_of_json() {
        for (text, message) in [
            (r#"{"items":[{"count":0.5}]}"#, "items[0].count: must be an integer from 0 to 4294967295, not 0.5"),
            (r#"{"items":[{"count":-1}]}"#, "items[0].count: must be an integer from 0 to 4294967295, not -1"),
            (r#"{"items":[{"count":1,"weight":"x"}]}"#, "items[0].weight: must be a number, not the string \"x\""),
            (r#"{"items":[[1]]}"#, "items[0]: must be an object, not a list of 1"),
            (r#"{"items":[7]}"#, "items[0]: must be an object, not 7"),
            (r#"{"items":{}}"#, "items: must be a list, not an object"),
            (r#"{"items":[],"flag":[]}"#, "flag: must be true or false, not a list"),
            (r#"{"items":null}"#, "items: must be a list, not null"),
            (r#"{"items":[{"count":1}]}"#, "items[0]: missing field `weight`"),
            ("{}", "the body: missing field `items`"),
            ("[[],true]", "the body: must be an object, not a list"),
            ("{\n", "the body: EOF while parsing an object at line 2 column 0"),
        ] {
            assert_eq!(decode::<Outer>(text.as_bytes()).unwrap_err().to_string(), message, "{text}");
        }
        let unknown = decode::<Outer>(br#"{"items":[],"x":1}"#).unwrap_err();
        assert!(unknown.to_string().contains("unknown field `x`, expected `items` or `flag`"), "{unknown}");
    }
}
