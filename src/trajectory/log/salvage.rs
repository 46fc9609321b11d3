//! Where reading goes on behind a damaged frame.

use super::frame::{self, ENVELOPE};

/// Finds the next sound frame behind a damaged one. Checksums decide; the bytes that may be checked are bounded, because what clients
/// send can be made to look like frames.
pub(super) struct Salvage {
    /// Bytes that may still be checked.
    budget: u64,
}

impl Salvage {
    /// For a file of this many bytes: the work stays linear in its size.
    pub(super) fn new(bytes: u64) -> Self {
        Self { budget: bytes.saturating_mul(4) }
    }

    /// The offset of the first sound frame behind the damaged one that `rest` begins with; `None` where no more can be read.
    ///
    /// Where the damaged frame's length leads to a sound frame, only that frame is passed over. The exception is a damaged length that
    /// happens to lead over sound frames: they end exactly where it points.
    pub(super) fn resume(&mut self, rest: &[u8]) -> Option<usize> {
        let next = frame::whole(rest).filter(|at| *at < rest.len() && self.sound(&rest[*at..]).is_some());
        let end = next.unwrap_or(rest.len());
        let candidates = (1..end).filter(|at| frame::looks_like_one(&rest[*at..end]));
        let mut found = None;
        for at in candidates {
            let is_sound = match next {
                Some(end) => self.leads_to(&rest[..end], at),
                None => self.sound(&rest[at..]).is_some(),
            };
            if is_sound {
                found = Some(at);
                break;
            }
        }
        found.or(next)
    }

    /// Whether sound frames fill `bytes` from `at` to its end.
    fn leads_to(&mut self, bytes: &[u8], mut at: usize) -> bool {
        while at < bytes.len() {
            let Some(length) = self.sound(&bytes[at..]) else { return false };
            at += length;
        }
        true
    }

    /// The length of the frame that `bytes` begin with, where it is sound and may still be checked.
    fn sound(&mut self, bytes: &[u8]) -> Option<usize> {
        let length = frame::whole(bytes).filter(|length| *length <= bytes.len())?;
        // also what is too short to matter: the number of checks is bounded with their bytes
        self.budget = self.budget.checked_sub(length as u64 + ENVELOPE)?;
        frame::is_sound(&bytes[..length]).then_some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::super::frame::Encoder;
    use super::*;

    fn frames(count: u64) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        let mut encoder = Encoder::try_new().unwrap();
        for number in 0..count {
            starts.push(bytes.len());
            encoder.push(&fake::finished(number), &mut bytes).unwrap();
        }
        (bytes, starts)
    }

    fn resume(bytes: &[u8]) -> Option<usize> {
        Salvage::new(bytes.len() as u64).resume(bytes)
    }

    #[test]
    fn a_length_that_leads_over_sound_frames_does_not_cost_them() {
        let (mut bytes, starts) = frames(4);
        let length = (starts[2] - ENVELOPE as usize) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        assert_eq!(resume(&bytes), Some(starts[1]), "it led to the third frame");
    }

    #[test]
    fn a_frame_within_a_payload_is_not_read_where_the_length_is_sound() {
        let (inner, _) = frames(1);
        let (behind, _) = frames(1);
        let payload = [b"before", &inner[..], b"behind"].concat();
        let mut bytes = (payload.len() as u32).to_le_bytes().to_vec();
        bytes.extend([1, 2, 3, 4, 0]);
        bytes.extend(&payload);
        let outer = bytes.len();
        bytes.extend(behind);
        assert_eq!(resume(&bytes), Some(outer));
    }

    #[test]
    fn what_looks_like_frames_is_checked_within_bounds() {
        // each place claims a payload that reaches to the end: checked in full, that would be quadratic
        let unit = 32;
        let count = 2_000;
        let mut bytes = vec![0xff; unit * count];
        for at in (0..bytes.len()).step_by(unit) {
            let payload = (bytes.len() - at) as u32 - ENVELOPE as u32;
            bytes[at..at + 4].copy_from_slice(&payload.to_le_bytes());
            bytes[at + 8] = 0;
            bytes[at + 9..at + 13].copy_from_slice(&12_u32.to_le_bytes());
            bytes[at + 13..at + 22].copy_from_slice(br#"{"kind":""#);
        }
        let places = (1..bytes.len()).filter(|at| frame::looks_like_one(&bytes[*at..])).count();
        assert_eq!(places, count - 1);
        let mut salvage = Salvage::new(bytes.len() as u64);
        assert_eq!(salvage.resume(&bytes), None);
        assert!(salvage.budget < bytes.len() as u64, "the bound was reached");
    }
}
