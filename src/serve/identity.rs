// SPDX-License-Identifier: Apache-2.0
//! Finds the session that a call belongs to, and the tags that the call gives it.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::api::client_headers::{CLAUDE_CODE_SESSION, CODEX_SESSIONS, SESSION_AFFINITY, session_in_user_id};
use crate::config::{Config, SessionSource};
use crate::engine::rid;
use crate::engine::sglang::request::{LONGEST_TAGS, SESSION_TAGS, SessionName, SessionNames};
use crate::error::Error;
use crate::json::{decode_query_bytes, decode_query_value};
use crate::serve::proxy::Proxy;
use crate::session::{InvalidTags, LONGEST_NAME, Tags, is_name, routing_key};

/// Replaces a JSON value that is not a string. The spaces make it an invalid name.
const NO_STRING: &str = "a value that is not a string";

/// Placeholder keys that clients send because the field must not be empty.
const PLACEHOLDERS: [&str; 4] = ["EMPTY", "NONE", "DUMMY", "NULL"];

/// The session that a call belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The name.
    pub session: Arc<str>,
    /// Whether the client gave the name; otherwise the session holds this request only.
    pub explicit: bool,
    /// The field whose invalid name was ignored. Set only if the call has no other name.
    pub ignored: Option<&'static str>,
    /// The tags that the call gives it.
    pub tags: Tags,
}

/// Why the session of a call is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidIdentity {
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error("{source_name}: {error}")]
    Tags { source_name: &'static str, error: InvalidTags },
}

impl From<InvalidIdentity> for Error {
    fn from(invalid: InvalidIdentity) -> Self {
        Self::bad_request(invalid.to_string())
    }
}

/// A value that is not a valid session name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{value:?} in {source_name} cannot name a session: a name is [A-Za-z0-9._~-]{{1,128}} and neither \".\" nor \"..\""
)]
pub(crate) struct InvalidName {
    value: String,
    source_name: &'static str,
}

impl InvalidName {
    /// Creates the error. The message repeats the value up to a maximum length.
    pub(crate) fn new(value: &str, source_name: &'static str) -> Self {
        Self { value: value.chars().take(LONGEST_NAME + 1).collect(), source_name }
    }
}

impl From<InvalidName> for Error {
    fn from(invalid: InvalidName) -> Self {
        Self::bad_request(invalid.to_string())
    }
}

/// A session name in a request, and where it was found.
struct Candidate<'a> {
    value: Cow<'a, str>,
    source: NameSource,
}

