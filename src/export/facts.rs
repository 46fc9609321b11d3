// SPDX-License-Identifier: Apache-2.0
//! The facts of a whole row besides its tokens: flags, status, reward, group.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::PathColumn;
use super::policies::Policies;
use super::text::Text;
use super::{Lack, RowCounts};
use crate::columns::{Alignment, COLUMNS};
use crate::engine::sglang::extras;
use crate::named_enum::named_enum;
use crate::session::{self, Cause, Fault, Path, Row, TurnMetadata};

/// The flags of a row: conditions that a trainer should know of.
#[must_use]
pub fn flags(path: &Path) -> Vec<&'static str> {
    let mut policies = Policies::default();
    let (mut extends, mut retokenised, mut foreign, mut inserted, mut lacks_column, mut mixes) = Default::default();
    let mut image_settings: HashSet<Option<&str>> = HashSet::new();
    let mut faults = HashSet::new();
    let mut processed: BTreeSet<&str> = BTreeSet::new();
    // a single pass, because a path may have thousands of turns
    for step in &path.steps {
        let turn = &step.turn;
        turn.about.policy.iter().for_each(|span| policies.add(span));
        extends |= turn.about.cause == Cause::ExtendsLength;
        if let Some(chat) = &turn.about.chat {
            retokenised |= chat.retokenised;
            foreign |= chat.foreign_text;
            inserted |= chat.inserted_end_of_turn > 0;
        }
        // a turn reports values of processed tokens for earlier turns too
        let (of_path, of_turn): (Vec<&str>, Vec<&str>) =
            turn.about.missing_columns.keys().map(|name| &**name).partition(|name| is_processed(name));
        lacks_column |= !of_turn.is_empty();
        let recorded = turn.about.columns.iter().map(|column| &*column.name).filter(|name| is_processed(name));
        processed.extend(recorded.chain(of_path));
        mixes |= was_processed_again(&turn.about);
        image_settings.extend(turn.about.images.iter().map(|images| images.settings.as_deref()));
        faults.extend(turn.about.fault);
    }
    lacks_column |= processed.into_iter().any(|name| !PathColumn::is_whole(path, name));
    let facts = [
        path.incomplete,
        policies.differ(),
        policies.are_uncertain(),
        policies.mix_adapters(),
        extends,
        retokenised,
        foreign,
        inserted,
        lacks_column,
        mixes,
        path.marks.repeats_sample,
        path.marks.advantage_lacks_entropy,
        image_settings.len() > 1,
    ];
    let faults = Fault::ALL.into_iter().map(|fault| faults.contains(&fault));
    flag_names().zip(facts.into_iter().chain(faults)).filter_map(|(name, holds)| holds.then_some(name)).collect()
}

/// The flags that are no faults, in the order of [`flags`].
const FLAGS: [&str; 13] = [
    "incomplete",
    "crosses_versions",
    "policy_uncertain",
    "mixed_adapters",
    "extends_length",
    "context_retokenised",
    "foreign_assistant_text",
    "inserted_end_of_turn",
    "column_missing",
    "column_uncertain",
    "repeats_sample",
    "advantage_lacks_entropy",
    "mixed_image_settings",
];

/// The names of all flags of a row.
pub(crate) fn flag_names() -> impl Iterator<Item = &'static str> {
    FLAGS.into_iter().chain(Fault::ALL.map(Fault::name))
}

/// Whether a turn was retracted, and so processed again, while the weights changed: values of its processed tokens may be those of other
/// weights than sampled them.
fn was_processed_again(about: &TurnMetadata) -> bool {
    let has_processed = || about.columns.iter().any(|column| is_processed(&column.name));
    about.extras.contains_key(extras::RETRACTIONS) && has_processed() && {
        let mut versions = about.policy.iter().map(|span| (span.epoch, span.until, &span.weight_version));
        let first = versions.next();
        versions.any(|version| Some(version) != first) || about.policy.iter().any(|span| !span.is_certain())
    }
}

fn is_processed(name: &str) -> bool {
    COLUMNS.iter().any(|source| source.name == name && source.alignment != Alignment::Sampled)
}

