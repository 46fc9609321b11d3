// SPDX-License-Identifier: Apache-2.0
//! `/v1/high-entropy-tokens`: the sampled tokens with the highest entropies.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

use http::Response;
use serde_json::{Value, json};

use super::ok;
use super::query::Query;
use super::running::nats;
use super::turn_walk::{TurnVisitor, TurnWalk};
use crate::serve::body::Body;
use crate::serve::problem::Problem;
use crate::serve::proxy::Proxy;
use crate::session::{Session, Turn};

/// The default and the maximum number of tokens of a reply.
const TOKENS: (usize, usize) = (50, 1000);

/// The tokens before and after one that are returned with it.
const AROUND: (usize, usize) = (16, 8);

/// The tokens of a reply.
#[derive(Default)]
struct HighestEntropies {
    limit: usize,
    /// The lowest one is the first.
    tokens: BinaryHeap<Reverse<MeasuredToken>>,
    measured: usize,
    /// The session that is visited.
    session: Option<Arc<Session>>,
    /// The tokens up to the end of each of its turns, from their roots on.
    ends: Vec<usize>,
}

/// A sampled token.
struct MeasuredToken {
    /// Nats.
    entropy: f32,
    /// Rises in the order of visits.
    number: usize,
    session: Arc<Session>,
    turn: Arc<Turn>,
    /// Its index in the response.
    index: usize,
    /// Its index in the path that ends in the turn.
    position: usize,
}

/// Returns the tokens with the highest entropies.
pub(super) async fn list(proxy: &Arc<Proxy>, query: Query) -> Result<Response<Body>, Problem> {
    let Query { conditions, limit, after, .. } = query;
    let limit = limit.unwrap_or(TOKENS.0).min(TOKENS.1);
    let walk = TurnWalk::new(proxy, conditions, after)?;
    let (walk, highest) = walk.run(HighestEntropies { limit, ..HighestEntropies::default() }).await;
    let tokens = highest.tokens.into_sorted_vec();
    Ok(ok(&json!({
        "tokens": tokens.iter().map(|Reverse(token)| row(token)).collect::<Vec<_>>(),
        "sessions": walk.sessions,
        "measured": highest.measured,
        "next": walk.next(),
    })))
}

fn row(token: &MeasuredToken) -> Value {
    let MeasuredToken { entropy, session, turn, index, position, .. } = token;
    let (prompt, response) = (&turn.prompt[..], &turn.response[..]);
    let missing = AROUND.0.saturating_sub(*index).min(prompt.len());
    let before = [&prompt[prompt.len() - missing..], &response[index.saturating_sub(AROUND.0)..*index]].concat();
    let after = &response[index + 1..response.len().min(index + 1 + AROUND.1)];
    json!({
        "entropy": nats(*entropy),
        "session": &*session.id,
        "turn": turn.id,
        "position": position,
        "token_id": response[*index],
        "before": before,
        "after": after,
    })
}

impl HighestEntropies {
    /// The position at which the response of a turn begins in its path; `None` if an earlier turn is missing.
    fn start(&mut self, session: &Arc<Session>, turn: &Turn) -> Option<usize> {
        if !self.session.as_ref().is_some_and(|visited| Arc::ptr_eq(visited, session)) {
            self.session = Some(Arc::clone(session));
            self.ends.clear();
        }
        // a walk may continue within a session
        for id in u32::try_from(self.ends.len()).ok()?..turn.id {
            let before = session.turn(id)?;
            let end = self.response_start(&before)? + before.response.len();
            self.ends.push(end);
        }
        self.response_start(turn)
    }

    fn response_start(&self, turn: &Turn) -> Option<usize> {
        let start = turn.parent.map_or(Some(0), |parent| self.ends.get(parent as usize).copied())?;
        Some(start + turn.prompt.len())
    }
}

impl TurnVisitor for HighestEntropies {
    const MOST_TOKENS: usize = 1 << 24;
    const STEP_TOKENS: usize = 1 << 20;

    fn is_full(&self) -> bool {
        false
    }

    fn visit(&mut self, session: &Arc<Session>, turn: &Arc<Turn>) -> usize {
        let Some(start) = self.start(session, turn) else { return 0 };
        let measured = turn.known_entropies().iter().copied().enumerate();
        for (index, entropy) in measured.filter(|(_, entropy)| entropy.is_finite()) {
            self.measured += 1;
            let is_full = self.tokens.len() == self.limit;
            if is_full && self.tokens.peek().is_some_and(|Reverse(lowest)| entropy <= lowest.entropy) {
                continue;
            }
            if is_full {
                self.tokens.pop();
            }
            let (session, turn, number) = (Arc::clone(session), Arc::clone(turn), self.measured);
            let position = start + index;
            self.tokens.push(Reverse(MeasuredToken { entropy, number, session, turn, index, position }));
        }
        turn.response.len()
    }
}

impl Ord for MeasuredToken {
    /// By the entropy, and of equal ones the first visited is the highest.
    fn cmp(&self, other: &Self) -> Ordering {
        self.entropy.total_cmp(&other.entropy).then_with(|| other.number.cmp(&self.number))
    }
}

impl PartialOrd for MeasuredToken {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MeasuredToken {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for MeasuredToken {}
