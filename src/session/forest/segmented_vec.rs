//! A list that grows in segments, so that no push copies more than one segment.
//!
//! A `Vec` copies all elements when its capacity doubles. For the list of a session with a million turns that takes tens of
//! milliseconds, while the session is locked.

use std::ops::{Index, IndexMut};

/// Elements of a segment.
const SEGMENT: usize = 1024;

/// The list.
#[derive(Debug)]
pub(in crate::session) struct SegmentedVec<T> {
    /// The first segment. Its capacity doubles up to the size of a segment, because most lists are short.
    first: Vec<T>,
    rest: Vec<Vec<T>>,
}

impl<T> Default for SegmentedVec<T> {
    fn default() -> Self {
        Self { first: Vec::new(), rest: Vec::new() }
    }
}

impl<T> SegmentedVec<T> {
    /// A list of one element.
    pub(in crate::session) fn one(element: T) -> Self {
        Self { first: vec![element], rest: Vec::new() }
    }

    pub(in crate::session) fn len(&self) -> usize {
        let in_rest = self.rest.split_last().map_or(0, |(last, full)| full.len() * SEGMENT + last.len());
        self.first.len() + in_rest
    }

    pub(in crate::session) fn push(&mut self, element: T) {
        if self.first.len() < SEGMENT {
            return self.first.push(element);
        }
        match self.rest.last_mut().filter(|last| last.len() < SEGMENT) {
            Some(last) => last.push(element),
            None => {
                let mut segment = Vec::with_capacity(SEGMENT);
                segment.push(element);
                self.rest.push(segment);
            }
        }
    }
}

impl<T> Index<usize> for SegmentedVec<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        match at.checked_sub(SEGMENT) {
            None => &self.first[at],
            Some(at) => &self.rest[at / SEGMENT][at % SEGMENT],
        }
    }
}

impl<T> IndexMut<usize> for SegmentedVec<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        match at.checked_sub(SEGMENT) {
            None => &mut self.first[at],
            Some(at) => &mut self.rest[at / SEGMENT][at % SEGMENT],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_keep_their_index() {
        let mut list = SegmentedVec::default();
        for at in 0..5 * SEGMENT {
            assert_eq!(list.len(), at);
            list.push(at);
        }
        for at in 0..5 * SEGMENT {
            assert_eq!(list[at], at);
            list[at] += 1;
        }
        assert_eq!(list[3 * SEGMENT], 3 * SEGMENT + 1);
    }

    #[test]
    fn push_moves_no_full_segment() {
        let mut list = SegmentedVec::one(0);
        (1..SEGMENT).for_each(|at| list.push(at));
        let place = &raw const list[SEGMENT - 1];
        for at in SEGMENT..100 * SEGMENT {
            list.push(at);
            assert_eq!(&raw const list[SEGMENT - 1], place);
        }
        assert!(list.rest.iter().all(|segment| segment.capacity() == SEGMENT));
    }
}