named_enum! {
    /// How the row ended, as slime and miles name it.
    pub(super) enum Status {
        Completed = "completed",
        Truncated = "truncated",
        Aborted = "aborted",
        Failed = "failed",
    }
}

impl Status {
    pub(super) fn new(path: &Path) -> Self {
        let about = &path.leaf().about;
        // the fault `forwarded` does not describe how the turn ended
        match (about.fault.filter(|fault| *fault != Fault::Forwarded), about.finish.as_deref()) {
            (Some(Fault::Aborted | Fault::Disconnected | Fault::Broken), _) | (_, Some("abort")) => Self::Aborted,
            (Some(_), _) | (None, None) => Self::Failed,
            (None, Some("length")) => Self::Truncated,
            (None, Some(_)) => Self::Completed,
        }
    }
}

/// The reward as one number: the value itself, or the `reward` or `score` of an object.
pub(crate) fn reward(value: Option<&Arc<Value>>) -> Option<f64> {
    session::reward_number(value?)
}

/// The reward as a finite float32.
fn single(value: &Arc<Value>) -> Option<f32> {
    #[expect(clippy::cast_possible_truncation, reason = "trainers keep rewards in float32")]
    reward(Some(value)).map(|reward| reward as f32).filter(|reward| reward.is_finite())
}

/// The reward of a path as float32, if it has one.
pub(super) fn path_reward(row: &Row) -> Option<f32> {
    single(row.reward()?)
}

/// The rewards of the paths of all rows as float32, if all have one.
pub(super) fn rewards(rows: &[Row]) -> Option<Vec<f32>> {
    rows.iter().map(path_reward).collect()
}

/// Whether each row has a reward, of its path or of a turn, and all of them are numbers.
pub(super) fn have_scores(rows: &[Row]) -> bool {
    !rows.is_empty() && rows.iter().all(is_scored)
}

/// Whether a row has a reward, of its path or of a turn, and all of them are numbers.
pub(super) fn is_scored(row: &Row) -> bool {
    let mut rewards = row.reward().into_iter().chain(row.turn_rewards()).map(single).peekable();
    rewards.peek().is_some() && rewards.all(|reward| reward.is_some())
}

/// If a row has a reward, of its path or of a turn, counts the rows that lack `lack`.
pub(super) fn count_unrewarded(rows: &[Row], lack: Lack, tally: &mut RowCounts) {
    if rows.iter().any(|row| row.reward().is_some() || row.turn_rewards().next().is_some()) {
        tally.add_incomplete(rows.iter().filter(|row| lack.is_of(row)).map(|_| lack));
    }
}

/// The numbers of the rewards of a row, each with its position among the first `kept` tokens after the first prompt: that of the last token
/// of its turn, or of the row. In the order of positions.
pub(super) fn scores(row: &Row, kept: usize) -> Vec<(usize, f32)> {
    let mut scores: Vec<(usize, f32)> = Vec::new();
    let last = |end: usize| end.min(kept).saturating_sub(1);
    scores.extend(row.reward().and_then(single).map(|reward| (last(kept), reward)));
    if row.turn_rewards().next().is_some() {
        let mut end = row.response_len();
        for turn in row.upwards() {
            scores.extend(row.turn_reward(turn).and_then(single).map(|reward| (last(end), reward)));
            end = end.saturating_sub(turn.prompt.len() + turn.response.len());
        }
    }
    scores.reverse();
    scores
}

/// Writes the rewards of the turns of a path as a list, with null for a turn without one, under the name that the format has for it. Nothing
/// is written if no turn has one.
pub(super) fn write_turn_rewards(path: &Path, name: &str, text: &mut Text) {
    if path.steps.iter().all(|step| step.reward.is_none()) {
        return;
    }
    text.key(name).array(|list| {
        path.steps.iter().for_each(|step| list.value(step.reward.as_deref().unwrap_or(&Value::Null)));
    });
}

/// The unchanged reward.
pub(super) fn raw_reward(path: &Path) -> &Value {
    path.reward.as_deref().unwrap_or(&Value::Null)
}

/// Writes the members that say which row a sample is.
pub(super) fn describe(path: &Path, text: &mut Text) {
    text.key("session").string(&path.session);
    text.key("version").integer(path.version);
    text.key("leaf").integer(path.leaf().id);
    text.key("reward").value(raw_reward(path));
    text.key("flags").strings(flags(path));
    write_turn_rewards(path, "turn_rewards", text);
}

