// SPDX-License-Identifier: Apache-2.0
//! The filter of hop-by-hop headers.

use http::{HeaderMap, HeaderName, HeaderValue};
use tokentap::engine::transport::headers::{end_hop, upstream};

use super::grammar::shown;

/// The input is header lines. Hop-by-hop headers and those that `Connection` names are removed. All others are unchanged, in the same order
/// among headers of the same name.
pub fn headers(bytes: &[u8]) {
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        Some((name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?))
    });
    let given: Vec<(HeaderName, HeaderValue)> = lines.collect();
    let list =
        |name: &'static str| given.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_bytes());

    let options: Vec<Vec<u8>> = list("connection")
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(|option| option.trim_ascii().to_ascii_lowercase())
        .collect();
    let hop = ["connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "trailer"];
    let ends = |name: &HeaderName| {
        let name = name.as_str();
        hop.contains(&name)
            || ["transfer-encoding", "upgrade"].contains(&name)
            // ignored if there is a transfer coding
            || name == "content-length" && list("transfer-encoding").next().is_some()
            || options.iter().any(|option| option == name.as_bytes())
            || name == "te" && list("te").any(|value| value != b"trailers")
    };
    let map: HeaderMap = given.iter().cloned().collect();
    let mut passed = map.clone();
    end_hop(&mut passed);
    same(&passed, given.iter().filter(|(name, _)| !ends(name)), bytes);

    let mut passed = map;
    upstream(&mut passed);
    let mut sent = given
        .iter()
        .filter(|(name, _)| !ends(name) && !["host", "expect", "content-length"].contains(&name.as_str()))
        .collect::<Vec<_>>();
    // the upstream client sets the length of a body, unless it is empty
    let length = given.iter().find(|(name, _)| name == "content-length" && !ends(name));
    sent.extend(length.filter(|(_, value)| value == "0"));
    same(&passed, sent.into_iter(), bytes);
}

fn same<'a>(passed: &HeaderMap, wanted: impl Iterator<Item = &'a (HeaderName, HeaderValue)>, bytes: &[u8]) {
    let wanted: HeaderMap = wanted.cloned().collect();
    // maps are equal if each name has the same values in the same order
    assert_eq!(*passed, wanted, "{}", shown(bytes));
}
