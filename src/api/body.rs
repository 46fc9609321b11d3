// SPDX-License-Identifier: Apache-2.0
//! Decodes the members of a request body, and collects the parts that are left out.

use bytes::Bytes;

use crate::chat::{Conversation, RequestError, dumps, quoted};
use crate::engine::sglang::request::{SamplingParam, SessionNames};
use crate::json::{Cursor, Object, Value};

/// The error for an invalid request.
pub(crate) fn invalid(message: impl Into<String>) -> RequestError {
    RequestError::Invalid(message.into())
}

/// The grammar of a reply: the `schema` of the field `format`, or that of forced tool calls. Schemas are JSON text.
///
/// # Errors
/// [`RequestError::Invalid`] if both exist.
pub(crate) fn schema_constraint(
    schema: Option<&String>,
    conversation: &Conversation,
    parallel_calls: bool,
    format: &str,
) -> Result<Option<(SamplingParam, String)>, RequestError> {
    let schema = match (schema, conversation.forced_call_schema(parallel_calls)) {
        (Some(_), Some(_)) => return Err(two_constraints(format)),
        (Some(schema), None) => quoted(schema),
        (None, Some(forced)) => quoted(&dumps(&forced)),
        (None, None) => return Ok(None),
    };
    Ok(Some((SamplingParam::JsonSchema, schema)))
}

/// The error for a request that forces a tool call and constrains its text by the field `format`.
pub(crate) fn two_constraints(format: &str) -> RequestError {
    invalid(format!(
        "tool_choice forces a tool call and {format} constrains the text: a request cannot have both, and SGLang refuses it too. Send tool_choice \"auto\", or leave out {format}"
    ))
}

/// A request body, which is a JSON object, and the spans of its members.
#[derive(Debug, Clone)]
pub(crate) struct RequestBody {
    pub(crate) bytes: Bytes,
    pub(crate) object: Object,
}

impl RequestBody {
    /// Parses a body. Returns the values of the members `long` too: they take most of the body, and are parsed in the same pass.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if the body is not a JSON object.
    pub(crate) fn parse<const N: usize>(
        bytes: Bytes,
        long: [&str; N],
    ) -> Result<(Self, [Option<Value>; N]), RequestError> {
        let mut values = [const { None }; N];
        let mut cursor = Cursor::new(&bytes);
        let object = Object::read(&mut cursor, |key, cursor| {
            match long.iter().position(|name| key.is(name)) {
                Some(at) => values[at] = Some(Value::read(cursor)?),
                None => _ = cursor.skip()?,
            }
            Ok(())
        });
        let object = object.and_then(|object| cursor.end().map(|()| object));
        let object = object.map_err(|error| invalid(format!("the body is {error}")))?;
        Ok((Self { bytes, object }, values))
    }

    /// The members that may name the session.
    pub(crate) fn session_names(&self) -> SessionNames {
        SessionNames::decode(&self.bytes, &self.object)
    }

    /// A member as JSON text. `None` if the body does not have it.
    pub(crate) fn raw(&self, name: &str) -> Option<&[u8]> {
        self.object.get(&self.bytes, name)
    }

    /// A member as JSON text. `None` if it is missing or null.
    pub(crate) fn present(&self, name: &str) -> Option<&[u8]> {
        self.raw(name).filter(|value| *value != b"null")
    }

    /// Whether a member is set to another value than the default of its field. Clients send defaults of fields that they do not use.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        let is_default = |value: &[u8]| matches!(value, b"null" | b"false" | b"[]" | b"{}" | b"\"\"" | b"\"none\"");
        self.raw(name).is_some_and(|value| !is_default(value))
    }

    /// A member as a value. `None` if it is missing or null.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when its JSON cannot be parsed.
    pub(crate) fn value(&self, name: &str) -> Result<Option<Value>, RequestError> {
        let Some(raw) = self.present(name) else { return Ok(None) };
        Value::parse(raw).map(Some).map_err(|error| invalid(format!("{name} is {error}")))
    }

    /// A member that is a string. `None` if it is missing or another value.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when its JSON cannot be parsed.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>, RequestError> {
        Ok(self.value(name)?.and_then(|value| value.as_str().map(str::to_owned)))
    }

    /// A boolean member, or `default` if it is missing or null.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when it is not a boolean.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, RequestError> {
        match self.present(name) {
            None => Ok(default),
            Some(b"true") => Ok(true),
            Some(b"false") => Ok(false),
            Some(_) => Err(invalid(format!("{name} must be true or false"))),
        }
    }

    /// A member that is an integer of at least 1. `None` if it is missing or null.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when it is another value.
    pub(crate) fn count(&self, name: &str) -> Result<Option<u64>, RequestError> {
        let Some(raw) = self.present(name) else { return Ok(None) };
        let count = std::str::from_utf8(raw).ok().and_then(|text| text.parse().ok()).filter(|count| *count > 0);
        count.map(Some).ok_or_else(|| invalid(format!("{name} must be a whole number of at least 1")))
    }

    /// `n`: the number of samples of a prompt.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when it is not an integer of at least 1.
    pub(crate) fn samples(&self) -> Result<usize, RequestError> {
        Ok(self.count("n")?.map_or(1, |n| usize::try_from(n).unwrap_or(usize::MAX)))
    }
}

/// The parts of a request that are left out of the prompt: blocks, items and tools that only the API's own servers support.
#[derive(Debug, Clone)]
pub(crate) struct SkippedParts {
    /// `--strict`: such a part is an error.
    is_strict: bool,
    /// The types of the parts, in the order of the request.
    pub(crate) kinds: Vec<String>,
}

impl SkippedParts {
    /// No part. With `is_strict`, adding one is an error.
    pub(crate) fn new(is_strict: bool) -> Self {
        Self { is_strict, kinds: Vec::new() }
    }

    /// Adds a part of a type.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] with `--strict`.
    pub(crate) fn add(&mut self, kind: &str) -> Result<(), RequestError> {
        if self.is_strict {
            return Err(invalid(format!("a part of type {kind:?} is not supported (--strict)")));
        }
        self.kinds.push(kind.to_owned());
        Ok(())
    }
}

/// Removes a member of an object and returns its value: a conversation may be long, so its parts are moved and not copied. `None` if it is
/// missing or null.
pub(crate) fn take_member(members: &mut [(String, Value)], name: &str) -> Option<Value> {
    let (_, value) = members.iter_mut().find(|(key, _)| key == name)?;
    Some(std::mem::take(value)).filter(|value| *value != Value::Null)
}
