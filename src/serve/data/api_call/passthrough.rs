//! Passes calls to the engine's own endpoint unchanged. If the engine reports the token ids of the reply, they are recorded.

use std::sync::Arc;

use http::Response;

use super::{ApiCall, reply};
use crate::api::engine_chat;
use crate::budget::Work;
use crate::chat::forwarded::ForwardedChat;
use crate::engine::sglang::request::SessionNames;
use crate::engine::upstream::send;
use crate::error::Error;
use crate::generation::event::EventAccess;
use crate::generation::request::{RequestHead, Source};
use crate::json::Object;
use crate::long_work::{BodyLength, on_body};
use crate::serve::access_log::AccessRecord;
use crate::serve::body::Body;
use crate::serve::data::forward::{forwarded, send_uncaptured, target, upstream_headers};
use crate::serve::data::generate::{self, DecodedGeneration};
use crate::serve::identity::InvalidName;
use crate::serve::proxy::Proxy;

/// Passes a call to the engine's own endpoint. `chat` is its conversation, if it was decoded.
///
/// # Errors
/// The error for the client, if the engine did not reply.
pub(super) async fn pass_through(
    state: &Arc<Proxy>,
    call: ApiCall,
    chat: Option<ForwardedChat>,
    (work, record): (&Work, &AccessRecord),
) -> Result<Response<Body>, Error> {
    let head = RequestHead {
        method: call.request.method().clone(),
        target: target(call.request.uri()),
        headers: call.request.headers().clone(),
    };
    let body = call.request.body().clone();
    let unread = |head: RequestHead| RequestHead { headers: upstream_headers(head.headers), ..head }.call(body);
    if !call.api.generates() {
        return Ok(forwarded(state, send(&state.client, &state.metrics, call.route, unread(head)).await?));
    }
    let is_recorded = state.config.sessions.record && call.route.reports_ids();
    let engine = Arc::clone(&state.upstream.borrow());
    let read = || {
        let body = call.request.body();
        // the engine refuses a body that is not an object
        let object = Object::parse(body).ok();
        let identity = match call.identity.clone() {
            Some(identity) => identity,
            None => call.identify(state, object.as_ref().map(|object| SessionNames::decode(body, object)).as_ref())?,
        };
        let object = object.filter(|_| is_recorded && identity.explicit);
        let chat = object.map(|object| engine_chat::client_chat(&call.request, object, call.route, chat, &engine));
        let digest = chat.as_ref().and_then(|chat| generate::digest(state, Some(&identity), &chat.body));
        Ok::<_, InvalidName>((identity, chat, digest))
    };
    let (identity, chat, digest) = on_body(BodyLength::Request(call.request.body().len()), read).await?;
    let Some(chat) = chat else {
        return Ok(generate::reply(send_uncaptured(state, call.route, &identity, unread(head)).await?));
    };
    let mut head = head;
    chat.sglext.request_all_ids(&mut head.headers);
    let (source, labels, reads) = (Source::EngineChat(Box::new(chat)), call.labels(state, None), EventAccess::Bytes);
    let decoded = DecodedGeneration { work: work.following(), source, identity, digest, labels, reads };
    let generation = generate::run(state, head, decoded, record).await?;
    Ok(reply::unencoded(&*call.api, generation))
}
