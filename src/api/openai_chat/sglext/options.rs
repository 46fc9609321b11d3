//! Which token ids a client asks for in `sglext`, and in which form.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::api::body::RequestBody;
use crate::engine::capabilities::ChatFacts;
use crate::json::{Object, Text};

/// The request header for the ids of the prompt.
pub(in crate::api) const INPUT: HeaderName = HeaderName::from_static("x-sglext-return-input-ids");

/// The request header for the sampled ids.
pub(in crate::api) const OUTPUT: HeaderName = HeaderName::from_static("x-sglext-return-output-ids");

/// The request header for a separate event with the ids in a stream.
pub(in crate::api) const FRAMED: HeaderName = HeaderName::from_static("x-sglext-ids-framed");

/// The ids that a client gets in `sglext`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SglextOptions {
    /// The ids of the prompt.
    pub input: bool,
    /// The sampled ids.
    pub output: bool,
    /// A stream has them in a separate event.
    pub framed: bool,
}

impl SglextOptions {
    /// Reads the members and headers of a request. Some engines are configured to return ids without a request; their clients get them too.
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

    /// Whether the client asks for any ids.
    #[must_use]
    pub(crate) fn requests_ids(self) -> bool {
        self.input || self.output
    }

    /// Sets the headers that request all ids from the engine. A separate event is requested too, because it is cheap to find, unless the
    /// client expects the ids in a chunk.
    pub(crate) fn request_all_ids(self, headers: &mut HeaderMap) {
        let yes = HeaderValue::from_static("1");
        headers.insert(INPUT, yes.clone());
        headers.insert(OUTPUT, yes.clone());
        if self.framed || !self.requests_ids() {
            headers.insert(FRAMED, yes);
        }
    }

    /// Whether a member of `sglext` has ids that the client does not get.
    pub(super) fn excludes(self, key: &Text<'_>) -> bool {
        key.is("input_ids") && !self.input || key.is("output_ids") && !self.output
    }
}
