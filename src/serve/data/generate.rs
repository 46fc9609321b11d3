// SPDX-License-Identifier: Apache-2.0
//! Serves POST and PUT /generate.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use hyper::body::Incoming;

use crate::api::native::images::{self, ImageRefusal};
use crate::api::{client_headers, native};
use crate::budget::Work;
use crate::chat::model::Chats;
use crate::engine::plan::GuardRefusal;
use crate::engine::sglang::request::{GenerateRequest, Ids};
use crate::engine::sglang::routes;
use crate::error::Error;
use crate::generation::event::EventAccess;
use crate::generation::events::Generation;
use crate::generation::request::Source;
use crate::long_work::{BodyLength, on_body};
use crate::serve::access_log::AccessRecord;
use crate::serve::body::Body;
use crate::serve::data::forward::send_uncaptured;
use crate::serve::data::generation::{self, CallIdentity, ReceivedCall};
use crate::serve::proxy::Proxy;
use crate::session::{Dialect, Labels};

/// Serves a generation over HTTP. `session` is the session in the path. Not an async fn, which would hold its arguments twice.
///
/// # Errors
/// The error for the client, if the engine did not reply.
pub(crate) fn handle(
    proxy: &Proxy,
    request: Request<Incoming>,
    session: Option<Arc<str>>,
    record: &AccessRecord,
) -> impl Future<Output = Result<Response<Body>, Error>> + Send {
    let call = ReceivedCall::read(proxy, request, session);
    async move {
        let call = call.await?;
        Ok(generation::raw_response(generate(proxy, call, EventAccess::Pieces, record).await?))
    }
}

/// Decodes a call and runs its generation. The engine refuses a body that cannot be decoded.
///
/// # Errors
/// The error for the client, if the engine did not reply.
pub(crate) async fn generate(
    proxy: &Proxy,
    mut call: ReceivedCall,
    reads: EventAccess,
    record: &AccessRecord,
) -> Result<Generation, Error> {
    let body = call.request.body();
    let length = BodyLength::Request(body.len());
    // a long body is mostly ids, which take a tenth of the time of other JSON
    let ahead = length.is_long().then(|| Ids::read_ahead(body, proxy.config.sessions.record)).flatten();
    let length = ahead.as_ref().map_or(length, |ids| BodyLength::Request(body.len() - ids.bytes()));
    let read = || {
        let request = decode(proxy, body, ahead.unwrap_or_default())?;
        let request = request.map(|request| check_images(proxy, request, &call.work)).transpose()?;
        let names = request.as_deref().map(|request: &GenerateRequest| &request.sessions);
        Ok::<_, Error>((call.identify(proxy, names)?, request))
    };
    let (session, request) = on_body(length, read).await?;
    let Some(request) = request else {
        call.request.headers_mut().remove(header::ACCEPT_ENCODING);
        return send_uncaptured(proxy, routes::GENERATE, &session, call.into_upstream()).await;
    };
    let identity = CallIdentity { session, labels: labels(proxy, call.request.headers()) };
    let source = Source::Generate { request, chat: None };
    let request = call.into_generation(proxy, source, identity, reads);
    generation::run(proxy, request, record).await
}

/// Checks the pictures of a request, and counts a refusal.
fn check_images(proxy: &Proxy, request: Box<GenerateRequest>, work: &Work) -> Result<Box<GenerateRequest>, Error> {
    let sized = images::check_sizes(&request, proxy.config.limits.max_image_bytes);
    let checked = sized.and_then(|()| match &**proxy.chats.borrow() {
        Chats::Rendered(model) if !proxy.config.entropy.no_guard => images::with_placeholders(request, model, work),
        _ => Ok(request),
    });
    checked.map_err(|refusal| match refusal {
        ImageRefusal::Rule(GuardRefusal { rule, message }) => {
            proxy.metrics.refused.with_label_values(&[rule]).inc();
            Error::bad_request(message)
        }
        ImageRefusal::Stopped(error) => error,
    })
}

/// The labels of the turns of a call of `/generate`. `None` unless its headers are an agent's, so that other calls store nothing.
fn labels(proxy: &Proxy, headers: &HeaderMap) -> Option<Arc<Labels>> {
    let labels = proxy.config.sessions.record.then(|| client_headers::labels(headers)).flatten()?;
    Some(Arc::new(Labels { dialect: Some(Dialect::Generate), ..labels }))
}

/// Decodes a body of which `ids` has been read, and counts a refusal.
fn decode(proxy: &Proxy, body: &Bytes, ids: Ids) -> Result<Option<Box<GenerateRequest>>, Error> {
    native::decode(body, ids, !proxy.config.entropy.no_guard, proxy.config.sessions.record)
        .inspect_err(|_| proxy.metrics.refused.with_label_values(&["nesting"]).inc())
}