/// The length of a value as JSON text.
pub(super) fn json_len(value: &Value) -> u64 {
    struct Count(u64);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, value).expect("a value can be written");
    count.0
}

/// The group number of each row. Rows with the same first prompt, with the same pictures, are samples of one prompt, also in different sessions.
pub(crate) fn groups(rows: &[Row]) -> Vec<usize> {
    let mut numbers: HashMap<&[u32], usize> = HashMap::new();
    let number = |row| {
        let next = numbers.len();
        *numbers.entry(Row::prompt_keys(row)).or_insert(next)
    };
    rows.iter().map(number).collect()
}

/// A key of a row that is the same in every export: the uid of the last turn, which determines the path. Turns and their parents never
/// change, except that a shared ledger that has lost turns may get them again in another order. The key does not depend on the version, on
/// other rows, or on the process, so the same path has the same key after a restart and on another replica.
pub(crate) fn row_key(path: &Path) -> String {
    path.leaf().about.uid.to_string()
}

/// A hash of the first prompt (FNV-1a over its ids and the digests of its pictures), the same in every export. verl groups samples by it as `uid`.
pub(super) fn prompt_name(row: &Row) -> String {
    let bytes = row.prompt_keys().iter().flat_map(|id| id.to_le_bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::columns::{Column, ColumnFault, NumberType, Shape};
    use crate::export::fixture::{path, rows as rows_from, rows_of, turn, turns};
    use crate::export::images;
    use crate::images::Image;
    use crate::session::{AdapterSpan, Chat, PromptImages};

    #[test]
    fn flags_of_a_row() {
        assert_eq!(flags(&path(&[&turn(0, None, &[1], &[2]).into()])), Vec::<&str>::new());
        let mut turns = turns();
        turns[0].about.fault = Some(Fault::IdsMismatch);
        turns[1].about.cause = Cause::ExtendsLength;
        turns[1].about.chat =
            Some(Box::new(Chat { retokenised: true, foreign_text: true, inserted_end_of_turn: 1, ..Chat::default() }));
        let adapter = AdapterSpan { name: "a".into(), epoch: 0, until: 0, version: None };
        turns[1].about.policy[0].adapter = Some(Box::new(adapter));
        turns[1].about.missing_columns = [("c".into(), ColumnFault::Length)].into();
        turns[1].about.extras = [("num_retractions".into(), "1".into())].into();
        turns[1].about.columns = vec![Column {
            name: "routed_experts".into(),
            number: NumberType::U8,
            tokens: 0..1,
            shape: Shape::Fixed([].into()),
            data: vec![0].into(),
        }];
        let mut row = rows_of(turns).swap_remove(0);
        (row.incomplete, row.marks.advantage_lacks_entropy) = (true, true);
        let chat = ["context_retokenised", "foreign_assistant_text", "inserted_end_of_turn"];
        let all = [
            "incomplete",
            "crosses_versions",
            "policy_uncertain",
            "mixed_adapters",
            "extends_length",
            chat[0],
            chat[1],
            chat[2],
            "column_missing",
            "column_uncertain",
            "advantage_lacks_entropy",
            "ids_mismatch",
        ];
        assert_eq!(flags(&row), all);
    }

    #[test]
    fn settings_of_pictures_are_mixed_if_they_differ() {
        let flags_of = |settings: [Option<&str>; 2]| {
            let mut turns = [turn(0, None, &[1], &[2]), turn(1, Some(0), &[3], &[4])];
            for (turn, settings) in turns.iter_mut().zip(settings) {
                let images = PromptImages::new(&turn.prompt, [(Arc::new(Image::new(b"a"[..].into())), 0..1)]);
                turn.about.images = Some(Box::new(images.with_settings(settings.map(Into::into))));
            }
            let turns = turns.map(Arc::new);
            let path = path(&[&turns[0], &turns[1]]);
            (flags(&path), images::settings(&path).map(ToString::to_string))
        };
        assert_eq!(flags_of([Some("{}"); 2]), (vec![], Some("{}".to_owned())));
        assert_eq!(flags_of([None; 2]), (vec![], None));
        for mixed in [[Some("{}"), Some("{ }")], [Some("{}"), None], [None, Some("{}")]] {
            assert_eq!(flags_of(mixed), (vec!["mixed_image_settings"], None));
        }
    }

    #[test]
    fn row_lacks_a_column_of_processed_tokens_unless_its_turns_cover_it_together() {
        let experts = |tokens: std::ops::Range<i32>, width: u32| Column {
            name: "routed_experts".into(),
            number: NumberType::U8,
            data: vec![1; tokens.len() * width as usize].into(),
            tokens,
            shape: Shape::Fixed([width].into()),
        };
        // two prompt tokens and one sampled, then one of each
        let flags_of = |first: Option<Column>, missing: Option<ColumnFault>, second: Option<Column>| {
            let mut turns = [turn(0, None, &[1, 2], &[3]), turn(1, Some(0), &[4], &[5])];
            turns[0].about.missing_columns =
                missing.map(|fault| ("routed_experts".into(), fault)).into_iter().collect();
            turns[0].about.columns.extend(first);
            turns[1].about.columns.extend(second);
            let turns = turns.map(Arc::new);
            flags(&path(&[&turns[0], &turns[1]]))
        };
        let lacks = vec!["column_missing"];
        assert_eq!(flags_of(Some(experts(-2..0, 2)), None, Some(experts(-2..0, 2))), Vec::<&str>::new());
        let cut_off = Some(ColumnFault::CutOff);
        assert_eq!(
            flags_of(None, cut_off, Some(experts(-4..0, 2))),
            Vec::<&str>::new(),
            "the next turn closes the gap"
        );
        assert_eq!(flags_of(None, cut_off, Some(experts(-2..0, 2))), lacks);
        assert_eq!(flags_of(None, cut_off, None), lacks);
        assert_eq!(flags_of(Some(experts(-1..0, 2)), None, Some(experts(-2..0, 2))), lacks, "the first token has none");
        assert_eq!(flags_of(Some(experts(-2..0, 2)), None, None), lacks, "the next turn was not asked");
        assert_eq!(flags_of(Some(experts(-2..0, 2)), None, Some(experts(-2..0, 3))), lacks, "two shapes");
        assert_eq!(flags_of(None, None, None), Vec::<&str>::new(), "no turn was asked");
    }

    #[test]
    fn status_follows_finish_reason_and_fault() {
        let status = |finish: Option<&str>, fault| {
            let mut leaf = turn(0, None, &[1], &[2]);
            (leaf.about.finish, leaf.about.fault) = (finish.map(Into::into), fault);
            Status::new(&path(&[&leaf.into()])).name()
        };
        assert_eq!(status(Some("stop"), None), "completed");
        assert_eq!(status(Some("length"), None), "truncated");
        assert_eq!(status(Some("abort"), Some(Fault::Aborted)), "aborted");
        assert_eq!(status(None, Some(Fault::Disconnected)), "aborted");
        assert_eq!(status(Some("stop"), Some(Fault::IdsMismatch)), "failed");
        assert_eq!(status(Some("length"), Some(Fault::Forwarded)), "truncated");
        assert_eq!(status(None, None), "failed");
    }

    #[test]
    fn reward_is_a_number_or_a_member_of_an_object() {
        let of = |value: Value| {
            let mut row = rows_of(turns()).swap_remove(0);
            row.reward = Some(Arc::new(value));
            reward(row.reward.as_ref())
        };
        assert_eq!(of(json!(2)), Some(2.0));
        assert_eq!(of(json!({"reward": 0.5, "score": 9})), Some(0.5));
        assert_eq!(of(json!({"reward": "high", "score": 9})), Some(9.0));
        assert_eq!((of(json!({"acc": 1})), of(json!("1")), of(json!(true))), (None, None, None));
        let mut rows = rows_of(turns());
        rows[0].reward = Some(Arc::new(json!(1e300)));
        assert_eq!(rewards(&rows_from(&rows)), None, "out of range of a float32");
        rows[0].reward = None;
        assert_eq!(rewards(&rows_from(&rows)), None);
    }
}
