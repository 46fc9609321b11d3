//! The limits of a session: whether it may have another turn.

use http::StatusCode;

use crate::config::SessionConfig;
use crate::error::Error;
use crate::session::Store;

/// Lets a call of `new` generations pass where its session has room for them. Calls that run at once may pass the limit together.
///
/// # Errors
/// A 403, which clients take for final: the next call of the session would be refused too.
pub fn check(config: &SessionConfig, sessions: &Store, session: &str, new: usize) -> Result<(), Error> {
    let (turns, branches) = sessions.session(session).map_or((0, 0), |found| found.extent());
    if new > config.max_session_turns || new > config.max_session_branches() {
        let message = format!(
            "{new} generations in one call of session {session:?} are more than --max-session-turns allows, or a quarter of it for branches"
        );
        return Err(Error::Client { status: StatusCode::FORBIDDEN, message });
    }
    let full = |count: usize, what: &str, flag: &str| {
        let message = format!(
            "session {session:?} has {count} {what}, as many as {flag} allows; begin another session, or delete this one once it is exported"
        );
        Err(Error::Client { status: StatusCode::FORBIDDEN, message })
    };
    if turns.saturating_add(new) > config.max_session_turns {
        return full(turns, "turns", "--max-session-turns");
    }
    if branches >= config.max_session_branches()
        || new > 1 && branches.saturating_add(new) > config.max_session_branches()
    {
        return full(branches, "branches", "a quarter of --max-session-turns");
    }
    Ok(())
}
