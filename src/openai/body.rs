//! The body of a request, member by member.

use super::message::BadMessage;
use crate::json::{Object, Value};

/// Why a request is not served from its tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
    /// It is wrong: a 400.
    #[error("{0}")]
    Wrong(String),
    /// The conversation has reached a limit: a 403, which clients take for the end.
    #[error("{message}")]
    Over {
        /// The limit; a label of metrics.
        limit: &'static str,
        /// Which, how it was reached, and by which setting.
        message: String,
    },
    /// Only the engine's own endpoint can honour this.
    #[error("{0}")]
    Foreign(String),
}

impl From<BadMessage> for Unserved {
    fn from(bad: BadMessage) -> Self {
        match bad {
            BadMessage::Wrong(what) => Self::Wrong(what),
            BadMessage::Foreign(kind) => Self::Foreign(format!("a part of type {kind:?}")),
        }
    }
}

pub(super) fn wrong(what: impl Into<String>) -> Unserved {
    Unserved::Wrong(what.into())
}

/// The members of a body.
pub(super) struct Body<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) object: &'a Object,
}

impl<'a> Body<'a> {
    pub(super) fn raw(&self, name: &str) -> Option<&'a [u8]> {
        self.object.get(self.bytes, name)
    }

    /// A member as a value; null is none.
    pub(super) fn value(&self, name: &str) -> Result<Option<Value>, Unserved> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let value = Value::parse(raw).map_err(|error| wrong(format!("{name} is {error}")))?;
        Ok(Some(value).filter(|value| *value != Value::Null))
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, Unserved> {
        match self.raw(name) {
            None | Some(b"null") => Ok(default),
            Some(b"true") => Ok(true),
            Some(b"false") => Ok(false),
            Some(_) => Err(wrong(format!("{name} must be true or false"))),
        }
    }

    /// A count of at least 1, which is 1 where it is not given.
    pub(super) fn count(&self, name: &str) -> Result<usize, Unserved> {
        match self.raw(name).filter(|raw| is_said(raw)) {
            None => Ok(1),
            Some(raw) => {
                let count = std::str::from_utf8(raw).ok().and_then(|text| text.parse::<usize>().ok());
                count
                    .filter(|count| *count > 0)
                    .ok_or_else(|| wrong(format!("{name} must be a whole number of at least 1")))
            }
        }
    }
}

/// Whether a value asks for anything: clients send the defaults of fields that they do not mean.
pub(super) fn is_meant(value: &[u8]) -> bool {
    !matches!(value, b"null" | b"false" | b"[]" | b"{}" | b"\"\"" | b"\"none\"" | b"[\"text\"]")
}

/// Whether a value says anything.
pub(super) fn is_said(value: &[u8]) -> bool {
    value != b"null"
}
