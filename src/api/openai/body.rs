//! The body of a request, member by member.

use crate::chat::RequestError;
use crate::json::{Object, Value};

/// A request that is not valid.
pub(crate) fn wrong(what: impl Into<String>) -> RequestError {
    RequestError::invalid(what)
}

/// The members of a body.
pub(crate) struct RequestBody<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) object: &'a Object,
}

impl<'a> RequestBody<'a> {
    pub(crate) fn raw(&self, name: &str) -> Option<&'a [u8]> {
        self.object.get(self.bytes, name)
    }

    /// A member as a value; null is none.
    pub(crate) fn value(&self, name: &str) -> Result<Option<Value>, RequestError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let value = Value::parse(raw).map_err(|error| wrong(format!("{name} is {error}")))?;
        Ok(Some(value).filter(|value| *value != Value::Null))
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, RequestError> {
        match self.raw(name) {
            None | Some(b"null") => Ok(default),
            Some(b"true") => Ok(true),
            Some(b"false") => Ok(false),
            Some(_) => Err(wrong(format!("{name} must be true or false"))),
        }
    }

    /// A count of at least 1, which is 1 where it is not given.
    pub(crate) fn count(&self, name: &str) -> Result<usize, RequestError> {
        match self.raw(name).filter(|raw| is_present(raw)) {
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
pub(crate) fn is_non_default(value: &[u8]) -> bool {
    !matches!(value, b"null" | b"false" | b"[]" | b"{}" | b"\"\"" | b"\"none\"" | b"[\"text\"]")
}

/// Whether a value is present and not null.
pub(crate) fn is_present(value: &[u8]) -> bool {
    value != b"null"
}
