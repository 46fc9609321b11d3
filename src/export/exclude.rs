// SPDX-License-Identifier: Apache-2.0
//! Excludes rows from an export by their flags.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::experts::RoutedExperts;
use super::{Batch, ExcludedLeaf, facts, images, repeated_rows};
use crate::named_enum::named_enum;
use crate::session::Row;

named_enum! {
    /// What an exported row lacks. An export counts such rows, and can exclude them.
    pub enum Lack {
        /// No token of the row has routed experts.
        RoutedExperts = "missing_routed_experts",
        /// A token of the row, other than the last, has no routed experts.
        PartOfExperts = "partial_routed_experts",
        /// The layers of the routed experts are unknown, or are not those of other tokens.
        ShapeOfExperts = "unshaped_routed_experts",
        /// The teacher that was asked for has not scored a trained turn of the row.
        Scores = "missing_scores",
        /// Neither the path nor a turn of it has a number as its reward.
        Reward = "missing_reward",
        /// The path has no number as its reward. Rewards of its turns do not count.
        PathReward = "missing_path_reward",
        /// The bytes of a picture of the row are not known, only its digest.
        Images = "image_unavailable",
    }
}

impl Lack {
    /// What is missing, for a line to the user.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::RoutedExperts => {
                "no routed experts; files of miles, skyrl, slime and verl have those of all rows or of none"
            }
            Self::PartOfExperts => {
                "tokens without routed experts; files of miles, skyrl, slime and verl have those of all rows or of none"
            }
            Self::ShapeOfExperts => "routed experts of unknown or different layers: see --moe-shape",
            Self::Reward => "no number as reward; files of skyrl and verl have those of all rows or of none",
            Self::PathReward => "no number as reward of the path; files of areal have those of all rows or of none",
            Self::Scores => "the teacher has not scored a trained turn",
            Self::Images => "a picture without its bytes",
        }
    }

    /// Whether the row lacks it.
    pub(super) fn is_of(self, row: &Row) -> bool {
        match self {
            Self::Scores => row.lacks_scores(),
            Self::Reward => !facts::is_scored(row),
            Self::PathReward => facts::path_reward(row).is_none(),
            Self::Images => row.upwards().any(|turn| images::lacks_bytes(turn)),
            Self::RoutedExperts | Self::PartOfExperts | Self::ShapeOfExperts => {
                RoutedExperts::of(&row.path()).is_err_and(|lack| lack == self)
            }
        }
    }
}

/// The flags and the lacks of the rows that an export excludes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exclusions {
    flags: BTreeSet<&'static str>,
    lacks: Vec<Lack>,
}

impl Exclusions {
    /// The exclusions with these names, of flags of rows and of [`Lack`]s.
    ///
    /// # Errors
    /// Error message with the known names, if one is unknown.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut parsed = Self::default();
        for name in names {
            if let Some(lack) = Lack::ALL.into_iter().find(|lack| lack.name() == name) {
                parsed.lacks.push(lack);
            } else if let Some(flag) = facts::flag_names().find(|flag| *flag == name) {
                parsed.flags.insert(flag);
            } else {
                let known: Vec<&str> = facts::flag_names().chain(Lack::ALL.map(Lack::name)).collect();
                return Err(format!("{name:?} is not one of {}", known.join(", ")));
            }
        }
        Ok(parsed)
    }

    /// Moves the excluded rows to the refused leaves of the batch, each under its first excluded flag. Their turns are trained in the first
    /// other row that holds them.
    pub fn apply(&self, batch: &mut Batch) {
        if *self == Self::default() {
            return;
        }
        let repeated = repeated_rows(&batch.rows);
        let (rows, refused) = (std::mem::take(&mut batch.rows), &mut batch.refused);
        for (row, repeats) in rows.into_iter().zip(repeated) {
            match self.reason(&row, repeats) {
                None => batch.rows.push(row),
                Some(reason) => {
                    refused.push(ExcludedLeaf { session: Arc::clone(row.session()), leaf: row.leaf(), reason });
                }
            }
        }
    }

    fn reason(&self, row: &Row, repeats: bool) -> Option<&'static str> {
        let flag = || {
            let mut path = row.path();
            path.marks.repeats_sample = repeats;
            facts::flags(&path).into_iter().find(|flag| self.flags.contains(flag))
        };
        let lack = || self.lacks.iter().find(|lack| lack.is_of(row)).map(|lack| lack.name());
        (!self.flags.is_empty()).then(flag).flatten().or_else(lack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::fixture::{batch, rows_of, turns, with_experts};
    use crate::session::Fault;

    fn names(of: &[&str], batch: &Batch) -> (Vec<u32>, Vec<(u32, &'static str)>) {
        let mut batch = batch.clone();
        Exclusions::parse(of.iter().copied()).unwrap().apply(&mut batch);
        let refused = batch.refused.iter().map(|leaf| (leaf.leaf, leaf.reason));
        (batch.rows.iter().map(Row::leaf).collect(), refused.collect())
    }

    #[test]
    fn rows_are_excluded_by_flag_and_by_lack() {
        let mut turns = with_experts(turns());
        turns[1].about.fault = Some(Fault::IdsMismatch);
        turns[2].about.columns.clear();
        let batch = batch(rows_of(turns));
        assert_eq!(names(&[], &batch), (vec![1, 2], vec![]));
        assert_eq!(names(&["ids_mismatch"], &batch), (vec![2], vec![(1, "ids_mismatch")]));
        assert_eq!(names(&["partial_routed_experts"], &batch), (vec![1], vec![(2, "partial_routed_experts")]));
        assert_eq!(names(&["missing_routed_experts", "missing_scores"], &batch), (vec![1, 2], vec![]));
        let both = names(&["partial_routed_experts", "ids_mismatch", "incomplete"], &batch);
        assert_eq!(both, (vec![], vec![(1, "ids_mismatch"), (2, "partial_routed_experts")]));
    }

    #[test]
    fn repeated_samples_are_excluded() {
        let mut turns = turns();
        (turns[2].prompt, turns[2].response) = (turns[1].prompt.clone(), turns[1].response.clone());
        let (rows, refused) = names(&["repeats_sample"], &batch(rows_of(turns)));
        assert_eq!((rows, refused), (vec![1], vec![(2, "repeats_sample")]));
    }

    #[test]
    fn unknown_name_lists_the_known_ones() {
        let error = Exclusions::parse(["column_missing", "bog"]).unwrap_err();
        for part in [
            "\"bog\" is not one of incomplete, ",
            "column_missing, ",
            "ids_mismatch, ",
            ", missing_scores",
            ", missing_path_reward",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
}
