//! Observes calls that change the weights or pause the generation, and advances the policy epoch.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};

use crate::engine::sglang::routes::{Route, WeightChange, has_changed_weights};
use crate::engine::survey::Survey;
use crate::engine::transport::client::Reply;
use crate::engine::transport::forwarded::ForwardedBody;
use crate::engine::transport::headers;
use crate::engine::upstream::failed;
use crate::error::Error;
use crate::generation::buffered::{BufferedReply, collect};
use crate::serve::body::Body;
use crate::serve::proxy::Proxy;
use crate::session::{WeightCall, WeightCallOutcome};

/// The maximum bytes of a reply that is read. Replies of these routes are one line of JSON.
const LARGEST: u64 = 64 << 10;

/// The timeout of the request for the label of new weights. Without an answer the next probe finds it.
const LABEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Records that the generation may continue, before the call is sent.
pub(crate) fn observe_request(proxy: &Proxy, route: Route) {
    if route.continues_generation() {
        proxy.generator.policy.set_paused(false);
    }
}

/// Records that the generation is paused, after the engine replied.
pub(crate) fn observe_status(proxy: &Proxy, route: Route, status: StatusCode) {
    if route.pauses_generation() && status.is_success() {
        proxy.generator.policy.set_paused(true);
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
                let outcome = match status {
                    _ if status.is_success() => WeightCallOutcome::Succeeded,
                    _ if status.is_server_error() => WeightCallOutcome::Unknown,
                    _ => WeightCallOutcome::Refused,
                };
                (outcome, Body::forwarded(ForwardedBody::unlimited(&proxy.metrics, Bytes::new(), body)))
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
