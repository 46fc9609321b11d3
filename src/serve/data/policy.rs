//! Calls that change the weights, as they pass.

use bytes::Bytes;
use http::{Response, StatusCode};

use crate::engine::client::Reply;
use crate::engine::forwarded::Forwarded;
use crate::engine::headers;
use crate::engine::upstream::failed;
use crate::error::Error;
use crate::generation::buffered::{BufferedReply, collect};
use crate::serve::body::Body;
use crate::serve::proxy_state::ProxyState;

/// Answers of these routes are a line of JSON.
const LARGEST: u64 = 64 << 10;

/// A call that changes weights. Where its answer is not seen, or is an error of the engine's own, it is unknown whether it did: the epoch
/// moves, for tokens of two policies must not pass for those of one.
#[derive(Debug)]
pub struct Change<'a> {
    state: &'a ProxyState,
    answered: bool,
}

impl<'a> Change<'a> {
    /// One that is about to be sent.
    #[must_use]
    pub fn new(state: &'a ProxyState) -> Self {
        Self { state, answered: false }
    }

    /// It was answered with this status.
    pub fn answered(mut self, status: StatusCode) {
        self.answered = !status.is_server_error();
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if !self.answered {
            drop(self.state.generator.policy.changed());
        }
    }
}

/// Takes note of an answer. The epoch moves with every success. It also moves with a 400 that says that the weights are new and only
/// the cache could not be flushed, as 0.5.23 answers while requests are paused.
///
/// # Errors
/// When the answer breaks off.
pub async fn observe(state: &ProxyState, reply: Reply) -> Result<Response<Body>, Error> {
    let (mut head, body) = reply.into_parts();
    if head.status.is_success() {
        changed(state).await;
    }
    let body = match head.status {
        StatusCode::BAD_REQUEST => {
            match collect(body, &head.headers, LARGEST, state.budget.reply())
                .await
                .map_err(|failure| failed(&state.metrics, failure))?
            {
                BufferedReply::Passing { head, rest, .. } => {
                    Body::forwarded(Forwarded::patient(&state.metrics, head, rest))
                }
                BufferedReply::All(bytes) => {
                    if has_moved(&bytes) {
                        changed(state).await;
                    }
                    Body::full(bytes)
                }
            }
        }
        _ => Body::forwarded(Forwarded::patient(&state.metrics, Bytes::new(), body)),
    };
    headers::end_hop(&mut head.headers);
    Ok(Response::from_parts(head, body))
}

/// The epoch moves, and is on disk before the trainer hears of it: after a crash it must not be given again.
async fn changed(state: &ProxyState) {
    state.generator.log_wait.wait(vec![state.generator.policy.changed().1]).await;
}

/// Whether a refusal says that the weights were changed all the same.
fn has_moved(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Refusal {
        message: String,
    }
    let refusal = serde_json::from_slice::<Refusal>(body);
    refusal.is_ok_and(|refusal| refusal.message.to_ascii_lowercase().contains("flush"))
}
