// SPDX-License-Identifier: Apache-2.0
//! The groups of the rows that an export of the sessions in memory has: the samples of one prompt within a training step.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::conditions::Conditions;
use super::session_row::SessionRow;
use super::sessions::{ListScope, Sessions};
use super::sorted_page::{CollectedPage, PageCollector, PageCursor, SortPlace, SortValue};
use super::steps::StepKey;
use super::{RewardSamples, Session, Uid};
use crate::named_enum::named_enum;

/// The reward above which a sample passes.
pub const PASS_ABOVE: f64 = 0.0;

named_enum! {
    /// What groups are sorted by.
    #[derive(Default)]
    pub enum GroupColumn {
        /// Their steps: numbers, then texts.
        #[default]
        Step = "step",
        /// The names of their first sessions.
        Session = "session",
        /// Their numbers of sessions.
        Sessions = "sessions",
        /// Their numbers of samples.
        Samples = "samples",
        /// The shares of samples that passed.
        PassRate = "pass_rate",
        /// Mean rewards.
        Mean = "mean",
        /// Standard deviations of rewards.
        Std = "std",
        /// Lowest rewards.
        Min = "min",
        /// Highest rewards.
        Max = "max",
    }
}

/// The order of a list of groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupOrder {
    column: GroupColumn,
    is_descending: bool,
}

/// A text that is not the name of a column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("sort: must be one of {names}, with a - before it for a descending order, not {text:?}", names = names())]
pub struct InvalidGroupOrder {
    text: String,
}

fn names() -> String {
    GroupColumn::ALL.map(GroupColumn::name).join(", ")
}

/// The place after a group.
pub type GroupCursor = PageCursor<GroupOrder>;

/// A query of groups.
#[derive(Debug, Clone)]
pub struct GroupQuery {
    /// How sessions are put into steps.
    pub key: StepKey,
    /// What their sessions meet; `None` for all sessions.
    pub conditions: Option<Conditions>,
    /// Their order.
    pub order: GroupOrder,
    /// The end of the previous page; `None` for the first page.
    pub after: Option<GroupCursor>,
    /// The most groups of a page, at least 1.
    pub limit: usize,
}

/// A page of groups.
#[derive(Debug)]
pub struct GroupPage {
    /// The groups.
    pub groups: Vec<SampleGroup>,
    /// Where the next page begins; `None` on the last page.
    pub next: Option<GroupCursor>,
    /// The number of groups on all pages.
    pub matched: usize,
    /// The sessions are those of this process; `None` if there are no others.
    pub scope: Option<ListScope>,
}

/// The rows of a step with the same first prompt.
#[derive(Debug, Clone)]
pub struct SampleGroup {
    /// The step.
    pub step: Arc<str>,
    /// The name of the first session.
    pub session: Arc<str>,
    /// A turn of this session that has sampled the prompt.
    pub turn: u32,
    birth: Uid,
    /// The latest session that was added.
    latest: Uid,
    /// The number of sessions.
    pub sessions: u32,
    /// The number of rows.
    pub samples: u32,
    /// The rewards of the rows that have one.
    pub rewards: Option<RewardSamples>,
    /// The rewards above [`PASS_ABOVE`].
    passed: u32,
    /// The sum of the squares of the differences of the rewards from their mean.
    squares: f64,
}

impl FromStr for GroupOrder {
    type Err = InvalidGroupOrder;

    fn from_str(text: &str) -> Result<Self, InvalidGroupOrder> {
        let name = text.strip_prefix('-').unwrap_or(text);
        let column = GroupColumn::ALL.into_iter().find(|column| column.name() == name);
        let column = column.ok_or_else(|| InvalidGroupOrder { text: text.to_owned() })?;
        Ok(Self { column, is_descending: name.len() < text.len() })
    }
}

impl fmt::Display for GroupOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_descending { "-" } else { "" }, self.column.name())
    }
}

impl SampleGroup {
    fn new(step: Arc<str>, session: &Session, turn: u32) -> Self {
        let (birth, session) = (session.birth, Arc::clone(&session.id));
        let (sessions, samples, rewards, passed, squares) = (1, 0, None, 0, 0.0);
        Self { step, session, turn, birth, latest: birth, sessions, samples, rewards, passed, squares }
    }

    /// Adds a row of a session.
    fn add(&mut self, session: Uid, reward: Option<f64>) {
        if self.latest != session {
            self.latest = session;
            self.sessions = self.sessions.saturating_add(1);
        }
        self.samples = self.samples.saturating_add(1);
        let Some(reward) = reward else { return };
        self.passed = self.passed.saturating_add(u32::from(reward > PASS_ABOVE));
        let one = RewardSamples::of(reward);
        let rewards = self.rewards.map_or(one, |rewards| rewards.with(one));
        let before = self.rewards.map_or(reward, RewardSamples::mean);
        // as the variance of a list grows by one number
        self.squares += (reward - before) * (reward - rewards.mean());
        self.rewards = Some(rewards);
    }

