//! Checks the limits of a session before it gets another turn.

use crate::error::Error;
use crate::generation::settings::SessionLimits;
use crate::session::Sessions;

/// Checks that a session has room for a call of `new` generations. Concurrent calls may exceed the limit together.
///
/// # Errors
/// A 403 when the limit is reached. Clients do not retry a 403, and a retry would be refused too.
pub(crate) fn check(limits: SessionLimits, sessions: &Sessions, session: &str, new: usize) -> Result<(), Error> {
    let (turns, branches) = sessions.session(session).map_or((0, 0), |found| found.extent());
    if new > limits.turns || new > limits.branches {
        let message = format!(
            "{new} generations in one call of session {session:?} are more than its {} turns and {} branches",
            limits.turns, limits.branches,
        );
        return Err(Error::Forbidden { message });
    }
    let full = |count: usize, what: &str| {
        let message = format!(
            "session {session:?} has {count} {what}, as many as it may have; \
             begin another session, or delete this one once it is exported"
        );
        Err(Error::Forbidden { message })
    };
    if turns.saturating_add(new) > limits.turns {
        return full(turns, "turns");
    }
    if branches >= limits.branches || new > 1 && branches.saturating_add(new) > limits.branches {
        return full(branches, "branches");
    }
    Ok(())
}
