// SPDX-License-Identifier: Apache-2.0
//! The clients of teachers: of those that the settings name, and of URLs in requests.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::config::{Config, Secret, server_url, teacher_host_and_port, without_credentials};
use crate::engine::transport::client::{Client, ClientSettings};
use crate::serve::host::Host;
use crate::serve::problem::{ErrorCode, Problem};

/// The longest URL of a teacher in bytes. It is the name of its scores, which each record of them has.
const LONGEST_URL: usize = 256;

/// Paths that a teacher scores at the same time. Each is a prefill, of which an engine runs few at once.
pub(crate) const PLACES: usize = 8;

/// The engine of a teacher that has a name.
#[derive(Debug)]
pub struct TeacherEngine {
    pub(crate) client: Client,
    /// The places for paths at it, [`PLACES`], of all requests.
    pub(crate) places: Arc<Semaphore>,
}

impl TeacherEngine {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, places: Arc::new(Semaphore::new(PLACES)) }
    }
}

/// A client of the engine of a teacher. It has no key but this one.
///
/// # Errors
/// Error message if the URL is not that of a server, the key is not valid in a header, or there is no CA for `https://`.
pub(crate) fn client(config: &Config, url: &str, key: Option<&Secret>) -> Result<Client, String> {
    if url.starts_with("https://") && config.upstream_ca.is_none() {
        return Err(format!("{url} needs the CA of its certificate: --upstream-ca FILE"));
    }
    let settings = ClientSettings {
        api_key: key.map(Secret::expose),
        admin_key: None,
        connect_timeout: config.limits.connect_timeout,
        pool_idle_timeout: config.limits.pool_idle_timeout,
        // a request of a trainer is not repeated, so there is nothing to hold back
        breaker_failures: 0,
        ca: config.upstream_ca.as_deref(),
    };
    Client::try_new(url, settings)
}

/// The client of the engine at a URL that a request names, and the URL without a slash at its end. The operator lists the hosts, so that a
/// client of the control port cannot have tokentap send requests to any machine that it reaches.
///
/// # Errors
/// 400 for a URL or a key that cannot be used, 403 for a host or port that `--teacher-host` does not list.
pub(crate) fn at_url(config: &Config, url: &str, key: Option<&Secret>) -> Result<(String, Client), Problem> {
    let bad = |error: String| Problem::bad_request(format!("teacher: {error}"));
    if url.len() > LONGEST_URL {
        return Err(bad(format!("a URL has at most {LONGEST_URL} bytes")));
    }
    let url = server_url(url).map_err(|error| bad(format!("not {}: {error}", without_credentials(url))))?;
    let authority = url.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
    let host = Host::parse(authority).ok_or_else(|| bad(format!("{url} names no valid host")))?;
    let listed = config.teacher_host.iter().filter_map(|item| teacher_host_and_port(item));
    let port = port(&url, authority);
    let names: Vec<String> = listed
        .filter(|(_, only)| only.is_none_or(|only| port == Some(only)))
        .map(|(name, _)| name.to_owned())
        .collect();
    if !host.is_one_of(&names) {
        let message =
            format!("teacher: the host of {url} is not one of --teacher-host, or name the teacher by --teacher");
        return Err(Problem::new(ErrorCode::TEACHER_NOT_ALLOWED, message));
    }
    let client = client(config, &url, key).map_err(bad)?;
    Ok((url, client))
}

/// The port of a URL with this valid authority.
fn port(url: &str, authority: &str) -> Option<u16> {
    let after_address = authority.rsplit(']').next().unwrap_or_default();
    match after_address.rsplit_once(':') {
        Some((_, port)) if !port.is_empty() => port.parse().ok(),
        _ => Some(if url.starts_with("https://") { 443 } else { 80 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_that_of_the_scheme_unless_it_is_given() {
        for (url, expected) in [
            ("http://a", 80),
            ("https://a/b", 443),
            ("http://a:", 80),
            ("http://a:8000/b", 8000),
            ("http://[::1]", 80),
            ("https://[::1]:30000", 30000),
        ] {
            let authority = url.split_once("://").unwrap().1.split('/').next().unwrap();
            assert_eq!(port(url, authority), Some(expected), "{url}");
        }
    }
}
