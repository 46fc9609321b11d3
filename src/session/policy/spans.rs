//! Divides the tokens of a response into spans of epochs.

use std::collections::VecDeque;

use super::{Epoch, EpochMark, Span};

/// Whether the engine's spans cover the response without a gap.
pub(super) fn covers(spans: &[(Box<str>, u32, u32)], tokens: u32) -> bool {
    let end = spans.iter().try_fold(0, |at, (_, start, end)| (*start == at && end >= start).then_some(*end));
    end.is_some_and(|end| end >= tokens) && !spans.is_empty()
}

/// The number of the last epoch up to `asked` that began with a call or on request. Later ones began with labels.
pub(super) fn begun(epochs: &VecDeque<Epoch>, asked: u64) -> u64 {
    let mut earlier = epochs.iter().rev().filter(|epoch| epoch.number <= asked);
    let found = earlier.find(|epoch| !epoch.by_label).or(epochs.front());
    found.map_or(asked, |epoch| epoch.number)
}

/// The first and the last epoch since `from` in which tokens with this label may have been sampled.
pub(super) fn possible(epochs: &VecDeque<Epoch>, from: u64, label: Option<&str>) -> (u64, u64) {
    let now = epochs.back().map_or(from, |epoch| epoch.number);
    let fits = |epoch: &&Epoch| epoch.label.is_none() || label.is_none() || epoch.label.as_deref() == label;
    let mut possible = epochs.iter().filter(|epoch| epoch.number >= from).filter(fits).map(|epoch| epoch.number);
    match possible.next() {
        Some(first) => (first, possible.next_back().unwrap_or(first)),
        // a label that was not observed elsewhere: only the time limits its epoch
        None => (from, now.max(from)),
    }
}

/// Adds the spans of tokens with one label, split where different epochs were observed.
pub(super) fn cut(
    epochs: &VecDeque<Epoch>,
    ((first, until), exact): ((u64, u64), bool),
    (label, start, end): (Option<&str>, u32, u32),
    seen: &[EpochMark],
    spans: &mut Vec<Span>,
) {
    let mut push = |start: u32, end: u32, epoch: u64, until: u64| {
        if start < end {
            let known = epochs.iter().find(|known| known.number == epoch && epoch == until);
            let version = known.and_then(|epoch| epoch.version.clone());
            let own = known.and_then(|epoch| epoch.label.as_deref());
            let other = epochs.iter().filter(|known| (epoch..=until).contains(&known.number));
            let clear =
                exact || other.into_iter().all(|known| known.label.is_none() || known.label.as_deref() == label);
            let weight_version = own.filter(|_| !exact).or(label.filter(|_| clear)).map(Into::into);
            let is_same = |last: &&mut Span| {
                (last.end, last.epoch, last.until) == (start, epoch, until)
                    && (&last.weight_version, &last.version) == (&weight_version, &version)
            };
            match spans.last_mut().filter(is_same) {
                Some(last) => last.end = end,
                // sharing sets the process
                None => spans.push(Span { start, end, epoch, until, weight_version, version, process: None }),
            }
        }
    };
    let (mut at, mut from) = (start, first);
    for pair in seen.windows(2) {
        let [old, new] = [pair[0], pair[1]].map(|mark| EpochMark {
            epoch: mark.epoch.clamp(from, until),
            until: mark.until.clamp(from, until),
            ..mark
        });
        if (old.epoch, old.until) == (new.epoch, new.until) {
            continue;
        }
        // tokens received before the change belong to the old epochs at the latest, tokens after its first event to the new ones
        let (known, reached) = (old.last.clamp(at, end), new.first.clamp(at, end));
        push(at, known, from, old.until);
        push(known, reached, old.epoch, new.until);
        (at, from) = (reached, new.epoch);
    }
    push(at, end, from, until);
}
