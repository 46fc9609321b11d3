//! Reads the members of a request body.

use crate::chat::RequestError;
use crate::json::{Object, Value};

/// The error for an invalid request.
pub(crate) fn invalid(message: impl Into<String>) -> RequestError {
    RequestError::invalid(message)
}

/// The error for a request that forces a tool call and constrains its text by the field `format`.
pub(crate) fn two_constraints(format: &str) -> RequestError {
    invalid(format!(
        "tool_choice forces a tool call and {format} constrains the text: a request cannot have both, and SGLang refuses it too. Send tool_choice \"auto\", or leave out {format}"
    ))
}

/// A request body and the spans of its members.
pub(crate) struct RequestBody<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) object: &'a Object,
}

impl<'a> RequestBody<'a> {
    /// A member as JSON text. `None` if the body does not have it.
    pub(crate) fn raw(&self, name: &str) -> Option<&'a [u8]> {
        self.object.get(self.bytes, name)
    }

    /// Whether the body has a member that is not null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.raw(name).is_some_and(is_present)
    }

    /// A member as a value. `None` if it is missing or null.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when its JSON cannot be parsed.
    pub(crate) fn value(&self, name: &str) -> Result<Option<Value>, RequestError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let value = Value::parse(raw).map_err(|error| invalid(format!("{name} is {error}")))?;
        Ok(Some(value).filter(|value| *value != Value::Null))
    }

    /// A boolean member, or `default` if it is missing or null.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when it is not a boolean.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, RequestError> {
        match self.raw(name) {
            None | Some(b"null") => Ok(default),
            Some(b"true") => Ok(true),
            Some(b"false") => Ok(false),
            Some(_) => Err(invalid(format!("{name} must be true or false"))),
        }
    }

    /// A member that is an integer of at least 1; 1 if it is missing or null.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when it is another value.
    pub(crate) fn count(&self, name: &str) -> Result<usize, RequestError> {
        match self.raw(name).filter(|raw| is_present(raw)) {
            None => Ok(1),
            Some(raw) => {
                let count = std::str::from_utf8(raw).ok().and_then(|text| text.parse::<usize>().ok());
                count
                    .filter(|count| *count > 0)
                    .ok_or_else(|| invalid(format!("{name} must be a whole number of at least 1")))
            }
        }
    }
}

/// Whether a value differs from the default of its field. Clients send defaults of fields that they do not use.
pub(crate) fn is_non_default(value: &[u8]) -> bool {
    !matches!(value, b"null" | b"false" | b"[]" | b"{}" | b"\"\"" | b"\"none\"")
}

/// Whether a value is present and not null.
pub(crate) fn is_present(value: &[u8]) -> bool {
    value != b"null"
}
