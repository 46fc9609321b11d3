// SPDX-License-Identifier: Apache-2.0
//! The sessions in memory by training step: a row for each value of a tag, or for each policy.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock};

use foldhash::quality::RandomState;

use super::conditions::{Conditions, TAG_PREFIX};
use super::session_row::{SessionRow, policy_of};
use super::sessions::{ListScope, Sessions};
use super::state::Session;
use super::tags::is_tag_name;
use super::{Cause, EntropyTotals, ExportedRows, RewardSamples, ThinkTokens, Totals};

/// The most steps of one list. A tag with more values does not name training steps.
pub const MOST_STEPS: usize = 1 << 16;

/// How sessions are put into steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepKey {
    /// By the value of this tag.
    Tag(Box<str>),
    /// By the policy that sampled last.
    Policy,
}

/// A query of steps.
#[derive(Debug, Clone)]
pub struct StepQuery {
    /// What makes a step.
    pub key: StepKey,
    /// What its sessions meet; `None` for all sessions.
    pub conditions: Option<Conditions>,
    /// The think tokens, if they are known.
    pub think: Option<ThinkTokens>,
    /// The teacher whose sessions a step names.
    pub teacher: Option<String>,
}

/// Steps in the order of their names: numbers, then texts.
#[derive(Debug)]
pub struct StepList {
    /// The steps.
    pub steps: Vec<TrainingStep>,
    /// Whose sessions they have; `None` if there are no others.
    pub scope: Option<ListScope>,
}

/// A training step.
#[derive(Debug, Clone, Default)]
pub struct TrainingStep {
    /// The value of the tag, or the name of the policy.
    pub name: Box<str>,
    /// Its sessions.
    pub sessions: u64,
    /// Their turns.
    pub turns: u64,
    /// The rows of an export of the default classes.
    pub rows: u64,
    /// Sampled tokens.
    pub sampled_tokens: u64,
    /// See [`SessionField::TrainedTokens`](super::SessionField::TrainedTokens).
    pub trained_tokens: u64,
    /// Rows whose last turn ended by length.
    pub truncated: u64,
    /// Sessions with a turn that has a fault.
    pub faulty: u64,
    /// The rewards of rows.
    pub rewards: Numbers,
    /// The sampled tokens of rows.
    pub lengths: Numbers,
    /// The entropies of sampled tokens.
    pub entropy: EntropyTotals,
    /// Those of the thinking; `None` if the think tokens are unknown.
    pub thinking: Option<EntropyTotals>,
    /// The sessions with a turn that the teacher has scored.
    pub scored: Vec<Arc<Session>>,
    /// The rewards of the rows with the same first prompt.
    groups: HashMap<u64, RewardSamples>,
}

/// Finite numbers, each of which is kept.
#[derive(Debug, Clone, Default)]
pub struct Numbers(Vec<f64>);

impl Numbers {
    fn add(&mut self, number: f64) {
        self.0.push(number);
    }

    /// Their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no numbers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their mean.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "counts below 2^53 are exact")]
        (!self.0.is_empty()).then(|| self.0.iter().sum::<f64>() / self.0.len() as f64)
    }

    /// The numbers below which these shares of them are, interpolated between neighbours.
    #[must_use]
    pub fn quantiles<const N: usize>(&self, shares: [f64; N]) -> Option<[f64; N]> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        Some(shares.map(|share| {
            #[expect(clippy::cast_precision_loss, reason = "counts below 2^53 are exact")]
            let place = share.clamp(0.0, 1.0) * last as f64;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is at most `last`")]
            let at = place as usize;
            let (low, high) = (sorted[at], sorted[last.min(at + 1)]);
            low + (high - low) * place.fract()
        }))
    }
}

