// SPDX-License-Identifier: Apache-2.0
//! Requests a stream again without what tokentap forced.
//!
//! A refusal before the stream has a status, and `generator::send` sends the request again.

use std::pin::Pin;
use std::sync::Arc;

use http::StatusCode;
use tokio::time::Instant;

use super::active::ActiveGeneration;
use super::context::GenerationContext;
use super::request::RequestHead;
use crate::engine::reason::Reason;
use crate::engine::sglang::routes;
use crate::engine::transport::client::{ReplyBody, UpstreamCall};
use crate::engine::transport::headers;
use crate::engine::upstream::send;

/// The status of the refused reply in `tokentap_unforced_retries_total`.
const STREAMED: &str = "200";

/// Resolves to the body of the second reply, or to `None` if the engine does not accept the request or does not stream.
pub(super) type UnforcedReply = Pin<Box<dyn Future<Output = Option<ReplyBody>> + Send>>;

/// Sends a refused request again without anything forced. The flag says whether it has the id of the first one.
pub(super) fn retry_unforced(head: &RequestHead, active: &mut ActiveGeneration) -> (UnforcedReply, bool) {
    let context = Arc::clone(active.capture().context());
    context.metrics.unforced_retries.with_label_values(&[STREAMED]).inc();
    let is_renamed = active.capture_mut().give_up(Reason::Refused);
    let plan = active.capture_mut().plan_mut();
    let keeps_id = !is_renamed && !plan.rids.is_empty();
    let body = context.budget.hold(std::mem::take(&mut plan.body));
    (Box::pin(send_stream(context, head.call(body))), keeps_id)
}

async fn send_stream(context: Arc<GenerationContext>, call: UpstreamCall) -> Option<ReplyBody> {
    let sent = send(context.engines.upstream(), &context.metrics, routes::GENERATE, call, Instant::now()).await;
    let (head, body) = sent.ok()?.into_parts();
    (head.status == StatusCode::OK && headers::is_event_stream(&head.headers)).then_some(body)
}
