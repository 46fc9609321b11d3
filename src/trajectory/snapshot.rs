//! A session at one moment, to be looked at without holding it up.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::export::Refused;
use super::session::{Reward, Session, SessionError};
use super::{Cause, Fault, Path, Step, Turn, View};

/// A version of a session, to be looked at without holding anything up.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The session.
    pub session: Arc<str>,
    /// The version, from 1.
    pub version: u32,
    /// Whether it will stay as it is.
    pub is_frozen: bool,
    /// A generation passed unseen.
    pub incomplete: bool,
    turns: Vec<Arc<Turn>>,
    rewards: Vec<Reward>,
}

/// What a session looks like from afar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// When it began: milliseconds since 1970.
    pub created_ms: u64,
    /// Its turns.
    pub turns: usize,
    /// Sampled tokens of all turns.
    pub sampled_tokens: usize,
    /// Turns that are not trained, by the name of what is wrong.
    pub faults: Vec<(&'static str, usize)>,
    /// Turns by how they found their place.
    pub causes: Vec<(&'static str, usize)>,
    /// Frozen versions.
    pub frozen: usize,
    /// A call said that it was the last.
    pub done: bool,
    /// A generation passed unseen.
    pub incomplete: bool,
    /// Calls that are running.
    pub running: u32,
    /// Bytes held.
    pub bytes: u64,
}

impl Session {
    /// The state of one version: of the last frozen one, unless another is named; of the open one where none is frozen.
    ///
    /// # Errors
    /// [`SessionError::NoVersion`].
    pub fn snapshot(&self, version: Option<u32>) -> Result<Snapshot, SessionError> {
        let state = self.state();
        let frozen = u32::try_from(state.frozen.len()).unwrap_or(u32::MAX);
        let version = version.unwrap_or(frozen.max(1));
        let turns = match version.checked_sub(1).map(|at| (at, state.frozen.get(at as usize))) {
            Some((_, Some(turns))) => &state.forest.turns()[..*turns as usize],
            Some((at, None)) if at == frozen => state.forest.turns(),
            _ => return Err(SessionError::NoVersion),
        };
        let rewards = state.rewards.iter().filter(|reward| reward.version <= version).cloned().collect();
        Ok(Snapshot {
            session: Arc::clone(&self.id),
            version,
            is_frozen: version <= frozen,
            incomplete: state.incomplete.is_some_and(|since| since <= version),
            turns: turns.to_vec(),
            rewards,
        })
    }

    /// Whether an exported path ends in this turn, as the session stands now.
    #[must_use]
    pub fn ends_path(&self, leaf: u32) -> bool {
        View::new(self.state().forest.turns()).leaves().exported.contains(&leaf)
    }

    /// What it looks like from afar.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let state = self.state();
        let turns = state.forest.turns();
        let count = |name: &'static str, count: usize| (count > 0).then_some((name, count));
        let of = |fault: Fault| turns.iter().filter(|turn| turn.about.fault == Some(fault)).count();
        let by = |cause: Cause| turns.iter().filter(|turn| turn.about.cause == cause).count();
        Summary {
            created_ms: state.created_ms,
            turns: turns.len(),
            sampled_tokens: turns.iter().map(|turn| turn.response.len()).sum(),
            faults: Fault::ALL.into_iter().filter_map(|fault| count(fault.name(), of(fault))).collect(),
            causes: Cause::ALL.into_iter().filter_map(|cause| count(cause.name(), by(cause))).collect(),
            frozen: state.frozen.len(),
            done: state.done,
            incomplete: state.incomplete.is_some(),
            running: state.running,
            bytes: state.bytes,
        }
    }
}

/// The last word on a leaf, else on its session, in this version.
pub(super) fn last_word(rewards: &[Reward], version: u32, leaf: u32) -> Option<Arc<Value>> {
    let last = |of: Option<u32>| {
        let mut said = rewards.iter().rev().filter(|reward| reward.version <= version && reward.leaf == of);
        said.next().map(|reward| Arc::clone(&reward.value))
    };
    last(Some(leaf)).or_else(|| last(None))
}

impl Snapshot {
    /// Its turns.
    #[must_use]
    pub fn turns(&self) -> &[Arc<Turn>] {
        &self.turns
    }

    /// The exported paths, and the leaves that are none. Without branches only the leaf with the most trainable tokens.
    #[must_use]
    pub fn paths(&self, branches: bool) -> (Vec<Path>, Vec<Refused>) {
        let view = View::new(&self.turns);
        let leaves = view.leaves();
        let chosen = if branches { leaves.exported } else { view.longest(&leaves.exported).into_iter().collect() };
        let mut seen = HashSet::new();
        let rows = chosen.into_iter().map(|leaf| self.row(leaf, view.steps(leaf, &mut seen))).collect();
        let refused = leaves.refused.into_iter().map(|(leaf, reason)| Refused {
            session: Arc::clone(&self.session),
            leaf,
            reason,
        });
        (rows, refused.collect())
    }

    /// The path that ends in `leaf`, or in the leaf with the most trainable tokens. What is trainable on it is trained, unless `seen`
    /// has it; it has it afterwards.
    ///
    /// # Errors
    /// [`SessionError::NoTurn`]; also where nothing is trainable.
    pub fn path(&self, leaf: Option<u32>, seen: &mut HashSet<u32>) -> Result<Path, SessionError> {
        let view = View::new(&self.turns);
        let leaf = leaf.or_else(|| view.longest(&view.leaves().exported));
        let leaf = leaf.filter(|leaf| (*leaf as usize) < self.turns.len()).ok_or(SessionError::NoTurn)?;
        Ok(self.row(leaf, view.steps(leaf, seen)))
    }

    /// The path that ends in `leaf`, trained as in an export of the session with its branches; a leaf that is not exported has nothing
    /// trained.
    ///
    /// # Errors
    /// [`SessionError::NoTurn`].
    pub fn look(&self, leaf: u32) -> Result<Path, SessionError> {
        if leaf as usize >= self.turns.len() {
            return Err(SessionError::NoTurn);
        }
        let (view, mut seen) = (View::new(&self.turns), HashSet::new());
        for exported in view.leaves().exported {
            let steps = view.steps(exported, &mut seen);
            if exported == leaf {
                return Ok(self.row(leaf, steps));
            }
        }
        Ok(self.context(leaf))
    }

    /// The path of a leaf that is not exported: nothing on it is trained.
    #[must_use]
    pub fn context(&self, leaf: u32) -> Path {
        let untrained = |turn| Step { turn, trained: false };
        self.row(leaf, View::new(&self.turns).path(leaf).into_iter().map(untrained).collect())
    }

    fn row(&self, leaf: u32, steps: Vec<Step>) -> Path {
        Path {
            session: Arc::clone(&self.session),
            version: self.version,
            steps,
            reward: last_word(&self.rewards, self.version, leaf),
            incomplete: self.incomplete,
        }
    }
}