impl TrainingStep {
    /// Adds a session with these numbers.
    fn add(&mut self, turns: u32, totals: &Totals, exported: &ExportedRows) {
        self.sessions += 1;
        self.turns += u64::from(turns);
        self.sampled_tokens += totals.sampled_tokens;
        self.trained_tokens += exported.trained_tokens;
        self.rows += exported.rows.len() as u64;
        for row in &exported.rows {
            self.truncated += u64::from(row.is_truncated);
            #[expect(clippy::cast_precision_loss, reason = "counts below 2^53 are exact")]
            self.lengths.add(row.sampled_tokens as f64);
            row.reward.iter().for_each(|reward| self.rewards.add(*reward));
        }
        self.faulty += u64::from(totals.faults > 0);
        self.entropy.merge(&totals.entropy);
    }

    /// Adds the rewards of rows that begin with a prompt of this hash.
    fn add_samples(&mut self, prompt: u64, samples: RewardSamples) {
        let add = |group: &mut RewardSamples| *group = group.with(samples);
        self.groups.entry(prompt).and_modify(add).or_insert(samples);
    }

    /// The groups of samples of one prompt of which at least two have a reward, and those of them with one reward for all.
    #[must_use]
    pub fn groups(&self) -> (usize, usize) {
        let groups = || self.groups.values().filter(|group| group.count > 1);
        (groups().count(), groups().filter(|group| !group.differ()).count())
    }
}

/// The rewards of rows by their first turns.
fn samples_by_root(exported: &ExportedRows) -> BTreeMap<u32, RewardSamples> {
    let mut samples = BTreeMap::new();
    for (root, reward) in exported.rows.iter().filter_map(|row| Some((row.root, RewardSamples::of(row.reward?)))) {
        samples.entry(root).and_modify(|known: &mut RewardSamples| *known = known.with(reward)).or_insert(reward);
    }
    samples
}

/// Steps in the order of their names: numbers, then texts.
fn compare(one: &str, other: &str) -> Ordering {
    let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
    match (number(one), number(other)) {
        (Some(one_number), Some(other_number)) => one_number.total_cmp(&other_number).then_with(|| one.cmp(other)),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => one.cmp(other),
    }
}

impl Session {
    /// A hash of the prompt of a turn, which is computed once and while the state is not locked; `None` if the prompt is unknown.
    pub(super) fn prompt_hash(&self, turn: u32) -> Option<u64> {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        let place = |known: &[(u32, u64)]| known.binary_search_by_key(&turn, |(turn, _)| *turn);
        {
            let known = self.prompt_hashes.lock();
            if let Ok(at) = place(&known) {
                return Some(known[at].1);
            }
        }
        let first = self.turn(turn).filter(|turn| turn.about.cause != Cause::Unplaced)?;
        let hash = KEY.hash_one(first.prompt_keys());
        let mut known = self.prompt_hashes.lock();
        if let Err(at) = place(&known) {
            known.insert(at, (turn, hash));
        }
        Some(hash)
    }
}

impl StepKey {
    /// The key with this name: `policy`, or a tag, which `tag.` may precede.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match (name, name.strip_prefix(TAG_PREFIX)) {
            ("policy", _) => Some(Self::Policy),
            (_, Some(tag)) | (tag, None) => is_tag_name(tag).then(|| Self::Tag(tag.into())),
        }
    }

    /// The step of a session.
    pub(super) fn value<'a>(&self, row: &SessionRow<'a>) -> Option<Cow<'a, str>> {
        match self {
            Self::Tag(name) => Some(row.state.tags.get(name)?.into()),
            Self::Policy => policy_of(row.state.forest.turns().last()?),
        }
    }
}

