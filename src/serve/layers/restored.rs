//! Refuses what needs sessions while those are restored from the log: a call would begin a session anew that the log has.

use http::Request;

use crate::error::Error;
use crate::serve::request_info::RequestInfo;
use crate::session::Store;

/// Whether the sessions that a request needs have been restored.
///
/// # Errors
/// A 503 while they have not.
pub fn check<B>(sessions: &Store, request: &Request<B>) -> Result<(), Error> {
    if !RequestInfo::of(request).needs_sessions {
        return Ok(());
    }
    let Some(progress) = sessions.restore_progress() else { return Ok(()) };
    let message = format!(
        "sessions are restored from the log, {} of {} bytes are read; try again in a moment, or when /readyz is 200",
        progress.read, progress.total
    );
    Err(Error::Unavailable { message })
}
