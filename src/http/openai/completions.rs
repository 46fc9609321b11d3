//! `POST /v1/completions`: a native call in OpenAI's words.

use std::sync::Arc;

use super::{Call, Native, now};
use crate::generation::event::Reads;
use crate::http::Parts;
use crate::http::generate::Origin;
use crate::openai::Unserved;
use crate::openai::completion::CompletionRequest;
use crate::openai::text::TextSpeaker;
use crate::openai::voice::Voice;

/// The native call that a completion becomes.
pub(super) fn native(parts: &Parts, call: &Call, completion: &CompletionRequest) -> Result<Native, Unserved> {
    let upstream = Arc::clone(&parts.upstream.borrow());
    let body = completion.native(&upstream.model, upstream.loses_ids())?;
    let speaker = TextSpeaker::new(completion, now(), upstream.streaming);
    let voice = if completion.stream { Voice::TextStream(speaker) } else { Voice::Text(speaker) };
    let origin = Origin { session: call.named().cloned(), chat: None, reads: Reads::Fields };
    Ok(Native { body, headers: call.request.headers().clone(), origin, voice })
}
