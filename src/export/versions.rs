// SPDX-License-Identifier: Apache-2.0
//! The policy versions of a row, as trainers number them. What is trained of a model with an adapter is the adapter, so the number is that
//! of the adapter.

use crate::session::{Path, Span, Step, Turn};

/// The source of the version numbers of a row. Numbers of different sources cannot be compared, so a row of a shared session has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    /// The session is not shared: the trainer's number, or the epoch of a span that has none.
    NamesOrEpochs,
    /// The trainer's numbers.
    Names,
    /// The engine's numbers.
    Labels,
    /// None: the spans have different adapters, whose updates are counted apart.
    Mixed,
}

impl Numbering {
    /// That of the spans of the trained tokens of a row: the kind that all spans have, else the trainer's numbers if there are any.
    pub(super) fn new<'a>(trained: impl Iterator<Item = &'a Span> + Clone) -> Self {
        let name = |span: &'a Span| span.adapter.as_ref().map(|adapter| &*adapter.name);
        if trained.clone().any(|span| Some(name(span)) != trained.clone().next().map(name)) {
            Self::Mixed
        } else if trained.clone().all(|span| span.process.is_none()) {
            Self::NamesOrEpochs
        } else if trained.clone().all(|span| labelled(span).is_some()) {
            let is_named = trained.clone().all(|span| named(span).is_some());
            if is_named { Self::Names } else { Self::Labels }
        } else if trained.clone().any(|span| named(span).is_some()) {
            Self::Names
        } else {
            Self::Labels
        }
    }

    /// The number of the first possible policy of a span.
    pub(super) fn earliest(self, span: &Span) -> Option<i64> {
        self.number(span, epochs(span).0)
    }

    /// The number of the last possible policy of a span.
    fn latest(self, span: &Span) -> Option<i64> {
        self.number(span, epochs(span).1)
    }

    fn number(self, span: &Span, epoch: u64) -> Option<i64> {
        match self {
            Self::NamesOrEpochs => named(span).or_else(|| Some(i64::try_from(epoch).unwrap_or(i64::MAX))),
            Self::Names => named(span),
            Self::Labels => labelled(span),
            Self::Mixed => None,
        }
    }
}

fn trained(path: &Path) -> impl Iterator<Item = &Span> + Clone {
    path.steps.iter().filter(|step| step.trained).flat_map(|step| &step.turn.about.policy)
}

/// The first and the last version among the trained tokens of a row, if all are known.
pub(super) fn range(path: &Path) -> Option<(i64, i64)> {
    let numbering = Numbering::new(trained(path));
    let mut range: Option<(i64, i64)> = None;
    for span in trained(path) {
        let (first, last) = (numbering.earliest(span)?, numbering.latest(span)?);
        let (least, most) = range.unwrap_or((first, last));
        range = Some((least.min(first), most.max(last)));
    }
    range
}

/// `weight_versions`: the engine's label at the end of each generation of the row, else the epoch. If neither is known, the generation
/// has no entry, as in slime.
pub(super) fn labels(path: &Path) -> impl Iterator<Item = String> {
    path.steps.iter().filter_map(|Step { turn, .. }| {
        let last = turn.about.policy.last().filter(|_| !turn.response.is_empty())?;
        label(last)
    })
}

/// The spans of each call of the row: the engine's label, else the epoch, and positions in the whole row. A span without either is left
/// out.
pub(super) fn labelled_spans(path: &Path) -> impl Iterator<Item = Vec<(String, usize, usize)>> {
    let mut before = 0;
    path.steps.iter().map(move |Step { turn, .. }| {
        let start = before + turn.prompt.len();
        before = start + turn.response.len();
        let (end, mut at) = (before, start);
        let spans = turn.about.policy.iter().filter_map(|span| {
            let from = (start + span.start as usize).clamp(at, end);
            at = (start + span.end as usize).clamp(from, end);
            Some((label(span)?, from, at))
        });
        spans.filter(|(_, from, to)| from < to).collect()
    })
}

/// `weight_version` as a number: the policy at the end of the turn.
pub(super) fn version_of_turn(turn: &Turn) -> Option<i64> {
    let last = turn.about.policy.last()?;
    let epoch = || last.process.is_none().then(|| i64::try_from(epochs(last).0).unwrap_or(i64::MAX));
    named(last).or_else(|| labelled(last)).or_else(epoch)
}

/// The label of a span, else its epoch, unless it is one of several processes. An empty label counts as missing. The engine has no label of
/// an adapter, so the trainer's name takes its place.
fn label(span: &Span) -> Option<String> {
    let label = match &span.adapter {
        Some(adapter) => adapter.version.as_ref(),
        None => span.weight_version.as_ref().filter(|label| !label.is_empty()),
    };
    label.map(ToString::to_string).or_else(|| span.process.is_none().then(|| epochs(span).0.to_string()))
}

/// The first and the last possible epoch of what is trained.
fn epochs(span: &Span) -> (u64, u64) {
    span.adapter.as_ref().map_or((span.epoch, span.until), |adapter| (adapter.epoch, adapter.until))
}

/// The trainer's name as a number.
fn named(span: &Span) -> Option<i64> {
    let name = span.adapter.as_ref().map_or(&span.version, |adapter| &adapter.version);
    name.as_ref()?.parse().ok()
}

