// SPDX-License-Identifier: Apache-2.0
//! Passes calls to the engine's own endpoint unchanged. If the engine reports the token ids of the reply, they are recorded.

use std::sync::Arc;

use http::Response;
use tokio::time::Instant;

use super::{ApiCall, encoding};
use crate::api::engine_chat;
use crate::engine::sglang::request::SessionNames;
use crate::engine::upstream::send;
use crate::error::Error;
use crate::generation::event::EventAccess;
use crate::generation::request::{EngineChat, Source};
use crate::json::Object;
use crate::long_work::{BodyLength, on_body};
use crate::serve::access_log::AccessRecord;
use crate::serve::body::Body;
use crate::serve::data::forward::send_uncaptured;
use crate::serve::data::generation::{self, CallIdentity};
use crate::serve::identity::InvalidIdentity;
use crate::serve::proxy::Proxy;
use crate::serve::response::forwarded_response;

/// Passes a call to the engine's own endpoint. `chat` is the request for it, if its reply is recorded and the body is decoded.
///
/// # Errors
/// The error for the client, if the engine did not reply.
pub(super) async fn pass_through(
    proxy: &Proxy,
    mut call: ApiCall,
    mut chat: Option<Box<EngineChat>>,
    reason: &str,
    record: &AccessRecord,
) -> Result<Response<Body>, Error> {
    if !call.api.generates() {
        let (route, now) = (call.route, Instant::now());
        let reply = send(&proxy.client, &proxy.metrics, route, call.received.into_upstream(), now).await?;
        return Ok(forwarded_response(proxy, reply));
    }
    let identity = match call.identity.take() {
        Some(identity) => identity,
        None => {
            let read =
                on_body(BodyLength::Request(call.received.request.body().len()), || read_undecoded(proxy, &call));
            let (identity, read) = read.await?;
            chat = read;
            identity
        }
    };
    let ApiCall { api, route, mut received, .. } = call;
    let Some(mut chat) = chat else {
        let generation = send_uncaptured(proxy, route, &identity.session, received.into_upstream()).await?;
        return Ok(generation::raw_response(generation));
    };
    chat.reason = reason.into();
    chat.sglext.request_all_ids(received.request.headers_mut());
    received.work = received.work.following();
    let request = received.into_generation(proxy, Source::EngineChat(chat), identity, EventAccess::Bytes);
    Ok(encoding::unencoded(&*api, generation::run(proxy, request, record).await?))
}

/// Reads the session of a call whose body was not decoded, and the chat if its reply is recorded. A turn of it has no conversation.
fn read_undecoded(proxy: &Proxy, call: &ApiCall) -> Result<(CallIdentity, Option<Box<EngineChat>>), InvalidIdentity> {
    let request = &call.received.request;
    // the engine refuses a body that is not an object
    let object = Object::parse(request.body()).ok();
    let names = object.as_ref().map(|object| SessionNames::decode(request.body(), object));
    let session = call.received.identify(proxy, names.as_ref())?;
    let is_recorded = proxy.config.sessions.record && session.explicit && call.route.reports_ids();
    let engine = Arc::clone(&proxy.upstream.borrow());
    let chat = object
        .filter(|_| is_recorded)
        .map(|object| Box::new(engine_chat::undecoded_chat(request, object, call.route, &engine)));
    Ok((CallIdentity { session, labels: call.labels(proxy, None) }, chat))
}
