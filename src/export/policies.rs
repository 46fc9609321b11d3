// SPDX-License-Identifier: Apache-2.0
//! Compares the policies of the spans of a row.

use std::collections::HashMap;

use crate::session::{ProcessId, Span};

/// The counter of a span's epochs. Spans of sessions that are not shared have one counter.
type Counter = Option<ProcessId>;

/// The policies of the spans that were added. Spans of one counter are compared by epoch. Spans of two counters are compared by the
/// trainer's name if both have one, else by the engine's `weight_version`.
#[derive(Debug, Default)]
pub(super) struct Policies<'a> {
    /// The epoch of the first span of each counter.
    epochs: HashMap<Counter, u64>,
    has_two_epochs: bool,
    has_uncertain_epoch: bool,
    names: LabelComparison<'a>,
    weight_versions: LabelComparison<'a>,
    /// The counters of spans with only one of the two labels.
    partly_labelled: Distinct<Counter>,
    has_only_name: bool,
    has_only_weight_version: bool,
    has_unlabelled: bool,
    adapters: AdapterComparison<'a>,
}

impl<'a> Policies<'a> {
    pub(super) fn add(&mut self, span: &'a Span) {
        self.adapters.add(span);
        let (counter, name, weight_version) = (span.process, span.version.as_deref(), span.updated_weight_version());
        self.has_two_epochs |= *self.epochs.entry(counter).or_insert(span.epoch) != span.epoch;
        self.has_uncertain_epoch |= !span.is_certain();
        if let Some(name) = name {
            self.names.add(name, counter);
        }
        if let Some(label) = weight_version {
            self.weight_versions.add(label, counter);
        }
        match (name, weight_version) {
            (None, None) => self.has_unlabelled = true,
            (Some(_), Some(_)) => {}
            _ => {
                self.has_only_name |= name.is_some();
                self.has_only_weight_version |= weight_version.is_some();
                self.partly_labelled.add(counter);
            }
        }
    }

    /// Whether two spans have different adapters, or one has none.
    pub(super) fn mix_adapters(&self) -> bool {
        self.adapters.names.are_several()
    }

    /// Whether two spans have different policies.
    pub(super) fn differ(&self) -> bool {
        // where every span with a weight_version has a name, the names decide
        let by_weight_version = self.has_only_weight_version && self.weight_versions.differ();
        self.has_two_epochs || self.names.differ() || by_weight_version || self.adapters.differ()
    }

    /// Whether the policy of a span is uncertain, or two spans cannot be compared.
    pub(super) fn are_uncertain(&self) -> bool {
        let have_no_common_label =
            self.has_only_name && self.has_only_weight_version && self.partly_labelled.are_several();
        self.has_uncertain_epoch
            || self.adapters.are_uncertain()
            || self.epochs.len() > 1 && (self.has_unlabelled || have_no_common_label)
    }
}

/// The adapters of the spans. Different names are different adapters, even if different counters number their epochs. Epochs of one name are compared within
/// a counter, and by the trainer's name of the epoch between two.
#[derive(Debug, Default)]
struct AdapterComparison<'a> {
    names: Distinct<Option<&'a str>>,
    /// The epoch of the first span of each counter and adapter.
    epochs: HashMap<(Counter, &'a str), u64>,
    /// The epochs of one adapter differ within a counter.
    has_two_epochs: bool,
    has_uncertain_epoch: bool,
    versions: LabelComparison<'a>,
    counters: Distinct<Counter>,
    has_unnamed: bool,
}

impl<'a> AdapterComparison<'a> {
    fn add(&mut self, span: &'a Span) {
        self.names.add(span.adapter.as_ref().map(|adapter| &*adapter.name));
        let Some(adapter) = &span.adapter else { return };
        let first = *self.epochs.entry((span.process, &adapter.name)).or_insert(adapter.epoch);
        self.has_two_epochs |= first != adapter.epoch;
        self.has_uncertain_epoch |= adapter.epoch != adapter.until;
        self.counters.add(span.process);
        match adapter.version.as_deref() {
            Some(version) => self.versions.add(version, span.process),
            None => self.has_unnamed = true,
        }
    }