/// The engine's label as a number. It is that of the base weights.
fn labelled(span: &Span) -> Option<i64> {
    span.weight_version.as_ref().filter(|_| span.adapter.is_none())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::export::fixture::{rows_of, settled, span, turns};
    use crate::session::AdapterSpan;

    #[test]
    fn trainer_numbers_take_precedence() {
        let rows = settled(&rows_of(turns()));
        assert_eq!(range(&rows[0]), Some((10, 13)));
        assert_eq!(range(&rows[1]), Some((12, 12)), "only trained tokens count");
        assert_eq!(labels(&rows[0]).collect::<Vec<_>>(), ["w1", "w2"]);
        assert_eq!(labels(&rows[1]).collect::<Vec<_>>(), ["w1", "12"]);
        assert_eq!(
            labelled_spans(&rows[0]).collect::<Vec<_>>(),
            [vec![("w1".to_owned(), 3, 5)], vec![("11".to_owned(), 6, 7), ("w2".to_owned(), 7, 9)]]
        );
        let named = |version: Option<&str>, weights: Option<&str>| {
            let mut turn = turns()[2].clone();
            turn.about.policy = vec![Span {
                version: version.map(Into::into),
                weight_version: weights.map(Into::into),
                ..span(0, 1, 4)
            }];
            version_of_turn(&turn)
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
        let calls: Vec<_> = labelled_spans(&rows[0]).collect();
        assert_eq!(calls, [vec![("4".to_owned(), 3, 5)], vec![("7".to_owned(), 7, 9)]]);
        Arc::make_mut(&mut rows[0].steps[0].turn).about.policy[0].end = 1;
        assert_eq!(
            labelled_spans(&rows[0]).next().unwrap()[1],
            ("5".to_owned(), 4, 5),
            "an empty label counts as missing"
        );
    }

    #[test]
    fn epoch_of_one_of_several_processes_is_no_version() {
        let rows = |labels: [(Option<&str>, Option<&str>); 3]| {
            let mut turns = turns();
            let spans = turns.iter_mut().flat_map(|turn| &mut turn.about.policy);
            // the last span is that of a branch
            for (span, (name, label)) in spans.take(3).zip(labels) {
                span.process = Some("00000000000000aa".parse().unwrap());
                (span.version, span.weight_version) = (name.map(Into::into), label.map(Into::into));
            }
            settled(&rows_of(turns))
        };
        let (ten, none) = ((Some("10"), None), (None, None));
        let known = rows([ten, (Some("step"), Some("7")), (None, Some("8"))]);
        assert_eq!(range(&known[0]), None, "numbers of the trainer and of the engine are not compared");
        let named = rows([ten, (Some("12"), Some("7")), (Some("11"), Some("8"))]);
        assert_eq!(range(&named[0]), Some((10, 12)));
        let labelled = rows([(Some("120"), Some("7")), (None, Some("7")), (None, Some("8"))]);
        assert_eq!(range(&labelled[0]), Some((7, 8)), "one span has no name");
        assert_eq!(labels(&known[0]).collect::<Vec<_>>(), ["8"], "a generation without a label has no entry");
        let calls = [vec![], vec![("7".to_owned(), 6, 7), ("8".to_owned(), 7, 9)]];
        assert_eq!(labelled_spans(&known[0]).collect::<Vec<_>>(), calls);
        let versions = |rows: &[Path]| rows[0].steps.iter().map(|step| version_of_turn(&step.turn)).collect::<Vec<_>>();
        assert_eq!(versions(&known), [Some(10), Some(8)]);
        let unknown = rows([ten, none, (None, Some("default"))]);
        assert_eq!(range(&unknown[0]), None, "the range of all trained tokens is not known");
        assert_eq!(labels(&unknown[0]).collect::<Vec<_>>(), ["default"]);
        assert_eq!(labelled_spans(&unknown[0]).nth(1), Some(vec![("default".to_owned(), 7, 9)]));
        assert_eq!(versions(&unknown), [Some(10), None]);
    }

    #[test]
    fn version_of_a_row_with_an_adapter_is_that_of_the_adapter() {
        let rows = |adapters: [(Option<&str>, u64, u64, Option<&str>); 3]| {
            let mut turns = turns();
            let spans = turns.iter_mut().flat_map(|turn| &mut turn.about.policy);
            for (span, (name, epoch, until, version)) in spans.take(3).zip(adapters) {
                let version = version.map(Into::into);
                span.adapter = name.map(|name| Box::new(AdapterSpan { name: name.into(), epoch, until, version }));
            }
            settled(&rows_of(turns))
        };
        let counted = rows([(Some("a"), 2, 2, None), (Some("a"), 2, 3, None), (Some("a"), 4, 4, None)]);
        assert_eq!(range(&counted[0]), Some((2, 4)));
        assert_eq!(labels(&counted[0]).collect::<Vec<_>>(), ["2", "4"]);
        assert_eq!(version_of_turn(&counted[0].steps[0].turn), Some(2));
        let named = rows([(Some("a"), 2, 2, Some("70")), (Some("a"), 2, 2, Some("70")), (Some("a"), 4, 4, Some("80"))]);
        assert_eq!(range(&named[0]), Some((70, 80)));
        assert_eq!(labels(&named[0]).collect::<Vec<_>>(), ["70", "80"]);
        assert_eq!(version_of_turn(&named[0].steps[0].turn), Some(70));
        for other in [Some("b"), None] {
            let mixed = rows([(Some("a"), 2, 2, None), (Some("a"), 2, 2, None), (other, 2, 2, None)]);
            assert_eq!(range(&mixed[0]), None, "their updates are counted apart");
        }
    }

    #[test]
    fn unknown_policy_has_no_version() {
        let mut turns = turns();
        turns.iter_mut().for_each(|turn| turn.about.policy.clear());
        let rows = settled(&rows_of(turns));
        assert_eq!(range(&rows[0]), None);
        assert_eq!(labels(&rows[0]).count(), 0);
        assert_eq!(labelled_spans(&rows[0]).collect::<Vec<_>>(), [vec![], vec![]], "the calls are listed nevertheless");
        assert_eq!(version_of_turn(&rows[0].steps[0].turn), None);
    }
}
