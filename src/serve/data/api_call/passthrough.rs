//! Passes calls to the engine's own endpoint unchanged. If the engine reports the token ids of the reply, they are recorded.

use std::sync::Arc;

use http::Response;

use super::{ApiCall, CallContext, encoding};
use crate::api::engine_chat;
use crate::chat::forwarded::ForwardedChat;
use crate::engine::sglang::request::SessionNames;
use crate::engine::upstream::send;
use crate::error::Error;
use crate::generation::event::EventAccess;
use crate::generation::request::{RequestHead, Source};
use crate::json::Object;
use crate::long_work::{BodyLength, on_body};
use crate::serve::body::Body;
use crate::serve::data::forward::{send_uncaptured, target, upstream_headers};
use crate::serve::data::generate::{self, DecodedGeneration};
use crate::serve::identity::InvalidName;
use crate::serve::response::forwarded_response;

/// Passes a call to the engine's own endpoint. `chat` is its conversation, if it was decoded.
///
/// # Errors
/// The error for the client, if the engine did not reply.
pub(super) async fn pass_through(
    CallContext { proxy, work, record }: CallContext<'_>,
    call: ApiCall,
    chat: Option<ForwardedChat>,
) -> Result<Response<Body>, Error> {
    let head = RequestHead {
        method: call.request.method().clone(),
        target: target(call.request.uri()),
        headers: call.request.headers().clone(),
    };
    let body = call.request.body().clone();
    let unread = |head: RequestHead| RequestHead { headers: upstream_headers(head.headers), ..head }.call(body);
    if !call.api.generates() {
        return Ok(forwarded_response(proxy, send(&proxy.client, &proxy.metrics, call.route, unread(head)).await?));
    }
    let is_recorded = proxy.config.sessions.record && call.route.reports_ids();
    let engine = Arc::clone(&proxy.upstream.borrow());
    let read = || {
        let body = call.request.body();
        // the engine refuses a body that is not an object
        let object = Object::parse(body).ok();
        let identity = match call.identity.clone() {
            Some(identity) => identity,
            None => call.identify(proxy, object.as_ref().map(|object| SessionNames::decode(body, object)).as_ref())?,
        };
        let object = object.filter(|_| is_recorded && identity.explicit);
        let chat = object.map(|object| engine_chat::client_chat(&call.request, object, call.route, chat, &engine));
        let digest = chat.as_ref().and_then(|chat| generate::digest(proxy, Some(&identity), &chat.body));
        Ok::<_, InvalidName>((identity, chat, digest))
    };
    let (identity, chat, digest) = on_body(BodyLength::Request(call.request.body().len()), read).await?;
    let Some(chat) = chat else {
        return Ok(generate::native_response(send_uncaptured(proxy, call.route, &identity, unread(head)).await?));
    };
    let mut head = head;
    chat.sglext.request_all_ids(&mut head.headers);
    let (source, labels, reads) = (Source::EngineChat(Box::new(chat)), call.labels(proxy, None), EventAccess::Bytes);
    let decoded = DecodedGeneration { work: work.following(), source, identity, digest, labels, reads };
    let generation = generate::run(proxy, head, decoded, record).await?;
    Ok(encoding::unencoded(&*call.api, generation))
}
