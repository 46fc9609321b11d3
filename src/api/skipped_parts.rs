//! The parts of a request that tokentap leaves out: blocks, items and tools that only the API's own servers support.

use crate::api::body::invalid;
use crate::chat::RequestError;

/// The types of the parts that were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SkippedParts {
    /// `--strict`: such a part is an error.
    is_strict: bool,
    kinds: Vec<String>,
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

    /// The types, in the order of the request.
    pub(crate) fn kinds(&self) -> &[String] {
        &self.kinds
    }
}
