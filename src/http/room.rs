//! Whether a session may have another turn.

use http::StatusCode;

use crate::error::Error;
use crate::http::Parts;

/// Lets a call of a session pass that has room for its turns. Calls that run at once may pass the limit together.
///
/// # Errors
/// A 403, which clients take for final: the next call of the session would be refused too.
pub fn check(parts: &Parts, session: &str) -> Result<(), Error> {
    let Some(found) = parts.sessions.session(session) else { return Ok(()) };
    let config = &parts.config.sessions;
    let (turns, branches) = found.extent();
    let full = |count: usize, what: &str, flag: &str| {
        let message = format!(
            "session {session:?} has {count} {what}, as many as {flag} allows; begin another session, or delete this one once it is exported"
        );
        Err(Error::Client { status: StatusCode::FORBIDDEN, message })
    };
    if turns >= config.max_session_turns {
        return full(turns, "turns", "--max-session-turns");
    }
    if branches >= config.max_session_branches {
        return full(branches, "branches", "--max-session-branches");
    }
    Ok(())
}
