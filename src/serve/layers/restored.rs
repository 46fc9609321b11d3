//! Refuses requests that need sessions while sessions are restored from the log. Such a call could start a session again that is in the
//! log.

use http::Request;

use crate::error::Error;
use crate::serve::request_info::RequestInfo;
use crate::session::Sessions;

/// Checks that sessions are restored, if the request needs them.
///
/// # Errors
/// A 503 until they are restored.
pub(crate) fn check<B>(sessions: &Sessions, request: &Request<B>) -> Result<(), Error> {
    if !RequestInfo::of(request).needs_sessions {
        return Ok(());
    }
    let Some(progress) = sessions.restore_progress() else { return Ok(()) };
    let message = format!(
        "sessions are being restored from the log, {} of {} bytes are read; try again in a moment, or when /readyz is 200",
        progress.read, progress.total
    );
    Err(Error::Unavailable { message })
}