    fn differ(&self) -> bool {
        self.names.are_several() || self.has_two_epochs || self.versions.differ()
    }

    fn are_uncertain(&self) -> bool {
        self.has_uncertain_epoch || self.counters.are_several() && self.has_unnamed
    }
}

/// The labels of one kind, and the counters of their spans.
#[derive(Debug, Default)]
struct LabelComparison<'a> {
    labels: Distinct<&'a str>,
    counters: Distinct<Counter>,
}

impl<'a> LabelComparison<'a> {
    fn add(&mut self, label: &'a str, counter: Counter) {
        self.labels.add(label);
        self.counters.add(counter);
    }

    /// Whether two spans of different counters have different labels. If there are several labels and several counters, such a pair
    /// exists: otherwise every two spans would have the label or the counter in common, and then all spans would.
    fn differ(&self) -> bool {
        self.labels.are_several() && self.counters.are_several()
    }
}

/// Whether the values that were added are the same.
#[derive(Debug, Default)]
enum Distinct<T> {
    #[default]
    None,
    One(T),
    Several,
}

impl<T: PartialEq> Distinct<T> {
    fn add(&mut self, value: T) {
        match self {
            Self::None => *self = Self::One(value),
            Self::One(known) if *known != value => *self = Self::Several,
            Self::One(_) | Self::Several => {}
        }
    }

