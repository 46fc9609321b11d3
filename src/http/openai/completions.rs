//! `POST /v1/completions`: a native call in OpenAI's words.

use std::sync::Arc;

use super::{Native, now};
use crate::api::openai_completions::reply::TextSpeaker;
use crate::api::openai_completions::request::CompletionRequest;
use crate::api::voice::Voice;
use crate::chat::RequestError;
use crate::http::Parts;

/// The native call that a completion becomes.
pub(super) fn native(parts: &Parts, completion: &CompletionRequest) -> Result<Native, RequestError> {
    let upstream = Arc::clone(&parts.upstream.borrow());
    let hold = |body| parts.budget.hold(body);
    let request = completion.native(&upstream.model, upstream.loses_ids(), hold)?;
    let speaker = TextSpeaker::new(completion, now(), upstream.streaming);
    let voice = if completion.stream { Voice::TextStream(speaker) } else { Voice::Text(speaker) };
    Ok(Native { request, chat: None, voice })
}
