// SPDX-License-Identifier: Apache-2.0
//! A session at one moment, to be read without locking it.

mod row;
mod scored;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::error::SessionError;
use super::session_row::policy_of;
use super::state::{PER_LOCK, Session};
use super::view::{Claims, Lineage, TrainedTurns, leaves, lineages};
use super::{Path, RewardScope, Tags, Totals, Turn, TurnSelection};
use crate::columns::Column;
pub use row::{ExcludedLeaf, Row};

/// A version of a session. It shares its turns with the session and is shared by all rows of an export.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The session.
    pub session: Arc<str>,
    /// The version, from 1.
    pub version: u32,
    /// Whether the version is frozen.
    pub is_frozen: bool,
    /// A generation was not recorded.
    pub incomplete: bool,
    /// The tags of the session.
    pub tags: Tags,
    turns: Vec<Arc<Turn>>,
    /// The turns that its rows train.
    trained: TrainedTurns,
    /// The last rewards of paths and of the session.
    rewards: HashMap<RewardScope, Arc<Value>>,
    /// The last reward of each turn that has one.
    turn_rewards: HashMap<u32, Arc<Value>>,
    /// The columns of scores by the teacher that the reader asked for, by turn; `None` if no scores were asked for.
    scores: Option<HashMap<u32, Arc<[Column]>>>,
    lineages: OnceLock<Box<[Lineage]>>,
}

/// A summary of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The start of the session: milliseconds since 1970.
    pub created_ms: u64,
    /// Its turns.
    pub turns: usize,
    /// Sampled tokens of all turns.
    pub sampled_tokens: usize,
    /// Turns that are not trained, by the name of their fault.
    pub faults: Vec<(&'static str, usize)>,
    /// Turns by the name of their cause.
    pub causes: Vec<(&'static str, usize)>,
    /// Frozen versions.
    pub frozen: usize,
    /// A call was marked as the last.
    pub done: bool,
    /// A generation was not recorded.
    pub incomplete: bool,
    /// Calls that are running.
    pub running: u32,
    /// The bytes that the session takes.
    pub bytes: u64,
    /// Its tags.
    pub tags: Tags,
    /// The rows of an export of the default classes.
    pub rows: usize,
    /// The sampled tokens that they train.
    pub trained_tokens: u64,
    /// The mean of their rewards that are numbers.
    pub reward: Option<f64>,
    /// Numbers over its turns.
    pub totals: Totals,
    /// How the latest turn ended.
    pub finish: Option<Box<str>>,
    /// The policy that sampled last: the trainer's name, else the engine's, else the epoch.
    pub policy: Option<String>,
}

impl Session {
    /// A snapshot of `version` for an export of the default classes. Without a version, it is the last frozen one, or the open one if none is
    /// frozen.
    ///
    /// # Errors
    /// [`SessionError::NoVersion`].
    pub fn snapshot(&self, version: Option<u32>) -> Result<Arc<Snapshot>, SessionError> {
        self.snapshot_of(version, TurnSelection::default())
    }

    /// A snapshot of the open version for an export of the default classes.
    #[must_use]
    pub fn open_snapshot(&self) -> Arc<Snapshot> {
        let version = self.state().open_version();
        self.snapshot(Some(version)).expect("versions are never removed")
    }

    /// The same for an export of `selection`.
    ///
    /// # Errors
    /// [`SessionError::NoVersion`].
    pub fn snapshot_of(
        &self,
        version: Option<u32>,
        selection: impl Into<TurnSelection>,
    ) -> Result<Arc<Snapshot>, SessionError> {
        let selection = selection.into();
        let (mut snapshot, count) = {
            let state = self.state();
            let frozen = state.last_frozen().version;
            let version = version.unwrap_or(frozen.max(1));
            let count = match version.checked_sub(1).map(|at| (at, state.frozen.get(at as usize))) {
                Some((_, Some(turns))) => *turns,
                Some((at, None)) if at == frozen => state.forest.next_id(),
                _ => return Err(SessionError::NoVersion(state.open_version())),
            };
            let snapshot = Snapshot {
                session: Arc::clone(&self.id),
                version,
                is_frozen: version <= frozen,
                incomplete: state.incomplete.is_some_and(|since| since <= version),
                tags: state.tags.clone(),
                turns: Vec::new(),
                trained: TrainedTurns::new(&[], selection),
                rewards: HashMap::new(),
                turn_rewards: HashMap::new(),
                scores: None,
                lineages: OnceLock::new(),
            };
            (snapshot, count)
        };
        snapshot.turns = self.turns(count);
        snapshot.trained = TrainedTurns::new(&snapshot.turns, selection);
        (snapshot.rewards, snapshot.turn_rewards) = split(self.rewards(snapshot.version));
        Ok(Arc::new(snapshot))
    }

    /// The first `count` turns. Turns are only ever added, so the lock may be released between the parts.
    pub(super) fn turns(&self, count: u32) -> Vec<Arc<Turn>> {
        let mut turns = Vec::with_capacity(count as usize);
        while turns.len() < count as usize {
            let end = (turns.len() + PER_LOCK).min(count as usize);
            turns.extend_from_slice(&self.state().forest.turns()[turns.len()..end]);
        }
        turns
    }

    /// The last reward of each scope, up to a version. The lock is released between the parts: a frozen version gets no rewards, and in an
    /// open one the rewards of scopes do not depend on each other.
    fn rewards(&self, version: u32) -> HashMap<RewardScope, Arc<Value>> {
        let (mut rewards, mut next) = (HashMap::new(), Some(RewardScope::Session));
        while let Some(from) = next {
            next = self.state().rewards.copy(version, from, PER_LOCK, &mut rewards);
        }
        rewards
    }

    /// Whether an exported path currently ends in this turn: it is trainable, its reply reached the client, and no turn after it is trained.
    /// After a turn of the default classes, turns of other classes are not trained.
    /// The lock is released between the parts of the search, which takes long if many turns after it are not trained.
    #[must_use]
    pub fn ends_path(&self, leaf: u32) -> bool {
        if let [turn] = self.state().forest.turns() {
            return turn.id == leaf && turn.is_trainable();
        }
        let Some(mut search) = self.state().forest.descendants(leaf) else { return false };
        loop {
            let found = self.state().forest.finds_trained(&mut search, PER_LOCK);
            if let Some(found) = found {
                return !found;
            }
        }
    }

    /// The number of turns, and of turns that end a path.
    #[must_use]
    pub fn extent(&self) -> (usize, usize) {
        let state = self.state();
        (state.forest.turns().len(), state.forest.counts().leaves)
    }

    /// The generation of the numbers of its turns. It rises when they may have changed, because the shared ledger had lost entries.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.state().generation
    }

    /// A summary of the session.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let state = self.state();
        let (counts, exported) = (state.forest.counts(), state.exported());
        let last = state.forest.turns().last();
        Summary {
            created_ms: state.created_ms,
            turns: state.forest.turns().len(),
            sampled_tokens: counts.sampled_tokens,
            faults: counts.faults(),
            causes: counts.causes(),
            frozen: state.frozen.len(),
            done: state.done,
            incomplete: state.incomplete.is_some(),
            running: state.running,
            bytes: state.size(),
            tags: state.tags.clone(),
            rows: exported.rows.len(),
            trained_tokens: exported.trained_tokens,
            reward: exported.mean_reward(),
            totals: state.totals.clone(),
            finish: last.and_then(|turn| turn.about.finish.clone()),
            policy: last.and_then(|turn| policy_of(turn)).map(Cow::into_owned),
        }
    }
}