    fn are_several(&self) -> bool {
        matches!(self, Self::Several)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::export::fixture::span;
    use crate::session::AdapterSpan;

    const A: Option<&str> = Some("aaaaaaaaaaaaaaaa");
    const B: Option<&str> = Some("bbbbbbbbbbbbbbbb");

    /// A span of an epoch of a process, with the trainer's name and the engine's label.
    fn of(process: Option<&str>, epoch: u64, name: Option<&str>, label: Option<&str>) -> Span {
        let process = process.map(|process| process.parse().unwrap());
        Span { process, version: name.map(Into::into), weight_version: label.map(Into::into), ..span(0, 1, epoch) }
    }

    /// Whether the policies of the spans differ, and whether they are uncertain.
    fn compared(spans: &[Span]) -> (bool, bool) {
        let mut policies = Policies::default();
        spans.iter().for_each(|span| policies.add(span));
        (policies.differ(), policies.are_uncertain())
    }

    const SAME: (bool, bool) = (false, false);
    const OTHER: (bool, bool) = (true, false);
    const UNCERTAIN: (bool, bool) = (false, true);

    #[test]
    fn epochs_of_one_counter_are_compared() {
        for process in [None, A] {
            assert_eq!(compared(&[of(process, 3, None, None), of(process, 3, None, None)]), SAME);
            assert_eq!(compared(&[of(process, 3, None, None), of(process, 4, None, None)]), OTHER);
            let labels = [of(process, 3, None, Some("1")), of(process, 3, None, Some("2"))];
            assert_eq!(compared(&labels), SAME, "labels are not compared");
        }
        let range = Span { until: 4, ..of(A, 3, None, None) };
        assert_eq!(compared(&[range]), UNCERTAIN);
        assert_eq!(compared(&[]), SAME);
    }

    #[test]
    fn epochs_of_two_counters_are_not_compared() {
        for (epoch, first) in [(3, A), (4, A), (3, None), (4, None)] {
            let spans = |name, label| [of(first, 3, name, label), of(B, epoch, name, label)];
            assert_eq!(compared(&spans(None, None)), UNCERTAIN);
            assert_eq!(compared(&spans(None, Some(""))), UNCERTAIN);
            assert_eq!(compared(&spans(None, Some("default"))), UNCERTAIN, "every engine begins with it");
            assert_eq!(compared(&spans(None, Some("7"))), SAME);
            assert_eq!(compared(&spans(Some("step-7"), Some("default"))), SAME);
        }
    }

    #[test]
    fn labels_of_two_counters_are_compared() {
        let pair = |(name, label): (Option<&str>, Option<&str>), (other, other_label)| {
            compared(&[of(A, 3, name, label), of(B, 3, other, other_label)])
        };
        let (seven, eight) = (Some("7"), Some("8"));
        assert_eq!(pair((None, seven), (None, eight)), OTHER);
        assert_eq!(pair((seven, None), (eight, None)), OTHER);
        assert_eq!(pair((seven, seven), (eight, seven)), OTHER, "names take precedence");
        assert_eq!(pair((seven, seven), (seven, eight)), SAME, "names take precedence");
        assert_eq!(pair((seven, seven), (None, seven)), SAME, "one name only");
        assert_eq!(pair((seven, seven), (None, eight)), OTHER);
        assert_eq!(pair((seven, None), (None, seven)), UNCERTAIN, "no label in common");
        assert_eq!(pair((None, seven), (None, Some("default"))), UNCERTAIN);
        assert_eq!(pair((seven, seven), (None, None)), UNCERTAIN);
    }

    #[test]
    fn adapters_are_compared_by_name_and_epoch() {
        let with = |name: &str, epoch, until, version: Option<&str>, process| Span {
            adapter: Some(Box::new(AdapterSpan { name: name.into(), epoch, until, version: version.map(Into::into) })),
            ..of(process, 3, Some("1"), None)
        };
        let plain = |name, epoch| with(name, epoch, epoch, None, A);
        let base = of(A, 3, Some("1"), None);
        for (spans, expected, mixed) in [
            (vec![plain("a", 2), plain("a", 2)], SAME, false),
            (vec![plain("a", 2), plain("a", 3)], OTHER, false),
            (vec![plain("a", 2), plain("b", 2)], OTHER, true),
            (vec![plain("a", 0), base], OTHER, true),
            (vec![with("a", 2, 3, None, A)], UNCERTAIN, false),
            (vec![plain("a", 2), with("a", 2, 2, None, B)], UNCERTAIN, false),
            (vec![plain("a", 2), with("b", 2, 2, None, B)], (true, true), true),
            (vec![with("a", 2, 2, Some("7"), A), with("a", 9, 9, Some("7"), B)], SAME, false),
            (vec![with("a", 2, 2, Some("7"), A), with("a", 2, 2, Some("8"), B)], OTHER, false),
        ] {
            assert_eq!(compared(&spans), expected, "{spans:?}");
            let mut policies = Policies::default();
            spans.iter().for_each(|span| policies.add(span));
            assert_eq!(policies.mix_adapters(), mixed, "{spans:?}");
        }
    }

    /// The rules, for each pair of spans.
    fn by_pairs(spans: &[Span]) -> (bool, bool) {
        let (mut differ, mut uncertain) = (false, spans.iter().any(|span| !span.is_certain()));
        for (at, one) in spans.iter().enumerate() {
            for other in &spans[..at] {
                let labels = match (&one.version, &other.version) {
                    (Some(one), Some(other)) => Some((&**one, &**other)),
                    _ => one.updated_weight_version().zip(other.updated_weight_version()),
                };
                match labels {
                    _ if one.process == other.process => differ |= one.epoch != other.epoch,
                    Some((one, other)) => differ |= one != other,
                    None => uncertain = true,
                }
            }
        }
        (differ, uncertain)
    }

    proptest! {
        #[test]
        fn result_is_that_of_comparing_all_pairs(
            spans in prop::collection::vec((0..3_usize, 0..2_u64, 0..3_usize, 0..4_usize), 0..8),
        ) {
            // an epoch has one pair of labels
            let mut labels = HashMap::new();
            let spans: Vec<Span> = spans
                .into_iter()
                .map(|(process, epoch, name, label)| {
                    let (name, label) = *labels.entry((process, epoch)).or_insert((name, label));
                    let label = [None, Some("default"), Some("7"), Some("8")][label];
                    of([None, A, B][process], epoch, [None, Some("7"), Some("8")][name], label)
                })
                .collect();
            prop_assert_eq!(compared(&spans), by_pairs(&spans));
        }
    }
}
