// SPDX-License-Identifier: Apache-2.0
//! How clients change the arguments of a tool call before they return them.
//!
//! JavaScript clients round numbers to doubles. Clients with typed arguments leave out those that are null. Claude Code writes a call as it has executed it: it adds default values, reads numbers in
//! strings, removes white space at line ends, a leading `cd DIRECTORY && ` and a backslash before `\;`. A call with the key of its turn
//! counts as repeated if its arguments differ in these ways only. What the call does is the same.

use crate::json::Value;

/// Whether a client may return `sampled` as `returned`.
pub(super) fn may_return(sampled: &Value, returned: &Value) -> bool {
    match (sampled, returned) {
        (Value::Number(sampled), Value::Number(returned)) => is_same_number(sampled, returned),
        (Value::String(sampled), Value::Number(returned)) => is_same_number(sampled, returned),
        (Value::String(sampled), Value::String(returned)) => is_same_text(sampled, returned),
        (Value::Array(sampled), Value::Array(returned)) => {
            sampled.len() == returned.len() && sampled.iter().zip(returned).all(|(a, b)| may_return(a, b))
        }
        (Value::Object(sampled), Value::Object(returned)) => {
            let mut rest: Vec<&(String, Value)> = returned.iter().collect();
            rest.sort_by(|a, b| a.0.cmp(&b.0));
            let mut is_sampled = vec![false; rest.len()];
            for (name, value) in sampled {
                match rest.binary_search_by(|(other, _)| other.cmp(name)) {
                    Ok(at) if may_return(value, &rest[at].1) => is_sampled[at] = true,
                    Err(_) if *value == Value::Null => {}
                    _ => return false,
                }
            }
            // members that the client has added have the default of their type
            rest.iter().zip(is_sampled).all(|((_, value), is_sampled)| is_sampled || is_default(value))
        }
        (sampled, returned) => sampled == returned,
    }
}

/// Whether one of the strings in a value is a quote.
pub(super) fn quotes(value: &Value, is_quote: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => is_quote(text),
        Value::Array(values) => values.iter().any(|value| quotes(value, is_quote)),
        Value::Object(members) => members.iter().any(|(_, value)| quotes(value, is_quote)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn is_default(value: &Value) -> bool {
    matches!(value, Value::Null | Value::Bool(false))
}

fn is_same_number(a: &str, b: &str) -> bool {
    a == b || a.parse::<f64>().ok().zip(b.parse::<f64>().ok()).is_some_and(|(a, b)| a == b)
}

fn is_same_text(sampled: &str, returned: &str) -> bool {
    let lines = |text: &str| text.split('\n').map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    let unescaped = |text: &str| text.replace("\\\\;", "\\;");
    sampled == returned
        || unescaped(without_cd(sampled)) == returned
        || unescaped(sampled) == returned
        || lines(sampled) == lines(returned)
}

/// A command without a leading `cd DIRECTORY && `.
fn without_cd(command: &str) -> &str {
    let rest = command.trim_start().strip_prefix("cd ").and_then(|rest| rest.split_once(" && "));
    match rest {
        Some((directory, rest)) if !directory.contains(['&', ';', '|', '\n']) => rest,
        _ => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_may_differ_only_where_clients_normalise_them() {
        for (sampled, returned, expected) in [
            (r#"{"n": 9007199254740993}"#, r#"{"n": 9007199254740992}"#, true),
            (r#"{"n": 1e16, "m": -0.0}"#, r#"{"m": 0, "n": 10000000000000000}"#, true),
            (r#"{"n": 1}"#, r#"{"n": 2}"#, false),
            (r#"{"offset": "1"}"#, r#"{"offset": 1}"#, true),
            (r#"{"old": "a"}"#, r#"{"old": "a", "replace_all": false}"#, true),
            (r#"{"old": "a"}"#, r#"{"old": "a", "replace_all": true}"#, false),
            (r#"{"old": "a", "new": "b"}"#, r#"{"old": "a"}"#, false),
            (r#"{"command": "cd /w && ls"}"#, r#"{"command": "ls"}"#, true),
            (r#"{"command": "cd /w; rm x && ls"}"#, r#"{"command": "ls"}"#, false),
            (r#"{"command": "rm x && ls"}"#, r#"{"command": "ls"}"#, false),
            (r#"{"command": "find . -exec rm {} \\\\;"}"#, r#"{"command": "find . -exec rm {} \\;"}"#, true),
            ("{\"content\": \"a  \\nb\\t\\n\"}", "{\"content\": \"a\\nb\\n\"}", true),
            ("{\"content\": \"a b\"}", "{\"content\": \"ab\"}", false),
            (r#"{"path": "a"}"#, r#"{"path": "/etc/passwd"}"#, false),
            (r#"{"list": [1, {"a": 1}]}"#, r#"{"list": [1, {"a": 1.0, "b": null}]}"#, true),
            (r#"{"list": [1]}"#, r#"{"list": [1, 1]}"#, false),
            (r#"{"city": "Oslo", "days": null}"#, r#"{"city": "Oslo"}"#, true),
            (r#"{"city": "Oslo", "day": {"n": 1, "of": null}}"#, r#"{"city": "Oslo", "day": {"n": 1}}"#, true),
            (r#"{"city": "Oslo", "days": null}"#, r#"{"city": "Oslo", "days": 1}"#, false),
            (r#"{"city": "Oslo", "days": false}"#, r#"{"city": "Oslo"}"#, false),
            (r#"{"list": [1, null]}"#, r#"{"list": [1]}"#, false),
        ] {
            let parse = |text: &str| Value::parse(text.as_bytes()).unwrap();
            assert_eq!(may_return(&parse(sampled), &parse(returned)), expected, "{sampled} {returned}");
        }
    }
}