impl Snapshot {
    /// Its turns.
    #[must_use]
    pub fn turns(&self) -> &[Arc<Turn>] {
        &self.turns
    }

    pub(super) fn lineage(&self, turn: u32) -> Lineage {
        self.lineages.get_or_init(|| lineages(&self.turns, &self.trained))[turn as usize]
    }

    /// The same where these turns that were cut off are context; `None` if it trains none of them.
    pub(super) fn without_resumed(&self, is_context: impl Fn(&Turn) -> bool) -> Option<Self> {
        let trained = self.trained.without_resumed(&self.turns, is_context)?;
        Some(Self { trained, lineages: OnceLock::new(), ..self.clone() })
    }

    /// Whether a row trains the sampled tokens of this turn: the first one that holds it.
    pub(super) fn trains(&self, turn: u32) -> bool {
        self.trained.contains(turn)
    }

    /// The reward of a leaf, else of the session.
    pub(super) fn reward(&self, leaf: u32) -> Option<&Arc<Value>> {
        self.rewards.get(&RewardScope::Leaf(leaf)).or_else(|| self.rewards.get(&RewardScope::Session))
    }

    /// The reward of a turn.
    pub(super) fn turn_reward(&self, turn: u32) -> Option<&Arc<Value>> {
        self.turn_rewards.get(&turn)
    }

