// SPDX-License-Identifier: Apache-2.0
//! The host and port that a request names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::uri::Authority;

/// The host of a valid `HOST` or `HOST:PORT` without user information: RFC 9112, 3.2, and RFC 3986, 3.2.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host<'a> {
    /// A name.
    Name(&'a str),
    /// An address: four numbers, or IPv6 in brackets.
    Address(IpAddr),
}

impl<'a> Host<'a> {
    /// Parses a `Host` header or the authority of a URI; `None` if it is not valid.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                (Self::Address(address.parse::<Ipv6Addr>().ok()?.into()), port)
            }
            None => {
                let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                let address = name.parse::<Ipv4Addr>().ok().map(|address| Self::Address(address.into()));
                (address.or_else(|| is_name(name).then_some(Self::Name(name)))?, port)
            }
        };
        let port = if port.is_empty() { port } else { port.strip_prefix(':')? };
        let is_port =
            port.bytes().all(|byte| byte.is_ascii_digit()) && (port.is_empty() || port.parse::<u16>().is_ok());
        is_port.then_some(host)
    }

    /// Whether a setting lists this host: as its address, as its name, or as `.example.com`, which matches names with one more label.
    pub(crate) fn is_one_of(self, listed: &[String]) -> bool {
        listed.iter().any(|own| match self {
            Self::Address(address) => own.trim_matches(['[', ']']).parse() == Ok(address),
            Self::Name(name) => matches_name(own, name),
        })
    }
}

fn matches_name(own: &str, name: &str) -> bool {
    if !own.starts_with('.') {
        return own.eq_ignore_ascii_case(name);
    }
    let split = name.len().checked_sub(own.len()).and_then(|at| name.split_at_checked(at));
    split.is_some_and(|(label, rest)| !label.is_empty() && !label.contains('.') && own.eq_ignore_ascii_case(rest))
}

/// Whether a name has only characters that RFC 3986 allows.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    // a plain name needs no parser
    !name.is_empty() && name.bytes().all(is_plain)
        || name.parse::<Authority>().is_ok_and(|authority| authority.host() == name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn host_is_a_name_or_an_address_with_an_optional_port() {
        let loopback = Some(Host::Address(Ipv6Addr::LOCALHOST.into()));
        for (text, host) in [
            ("localhost", Some(Host::Name("localhost"))),
            ("a_b.c:30000", Some(Host::Name("a_b.c"))),
            ("a:", Some(Host::Name("a"))),
            ("127.0.0.1:1", Some(Host::Address(Ipv4Addr::LOCALHOST.into()))),
            ("a:0", Some(Host::Name("a"))),
            ("a:65535", Some(Host::Name("a"))),
            ("[::1]", loopback),
            ("[::1]:80", loopback),
            ("[::1]:", loopback),
        ] {
            assert_eq!(Host::parse(text), host, "{text:?}");
        }
        for text in [
            "",
            ":1",
            "a b",
            "a/b",
            "u@a",
            "u:p@a",
            "a:x",
            "a:+1",
            "a:65536",
            "a:1:2",
            "::1",
            "[::1",
            "[::1]x",
            "[::1]1",
            "[::1].evil.com:1",
            "[::1]]",
            "[[::1]]",
            "[a]",
            "[127.0.0.1]",
            "[]",
            "a[::1]",
            "a]",
            "a#b",
            "a, b",
            "a\\b",
            "a?b",
            "[::1]:80:80",
            "[::1%25eth0]",
            "é",
        ] {
            assert_eq!(Host::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn name_with_a_leading_dot_matches_exactly_one_label() {
        let is_one_of = |own: &str, host: &str| Host::parse(host).is_some_and(|host| host.is_one_of(&[own.to_owned()]));
        assert!(is_one_of(".control.rl.svc", "sglang-0.control.rl.svc") && is_one_of("Control", "control:1"));
        for name in
            ["control.rl.svc", ".control.rl.svc", "a.b.control.rl.svc", "evil-control.rl.svc", "é.control.rl.svc.x", ""]
        {
            assert!(!is_one_of(".control.rl.svc", name), "{name}");
        }
        assert!(is_one_of("10.0.0.2", "10.0.0.2:30000") && is_one_of("::1", "[::1]:1") && is_one_of("[::1]", "[::1]"));
        assert!(!is_one_of("10.0.0.2", "10.0.0.20") && !is_one_of(".2", "10.0.0.2") && !is_one_of("2", "10.0.0.2"));
    }

    proptest! {
        #[test]
        fn host_that_is_loopback_here_is_loopback_for_a_url_parser(
            text in "(\\[?(::1|127\\.0\\.0\\.1|localhost|::ffff:7f00:1)\\]?)?[\\[\\]:.@%/a1-]{0,4}(evil\\.com|localhost|\\[::1\\]|127\\.1)?(:[0-9]{0,6})?"
        ) {
            let Some(host) = Host::parse(&text) else { return Ok(()) };
            if matches!(host, Host::Address(address) if address.is_loopback()) || host == Host::Name("localhost") {
                let url = url::Url::parse(&format!("http://{text}/")).expect("it is a URL");
                let name = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
                let address = name.parse::<IpAddr>();
                prop_assert!(name == "localhost" || address.is_ok_and(|address| address.is_loopback()), "{text:?}: {name:?}");
                prop_assert!(url.username().is_empty() && url.password().is_none() && url.path() == "/");
            }
        }
    }
}