impl Sessions {
    /// The steps of the sessions in memory that meet the conditions, in the order of their names. Sessions without the tag, or without a turn,
    /// are in none. `None` if there are more than [`MOST_STEPS`]. Blocks for about a microsecond for each session in memory, and once for each turn
    /// whose thinking was not read before.
    #[must_use]
    pub fn steps(&self, query: &StepQuery) -> Option<StepList> {
        let (mut steps, mut numbers) = (Vec::new(), HashMap::new());
        let mut is_bounded = true;
        self.memory().for_each(|session| {
            let number = {
                let state = session.state();
                let row = SessionRow { session: &session, state: &state };
                if query.conditions.as_ref().is_some_and(|conditions| !conditions.accept(&row)) {
                    return;
                }
                let Some(name) = query.key.value(&row) else { return };
                match numbers.get(&*name) {
                    Some(number) => *number,
                    None if steps.len() == MOST_STEPS => {
                        is_bounded = false;
                        return;
                    }
                    None => {
                        let name: Box<str> = (&*name).into();
                        numbers.insert(name.clone(), steps.len());
                        steps.push(TrainingStep { name, ..TrainingStep::default() });
                        steps.len() - 1
                    }
                }
            };
            let step: &mut TrainingStep = &mut steps[number];
            if let Some(tokens) = query.think {
                // read before the totals, which then have each of its tokens
                step.thinking.get_or_insert_default().merge(&session.thinking(tokens));
            }
            let (turns, totals, exported, is_scored) = {
                let state = session.state();
                let has_scores = |teacher: &str| state.scores.from(teacher, 0).next().is_some();
                let is_scored = query.teacher.as_deref().is_some_and(has_scores);
                (state.forest.next_id(), state.totals.clone(), state.exported().clone(), is_scored)
            };
            if is_scored {
                step.scored.push(Arc::clone(&session));
            }
            step.add(turns, &totals, &exported);
            for (root, samples) in samples_by_root(&exported) {
                if let Some(prompt) = session.prompt_hash(root) {
                    step.add_samples(prompt, samples);
                }
            }
        });
        steps.sort_unstable_by(|one, other| compare(&one.name, &other.name));
        is_bounded.then(|| StepList { steps, scope: self.memory_scope() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::session::tests::{BOUNDLESS, draft, store};
    use crate::session::{Call, Fault, RewardScope, Tags};

    const THINK: ThinkTokens = ThinkTokens { start: 100, end: 101 };

    fn tagged(store: &Arc<Sessions>, name: &str, step: &str, prompt: &[u32], reward: Option<f64>) {
        let mut call = Call::new(Arc::clone(store), name.into());
        call.set_tags(Tags::parse_list(format!("step={step}").as_bytes()).expect("they are valid"));
        let mut draft = draft(prompt, &[2, 3]);
        draft.entropy = vec![0.5, 1.5];
        let _ = call.commit(draft);
        let session = store.session(name).expect("it has a turn");
        if let Some(reward) = reward {
            store.memory().reward(&session, RewardScope::Session, json!(reward)).expect("it is open");
        }
    }

    fn steps(store: &Arc<Sessions>, conditions: Option<&str>) -> Vec<TrainingStep> {
        let conditions = conditions.map(|text| Conditions::parse(text).expect("they are valid"));
        let key = StepKey::parse("step").expect("it is valid");
        let query = StepQuery { key, conditions, think: Some(THINK), teacher: None };
        store.steps(&query).expect("there are few").steps
    }

    #[tokio::test]
    async fn sessions_are_summed_by_step_and_grouped_by_prompt() {
        let store = store(BOUNDLESS);
        for (at, reward) in [Some(0.0), Some(1.0), Some(0.5), None].into_iter().enumerate() {
            tagged(&store, &format!("a{at}"), "10", &[1], reward);
        }
        for at in 0..3 {
            tagged(&store, &format!("b{at}"), "10", &[7], Some(1.0));
        }
        tagged(&store, "alone", "10", &[9], Some(0.0));
        tagged(&store, "c", "9", &[1], None);
        tagged(&store, "d", "last", &[1], None);
        let _ = Call::new(Arc::clone(&store), "untagged".into()).commit(draft(&[1], &[2]));
        let mut faulty = draft(&[1, 2, 3], &[4]);
        faulty.about.fault = Some(Fault::Aborted);
        let _ = Call::new(Arc::clone(&store), "c".into()).commit(faulty);
        let mut truncated = draft(&[1], &[4, 5, 6, 7]);
        truncated.about.finish = Some("length".into());
        let _ = Call::new(Arc::clone(&store), "c".into()).commit(truncated);
        let found = steps(&store, None);
        assert_eq!(found.iter().map(|step| &*step.name).collect::<Vec<_>>(), ["9", "10", "last"]);
        let (first, ten) = (&found[0], &found[1]);
        assert_eq!((first.sessions, first.turns, first.rows), (1, 3, 2));
        assert_eq!((first.sampled_tokens, first.trained_tokens, first.lengths.mean()), (7, 6, Some(3.0)));
        assert_eq!((first.truncated, first.faulty, first.rewards.mean(), first.groups()), (1, 1, None, (0, 0)));
        assert_eq!((ten.sessions, ten.rows, ten.truncated, ten.faulty, ten.rewards.len()), (8, 8, 0, 0, 7));
        assert_eq!(ten.groups(), (2, 1), "one of the two groups has one reward");
        assert_eq!(ten.entropy.mean(), Some(1.0));
        assert_eq!(ten.rewards.quantiles([0.0, 0.5, 1.0]), Some([0.0, 1.0, 1.0]));
        assert_eq!(ten.lengths.mean(), Some(2.0));
        let rewarded = steps(&store, Some("reward>=0.5,step=10"));
        assert_eq!((rewarded.len(), rewarded[0].sessions), (1, 5));
    }

    #[tokio::test]
    async fn rows_of_one_session_are_grouped_by_their_own_prompts() {
        let store = store(BOUNDLESS);
        tagged(&store, "s", "1", &[1], None);
        for draft in [draft(&[1], &[5]), draft(&[1, 2, 3, 4], &[6]), draft(&[9], &[7])] {
            let _ = Call::new(Arc::clone(&store), "s".into()).commit(draft);
        }
        let session = store.session("s").expect("it has turns");
        let set = |leaf, reward: f64| {
            store.memory().reward(&session, RewardScope::Leaf(leaf), json!(reward)).expect("it is open");
        };
        [(0, 0.0), (1, 1.0), (2, 1.0)].into_iter().for_each(|(leaf, reward)| set(leaf, reward));
        let step = &steps(&store, None)[0];
        assert_eq!((step.rows, step.groups(), step.rewards.mean()), (3, (1, 1), Some(1.0)), "turn 0 ends no row");
        set(2, 0.0);
        set(3, 0.0);
        let step = &steps(&store, None)[0];
        assert_eq!((step.groups(), step.rewards.len()), ((1, 0), 3), "turn 3 answers another prompt");
    }

    #[tokio::test]
    async fn entropies_of_thinking_and_of_answers_are_apart() {
        let store = store(BOUNDLESS);
        tagged(&store, "s", "1", &[1], None);
        let mut thought = draft(&[1, 100], &[2, 3, 101, 4]);
        thought.entropy = vec![1.0, 2.0, 4.0, 5.0];
        let _ = Call::new(Arc::clone(&store), "s".into()).commit(thought);
        let step = &steps(&store, None)[0];
        let thinking = step.thinking.as_ref().expect("the think tokens are known");
        assert_eq!((thinking.measured, thinking.mean()), (2, Some(1.5)));
        let answer = step.entropy.without(thinking);
        assert_eq!((answer.measured, answer.mean()), (4, Some(11.0 / 4.0)), "with the end token");
    }

    #[test]
    fn quantiles_are_interpolated() {
        let numbers = Numbers(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!(numbers.quantiles([0.0, 0.5, 0.75, 1.0]), Some([1.0, 2.5, 3.25, 4.0]));
        assert_eq!((Numbers::default().quantiles([0.5]), Numbers::default().mean()), (None, None));
    }
}
