// SPDX-License-Identifier: Apache-2.0
//! Observes calls that change the weights or pause the generation, and advances the policy epoch.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;

use crate::engine::sglang::routes::{ADAPTER_NAME, AdapterChange, Route, WeightChange, has_changed_weights};
use crate::engine::survey::Survey;
use crate::engine::transport::client::Reply;
use crate::engine::transport::failure::UploadError;
use crate::engine::transport::forwarded::ForwardedBody;
use crate::engine::transport::headers;
use crate::engine::upstream::failed;
use crate::error::Error;
use crate::generation::buffered::{BufferedReply, collect};
use crate::json::MemberScan;
use crate::serve::body::{Body, Upload};
use crate::serve::proxy::Proxy;
use crate::session::ledger::Ack;
use crate::session::{AdapterCall, Policy, WeightCall, WeightCallOutcome};

/// The maximum bytes of a reply that is read. Replies of these routes are one line of JSON.
const LARGEST: u64 = 64 << 10;

/// The timeout of the request for the label of new weights. Without an answer the next probe finds it.
const LABEL_TIMEOUT: Duration = Duration::from_secs(2);

/// A call that pauses or continues the generation. From the moment that a pause is sent, the engine serves no new requests, until it has
/// answered a call to continue.
#[derive(Debug)]
pub(crate) struct PauseCall<'a> {
    proxy: &'a Proxy,
    /// The call pauses the generation, which it does if it succeeds. Otherwise it continues a paused one, which stays paused if the engine
    /// refuses the call.
    pauses: bool,
}

impl<'a> PauseCall<'a> {
    /// Called before the request is sent; `None` for a route that does neither.
    pub(crate) fn new(proxy: &'a Proxy, route: Route) -> Option<Self> {
        let policy = &proxy.generator.policy;
        if route.pauses_generation() {
            policy.begin_pause();
            return Some(Self { proxy, pauses: true });
        }
        (route.continues_generation() && policy.begin_continue()).then_some(Self { proxy, pauses: false })
    }

    /// Observes the status of the reply.
    pub(crate) fn observe(self, status: StatusCode) {
        let is_paused = if self.pauses { status.is_success() } else { status.is_client_error() };
        if is_paused {
            self.proxy.generator.policy.mark_paused();
        }
    }
}

impl Drop for PauseCall<'_> {
    fn drop(&mut self) {
        self.proxy.generator.policy.settle_pause();
    }
}

/// A call that changes weights. If it has no reply, or a server error, it is unknown whether the weights changed. The epoch then advances,
/// because tokens of two policies must not have the same epoch.
#[derive(Debug)]
pub(crate) struct WeightUpdate<'a> {
    proxy: &'a Proxy,
    call: WeightCall,
    observed: bool,
}

impl<'a> WeightUpdate<'a> {
    /// Called before the request is sent; `None` for a route that does not change the policy.
    pub(crate) fn new(proxy: &'a Proxy, route: Route) -> Option<Self> {
        let call = match route.weight_change()? {
            WeightChange::Begin => WeightCall::Begin,
            WeightChange::Part => WeightCall::Part,
            WeightChange::End => WeightCall::End,
            WeightChange::Whole => WeightCall::Whole,
        };
        Some(Self { proxy, call, observed: false })
    }

    /// Observes the reply. A 400 whose message is that the weights changed is a success.
    ///
    /// # Errors
    /// When the reply is cut off.
    pub(crate) async fn observe(mut self, reply: Reply) -> Result<Response<Body>, Error> {
        let proxy = self.proxy;
        let (mut head, body) = reply.into_parts();
        let (outcome, body) = match head.status {
            StatusCode::BAD_REQUEST => {
                match collect(body, LARGEST, proxy.budget.reply())
                    .await
                    .map_err(|failure| failed(&proxy.metrics, failure))?
                {
                    BufferedReply::Passing { head, rest, .. } => (
                        WeightCallOutcome::Refused,
                        Body::forwarded(ForwardedBody::unlimited(&proxy.metrics, head, rest)),
                    ),
                    BufferedReply::All(bytes) if has_changed_weights(&bytes) => {
                        (WeightCallOutcome::Succeeded, Body::full(bytes))
                    }
                    BufferedReply::All(bytes) => (WeightCallOutcome::Refused, Body::full(bytes)),
                }
            }
            status => {
                (outcome_of(status), Body::forwarded(ForwardedBody::unlimited(&proxy.metrics, Bytes::new(), body)))
            }
        };
        self.finish(outcome).await;
        headers::end_hop(&mut head.headers);
        Ok(Response::from_parts(head, body))
    }

