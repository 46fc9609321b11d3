// SPDX-License-Identifier: Apache-2.0
//! SGLang's own API, `/generate`. Requests and replies keep the bytes of the client and of the engine.

pub(crate) mod images;

use bytes::Bytes;

use super::EventEncoder;
use crate::engine::sglang::request::{GenerateRequest, Ids};
use crate::error::{BoxError, Error};
use crate::generation::event::GenerationEvent;

/// Decodes the body of a request. `None` if it is not a JSON object; the engine then refuses it. `ids` has been read ahead, if it has a span;
/// `records` keeps the ids of the prompts.
///
/// # Errors
/// When the body nests so deeply that it could crash the engine, unless the guard is off.
pub(crate) fn decode(
    body: &Bytes,
    ids: Ids,
    is_guarded: bool,
    records: bool,
) -> Result<Option<Box<GenerateRequest>>, Error> {
    match GenerateRequest::parse_with(body.clone(), ids, records) {
        Ok(request) => Ok(Some(Box::new(request))),
        Err(error) if error.too_deep && is_guarded => {
            Err(Error::bad_request(format!("the body nests deeper than 128 levels at byte {}", error.at)))
        }
        Err(_) => Ok(None),
    }
}

/// Encodes events in the engine's own format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NativeEncoder;

impl EventEncoder for NativeEncoder {
    fn encode(&mut self, event: &GenerationEvent, out: &mut Vec<u8>) -> Result<(), BoxError> {
        out.extend_from_slice(event.native());
        Ok(())
    }

    fn encoded(&self, event: &GenerationEvent) -> Option<Bytes> {
        Some(event.native().clone())
    }

    fn keeps_length(&self) -> bool {
        true
    }
}
