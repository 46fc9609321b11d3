//! The members of a request body that may name its session.

use crate::json::{Cursor, Object};

/// The value of a member that may name a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionName {
    /// A string.
    Text(String),
    /// A value other than a string or null.
    NoString,
}

/// The members of a body that may name a session. Null counts as absent, and of repeated keys the last counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionNames {
    /// `session_id`.
    pub session_id: Option<SessionName>,
    /// `metadata.session_id`.
    pub metadata: Option<SessionName>,
    /// `_proxy_session_id`.
    pub proxy_session_id: Option<SessionName>,
    /// `user`.
    pub user: Option<SessionName>,
    /// `metadata.user_id`.
    pub user_id: Option<SessionName>,
    /// `prompt_cache_key`.
    pub prompt_cache_key: Option<SessionName>,
}

impl SessionNames {
    /// Decodes the names of a body. `object` holds its members.
    #[must_use]
    pub fn decode(bytes: &[u8], object: &Object) -> Self {
        let metadata = object.get(bytes, "metadata").and_then(|value| Some((value, Object::parse(value).ok()?)));
        let in_metadata = |member| metadata.as_ref().and_then(|(value, metadata)| name(value, metadata, member));
        Self {
            session_id: name(bytes, object, "session_id"),
            metadata: in_metadata("session_id"),
            user_id: in_metadata("user_id"),
            prompt_cache_key: name(bytes, object, "prompt_cache_key"),
            proxy_session_id: name(bytes, object, "_proxy_session_id"),
            user: name(bytes, object, "user"),
        }
    }
}

fn name(bytes: &[u8], object: &Object, member: &str) -> Option<SessionName> {
    let value = object.get(bytes, member)?;
    match value.first() {
        Some(b'"') => Some(SessionName::Text(Cursor::new(value).string().ok()?.decode().into_owned())),
        Some(b'n') => None,
        _ => Some(SessionName::NoString),
    }
}