    /// Advances the epoch and waits until it is on disk, so that it is not used again after a crash, and until the label of the new
    /// weights is known. Then the trainer gets its reply.
    async fn finish(&mut self, outcome: WeightCallOutcome) {
        let Proxy { generator, engines, .. } = self.proxy;
        self.observed = true;
        let Some((epoch, ack)) = generator.policy.observe_weight_call(self.call, outcome) else { return };
        self.proxy.wait_written(ack).await;
        // behind a router the labels may differ, and only the watching probe may read the list of engines
        if outcome == WeightCallOutcome::Succeeded && engines.single().is_some() {
            let survey = Survey::new(engines.clone(), None, 0);
            let report = tokio::time::timeout(LABEL_TIMEOUT, survey.check_liveness()).await;
            if let Some(label) = report.ok().and_then(Result::ok).and_then(|report| report.weight_version) {
                generator.policy.observe_model_info(epoch, &label);
            }
        }
    }
}

impl Drop for WeightUpdate<'_> {
    fn drop(&mut self) {
        if !self.observed {
            drop(self.proxy.generator.policy.observe_weight_call(self.call, WeightCallOutcome::Unknown));
        }
    }
}

/// The outcome of a call that changes weights, if its status alone decides.
fn outcome_of(status: StatusCode) -> WeightCallOutcome {
    match status {
        _ if status.is_success() => WeightCallOutcome::Succeeded,
        _ if status.is_server_error() => WeightCallOutcome::Unknown,
        _ => WeightCallOutcome::Refused,
    }
}

/// A call that loads or unloads an adapter. As with [`WeightUpdate`], the epoch of the adapter advances if the outcome is unknown.
#[derive(Debug)]
pub(crate) struct AdapterUpdate<'a> {
    proxy: &'a Proxy,
    call: AdapterCall,
    progress: Arc<Mutex<AdapterProgress>>,
}

/// The state of a call that the body and the reply share. The lock is held for one access.
#[derive(Debug, Default)]
struct AdapterProgress {
    /// The name of the adapter, once the body has reached it.
    name: Option<Box<str>>,
    /// The outcome is known. What the body has after that changes nothing.
    has_ended: bool,
}

impl<'a> AdapterUpdate<'a> {
    /// Called before the request is sent; `None` for a route that does not change adapters.
    pub(crate) fn new(proxy: &'a Proxy, route: Route) -> Option<Self> {
        let call = match route.adapter_change()? {
            AdapterChange::Load => AdapterCall::Load,
            AdapterChange::Unload => AdapterCall::Unload,
        };
        Some(Self { proxy, call, progress: Arc::default() })
    }

    /// The body of the call, in which the name of the adapter is found while it passes: the tensors of an adapter are too large to be
    /// buffered.
    pub(crate) fn watch(&self, upload: Upload) -> AdapterUpload {
        AdapterUpload {
            upload,
            scan: MemberScan::new(ADAPTER_NAME),
            progress: Arc::clone(&self.progress),
            policy: Arc::clone(&self.proxy.generator.policy),
            call: self.call,
        }
    }

    /// Observes the status of the reply, and waits until a new epoch is on disk.
    pub(crate) async fn observe(self, status: StatusCode) {
        if let Some((_, ack)) = self.finish(outcome_of(status)) {
            self.proxy.wait_written(ack).await;
        }
    }

    fn finish(&self, outcome: WeightCallOutcome) -> Option<(u64, Ack)> {
        let mut progress = self.progress.lock();
        if std::mem::replace(&mut progress.has_ended, true) {
            return None;
        }
        let Proxy { generator, metrics, .. } = self.proxy;
        let (call, result) = (
            match self.call {
                AdapterCall::Load => "load",
                AdapterCall::Unload => "unload",
            },
            match outcome {
                WeightCallOutcome::Succeeded => "succeeded",
                WeightCallOutcome::Refused => "refused",
                WeightCallOutcome::Unknown => "unknown",
            },
        );
        metrics.adapter_calls.with_label_values(&[call, result]).inc();
        generator.policy.observe_adapter_call(self.call, progress.name.as_deref(), outcome)
    }
}

impl Drop for AdapterUpdate<'_> {
    fn drop(&mut self) {
        drop(self.finish(WeightCallOutcome::Unknown));
    }
}

/// The body of a call that changes an adapter. The engine gets the name only after tokentap has noted it.
#[derive(Debug)]
pub(crate) struct AdapterUpload {
    upload: Upload,
    scan: MemberScan,
    progress: Arc<Mutex<AdapterProgress>>,
    policy: Arc<Policy>,
    call: AdapterCall,
}

impl http_body::Body for AdapterUpload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let frame = ready!(Pin::new(&mut self.upload).poll_frame(cx));
        let this = &mut *self;
        let mut progress = this.progress.lock();
        if let Some(Ok(frame)) = &frame
            && !progress.has_ended
            && progress.name.is_none()
            && let Some(name) = frame.data_ref().and_then(|data| this.scan.read(data))
        {
            this.policy.begin_adapter_call(this.call, name);
            progress.name = Some(name.into());
        }
        drop(progress);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.upload.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.upload.size_hint()
    }
}
