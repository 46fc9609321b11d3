//! What of the ids a client asks for, and in which form.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::api::openai::RequestBody;
use crate::engine::probe::ChatFacts;
use crate::json::{Object, Text};

/// Asks for the prompt's ids.
pub(in crate::api) const INPUT: HeaderName = HeaderName::from_static("x-sglext-return-input-ids");

/// Asks for the sampled ids.
pub(in crate::api) const OUTPUT: HeaderName = HeaderName::from_static("x-sglext-return-output-ids");

/// Asks a stream for an event with the ids alone.
pub(in crate::api) const FRAMED: HeaderName = HeaderName::from_static("x-sglext-ids-framed");

/// What of the ids a client gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Those of the prompt.
    pub input: bool,
    /// The sampled ones.
    pub output: bool,
    /// In a stream as an event of their own.
    pub framed: bool,
}

impl Wanted {
    /// What a call with these members asks for. An engine may have been started to give ids without being asked: its clients know them.
    #[must_use]
    pub(crate) fn of(bytes: &[u8], object: &Object, headers: &HeaderMap, engine: &ChatFacts) -> Self {
        let body = RequestBody { bytes, object };
        let member = |name: &str| matches!(body.raw(name), Some(b"true" | b"1"));
        let header = |name: &HeaderName| headers.get(name).is_some_and(|value| value == "1");
        Self {
            input: engine.input_ids || member("return_input_ids_in_sglext") || header(&INPUT),
            output: engine.output_ids || member("return_output_ids_in_sglext") || header(&OUTPUT),
            framed: header(&FRAMED),
        }
    }

    /// Whether anything is asked for.
    #[must_use]
    pub(crate) fn any(self) -> bool {
        self.input || self.output
    }

    /// Asks the engine for all ids; in an event of their own, which is cheap to find, unless the client is to get them otherwise.
    pub(crate) fn ask_for_all(self, headers: &mut HeaderMap) {
        let yes = HeaderValue::from_static("1");
        headers.insert(INPUT, yes.clone());
        headers.insert(OUTPUT, yes.clone());
        if self.framed || !self.any() {
            headers.insert(FRAMED, yes);
        }
    }

    /// Whether a member of `sglext` holds ids that are not the client's.
    pub(super) fn is_without(self, key: &Text<'_>) -> bool {
        key.is("input_ids") && !self.input || key.is("output_ids") && !self.output
    }
}
