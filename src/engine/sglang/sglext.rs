// SPDX-License-Identifier: Apache-2.0
//! `sglext`: the token ids in a reply of the engine's chat endpoint. Which of them a client asks for, and how all of them are requested.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::engine::capabilities::ChatFacts;
use crate::json::{Object, Text};

/// The request header for the ids of the prompt.
const INPUT: HeaderName = HeaderName::from_static("x-sglext-return-input-ids");

/// The request header for the sampled ids.
const OUTPUT: HeaderName = HeaderName::from_static("x-sglext-return-output-ids");

/// The request header for a separate event with the ids in a stream.
const FRAMED: HeaderName = HeaderName::from_static("x-sglext-ids-framed");

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
    /// Decodes the members and headers of a request. Some engines are configured to return ids without a request; their clients get them too.
    #[must_use]
    pub(crate) fn decode(bytes: &[u8], object: &Object, headers: &HeaderMap, engine: &ChatFacts) -> Self {
        let member = |name: &str| matches!(object.get(bytes, name), Some(b"true" | b"1"));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str, headers: &[&HeaderName], engine: &ChatFacts) -> SglextOptions {
        let yes = HeaderValue::from_static("1");
        let headers = headers.iter().map(|name| ((*name).clone(), yes.clone())).collect();
        SglextOptions::decode(body.as_bytes(), &Object::parse(body.as_bytes()).unwrap(), &headers, engine)
    }

    #[test]
    fn client_gets_ids_that_it_or_the_engine_configuration_requests() {
        let engine = ChatFacts::default();
        let requested = |body: &str, headers: &[&HeaderName], engine: &ChatFacts| {
            let sglext = read(body, headers, engine);
            (sglext.input, sglext.output)
        };
        assert_eq!(requested("{}", &[], &engine), (false, false));
        assert_eq!(requested(r#"{"return_input_ids_in_sglext":true}"#, &[], &engine), (true, false));
        assert_eq!(requested(r#"{"return_output_ids_in_sglext":false}"#, &[&OUTPUT], &engine), (false, true));
        let engine = ChatFacts { input_ids: true, ..engine };
        assert_eq!(requested("{}", &[], &engine), (true, false));
    }

    #[test]
    fn all_ids_are_requested_in_a_separate_event_unless_the_client_reads_them_in_chunks() {
        let framed = |body: &str, headers: &[&HeaderName]| {
            let mut sent = HeaderMap::new();
            read(body, headers, &ChatFacts::default()).request_all_ids(&mut sent);
            assert!(sent[INPUT] == "1" && sent[OUTPUT] == "1");
            sent.contains_key(FRAMED)
        };
        assert!(framed("{}", &[]), "the client does not read the ids");
        assert!(!framed("{}", &[&OUTPUT]), "the client reads the ids in a chunk");
        assert!(framed("{}", &[&OUTPUT, &FRAMED]));
    }
}