    /// The share of the samples with a reward that passed, 0 to 1.
    #[must_use]
    pub fn pass_rate(&self) -> Option<f64> {
        self.rewards.map(|rewards| f64::from(self.passed) / f64::from(rewards.count))
    }

    /// The unbiased standard deviation of the rewards; `None` of fewer than two.
    #[must_use]
    pub fn deviation(&self) -> Option<f64> {
        let rewards = self.rewards.filter(|rewards| rewards.count > 1)?;
        // sums of equal numbers are rounded
        Some(if rewards.differ() { (self.squares / f64::from(rewards.count - 1)).sqrt() } else { 0.0 })
    }

    /// Whether several samples have the same reward, so that all advantages are 0.
    #[must_use]
    pub fn has_one_reward(&self) -> bool {
        self.rewards.is_some_and(|rewards| rewards.count > 1 && !rewards.differ())
    }

    fn value(&self, column: GroupColumn) -> SortValue {
        let of_rewards = |number: fn(RewardSamples) -> f64| self.rewards.map(number).into();
        match column {
            GroupColumn::Step => SortValue::of_text(&self.step),
            GroupColumn::Session => SortValue::of_text(&self.session),
            GroupColumn::Sessions => SortValue::Number(self.sessions.into()),
            GroupColumn::Samples => SortValue::Number(self.samples.into()),
            GroupColumn::PassRate => self.pass_rate().into(),
            GroupColumn::Mean => of_rewards(RewardSamples::mean),
            GroupColumn::Std => self.deviation().into(),
            GroupColumn::Min => of_rewards(|rewards| rewards.least),
            GroupColumn::Max => of_rewards(|rewards| rewards.greatest),
        }
    }
}

