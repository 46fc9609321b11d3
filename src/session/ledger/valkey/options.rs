// SPDX-License-Identifier: Apache-2.0
//! Where a Valkey is, and how it is used.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::tls_client::ClientCertificate;

/// The port of a server without one in its URL.
const SERVER_PORT: u16 = 6379;
/// The port of a Sentinel without one in the URL.
const SENTINEL_PORT: u16 = 26379;

/// How a Valkey is used.
#[derive(Debug, Clone)]
pub struct ValkeyOptions {
    /// The servers.
    pub url: ValkeyUrl,
    /// A file with the password. It is read for each connection, so that the password can be changed.
    pub password_file: Option<PathBuf>,
    /// The files of TLS. They are read for each connection, so that certificates can be renewed.
    pub tls: TlsFiles,
    /// The number of replicas that must confirm an append until it counts as replicated.
    pub replicas: u32,
    /// The time limit of each operation.
    pub timeout: Duration,
    /// Lists expire this long after their last append. Streams keep finished paths at least as long.
    pub ttl: Duration,
    /// Bytes that the pictures of all sessions may take, with [`IMAGE_OVERHEAD`](super::super::IMAGE_OVERHEAD) for each.
    pub image_bytes: u64,
}

/// The PEM files of TLS.
#[derive(Debug, Clone, Default)]
pub struct TlsFiles {
    /// The CAs that sign the certificates of the servers.
    pub ca: Option<PathBuf>,
    /// The certificate and the key of this client.
    pub client: Option<ClientCertificate>,
}

/// The URL of a Valkey. Its texts do not contain the password.
#[derive(Clone, PartialEq, Eq)]
pub struct ValkeyUrl {
    pub(super) deployment: Deployment,
    /// At least one.
    pub(super) addresses: Vec<Address>,
    pub(super) is_tls: bool,
    pub(super) user: Option<Box<str>>,
    pub(super) password: Option<Box<str>>,
}

/// How the servers are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Deployment {
    /// The address is that of the server.
    Single,
    /// The addresses are those of Sentinels, which know the primary of this name.
    Sentinel { primary: Box<str> },
    /// The addresses are those of some nodes of a cluster.
    Cluster,
}

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Address {
    /// A name or an IP address, without brackets.
    pub host: Arc<str>,
    pub port: u16,
}

/// A URL that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidUrl(Box<str>);

/// The forms of the URL, for messages.
const FORMS: &str = "redis://HOST:PORT, redis-sentinel://HOST:PORT,HOST:PORT/PRIMARY or redis-cluster://HOST:PORT,HOST:PORT, with \
                     rediss in place of redis for TLS, and USER:PASSWORD@ before the first host";

impl FromStr for ValkeyUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let invalid = |what: &dyn fmt::Display| InvalidUrl(format!("{what}. The form is {FORMS}").into());
        let (scheme, rest) = text.split_once("://").ok_or_else(|| invalid(&"the URL has no scheme"))?;
        let (is_tls, kind) = match scheme.split_once('-').map_or((scheme, ""), |(tls, kind)| (tls, kind)) {
            ("redis", kind) => (false, kind),
            ("rediss", kind) => (true, kind),
            // not quoted: a URL that is cut wrongly may have a password here
            _ => return Err(invalid(&"the scheme of the URL is unknown")),
        };
        if rest.contains(['?', '#']) {
            return Err(invalid(
                &"the URL has a part after `?` or `#`: write these characters of a password as %3F and %23",
            ));
        }
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials), rest),
            None => (None, rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let deployment = match (kind, path) {
            ("sentinel", "") => return Err(invalid(&"the URL lacks the name of the primary after the Sentinels")),
            ("sentinel", name) => Deployment::Sentinel { primary: name.into() },
            (_, path) if !matches!(path, "" | "0") => {
                return Err(invalid(&"the URL names a database, and only database 0 can be used"));
            }
            ("", _) => Deployment::Single,
            ("cluster", _) => Deployment::Cluster,
            _ => return Err(invalid(&"the scheme of the URL is unknown")),
        };
        let default_port = if kind == "sentinel" { SENTINEL_PORT } else { SERVER_PORT };
        let addresses: Vec<Address> = hosts
            .split(',')
            .map(|host| Address::parse(host, default_port))
            .collect::<Result<_, _>>()
            .map_err(|what| invalid(&what))?;
        if deployment == Deployment::Single && addresses.len() > 1 {
            return Err(invalid(&"the URL has several hosts, which only the Sentinel and the cluster form can have"));
        }
        let (user, password) = match credentials.map(|text| text.split_once(':').unwrap_or((text, ""))) {
            None => (None, None),
            Some((user, password)) => {
                let decode = |part: &str| {
                    percent_decode(part)
                        .ok_or_else(|| invalid(&"user or password has a `%` without two hexadecimal digits"))
                };
                (Some(decode(user)?), Some(decode(password)?))
            }
        };
        let given = |part: Option<Box<str>>| part.filter(|part| !part.is_empty());
        Ok(Self { deployment, addresses, is_tls, user: given(user), password: given(password) })
    }
}

