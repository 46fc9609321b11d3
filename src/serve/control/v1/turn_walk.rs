// SPDX-License-Identifier: Apache-2.0
//! Visits the turns of the sessions in memory, the latest sessions first, in short steps.

use std::fmt;
use std::sync::{Arc, LazyLock};

use crate::long_work::offload_export;
use crate::serve::problem::Problem;
use crate::serve::proxy::Proxy;
use crate::session::{Conditions, Session, Turn, Uid};

/// This run of the process, which numbers the sessions.
static RUN: LazyLock<Uid> = LazyLock::new(Uid::unique);

/// Sessions that are looked at in one step.
const STEP_SESSIONS: usize = 256;

/// What is done with each turn.
pub(super) trait TurnVisitor {
    /// Tokens after which a walk ends, and another request continues.
    const MOST_TOKENS: usize;

    /// Tokens of one step. If the client has left, no further step begins.
    const STEP_TOKENS: usize;

    /// Whether nothing more fits into the reply.
    fn is_full(&self) -> bool;

    /// Returns the tokens that it has read.
    fn visit(&mut self, session: &Arc<Session>, turn: &Arc<Turn>) -> usize;
}

/// A walk that has not ended.
pub(super) struct TurnWalk {
    proxy: Arc<Proxy>,
    conditions: Option<Conditions>,
    /// Where it continues; `None` at the end.
    position: Option<WalkPosition>,
    /// The sessions that were visited.
    pub sessions: usize,
    /// The tokens that were read, and one for each turn.
    pub tokens: usize,
}

/// Before the session with this number, or in it from this turn on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WalkPosition {
    run: Uid,
    session: u64,
    turn: u32,
}

impl TurnWalk {
    /// A walk over the sessions that meet the conditions. `after` is the `next` of an earlier one.
    ///
    /// # Errors
    /// 400 if `after` is something else.
    pub(super) fn new(
        proxy: &Arc<Proxy>,
        conditions: Option<Conditions>,
        after: Option<String>,
    ) -> Result<Self, Problem> {
        let position = match after {
            None => WalkPosition { run: *RUN, session: u64::MAX, turn: 0 },
            Some(after) => WalkPosition::parse(&after).filter(|position| position.run == *RUN).ok_or_else(|| {
                Problem::bad_request(format!(
                    "after: must be the next of a reply since tokentap has started, not {after:?}"
                ))
            })?,
        };
        Ok(Self { proxy: Arc::clone(proxy), conditions, position: Some(position), sessions: 0, tokens: 0 })
    }

    /// Where another walk continues; `None` at the end.
    pub(super) fn next(&self) -> Option<String> {
        self.position.map(|position| position.to_string())
    }

    /// Visits turns on the threads of exports until the visitor is full, or has read as many tokens as it may.
    pub(super) async fn run<V: TurnVisitor + Send + 'static>(mut self, mut visitor: V) -> (Self, V) {
        while self.position.is_some() && !visitor.is_full() && self.tokens < V::MOST_TOKENS {
            // a client that leaves drops this future between two steps
            (self, visitor) = offload_export(move || {
                self.step(&mut visitor);
                (self, visitor)
            })
            .await;
        }
        (self, visitor)
    }

    fn step<V: TurnVisitor>(&mut self, visitor: &mut V) {
        let Some(position) = self.position else { return };
        let (end, most) = ((self.tokens + V::STEP_TOKENS).min(V::MOST_TOKENS), STEP_SESSIONS);
        // the session at which the walk stopped is before the next number
        let page = self.proxy.sessions.latest_before(position.session.saturating_add(1), most);
        let mut turn = position.turn;
        let is_last = page.len() < most;
        for (number, session) in page {
            if number != position.session {
                turn = 0;
            }
            let is_chosen = self.conditions.as_ref().is_none_or(|conditions| session.meets(conditions));
            while is_chosen && let Some(next) = session.turn(turn) {
                if self.tokens >= end || visitor.is_full() {
                    self.position = Some(WalkPosition { session: number, turn, ..position });
                    return;
                }
                self.sessions += usize::from(turn == 0);
                // one more, so that a walk over empty turns ends as well
                self.tokens += visitor.visit(&session, &next) + 1;
                turn += 1;
            }
            self.position = number.checked_sub(1).map(|session| WalkPosition { session, turn: 0, ..position });
        }
        if is_last {
            self.position = None;
        }
    }
}

impl fmt::Display for WalkPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.run, self.session, self.turn)
    }
}

impl WalkPosition {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (run, session, turn) = (parts.next()?, parts.next()?, parts.next()?);
        let position = Self { run: run.parse().ok()?, session: session.parse().ok()?, turn: turn.parse().ok()? };
        parts.next().is_none().then_some(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_their_text() {
        let position = WalkPosition { run: Uid::unique(), session: 7, turn: 3 };
        assert_eq!(WalkPosition::parse(&position.to_string()), Some(position));
        for text in ["7", "a-1-2", &format!("{position}-1")] {
            assert_eq!(WalkPosition::parse(text), None, "{text}");
        }
    }
}
