// SPDX-License-Identifier: Apache-2.0
//! The members of a request body that name or tag its session.

use crate::json::{Cursor, Object};

/// The value of a member that may name a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionName {
    /// A string.
    Text(String),
    /// A value other than a string or null.
    NoString,
}

/// The member with the tags of the session, which tokentap removes before forwarding.
pub(crate) const SESSION_TAGS: &str = "session_tags";

/// The most bytes of this member as JSON text. A longer one is refused.
pub(crate) const LONGEST_TAGS: usize = 64 << 10;

/// The members of a body that may name a session, and its tags. Null counts as absent, and of repeated keys the last counts.
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
    /// `session_tags`, as JSON text. Of one that is too long only the beginning, which is too long as well.
    pub tags: Option<Box<[u8]>>,
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
            tags: object.get(bytes, SESSION_TAGS).filter(|value| *value != b"null").map(bounded),
        }
    }
}

fn bounded(tags: &[u8]) -> Box<[u8]> {
    tags[..tags.len().min(LONGEST_TAGS + 1)].into()
}

fn name(bytes: &[u8], object: &Object, member: &str) -> Option<SessionName> {
    let value = object.get(bytes, member)?;
    match value.first() {
        Some(b'"') => Some(SessionName::Text(Cursor::new(value).string().ok()?.decode().into_owned())),
        Some(b'n') => None,
        _ => Some(SessionName::NoString),
    }
}
