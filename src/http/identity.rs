//! Whose session a call belongs to.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, Uri, header};

use crate::config::{Config, SessionSource};
use crate::generation::rid;
use crate::sglang::request::GenerateRequest;
use crate::sglang::routes;

/// Keys that clients send because a field must not be empty.
const PLACEHOLDERS: [&str; 4] = ["EMPTY", "NONE", "DUMMY", "NULL"];

/// A session's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The name.
    pub session: Arc<str>,
    /// The client gave it; otherwise the session is this request's alone.
    pub explicit: bool,
}

impl Identity {
    /// The session of a call: of the names given, the first in the order path, headers, query, body. A name that cannot be one is
    /// passed over, because many clients use the same places for something else.
    #[must_use]
    pub fn of(
        config: &Config,
        path: Option<&Arc<str>>,
        uri: &Uri,
        headers: &HeaderMap,
        body: Option<&GenerateRequest>,
    ) -> Self {
        let given = path.cloned().or_else(|| {
            named(uri, headers, body).or_else(|| from_settings(config, headers, body)).map(|name| Arc::from(&*name))
        });
        match given {
            Some(session) => Self { session, explicit: true },
            None => Self { session: rid::fresh().into(), explicit: false },
        }
    }
}

/// `/sessions/{id}/rest`: the name and the rest.
#[must_use]
pub fn in_path(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix("/sessions/")?;
    let at = rest.find('/')?;
    Some((&rest[..at], &rest[at..]))
}

/// Whether a name can be a session's. Dots alone cannot: whoever reads a path with them resolves it.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && !matches!(name, "." | "..")
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-'))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim).filter(|value| is_name(value))
}

fn named<'a>(uri: &'a Uri, headers: &'a HeaderMap, body: Option<&'a GenerateRequest>) -> Option<Cow<'a, str>> {
    let headers = ["x-session-id", "proxy-x-session-id"].into_iter().find_map(|name| header(headers, name));
    let query = || {
        let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        let value = pairs.filter(|(name, _)| *name == "session_id").map(|(_, value)| routes::decode(value)).next_back();
        value.filter(|value| is_name(value))
    };
    let body = || {
        let names = body?.sessions[..3].iter().flatten();
        names.map(|name| Cow::Borrowed(name.as_str())).find(|name| is_name(name))
    };
    headers.map(Cow::Borrowed).or_else(query).or_else(body)
}

fn from_settings<'a>(
    config: &Config,
    headers: &'a HeaderMap,
    body: Option<&'a GenerateRequest>,
) -> Option<Cow<'a, str>> {
    config.sessions.session_from.iter().find_map(|source| {
        let name = match source {
            SessionSource::Key => key(config, headers)?,
            SessionSource::User => body?.sessions[3].as_deref()?,
            SessionSource::RoutingKey => header(headers, "x-smg-routing-key")?,
        };
        is_name(name).then_some(Cow::Borrowed(name))
    })
}

/// A key that says who the client is, rather than that it may come in.
fn key<'a>(config: &Config, headers: &'a HeaderMap) -> Option<&'a str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    let key = bearer.map(|(_, key)| key.trim()).or_else(|| header(headers, "x-api-key"))?;
    let is_ours = config.keys.all().any(|own| own.expose() == key);
    let placeholder = PLACEHOLDERS.iter().any(|word| key.eq_ignore_ascii_case(word))
        || key.to_ascii_lowercase().starts_with("sk-xxx");
    (!is_ours && !placeholder).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn session(flags: &[&str], uri: &str, headers: &[(&str, &str)], body: &str) -> Option<String> {
        let args = ["tokentap", "serve"].iter().chain(flags).map(std::ffi::OsString::from);
        let cli = crate::config::load(args).unwrap();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        let body = GenerateRequest::parse(Bytes::copy_from_slice(body.as_bytes())).unwrap();
        let identity = Identity::of(cli.command.config().unwrap(), None, &uri.parse().unwrap(), &map, Some(&body));
        identity.explicit.then(|| identity.session.to_string())
    }

    #[test]
    fn headers_go_before_the_query_and_that_before_the_body() {
        let body = r#"{"session_id":"b","metadata":{"x":1,"session_id":"m"},"_proxy_session_id":"p","user":"u"}"#;
        let of = |headers: &[(&str, &str)], uri: &str, body: &str| session(&[], uri, headers, body);
        assert_eq!(of(&[("X-Session-ID", "h")], "/generate?session_id=q", body).as_deref(), Some("h"));
        assert_eq!(of(&[("proxy-x-session-id", "h2")], "/generate", body).as_deref(), Some("h2"));
        assert_eq!(of(&[], "/generate?a=1&session_id=q%2D1", body).as_deref(), Some("q-1"));
        assert_eq!(of(&[], "/generate", body).as_deref(), Some("b"));
        assert_eq!(
            of(&[], "/generate", r#"{"metadata":{"session_id":"m"},"_proxy_session_id":"p"}"#).as_deref(),
            Some("m")
        );
        assert_eq!(of(&[], "/generate", r#"{"_proxy_session_id":"p","user":"u"}"#).as_deref(), Some("p"));
        assert_eq!(of(&[], "/generate", r#"{"user":"u"}"#), None);
        assert_eq!(of(&[("x-session-id", "no/name")], "/generate", body).as_deref(), Some("b"));
        assert_eq!(of(&[("x-session-id", "")], "/generate", "{}"), None);
    }

    #[test]
    fn a_key_is_a_session_only_where_it_says_who_and_not_that_one_may() {
        let flags = ["--session-from", "key,user,routing-key", "--upstream-api-key", "ours"];
        let of = |headers: &[(&str, &str)], body: &str| session(&flags, "/generate", headers, body);
        assert_eq!(of(&[("authorization", "Bearer agent-7")], "{}").as_deref(), Some("agent-7"));
        assert_eq!(of(&[("x-api-key", "agent-8")], "{}").as_deref(), Some("agent-8"));
        for key in ["ours", "EMPTY", "none", "Dummy", "sk-xxxx"] {
            assert_eq!(of(&[("authorization", &format!("Bearer {key}"))], "{}"), None, "{key}");
        }
        assert_eq!(of(&[("authorization", "Bearer ours")], r#"{"user":"u"}"#).as_deref(), Some("u"));
        assert_eq!(of(&[("x-smg-routing-key", "r")], "{}").as_deref(), Some("r"));
        assert_eq!(session(&[], "/generate", &[("authorization", "Bearer agent-7")], "{}"), None);
    }

    #[test]
    fn a_name_in_the_path_is_one_segment() {
        assert_eq!(in_path("/sessions/a.b~c_d-e/generate"), Some(("a.b~c_d-e", "/generate")));
        assert_eq!(in_path("/sessions/a"), None);
        assert!(is_name(&"x".repeat(128)) && !is_name(&"x".repeat(129)) && !is_name("a b") && !is_name(""));
        assert!(!is_name(".") && !is_name("..") && is_name("..."));
    }
}
