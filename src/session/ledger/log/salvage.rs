// SPDX-License-Identifier: Apache-2.0
//! Finds where reading continues after a damaged frame.

use memchr::memmem::Finder;

use super::frame::Marker;

/// Finds the next intact frame after a damaged one.
pub(super) struct Salvage {
    marker: Marker,
    /// The bytes that may still be checksummed. The limit keeps the time linear in the size of the file.
    budget: u64,
}

impl Salvage {
    /// A search in the rest of a file, which has this many bytes.
    pub(super) fn new(marker: Marker, bytes: u64) -> Self {
        Self { marker, budget: bytes.saturating_mul(4) }
    }

    /// The offset of the first intact frame after the damaged one at the start of `rest`; `None` if there is no such frame.
    ///
    /// Only bytes after the marker of the file count as a frame: others may be data that a client has sent.
    pub(super) fn resume(&mut self, rest: &[u8]) -> Option<usize> {
        let marker = self.marker;
        let finder = Finder::new(marker.bytes());
        finder.find_iter(rest.get(1..)?).map(|at| at + 1).find(|at| self.is_intact(&rest[*at..]))
    }

    /// The offset of the first intact frame in `rest`.
    pub(super) fn find(&mut self, rest: &[u8]) -> Option<usize> {
        if self.is_intact(rest) { Some(0) } else { self.resume(rest) }
    }

    /// Whether `bytes` begin with an intact frame, as far as the budget allows the check.
    fn is_intact(&mut self, bytes: &[u8]) -> bool {
        let Some(length) = self.marker.whole(bytes).filter(|length| *length <= bytes.len()) else { return false };
        let Some(budget) = self.budget.checked_sub(length as u64) else { return false };
        self.budget = budget;
        self.marker.is_intact(&bytes[..length])
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::super::frame::HEADER;
    use super::*;

    fn frames(marker: Marker, count: u64) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for number in 0..count {
            starts.push(bytes.len());
            marker.push(&fake::finished(number), &mut bytes).unwrap();
        }
        (bytes, starts)
    }

    fn resume(marker: Marker, bytes: &[u8]) -> Option<usize> {
        Salvage::new(marker, bytes.len() as u64).resume(bytes)
    }

    #[test]
    fn wrong_length_loses_only_its_own_frame() {
        let marker = Marker::random();
        let (mut bytes, starts) = frames(marker, 4);
        bytes[8..12].copy_from_slice(&((starts[2] - HEADER) as u32).to_le_bytes());
        assert_eq!(resume(marker, &bytes), Some(starts[1]), "the length ends at the third frame");
    }

    #[test]
    fn frames_of_another_marker_are_not_read() {
        let (bytes, _) = frames(Marker::random(), 4);
        assert_eq!(resume(Marker::random(), &bytes), None);
    }

    #[test]
    fn marker_candidates_are_checked_within_bounds() {
        // each marker claims a payload up to the end of the file; checking all of them would take quadratic time
        let marker = Marker::random();
        let (unit, count) = (32, 2_000);
        let mut bytes = vec![0xff; unit * count];
        for at in (0..bytes.len()).step_by(unit) {
            let payload = (bytes.len() - at - HEADER) as u32;
            bytes[at..at + 8].copy_from_slice(marker.bytes());
            bytes[at + 8..at + 12].copy_from_slice(&payload.to_le_bytes());
        }
        let mut salvage = Salvage::new(marker, bytes.len() as u64);
        assert_eq!(salvage.resume(&bytes), None);
        assert!(salvage.budget < bytes.len() as u64, "the budget was used");
    }
}
