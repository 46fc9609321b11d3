//! What of a message's headers goes on.

use http::{HeaderMap, HeaderName, HeaderValue};
use tokentap::engine::headers::{end_hop, upstream};

use super::grammar::shown;

/// Lines of headers: none that ends at this hop goes on, none that `Connection` names, and of the others each stays as it is, in its
/// order among those of its name.
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
            // beside a coding it is no length
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
    // how long a body is the client of the upstream says, unless it is empty
    let length = given.iter().find(|(name, _)| name == "content-length" && !ends(name));
    sent.extend(length.filter(|(_, value)| value == "0"));
    same(&passed, sent.into_iter(), bytes);
}

fn same<'a>(passed: &HeaderMap, wanted: impl Iterator<Item = &'a (HeaderName, HeaderValue)>, bytes: &[u8]) {
    let wanted: HeaderMap = wanted.cloned().collect();
    // a map equals another with the same values in the same order under each name
    assert_eq!(*passed, wanted, "{}", shown(bytes));
}
