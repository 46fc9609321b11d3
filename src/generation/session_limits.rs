//! Checks the limits of a session before it gets another turn.

use http::StatusCode;

use crate::config::SessionConfig;
use crate::error::Error;
use crate::session::Sessions;

/// Checks that a session has room for a call of `new` generations. Concurrent calls may exceed the limit together.
///
/// # Errors
/// A 403 when the limit is reached. Clients do not retry a 403, and a retry would be refused too.
pub(crate) fn check(config: &SessionConfig, sessions: &Sessions, session: &str, new: usize) -> Result<(), Error> {
    let (turns, branches) = sessions.session(session).map_or((0, 0), |found| found.extent());
    if new > config.max_session_turns || new > config.max_session_branches() {
        let message = format!(
            "{new} generations in one call of session {session:?} are more than --max-session-turns allows, or a quarter of it for branches"
        );
        return Err(Error::Client { status: StatusCode::FORBIDDEN, message });
    }
    let full = |count: usize, what: &str, flag: &str| {
        let message = format!(
            "session {session:?} has {count} {what}, as many as {flag} allows; \
             begin another session, or delete this one once it is exported"
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
