//! Who may send a request.

use http::{HeaderMap, HeaderName, Request, Uri, header};
use subtle::ConstantTimeEq;

use crate::config::{Config, Secret};
use crate::engine::client::Client;
use crate::serve::denied::Denied;
use crate::serve::request_info::{Access, RequestInfo};

/// Where some clients put their key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// What browsers say of where a request comes from.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether the sender of a request may send it. Where that takes tokentap's own token on the data port, the request is then signed for the engine.
///
/// # Errors
/// [`Denied`] where it may not.
pub fn authenticate<B>(config: &Config, client: &Client, request: &mut Request<B>) -> Result<(), Denied> {
    match RequestInfo::of(request).access {
        Access::Open => Ok(()),
        Access::Metrics => token(config.keys.metrics_token.as_ref(), request.headers()),
        Access::Page => place(config, request.uri(), request.headers()),
        Access::Control => {
            place(config, request.uri(), request.headers())?;
            token(config.keys.control_token.as_ref(), request.headers())
        }
        Access::Agent => agent(config, client, request.headers_mut()),
    }
}

/// Whether a request comes by a name that is ours, and from no foreign page.
///
/// # Errors
/// [`Denied::Host`] or [`Denied::Origin`] when it does not.
fn place(config: &Config, uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
    let host = uri.authority().map(|authority| authority.as_str().to_owned());
    let host = host.or_else(|| headers.get(header::HOST)?.to_str().ok().map(str::to_owned));
    if !host.as_deref().is_some_and(|host| is_ours(config, host)) {
        return Err(Denied::Host);
    }
    // of a page that only asks for an image or follows a link a browser says no origin; a link to the page itself may be followed
    let site = headers.get(SITE).map_or(&b"none"[..], |site| site.as_bytes());
    if !matches!(site, b"none" | b"same-origin") && uri.path() != "/" {
        return Err(Denied::Origin);
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let authority =
            origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
        if !authority.zip(host.as_deref()).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host)) {
            return Err(Denied::Origin);
        }
    }
    Ok(())
}

/// Whether the bearer token is the expected one, if one is expected.
///
/// # Errors
/// [`Denied::Token`] when it is not.
fn token(expected: Option<&Secret>, headers: &HeaderMap) -> Result<(), Denied> {
    let Some(expected) = expected else { return Ok(()) };
    let given = headers.get(header::AUTHORIZATION).map(http::HeaderValue::as_bytes).unwrap_or_default();
    let given = given.split_at_checked(7).filter(|(kind, _)| kind.eq_ignore_ascii_case(b"Bearer "));
    let given = given.map_or(&[][..], |(_, token)| token);
    if same(given, expected.expose().as_bytes()) { Ok(()) } else { Err(Denied::Token) }
}

/// Whether an agent has the token, if one is expected. The request is then signed for the engine: the token is for tokentap alone.
///
/// # Errors
/// [`Denied::Agent`] when it may not.
fn agent(config: &Config, client: &Client, headers: &mut HeaderMap) -> Result<(), Denied> {
    let expected = config.keys.agent_token.as_ref();
    let Some(secret) = expected else { return Ok(()) };
    let key = headers.get(API_KEY).is_some_and(|key| same(key.as_bytes(), secret.expose().as_bytes()));
    if !key {
        token(expected, headers).map_err(|_| Denied::Agent)?;
    }
    headers.remove(API_KEY);
    client.sign_generation(headers);
    Ok(())
}

/// Compares in a time that depends on the lengths alone.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

fn is_ours(config: &Config, host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let loopback = name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback() || ip == config.control_listen.ip());
    let name = name.strip_suffix('.').unwrap_or(name);
    loopback || config.keys.control_host.iter().any(|own| is_named(own, name))
}

/// Whether a name is the one of the settings, or, where that begins with a dot, one label before it.
fn is_named(own: &str, name: &str) -> bool {
    if !own.starts_with('.') {
        return own.eq_ignore_ascii_case(name);
    }
    let split = name.len().checked_sub(own.len()).and_then(|at| name.split_at_checked(at));
    split.is_some_and(|(label, rest)| !label.is_empty() && !label.contains('.') && own.eq_ignore_ascii_case(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_stands_for_one_label() {
        assert!(is_named(".control.rl.svc", "sglang-0.control.rl.svc") && is_named("Control", "control"));
        for name in
            ["control.rl.svc", ".control.rl.svc", "a.b.control.rl.svc", "evil-control.rl.svc", "é.control.rl.svc.x", ""]
        {
            assert!(!is_named(".control.rl.svc", name), "{name}");
        }
    }
}
