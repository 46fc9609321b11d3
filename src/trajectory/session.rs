//! A session: a forest of turns with what trainers said about it, in versions that stay as they are.

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::export::Refused;
use super::{Cause, Fault, Forest, Path, Turn, View, turn::Draft};

/// A session. Turns are only ever added, so a version is how many of them it has.
#[derive(Debug)]
pub struct Session {
    /// Its name.
    pub id: Arc<str>,
    /// When it began: milliseconds since 1970.
    pub created_ms: u64,
    /// Its place in the order of use; written by the store alone.
    pub(super) tick: AtomicU64,
    /// Its place in the order of birth.
    pub(super) birth: u64,
    // held for the length of a look or of one insertion, never across an await
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) forest: Forest,
    /// How many turns each frozen version has.
    pub(super) frozen: Vec<u32>,
    pub(super) rewards: Vec<Reward>,
    /// The version that was open when a generation passed unseen.
    pub(super) incomplete: Option<u32>,
    /// A call said that it was the last.
    pub(super) done: bool,
    /// Evicted or deleted: nothing may be added any more.
    pub(super) gone: bool,
    /// Calls that are running.
    pub(super) running: u32,
    pub(super) bytes: u64,
    pub(super) finished: Vec<Finished>,
}

/// What a trainer said a session, or one leaf of it, is worth.
#[derive(Debug, Clone, PartialEq)]
pub struct Reward {
    /// The version that was open then.
    pub version: u32,
    /// The turn; `None`: the whole session.
    pub leaf: Option<u32>,
    /// A number or an object.
    pub value: Arc<Value>,
}

/// A path that was given out as finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// Its place in the order of all finished paths.
    pub number: u64,
    /// Its last turn.
    pub leaf: u32,
    /// How many turns the session had.
    pub turns: u32,
}

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

/// What cannot be done with a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// There is no such version.
    #[error("there is no such version")]
    NoVersion,
    /// There is no such turn.
    #[error("there is no such turn")]
    NoTurn,
    /// The version is frozen and nothing came behind it.
    #[error("the session is frozen; a reward belongs to a version that is still open")]
    Frozen,
    /// The session has been deleted or evicted in the meantime.
    #[error("the session is gone")]
    Gone,
}

impl State {
    /// The version that later calls belong to.
    pub(super) fn open_version(&self) -> u32 {
        u32::try_from(self.frozen.len()).unwrap_or(u32::MAX - 1) + 1
    }
}

impl Session {
    pub(super) fn new(id: Arc<str>, birth: u64, created_ms: u64) -> Self {
        Self { id, created_ms, birth, tick: AtomicU64::new(0), state: Mutex::default() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

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

    /// Freezes what is there; returns the version. Freezing again, with nothing new, changes nothing.
    ///
    /// # Errors
    /// [`SessionError::Gone`].
    pub(super) fn freeze(&self) -> Result<(u32, Option<u32>), SessionError> {
        let mut state = self.state();
        if state.gone {
            return Err(SessionError::Gone);
        }
        let turns = state.forest.next_id();
        let new = state.frozen.last() != Some(&turns);
        if new {
            state.frozen.push(turns);
        }
        let version = u32::try_from(state.frozen.len()).unwrap_or(u32::MAX);
        Ok((version, new.then_some(turns)))
    }

    /// Attaches a reward to the version that is open; returns it.
    ///
    /// # Errors
    /// When the session is frozen, or has no such turn.
    pub(super) fn reward(&self, leaf: Option<u32>, value: Arc<Value>) -> Result<Reward, SessionError> {
        let mut state = self.state();
        if state.gone {
            return Err(SessionError::Gone);
        }
        let turns = state.forest.next_id();
        if state.frozen.last() == Some(&turns) {
            return Err(SessionError::Frozen);
        }
        if leaf.is_some_and(|leaf| leaf >= turns) {
            return Err(SessionError::NoTurn);
        }
        let version = state.open_version();
        let reward = Reward { version, leaf, value };
        state.rewards.push(reward.clone());
        Ok(reward)
    }

    /// Gives a turn its place and adds it; returns the bytes it takes and what `record`, called in the order of the turns, said.
    pub(super) fn commit<T>(&self, draft: Draft, record: impl FnOnce(&Arc<Turn>) -> T) -> Option<(u64, T)> {
        let mut state = self.state();
        if state.gone {
            return None;
        }
        let id = state.forest.next_id();
        let (parent, cause, prompt) = match &draft.prompt {
            Some(prompt) => {
                let place = state.forest.place(prompt);
                (place.parent, place.cause, place.suffix)
            }
            None => (None, Cause::Unplaced, Arc::default()),
        };
        let turn = Arc::new(draft.place(id, parent, cause, prompt));
        let bytes = turn.bytes();
        let recorded = record(&turn);
        state.forest.push(turn);
        state.bytes += bytes;
        Some((bytes, recorded))
    }

    /// Turns that have not been given out as finished, as far as they end a path now.
    pub(super) fn unfinished(&self) -> Vec<u32> {
        let state = self.state();
        let given: HashSet<u32> = state.finished.iter().map(|finished| finished.leaf).collect();
        let leaves = View::new(state.forest.turns()).leaves().exported;
        leaves.into_iter().filter(|leaf| !given.contains(leaf)).collect()
    }

    /// The path that was given out under this number: its tokens are trained unless a path given out earlier holds them.
    #[must_use]
    pub fn finished(&self, number: u64) -> Option<Path> {
        let state = self.state();
        let at = state.finished.iter().position(|finished| finished.number == number)?;
        let mut seen = HashSet::new();
        let mut steps = Vec::new();
        for finished in &state.finished[..=at] {
            steps = View::new(state.forest.turns()).steps(finished.leaf, &mut seen);
        }
        let finished = state.finished[at];
        let version = 1 + state.frozen.iter().filter(|turns| **turns < finished.turns).count();
        let version = u32::try_from(version).unwrap_or(u32::MAX);
        Some(Path {
            session: Arc::clone(&self.id),
            version,
            steps,
            reward: reward(&state.rewards, version, finished.leaf),
            incomplete: state.incomplete.is_some_and(|since| since <= version),
        })
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
fn reward(rewards: &[Reward], version: u32, leaf: u32) -> Option<Arc<Value>> {
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

    /// The path of a leaf that is not exported: nothing on it is trained.
    #[must_use]
    pub fn context(&self, leaf: u32) -> Path {
        let untrained = |turn| super::Step { turn, trained: false };
        self.row(leaf, View::new(&self.turns).path(leaf).into_iter().map(untrained).collect())
    }

    fn row(&self, leaf: u32, steps: Vec<super::Step>) -> Path {
        Path {
            session: Arc::clone(&self.session),
            version: self.version,
            steps,
            reward: reward(&self.rewards, self.version, leaf),
            incomplete: self.incomplete,
        }
    }
}
