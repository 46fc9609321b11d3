//! The latest finished paths by number.

use std::collections::VecDeque;
use std::sync::Arc;

/// Paths that can be listed. A consumer that is further behind gets the number of paths that it missed.
const FINISHED: usize = 1 << 20;

/// Paths of a part.
const PART: usize = 1024;

/// Numbers of paths and the names of their sessions. The list is divided into parts, because a list of a million paths that doubles its
/// capacity copies for milliseconds, while the order is locked.
#[derive(Debug, Default)]
pub(super) struct FinishedPaths {
    /// Parts are in order, and none is empty.
    parts: VecDeque<VecDeque<(u64, Arc<str>)>>,
    length: usize,
}

impl FinishedPaths {
    /// Adds a path. Numbers rise. The first path is removed if the list is full.
    pub(super) fn push(&mut self, number: u64, session: Arc<str>) {
        if self.length == FINISHED {
            self.pop();
        }
        self.length += 1;
        match self.parts.back_mut().filter(|part| part.len() < PART) {
            Some(part) => part.push_back((number, session)),
            None => self.parts.push_back([(number, session)].into()),
        }
    }

    fn pop(&mut self) {
        let Some(part) = self.parts.front_mut() else { return };
        part.pop_front();
        self.length -= 1;
        if part.is_empty() {
            self.parts.pop_front();
        }
    }

    /// The paths after the number `after`, in order.
    pub(super) fn after(&self, after: u64) -> impl Iterator<Item = &(u64, Arc<str>)> {
        let is_before = |part: &VecDeque<(u64, Arc<str>)>| part.back().is_some_and(|(last, _)| *last <= after);
        let first = self.parts.partition_point(is_before);
        let skipped = self.parts.get(first).map_or(0, |part| part.partition_point(|(number, _)| *number <= after));
        self.parts.range(first..).flatten().skip(skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_listed_after_any_number() {
        let mut paths = FinishedPaths::default();
        let listed = |paths: &FinishedPaths, after| paths.after(after).map(|(number, _)| *number).collect::<Vec<_>>();
        assert!(listed(&paths, 0).is_empty());
        // every second number
        (1..=3 * PART as u64).for_each(|number| paths.push(2 * number, "s".into()));
        for after in [0, 1, 2, 3, 2 * PART as u64 - 1, 2 * PART as u64, 2 * PART as u64 + 1, 6 * PART as u64] {
            let expected: Vec<_> =
                (1..=3 * PART as u64).map(|number| 2 * number).filter(|number| *number > after).collect();
            assert_eq!(listed(&paths, after), expected, "after {after}");
        }
    }

    #[test]
    fn full_list_loses_its_first_path() {
        let mut paths = FinishedPaths::default();
        let session: Arc<str> = "s".into();
        for number in 1..=(FINISHED + PART + 1) as u64 {
            paths.push(number, Arc::clone(&session));
            assert!(paths.length <= FINISHED);
        }
        assert_eq!(paths.after(0).next().map(|(number, _)| *number), Some(PART as u64 + 2));
        assert_eq!(paths.parts.iter().map(VecDeque::len).sum::<usize>(), FINISHED);
        assert!(paths.parts.iter().all(|part| part.capacity() <= 2 * PART), "no part is large");
    }
}
