//! Observes calls that change the weights, and advances the policy epoch.

use bytes::Bytes;
use http::{Response, StatusCode};

use crate::engine::client::Reply;
use crate::engine::forwarded::ForwardedBody;
use crate::engine::headers;
use crate::engine::upstream::failed;
use crate::error::Error;
use crate::generation::buffered::{BufferedReply, collect};
use crate::serve::body::Body;
use crate::serve::proxy_state::ProxyState;

/// The maximum bytes of a reply that is read. Replies of these routes are one line of JSON.
const LARGEST: u64 = 64 << 10;

/// A call that changes weights. Without a reply, or with a server error, it is unknown whether the weights changed. The epoch then
/// advances, because tokens of two policies must not have the same epoch.
#[derive(Debug)]
pub(crate) struct WeightUpdate<'a> {
    state: &'a ProxyState,
    answered: bool,
}

impl<'a> WeightUpdate<'a> {
    /// Creates one before its request is sent.
    #[must_use]
    pub(crate) fn new(state: &'a ProxyState) -> Self {
        Self { state, answered: false }
    }

    /// Records the status of the reply.
    pub(crate) fn answered(mut self, status: StatusCode) {
        self.answered = !status.is_server_error();
    }
}

impl Drop for WeightUpdate<'_> {
    fn drop(&mut self) {
        if !self.answered {
            drop(self.state.generator.policy.begin_epoch());
        }
    }
}

/// Observes a reply. The epoch advances with every success. It also advances with a 400 whose message is that the weights changed but the cache
/// could not be flushed, which SGLang 0.5.23 replies while requests are paused.
///
/// # Errors
/// When the reply is cut off.
pub(crate) async fn observe(state: &ProxyState, reply: Reply) -> Result<Response<Body>, Error> {
    let (mut head, body) = reply.into_parts();
    if head.status.is_success() {
        advance_epoch(state).await;
    }
    let body = match head.status {
        StatusCode::BAD_REQUEST => {
            match collect(body, &head.headers, LARGEST, state.budget.reply())
                .await
                .map_err(|failure| failed(&state.metrics, failure))?
            {
                BufferedReply::Passing { head, rest, .. } => {
                    Body::forwarded(ForwardedBody::unlimited(&state.metrics, head, rest))
                }
                BufferedReply::All(bytes) => {
                    if weights_changed(&bytes) {
                        advance_epoch(state).await;
                    }
                    Body::full(bytes)
                }
            }
        }
        _ => Body::forwarded(ForwardedBody::unlimited(&state.metrics, Bytes::new(), body)),
    };
    headers::end_hop(&mut head.headers);
    Ok(Response::from_parts(head, body))
}

/// Advances the epoch and waits until it is on disk, so that it is not used again after a crash. Then the trainer gets its reply.
async fn advance_epoch(state: &ProxyState) {
    state.generator.context.log_wait.wait(vec![state.generator.policy.begin_epoch().1]).await;
}

/// Whether an error reply means that the weights changed nevertheless.
fn weights_changed(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct ErrorReply {
        message: String,
    }
    let reply = serde_json::from_slice::<ErrorReply>(body);
    reply.is_ok_and(|reply| reply.message.to_ascii_lowercase().contains("flush"))
}