impl Sessions {
    /// Reads a page of the groups of at least two rows, of the sessions in memory that meet the conditions. Sessions without the tag are in none. Blocks for about a microsecond for
    /// each session in memory, and once for the hash of each first prompt.
    #[must_use]
    pub fn groups(&self, query: &GroupQuery) -> GroupPage {
        let GroupQuery { key, conditions, order, after, limit } = query;
        let mut steps: HashSet<Arc<str>> = HashSet::new();
        let mut groups: HashMap<(Arc<str>, u64), SampleGroup> = HashMap::new();
        self.memory().for_each(|session| {
            let state = session.state();
            let row = SessionRow { session: &session, state: &state };
            if conditions.as_ref().is_some_and(|conditions| !conditions.accept(&row)) {
                return;
            }
            let Some(name) = key.value(&row) else { return };
            let step = steps.get(&*name).map_or_else(|| Arc::from(&*name), Arc::clone);
            steps.insert(Arc::clone(&step));
            let rows = state.exported().rows.clone();
            drop(state);
            for row in rows {
                let Some(prompt) = session.prompt_hash(row.root) else { continue };
                let group = groups.entry((Arc::clone(&step), prompt));
                let group = group.or_insert_with(|| SampleGroup::new(Arc::clone(&step), &session, row.root));
                group.add(session.birth, row.reward);
            }
        });
        let after = after.as_ref().map(|after| &after.place);
        let mut page = PageCollector::new(order.is_descending, after, *limit);
        for group in groups.into_values().filter(|group| group.samples > 1) {
            let (value, birth, turn) = (group.value(order.column), group.birth, group.turn);
            page.push(SortPlace { value, birth, turn }, group);
        }
        let CollectedPage { rows: groups, next, matched } = page.finish();
        let next = next.map(|place| GroupCursor { order: *order, place });
        GroupPage { groups, next, matched, scope: self.memory_scope() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::session::tests::{BOUNDLESS, draft, store};
    use crate::session::{Call, RewardScope, Tags};

    fn sample(store: &Arc<Sessions>, name: &str, step: Option<u32>, prompt: u32, reward: Option<f64>) {
        let mut call = Call::new(Arc::clone(store), name.into());
        if let Some(step) = step {
            call.set_tags(Tags::parse_list(format!("step={step}").as_bytes()).expect("they are valid"));
        }
        let _ = call.commit(draft(&[prompt], &[2]));
        let session = store.session(name).expect("it has a turn");
        if let Some(reward) = reward {
            store.memory().reward(&session, RewardScope::Session, json!(reward)).expect("it is open");
        }
    }

    fn query(sort: &str, conditions: Option<&str>, after: Option<GroupCursor>, limit: usize) -> GroupQuery {
        let conditions = conditions.map(|text| Conditions::parse(text).expect("they are valid"));
        let key = StepKey::parse("step").expect("it is valid");
        GroupQuery { key, conditions, order: sort.parse().expect("it is valid"), after, limit }
    }

    /// Steps 9 and 10, each with the prompts 0 to 4 and four samples of each; a prompt that is sampled once; a session without a step.
    fn sessions() -> Arc<Sessions> {
        let store = store(BOUNDLESS);
        for at in 0..40 {
            let (step, prompt) = (9 + at / 20, at % 5);
            let reward = (prompt < 4).then(|| f64::from(u32::from(at / 5 % 4 >= prompt)));
            sample(&store, &format!("s{at}"), Some(step), prompt, reward);
        }
        sample(&store, "alone", Some(9), 77, Some(1.0));
        sample(&store, "untagged", None, 1, Some(1.0));
        sample(&store, "untagged-too", None, 1, Some(0.0));
        store
    }

    #[tokio::test]
    async fn samples_of_a_prompt_in_a_step_are_a_group() {
        let store = sessions();
        let page = store.groups(&query("step", None, None, 100));
        assert_eq!((page.groups.len(), page.matched, page.next), (10, 10, None));
        let steps: Vec<&str> = page.groups.iter().map(|group| &*group.step).collect();
        assert_eq!((&steps[..5], &steps[5..]), (&["9"; 5][..], &["10"; 5][..]));
        let rates: Vec<Option<f64>> = page.groups[5..].iter().map(SampleGroup::pass_rate).collect();
        assert_eq!(rates, [Some(1.0), Some(0.75), Some(0.5), Some(0.25), None]);
        let [equal, ten] = [&page.groups[5], &page.groups[6]];
        assert_eq!((&*equal.session, equal.turn, equal.sessions, equal.has_one_reward()), ("s20", 0, 4, true));
        let rewards = ten.rewards.expect("they have rewards");
        assert_eq!((rewards.count, rewards.mean(), rewards.least, rewards.greatest), (4, 0.75, 0.0, 1.0));
        assert_eq!((ten.samples, ten.deviation(), ten.has_one_reward()), (4, Some(0.5), false));
        let chosen = store.groups(&query("-mean", Some("step=10,reward>0"), None, 100));
        assert_eq!(chosen.matched, 3, "groups have the sessions that meet the conditions");
        assert!(chosen.groups.iter().all(SampleGroup::has_one_reward));
    }

    #[tokio::test]
    async fn rows_of_one_session_are_grouped_by_their_own_prompts() {
        let store = store(BOUNDLESS);
        for (prompt, response) in [(1, 2), (9, 2), (1, 3), (1, 4), (9, 3)] {
            let mut call = Call::new(Arc::clone(&store), "s".into());
            call.set_tags(Tags::parse_list(b"step=1").expect("they are valid"));
            let _ = call.commit(draft(&[prompt], &[response]));
        }
        let session = store.session("s").expect("it has turns");
        for (leaf, reward) in [(0, 0.1), (2, 0.1), (3, 0.1), (1, -1.0), (4, -1.0)] {
            store.memory().reward(&session, RewardScope::Leaf(leaf), json!(reward)).expect("it is open");
        }
        let first = store.groups(&query("sessions", None, None, 1));
        let second = store.groups(&query("sessions", None, first.next, 1));
        assert_eq!((first.groups[0].turn, second.groups[0].turn, second.next), (0, 1, None));
        sample(&store, "other", Some(1), 9, Some(0.1));
        let groups = store.groups(&query("-samples", None, None, 9)).groups;
        let found: Vec<_> = groups.iter().map(|group| (group.turn, group.sessions, group.samples)).collect();
        assert_eq!(found, [(0, 1, 3), (1, 2, 3)]);
        assert_eq!((groups[0].deviation(), groups[0].pass_rate()), (Some(0.0), Some(1.0)), "of equal rewards");
        let deviation = groups[1].deviation().expect("there are two");
        assert!((deviation - 1.1 / 3.0_f64.sqrt()).abs() < 1e-12, "{deviation}");
    }

    #[tokio::test]
    async fn pages_have_each_group_once_in_its_order() {
        let store = sessions();
        for sort in
            GroupColumn::ALL.into_iter().flat_map(|column| [column.name().into(), format!("-{}", column.name())])
        {
            let order: GroupOrder = sort.parse().expect("it is valid");
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = store.groups(&query(&sort, None, after, 3));
                found.extend(page.groups);
                let Some(next) = page.next else { break };
                after = Some(GroupCursor::parse(&next.to_string(), &order).expect("it is its text"));
            }
            let unique: HashSet<Uid> = found.iter().map(|group| group.birth).collect();
            assert_eq!((found.len(), unique.len()), (10, 10), "{sort}");
            let values: Vec<SortValue> = found.iter().map(|group| group.value(order.column)).collect();
            assert!(values.is_sorted_by(|one, other| one.compare(other, order.is_descending).is_le()), "{values:?}");
        }
    }

    #[test]
    fn order_that_is_no_column_is_refused() {
        let error = "-reward".parse::<GroupOrder>().expect_err("it is none").to_string();
        assert!(
            error.starts_with("sort: must be one of step, session, sessions, samples, pass_rate, mean, std, min, max")
        );
    }
}