#[derive(Clone, Copy)]
enum NameSource {
    /// The field is only for session names, so an invalid name is an error.
    Dedicated(&'static str),
    /// Clients use the field for other purposes too, so an invalid name is ignored. The string is the metric label.
    Shared(&'static str),
}

impl Identity {
    /// Finds the session of a call: the first name in the order path, headers, query, body. Empty values are ignored. Of tags with the same
    /// name the first counts, in the same order.
    ///
    /// # Errors
    /// [`InvalidIdentity`] if the first name is invalid and its field is only for session names, or a tag is invalid. Without recording,
    /// names and tags are not checked, because they are not used.
    pub(crate) fn find(
        config: &Config,
        path: Option<&Arc<str>>,
        query: Option<&str>,
        headers: &HeaderMap,
        body: Option<&SessionNames>,
    ) -> Result<Self, InvalidIdentity> {
        let mut identity = Self::find_session(config, path, query, headers, body)?;
        if config.sessions.record {
            identity.tags = find_tags(query, headers, body)?;
        }
        Ok(identity)
    }

    fn find_session(
        config: &Config,
        path: Option<&Arc<str>>,
        query: Option<&str>,
        headers: &HeaderMap,
        body: Option<&SessionNames>,
    ) -> Result<Self, InvalidName> {
        let found = |session, explicit, ignored| Self { session, explicit, ignored, tags: Tags::default() };
        if let Some(session) = path {
            return Ok(found(Arc::clone(session), true, None));
        }
        let mut ignored = None;
        for candidate in candidates(config, query, headers, body).filter(|candidate| !candidate.value.is_empty()) {
            let Candidate { value, source } = candidate;
            match source {
                _ if is_name(&value) => return Ok(found((&*value).into(), true, None)),
                NameSource::Shared(field) => ignored = ignored.or(Some(field)),
                NameSource::Dedicated(name) if config.sessions.record => return Err(InvalidName::new(&value, name)),
                NameSource::Dedicated(_) => {}
            }
        }
        Ok(found(rid::fresh(), false, ignored))
    }

    /// Counts an ignored name, and logs the first one of each field.
    pub(crate) fn report_ignored(&self, proxy: &Proxy) {
        let Some(field) = self.ignored.filter(|_| proxy.config.sessions.record) else { return };
        let counter = proxy.metrics.session.names_ignored.with_label_values(&[field]);
        counter.inc();
        if counter.get() == 1 {
            tracing::warn!(
                field,
                "a value of this field is not a valid session name ([A-Za-z0-9._~-]{{1,128}}), so the call gets a separate session; \
                 name sessions by /sessions/ID/ or X-Session-Id"
            );
        }
    }
}

/// Splits `/sessions/{id}/rest` into the name and the rest.
pub(crate) fn in_path(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix("/sessions/")?;
    let at = rest.find('/')?;
    Some((&rest[..at], &rest[at..]))
}

/// Headers that name a session, in the order of precedence.
const SESSION_HEADERS: [(HeaderName, &str); 2] = [
    (HeaderName::from_static("x-session-id"), "the header x-session-id"),
    (HeaderName::from_static("proxy-x-session-id"), "the header proxy-x-session-id"),
];

/// The header that SGLang's router routes by.
const ROUTING_KEY: HeaderName = HeaderName::from_static("x-smg-routing-key");

/// The header with the tags of the session.
const TAGS_HEADER: HeaderName = HeaderName::from_static("x-tokentap-tags");

/// The tags of a call. Most calls have none, which takes no memory.
fn find_tags(query: Option<&str>, headers: &HeaderMap, body: Option<&SessionNames>) -> Result<Tags, InvalidIdentity> {
    let mut tags = Tags::default();
    let mut add = |source_name, parsed: Result<Tags, InvalidTags>| {
        let refused = |error| InvalidIdentity::Tags { source_name, error };
        tags = parsed.and_then(|more| more.with(&tags)).map_err(refused)?;
        Ok::<(), InvalidIdentity>(())
    };
    if headers.keys().any(|name| *name == TAGS_HEADER) {
        for value in headers.get_all(TAGS_HEADER) {
            add("the header x-tokentap-tags", Tags::parse_list(value.as_bytes()))?;
        }
    }
    for (name, value) in query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
        if name == SESSION_TAGS {
            add("the query member session_tags", Tags::parse_list(&decode_query_bytes(value)))?;
        }
    }
    if let Some(text) = body.and_then(|body| body.tags.as_deref()) {
        let parsed = if text.len() > LONGEST_TAGS { Err(InvalidTags::too_long()) } else { Tags::parse_json(text) };
        add("the body member session_tags", parsed)?;
    }
    Ok(tags)
}

/// Adds the header by which a router sends the calls of a session to one engine, unless the client sent it.
pub(crate) fn add_routing_key(headers: &mut HeaderMap, session: &str) {
    if !headers.contains_key(ROUTING_KEY) {
        let key = HeaderValue::try_from(routing_key(session)).expect("hexadecimal digits are valid in a header");
        headers.insert(ROUTING_KEY, key);
    }
}

fn header(headers: &HeaderMap, name: HeaderName) -> Option<Cow<'_, str>> {
    single_value(headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes().trim_ascii())))
}

/// The value of a field that may be repeated. Empty values are ignored. Different values are joined as in RFC 9110, 5.3, which makes the
/// name invalid: a proxy in front may have used another of them.
fn single_value<'a>(values: impl Iterator<Item = Cow<'a, str>>) -> Option<Cow<'a, str>> {
    let mut values = values.filter(|value| !value.is_empty());
    let first = values.next()?;
    let others: Vec<Cow<'a, str>> = values.filter(|value| *value != first).collect();
    if others.is_empty() { Some(first) } else { Some(format!("{first}, {}", others.join(", ")).into()) }
}

