//! `POST /v1/completions`: a native call in OpenAI's words.

use std::sync::Arc;

use super::{Heard, Native, now};
use crate::generation::event::Reads;
use crate::http::Parts;
use crate::http::generate::Origin;
use crate::openai::Unserved;
use crate::openai::completion::CompletionRequest;
use crate::openai::text::TextSpeaker;
use crate::openai::voice::Voice;

/// The native call that a completion becomes.
pub(super) fn native(parts: &Arc<Parts>, call: &Heard) -> Result<Native, Unserved> {
    let completion = CompletionRequest::parse(call.request.body().clone())?;
    let identity = call.identity(parts).map_err(|invalid| Unserved::Wrong(invalid.to_string()))?;
    let upstream = Arc::clone(&parts.upstream.borrow());
    let body = completion.native(&upstream.model, upstream.loses_ids())?;
    let speaker = TextSpeaker::new(&completion, now(), upstream.streaming);
    let voice = if completion.stream { Voice::TextStream(speaker) } else { Voice::Text(speaker) };
    let origin = Origin { session: identity.explicit.then_some(identity.session), chat: None, reads: Reads::Fields };
    Ok(Native { body, headers: call.request.headers().clone(), origin, voice })
}