impl fmt::Display for ValkeyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.deployment {
            Deployment::Single => "",
            Deployment::Sentinel { .. } => "-sentinel",
            Deployment::Cluster => "-cluster",
        };
        write!(f, "redis{}{kind}://", if self.is_tls { "s" } else { "" })?;
        for (at, address) in self.addresses.iter().enumerate() {
            write!(f, "{}{address}", if at > 0 { "," } else { "" })?;
        }
        match &self.deployment {
            Deployment::Sentinel { primary } => write!(f, "/{primary}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for ValkeyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Address {
    /// The address in `MOVED SLOT HOST:PORT`. Without a host, it is that of the node that answered.
    pub(super) fn from_moved(reason: &str, answering: &Arc<str>) -> Option<Self> {
        let (host, port) = reason.split(' ').nth(2)?.rsplit_once(':')?;
        let host = if host.is_empty() { Arc::clone(answering) } else { host.into() };
        Some(Self { host, port: port.parse().ok()? })
    }

    fn parse(text: &str, default_port: u16) -> Result<Self, String> {
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':').or(port.is_empty().then_some(""))),
            None => text.split_once(':').map_or((text, Some("")), |(host, port)| (host, Some(port))),
        };
        if host.is_empty() {
            return Err("the URL has an empty host".into());
        }
        let port = match port {
            Some("") => default_port,
            Some(port) => port.parse().map_err(|_| format!("the port of {host} is not a number from 1 to 65535"))?,
            None => return Err(format!("the address after [{host}] is not a port")),
        };
        Ok(Self { host: host.into(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The text without percent-encoding. `None` if it is not valid.
fn percent_decode(text: &str) -> Option<Box<str>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digits =
            std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> ValkeyUrl {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn each_form_is_parsed_and_printed() {
        for (text, printed) in [
            ("redis://h", "redis://h:6379"),
            ("rediss://h:1/", "rediss://h:1"),
            ("redis://h/0", "redis://h:6379"),
            ("redis://[::1]:7", "redis://[::1]:7"),
            ("redis://[::1]", "redis://[::1]:6379"),
            ("redis-sentinel://a,b:2/main", "redis-sentinel://a:26379,b:2/main"),
            ("rediss-cluster://a:1,b", "rediss-cluster://a:1,b:6379"),
        ] {
            let url = parse(text);
            assert_eq!(url.to_string(), printed);
            assert_eq!(parse(printed), url);
        }
    }

    #[test]
    fn credentials_are_decoded_and_never_printed() {
        let url = parse("redis://me:se%63ret%40%2F:@h");
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("me"), Some("secret@/:")));
        assert!(!format!("{url} {url:?}").contains("secret"));
        let url = parse("redis://:secret@h");
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (None, Some("secret")));
        let url = parse("redis://me@h");
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("me"), None));
    }

    #[test]
    fn the_address_of_a_moved_slot_is_parsed() {
        let at = |text| Address::from_moved(text, &"asked".into()).map(|address| address.to_string());
        assert_eq!(at("MOVED 1 h:2").as_deref(), Some("h:2"));
        assert_eq!(at("MOVED 1 ::1:2").as_deref(), Some("[::1]:2"));
        assert_eq!(at("MOVED 1 :2").as_deref(), Some("asked:2"));
        assert_eq!(at("MOVED 1"), None);
        assert_eq!(at("MOVED 1 h:port"), None);
    }

    #[test]
    fn errors_name_the_mistake_but_no_password() {
        for (text, mistake) in [
            ("secret@h", "no scheme"),
            ("http://u:secret@h", "scheme of the URL is unknown"),
            ("redis-other://u:secret@h", "scheme of the URL is unknown"),
            ("redis-sentinel://u:secret@h", "lacks the name of the primary"),
            ("redis://u:secret@h/3", "only database 0"),
            ("redis://u:secret@a,b", "several hosts"),
            ("redis://u:secret@", "empty host"),
            ("redis://u:secret@h:port", "port of h"),
            ("redis://u:secret@[::1]x", "not a port"),
            ("redis://u:secret%4@h", "without two hexadecimal digits"),
            ("redis://u:secret@h?x=1", "after `?` or `#`"),
        ] {
            let error = text.parse::<ValkeyUrl>().expect_err(text).to_string();
            assert!(error.contains(mistake), "{text}: {error}");
            assert!(!error.contains("secret"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_url_is_parsed_as_the_same(text in "(redis|rediss)(-sentinel|-cluster)?://[a-z.:0-9,\\[\\]@%]{0,20}(/[a-z0]{0,3})?") {
            if let Ok(url) = text.parse::<ValkeyUrl>() {
                let again: ValkeyUrl = url.to_string().parse().expect("what is printed is valid");
                prop_assert_eq!(&again.addresses, &url.addresses);
                prop_assert_eq!(again.deployment, url.deployment);
            }
        }
    }
}