    /// The same with the scores of a teacher.
    pub(super) fn with_scores(&self, scores: HashMap<u32, Arc<[Column]>>) -> Arc<Self> {
        Arc::new(Self { scores: Some(scores), ..self.clone() })
    }

    /// The scores of a turn.
    pub(super) fn scores(&self, turn: u32) -> Option<&Arc<[Column]>> {
        self.scores.as_ref()?.get(&turn)
    }

    /// Whether the reader asked for the scores of a teacher.
    pub(super) fn wants_scores(&self) -> bool {
        self.scores.is_some()
    }

    /// Whether a turn has a reward.
    pub(super) fn has_turn_rewards(&self) -> bool {
        !self.turn_rewards.is_empty()
    }

    /// The exported paths and the excluded leaves. Without branches, only the leaf with the most trained tokens is exported.
    #[must_use]
    pub fn rows(self: &Arc<Self>, branches: bool) -> (Vec<Row>, Vec<ExcludedLeaf>) {
        let leaves = leaves(&self.turns, &self.trained);
        let chosen = if branches { leaves.exported } else { self.longest(&leaves.exported).into_iter().collect() };
        let mut claims = Claims::default();
        let row = |leaf| Row::new(Arc::clone(self), leaf, claims.claim(&self.turns, leaf));
        let rows = chosen.into_iter().map(row).collect();
        let refused = leaves.refused.into_iter().map(|(leaf, reason)| ExcludedLeaf {
            session: Arc::clone(&self.session),
            leaf,
            reason,
        });
        (rows, refused.collect())
    }

    /// The leaf with the most trained tokens on its path; the earliest of several.
    fn longest(&self, leaves: &[u32]) -> Option<u32> {
        let tokens = |leaf: u32| self.lineage(leaf).trained;
        leaves.iter().copied().max_by_key(|leaf| (tokens(*leaf), std::cmp::Reverse(*leaf)))
    }

    /// The path that ends in `leaf`, trained as in an export of the session with its branches. On the path of an excluded leaf nothing is
    /// trained.
    ///
    /// # Errors
    /// [`SessionError::NoTurn`].
    pub fn path(self: &Arc<Self>, leaf: u32) -> Result<Path, SessionError> {
        if leaf as usize >= self.turns.len() {
            return Err(SessionError::NoTurn(u32::try_from(self.turns.len()).unwrap_or(u32::MAX)));
        }
        let exported = self.rows(true).0.into_iter().find(|row| row.leaf() == leaf);
        Ok(exported.unwrap_or_else(|| self.context(leaf)).path())
    }

    /// The path of an excluded leaf: nothing on it is trained.
    #[must_use]
    pub fn context(self: &Arc<Self>, leaf: u32) -> Row {
        Row::new(Arc::clone(self), leaf, u32::MAX)
    }
}

/// The rewards of paths and of the session, and those of turns.
fn split(rewards: HashMap<RewardScope, Arc<Value>>) -> (HashMap<RewardScope, Arc<Value>>, HashMap<u32, Arc<Value>>) {
    let mut turns = HashMap::new();
    let mut paths = rewards;
    paths.retain(|scope, reward| {
        let RewardScope::Turn(turn) = scope else { return true };
        turns.insert(*turn, Arc::clone(reward));
        false
    });
    (paths, turns)
}

#[cfg(test)]
impl Snapshot {
    /// A snapshot of these turns.
    pub(super) fn of(turns: &[Arc<Turn>]) -> Arc<Self> {
        let path = Path::new("s".into(), 1, Vec::new());
        Self::of_path(&path, turns.to_vec(), HashMap::new())
    }

    /// A snapshot of these turns for an export of `selection`.
    pub(super) fn selected(turns: &[Arc<Turn>], selection: TurnSelection) -> Arc<Self> {
        let trained = TrainedTurns::new(turns, selection);
        Arc::new(Self { trained, ..Arc::into_inner(Self::of(turns)).expect("nothing else holds it") })
    }

    /// A snapshot of these turns with the session and version of `path`.
    pub(crate) fn of_path(path: &Path, turns: Vec<Arc<Turn>>, rewards: HashMap<RewardScope, Arc<Value>>) -> Arc<Self> {
        let (rewards, turn_rewards) = split(rewards);
        Arc::new(Self {
            session: Arc::clone(&path.session),
            version: path.version,
            is_frozen: false,
            incomplete: path.incomplete,
            tags: path.tags.clone(),
            trained: TrainedTurns::new(&turns, TurnSelection::default()),
            turns,
            rewards,
            turn_rewards,
            scores: None,
            lineages: OnceLock::new(),
        })
    }
}
