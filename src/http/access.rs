//! Who may use the ports.

use http::{HeaderMap, HeaderName, StatusCode, Uri, header};
use subtle::ConstantTimeEq;

use crate::config::{Config, Secret};
use crate::http::Parts;

/// Where some clients put their key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// What browsers say of where a request comes from.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Why a request may not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// The `Host` is neither loopback nor configured: a page that rebinds its name would send its own.
    Host,
    /// The request is a foreign page's.
    Origin,
    /// The bearer token is missing or wrong.
    Token,
    /// The same on the data port.
    Agent,
}

impl Denied {
    /// 401 where a token would help, else 403.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::Token | Self::Agent => StatusCode::UNAUTHORIZED,
            Self::Host | Self::Origin => StatusCode::FORBIDDEN,
        }
    }

    /// What the client is told.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::Host => "this Host is neither loopback nor named by --control-host",
            Self::Origin => "requests of foreign pages are refused",
            Self::Agent => "a bearer token is needed, tokentap's own: see --agent-token",
            Self::Token => "a bearer token is needed: see --control-token and --metrics-token",
        }
    }
}

/// Whether a request may read or change something.
///
/// # Errors
/// [`Denied`] when it may not.
pub fn control(config: &Config, uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
    place(config, uri, headers)?;
    token(config.keys.control_token.as_ref(), headers)
}

/// Whether a request comes by a name that is ours, and from no foreign page.
///
/// # Errors
/// [`Denied::Host`] or [`Denied::Origin`] when it does not.
pub fn place(config: &Config, uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
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
pub fn token(expected: Option<&Secret>, headers: &HeaderMap) -> Result<(), Denied> {
    let Some(expected) = expected else { return Ok(()) };
    let given = headers.get(header::AUTHORIZATION).map(http::HeaderValue::as_bytes).unwrap_or_default();
    let given = given.split_at_checked(7).filter(|(kind, _)| kind.eq_ignore_ascii_case(b"Bearer "));
    let given = given.map_or(&[][..], |(_, token)| token);
    if same(given, expected.expose().as_bytes()) { Ok(()) } else { Err(Denied::Token) }
}

/// Whether an agent may come in, if that takes a token, with which the request is then signed for the engine: the token is for tokentap
/// alone.
///
/// # Errors
/// [`Denied::Agent`] when it may not.
pub fn agent(parts: &Parts, headers: &mut HeaderMap) -> Result<(), Denied> {
    let expected = parts.config.keys.agent_token.as_ref();
    let Some(secret) = expected else { return Ok(()) };
    let key = headers.get(API_KEY).is_some_and(|key| same(key.as_bytes(), secret.expose().as_bytes()));
    if !key {
        token(expected, headers).map_err(|_| Denied::Agent)?;
    }
    headers.remove(API_KEY);
    parts.client.sign_generation(headers);
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
