//! The policy versions of a row, as trainers number them.

use crate::session::{Path, Span, Step, Turn};

/// The trainer's number of the first possible policy, or tokentap's epoch if it has none.
pub(super) fn earliest(span: &Span) -> i64 {
    named(span).unwrap_or_else(|| i64::try_from(span.epoch).unwrap_or(i64::MAX))
}

/// The same for the last possible policy.
pub(super) fn latest(span: &Span) -> i64 {
    named(span).unwrap_or_else(|| i64::try_from(span.until).unwrap_or(i64::MAX))
}

/// The first and the last version among the trained tokens of a row.
pub(super) fn range(path: &Path) -> Option<(i64, i64)> {
    let spans = || path.steps.iter().filter(|step| step.trained).flat_map(|step| &step.turn.about.policy);
    Some((spans().map(earliest).min()?, spans().map(latest).max()?))
}

/// `weight_versions`: the engine's label at the end of each generation of the row, else the epoch. If neither is known, the generation
/// has no entry, as in slime.
pub(super) fn of_generations(path: &Path) -> impl Iterator<Item = String> {
    path.steps.iter().filter_map(|Step { turn, .. }| {
        let last = turn.about.policy.last().filter(|_| !turn.response.is_empty())?;
        Some(label(last))
    })
}

/// The spans of each call of the row: the engine's label, else the epoch, and positions in the whole row.
pub(super) fn of_calls(path: &Path) -> impl Iterator<Item = Vec<(String, usize, usize)>> {
    let mut before = 0;
    path.steps.iter().map(move |Step { turn, .. }| {
        let start = before + turn.prompt.len();
        before = start + turn.response.len();
        let (end, mut at) = (before, start);
        let spans = turn.about.policy.iter().map(|span| {
            let from = (start + span.start as usize).clamp(at, end);
            at = (start + span.end as usize).clamp(from, end);
            (label(span), from, at)
        });
        spans.filter(|(_, from, to)| from < to).collect()
    })
}

/// `weight_version` as a number: the policy at the end of the turn.
pub(super) fn of_turn(turn: &Turn) -> Option<i64> {
    let last = turn.about.policy.last()?;
    let engines = || last.weight_version.as_ref().and_then(|version| version.parse().ok());
    Some(named(last).or_else(engines).unwrap_or_else(|| earliest(last)))
}

/// The label of a span, else its epoch. An empty label counts as missing.
fn label(span: &Span) -> String {
    let label = span.weight_version.as_ref().filter(|label| !label.is_empty());
    label.map_or_else(|| span.epoch.to_string(), ToString::to_string)
}

fn named(span: &Span) -> Option<i64> {
    span.version.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::export::fixture::{rows_of, settled, span, turns};

    #[test]
    fn trainer_numbers_take_precedence() {
        let rows = settled(&rows_of(turns()));
        assert_eq!(range(&rows[0]), Some((10, 13)));
        assert_eq!(range(&rows[1]), Some((12, 12)), "only trained tokens count");
        assert_eq!(of_generations(&rows[0]).collect::<Vec<_>>(), ["w1", "w2"]);
        assert_eq!(of_generations(&rows[1]).collect::<Vec<_>>(), ["w1", "12"]);
        assert_eq!(
            of_calls(&rows[0]).collect::<Vec<_>>(),
            [vec![("w1".to_owned(), 3, 5)], vec![("11".to_owned(), 6, 7), ("w2".to_owned(), 7, 9)]]
        );
        let named = |version: Option<&str>, weights: Option<&str>| {
            let mut turn = turns()[2].clone();
            turn.about.policy = vec![Span {
                version: version.map(Into::into),
                weight_version: weights.map(Into::into),
                ..span(0, 1, 4)
            }];
            of_turn(&turn)
        };
        assert_eq!(named(Some("3"), Some("2")), Some(3));
        assert_eq!(named(Some("main"), Some("2")), Some(2));
        assert_eq!(named(None, Some("default")), Some(4));
    }

    #[test]
    fn spans_stay_in_order_and_inside_their_response() {
        let mut turns = turns();
        let unlabelled = Span { weight_version: Some("".into()), ..span(1, 2, 5) };
        turns[0].about.policy = vec![span(0, 2, 4), unlabelled, span(2, 2, 6)];
        turns[1].about.policy = vec![span(1, 9, 7)];
        let mut rows = settled(&rows_of(turns));
        let calls: Vec<_> = of_calls(&rows[0]).collect();
        assert_eq!(calls, [vec![("4".to_owned(), 3, 5)], vec![("7".to_owned(), 7, 9)]]);
        Arc::make_mut(&mut rows[0].steps[0].turn).about.policy[0].end = 1;
        assert_eq!(of_calls(&rows[0]).next().unwrap()[1], ("5".to_owned(), 4, 5), "an empty label counts as missing");
    }

    #[test]
    fn unknown_policy_has_no_version() {
        let mut turns = turns();
        turns.iter_mut().for_each(|turn| turn.about.policy.clear());
        let rows = settled(&rows_of(turns));
        assert_eq!(range(&rows[0]), None);
        assert_eq!(of_generations(&rows[0]).count(), 0);
        assert_eq!(of_calls(&rows[0]).collect::<Vec<_>>(), [vec![], vec![]], "the calls are listed nevertheless");
        assert_eq!(of_turn(&rows[0].steps[0].turn), None);
    }
}
