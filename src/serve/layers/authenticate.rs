// SPDX-License-Identifier: Apache-2.0
//! Checks whether a client may send a request.

use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};
use subtle::ConstantTimeEq;

use crate::config::{Config, Secret};
use crate::engine::transport::client::Client;
use crate::error::Error;
use crate::serve::host::Host;
use crate::serve::request_info::Access;

/// The header in which some clients send their key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The header in which browsers report where a request comes from.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Checks whether the client may send the request. On the data port with a token, replaces that token by the engine's key; with
/// `--forward-upstream-api-key`, adds that key to a request without one.
///
/// # Errors
/// A 401 if a token would help, else a 403.
pub(crate) fn authenticate<B>(
    config: &Config,
    client: &Client,
    access: Access,
    request: &mut Request<B>,
) -> Result<(), Error> {
    match access {
        Access::Open => Ok(()),
        Access::Metrics => check_token(config.keys.metrics_token.as_ref(), request.headers()),
        Access::Page => check_origin(config, request.uri(), request.headers()),
        Access::Control => {
            check_origin(config, request.uri(), request.headers())?;
            check_token(config.keys.control_token(), request.headers())
        }
        Access::Agent => {
            check_agent(config, client, request.headers_mut())?;
            let headers = request.headers_mut();
            move_api_key(headers);
            if config.keys.forward_upstream_api_key && !headers.contains_key(header::AUTHORIZATION) {
                client.sign_generation(headers);
            }
            Ok(())
        }
    }
}

/// Makes the key in `x-api-key`, where clients of the Messages API send it, a bearer key, unless there is one. The engine accepts bearer keys
/// only.
fn move_api_key(headers: &mut HeaderMap) {
    let key = headers.get(API_KEY).and_then(|key| key.to_str().ok()).filter(|key| !key.is_empty());
    if let Some(bearer) = key.and_then(|key| HeaderValue::try_from(format!("Bearer {key}")).ok())
        && !headers.contains_key(header::AUTHORIZATION)
    {
        headers.insert(header::AUTHORIZATION, bearer);
    }
}

/// Checks that the `Host` is a name of this port and that the request does not come from a page of another site.
///
/// # Errors
/// A 403.
fn check_origin(config: &Config, uri: &Uri, headers: &HeaderMap) -> Result<(), Error> {
    let denied = |message: &str| Err(Error::Forbidden { message: message.to_owned() });
    const OTHER_SITE: &str = "requests from pages of other sites are refused";
    let host = uri.authority().map(|authority| authority.as_str().to_owned());
    let host = host.or_else(|| headers.get(header::HOST)?.to_str().ok().map(str::to_owned));
    if !host.as_deref().is_some_and(|host| is_own_host(config, host)) {
        // a page that rebinds its DNS name would send its own name
        return denied("this Host is neither loopback nor one of --control-host");
    }
    // browsers send no `Origin` for images and links; only links to the page at `/` are allowed
    let site = headers.get(SITE).map_or(&b"none"[..], |site| site.as_bytes());
    if !matches!(site, b"none" | b"same-origin") && uri.path() != "/" {
        return denied(OTHER_SITE);
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let authority =
            origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
        if !authority.zip(host.as_deref()).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host)) {
            return denied(OTHER_SITE);
        }
    }
    Ok(())
}

/// Checks the bearer token, if one is configured.
///
/// # Errors
/// A 401 if it is missing or wrong.
fn check_token(expected: Option<&Secret>, headers: &HeaderMap) -> Result<(), Error> {
    let message = "a bearer token is needed: see --control-token and --metrics-token";
    let is_valid = expected.is_none_or(|expected| has_token(expected, headers));
    if is_valid { Ok(()) } else { Err(Error::Unauthorized { message: message.to_owned() }) }
}

/// Whether the bearer token is this one.
fn has_token(expected: &Secret, headers: &HeaderMap) -> bool {
    let given = headers.get(header::AUTHORIZATION).map(http::HeaderValue::as_bytes).unwrap_or_default();
    let given = given.split_at_checked(7).filter(|(kind, _)| kind.eq_ignore_ascii_case(b"Bearer "));
    constant_time_eq(given.map_or(&[][..], |(_, token)| token), expected.expose().as_bytes())
}

/// Checks an agent's token, if one is configured. Then replaces it by the engine's key, because the token is for tokentap only.
///
/// # Errors
/// A 401 if it is missing or wrong.
fn check_agent(config: &Config, client: &Client, headers: &mut HeaderMap) -> Result<(), Error> {
    let Some(expected) = &config.keys.agent_token else { return Ok(()) };
    let key = headers.get(API_KEY).is_some_and(|key| constant_time_eq(key.as_bytes(), expected.expose().as_bytes()));
    if !key && !has_token(expected, headers) {
        return Err(Error::Unauthorized { message: "tokentap's bearer token is needed: see --agent-token".to_owned() });
    }
    headers.remove(API_KEY);
    client.sign_generation(headers);
    Ok(())
}

/// Compares in a time that depends only on the lengths.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

fn is_own_host(config: &Config, host: &str) -> bool {
    let names = &config.keys.control_host;
    match Host::parse(host) {
        None => false,
        Some(host @ Host::Address(ip)) => ip.is_loopback() || ip == config.control_listen.ip() || host.is_one_of(names),
        Some(Host::Name(name)) => {
            let own_name = name.strip_suffix('.').unwrap_or(name);
            name.eq_ignore_ascii_case("localhost") || Host::Name(own_name).is_one_of(names)
        }
    }
}
