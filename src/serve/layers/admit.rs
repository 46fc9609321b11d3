// SPDX-License-Identifier: Apache-2.0
//! Admits requests: only once the sessions are restored, and up to the limit of concurrent requests.

use std::sync::Arc;

use http::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{ResponseEdit, failed_grpc_status};
use crate::error::Error;
use crate::metrics::Metrics;
use crate::serve::reply_body::ReplyBody;
use crate::serve::request_info::RequestInfo;
use crate::session::Sessions;

/// Refuses a request that needs sessions while they are being restored from the log: it could start a session again that is in the log.
///
/// # Errors
/// A 503 until they are restored.
pub(crate) fn check_restored(sessions: &Sessions, info: &RequestInfo) -> Result<(), Error> {
    if !info.needs_sessions {
        return Ok(());
    }
    let Some(progress) = sessions.restoration().progress() else { return Ok(()) };
    let message = format!(
        "sessions are being restored from the log, {} of {} bytes are read; try again in a moment, or when /readyz is 200",
        progress.read, progress.total
    );
    Err(Error::Unavailable { message })
}

/// The request permits, shared by both ports.
#[derive(Debug, Clone)]
pub(crate) struct Permits {
    pub semaphore: Arc<Semaphore>,
    /// The number of permits, `--max-requests`.
    pub limit: usize,
    /// Counts refused requests.
    pub metrics: Arc<Metrics>,
}

impl Permits {
    /// Acquires a permit for a request that needs one, without waiting. The body of the response holds it.
    ///
    /// # Errors
    /// A 503 if no permit is free.
    pub(crate) fn acquire(&self, info: &RequestInfo) -> Result<AdmissionPermit, Error> {
        if !info.needs_permit {
            return Ok(AdmissionPermit(None));
        }
        if let Ok(permit) = Arc::clone(&self.semaphore).try_acquire_owned() {
            return Ok(AdmissionPermit(Some(permit)));
        }
        self.metrics.shed.with_label_values(&["max_requests"]).inc();
        let limit = self.limit;
        let message =
            format!("tokentap is at its limit of {limit} concurrent requests; try again, or raise --max-requests");
        Err(Error::Unavailable { message })
    }
}

/// A permit; `None` for a request that needs none.
#[derive(Debug)]
pub(crate) struct AdmissionPermit(Option<OwnedSemaphorePermit>);

impl ResponseEdit for AdmissionPermit {
    fn apply(self, response: &mut Response<ReplyBody>) {
        let Self(Some(permit)) = self else { return };
        // a failed request takes no work of the engine, so a client that does not read its error must not hold a permit
        if response.status().is_success() && failed_grpc_status(response).is_none() {
            response.body_mut().set_permit(permit);
        }
    }
}