/// All session names in a request, in the order of precedence.
fn candidates<'a>(
    config: &'a Config,
    query: Option<&'a str>,
    headers: &'a HeaderMap,
    body: Option<&'a SessionNames>,
) -> impl Iterator<Item = Candidate<'a>> {
    let dedicated = |value, name| Candidate { value, source: NameSource::Dedicated(name) };
    // most requests have none, and comparing the few names that they have is faster than a lookup
    let is_named = headers.keys().any(|name| SESSION_HEADERS.iter().any(|(known, _)| known == name));
    let in_headers = SESSION_HEADERS.into_iter().filter(move |_| is_named);
    let in_headers = in_headers.filter_map(move |(name, place)| Some(dedicated(header(headers, name)?, place)));
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let in_query = pairs.filter(|(name, _)| *name == "session_id").map(|(_, value)| decode_query_value(value));
    let in_query = single_value(in_query).map(|value| dedicated(value, "the query member session_id"));
    let value = |name: &'a Option<SessionName>| match name.as_ref()? {
        SessionName::Text(name) => Some(Cow::Borrowed(name.as_str())),
        SessionName::NoString => Some(Cow::Borrowed(NO_STRING)),
    };
    let in_body = body.into_iter().flat_map(|names| {
        [
            (&names.session_id, NameSource::Dedicated("the body member session_id")),
            (&names.metadata, NameSource::Shared("metadata")),
            (&names.proxy_session_id, NameSource::Dedicated("the body member _proxy_session_id")),
        ]
    });
    let in_body = in_body.filter_map(move |(name, source)| Some(Candidate { value: value(name)?, source }));
    let configured = config.sessions.session_from.iter().flat_map(move |source| {
        let mut values = [None, None, None, None];
        let mut label = "";
        match source {
            SessionSource::Key => (label, values[0]) = ("key", key(config, headers).map(Cow::Borrowed)),
            SessionSource::User => (label, values[0]) = ("user", body.and_then(|body| value(&body.user))),
            SessionSource::RoutingKey => values[0] = header(headers, ROUTING_KEY),
            SessionSource::ClaudeCode => {
                label = "claude-code";
                values[0] = header(headers, CLAUDE_CODE_SESSION);
                // a user id without a session is of another client
                values[1] = body.and_then(|body| match body.user_id.as_ref()? {
                    SessionName::Text(user_id) => session_in_user_id(user_id),
                    SessionName::NoString => None,
                });
            }
            SessionSource::Codex => {
                label = "codex";
                values = CODEX_SESSIONS.map(|name| header(headers, name));
            }
            SessionSource::SessionAffinity => {
                (label, values[0]) = ("session-affinity", header(headers, SESSION_AFFINITY));
            }
            SessionSource::PromptCacheKey => {
                (label, values[0]) = ("prompt-cache-key", body.and_then(|body| value(&body.prompt_cache_key)));
            }
        }
        let source = match source {
            SessionSource::RoutingKey => NameSource::Dedicated("the header x-smg-routing-key"),
            _ => NameSource::Shared(label),
        };
        values.into_iter().flatten().map(move |value| Candidate { value, source })
    });
    in_headers.chain(in_query).chain(in_body).chain(configured)
}

/// The client's key, if it identifies the client: neither a key of the settings nor a placeholder.
fn key<'a>(config: &Config, headers: &'a HeaderMap) -> Option<&'a str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    let api_key = || headers.get("x-api-key")?.to_str().ok().map(str::trim);
    let key = bearer.map(|(_, key)| key.trim()).or_else(api_key)?;
    let is_ours = config.keys.all().any(|own| own.expose() == key);
    let placeholder = PLACEHOLDERS.iter().any(|word| key.eq_ignore_ascii_case(word))
        || key.to_ascii_lowercase().starts_with("sk-xxx");
    (!is_ours && !placeholder).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Object;

    fn session(flags: &[&str], uri: &str, headers: &[(&str, &str)], body: &str) -> Option<String> {
        let args = ["tokentap", "serve"].iter().chain(flags).map(std::ffi::OsString::from);
        let cli = crate::config::load(args).unwrap();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        let names = SessionNames::decode(body.as_bytes(), &Object::parse(body.as_bytes()).unwrap());
        let query = uri.split_once('?').map(|(_, query)| query);
        let identity = Identity::find(cli.command.config().unwrap(), None, query, &map, Some(&names)).unwrap();
        identity.explicit.then(|| identity.session.to_string())
    }

    #[test]
    fn session_name_precedence_is_headers_then_query_then_body() {
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
        assert_eq!(of(&[("x-session-id", "")], "/generate", "{}"), None);
    }

    #[test]
    fn key_names_a_session_unless_it_is_a_placeholder_or_configured() {
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
    fn agents_name_their_sessions_if_their_source_is_enabled() {
        let flags = ["--session-from", "claude-code,codex,session-affinity,prompt-cache-key"];
        let of = |headers: &[(&str, &str)], body: &str| session(&flags, "/v1/messages", headers, body);
        assert_eq!(of(&[("x-claude-code-session-id", "c")], r#"{"prompt_cache_key":"p"}"#).as_deref(), Some("c"));
        let json = r#"{"metadata":{"user_id":"{\"device_id\":\"d\",\"session_id\":\"c-2\"}"}}"#;
        assert_eq!(of(&[], json).as_deref(), Some("c-2"));
        assert_eq!(of(&[], r#"{"metadata":{"user_id":"user_a_account__session_c-3"}}"#).as_deref(), Some("c-3"));
        assert_eq!(of(&[], r#"{"metadata":{"user_id":"alice"}}"#), None, "another client's user id");
        assert_eq!(of(&[("session-id", "x"), ("thread-id", "t")], "{}").as_deref(), Some("x"));
        assert_eq!(of(&[("thread-id", "t")], "{}").as_deref(), Some("t"));
        assert_eq!(of(&[("session_id", "old")], "{}").as_deref(), Some("old"));
        assert_eq!(of(&[("x-session-affinity", "ses_1")], "{}").as_deref(), Some("ses_1"));
        assert_eq!(of(&[], r#"{"prompt_cache_key":"p"}"#).as_deref(), Some("p"));
        assert_eq!(of(&[("x-session-affinity", "ses_1"), ("x-session-id", "h")], "{}").as_deref(), Some("h"));
        let none = [("x-claude-code-session-id", "c"), ("session-id", "x"), ("x-session-affinity", "s")];
        assert_eq!(session(&[], "/v1/messages", &none, r#"{"prompt_cache_key":"p"}"#), None, "no source is enabled");
    }

    #[test]
    fn invalid_name_of_an_agent_is_ignored_and_the_next_source_counts() {
        let flags = ["--session-from", "claude-code,codex,prompt-cache-key"];
        let of = |headers: &[(&str, &str)], body: &str| session(&flags, "/v1/messages", headers, body);
        assert_eq!(of(&[("x-claude-code-session-id", "a b"), ("thread-id", "t")], "{}").as_deref(), Some("t"));
        assert_eq!(of(&[("session-id", "a:b"), ("thread-id", "t")], "{}").as_deref(), Some("t"));
        assert_eq!(of(&[], r#"{"prompt_cache_key":7}"#), None);
    }

    #[test]
    fn session_name_in_the_path_is_one_segment() {
        assert_eq!(in_path("/sessions/a.b~c_d-e/generate"), Some(("a.b~c_d-e", "/generate")));
        assert_eq!(in_path("/sessions/a"), None);
        assert!(is_name(&"x".repeat(128)) && !is_name(&"x".repeat(129)) && !is_name("a b") && !is_name(""));
        assert!(!is_name(".") && !is_name("..") && is_name("..."));
    }
}
