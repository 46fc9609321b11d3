// SPDX-License-Identifier: Apache-2.0
//! A body that is held whole, gathered from its pieces.
//!
//! It uses one buffer, and the budget counts the buffer's whole capacity. Kept piece by piece, a body of single bytes would take thirty
//! times its length. Capacity that is not filled yet is counted, too, because reused memory is resident before it is filled.

use bytes::Bytes;

use super::{Full, Share};

/// By how much the capacity for an announced body grows when it is full. The copies of the bytes so far are a seventh of a long body, and a
/// sender that does not send what it announces takes eight times what it has sent.
const ANNOUNCED_GROWTH: usize = 8;

/// The bytes received so far.
#[derive(Debug)]
pub(crate) struct BodyBuffer {
    bytes: Vec<u8>,
    /// The share of the buffer in the budget; `None` if it is too small to be counted.
    share: Option<Share>,
    /// The announced length in bytes; `None` where no length was announced.
    whole: Option<usize>,
}

impl BodyBuffer {
    /// An empty buffer for a body of `whole` bytes.
    #[must_use]
    pub(crate) fn new(share: Option<Share>, whole: Option<u64>) -> Self {
        Self { bytes: Vec::new(), share, whole: whole.and_then(|whole| usize::try_from(whole).ok()) }
    }

    /// Appends the next piece.
    ///
    /// # Errors
    /// [`Full`]; then the earlier pieces stay.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Result<(), Full> {
        let length = self.bytes.len() + piece.len();
        if length > self.bytes.capacity() {
            // announced bytes that do not arrive take little room: the capacity grows as pieces arrive, up to the announced length
            let capacity = self.bytes.capacity();
            let grown = match self.whole {
                Some(whole) => whole.min(capacity.saturating_mul(ANNOUNCED_GROWTH)),
                None => capacity.saturating_mul(2),
            };
            let room = grown.max(length);
            self.grow(room).or_else(|Full| self.grow(length))?;
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    fn grow(&mut self, capacity: usize) -> Result<(), Full> {
        if let Some(share) = &mut self.share {
            share.resize(capacity)?;
        }
        self.bytes.reserve_exact(capacity - self.bytes.len());
        Ok(())
    }

    /// The number of bytes received.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes received. Their share is held for as long as any of them is in use.
    #[must_use]
    pub(crate) fn into_bytes(mut self) -> Bytes {
        // the bytes are held for as long as a generation takes; a copy costs less
        if self.bytes.capacity() > self.bytes.len() / 4 * 5 {
            self.bytes.shrink_to_fit();
            if let Some(share) = &mut self.share {
                share.insist(self.bytes.capacity());
            }
        }
        match self.share {
            Some(share) => share.hold(self.bytes),
            None => self.bytes.into(),
        }
    }

    /// Counts the request as refused because the budget is full.
    pub(crate) fn shed(self) {
        self.share.into_iter().for_each(Share::shed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Budget;
    use super::*;

    #[test]
    fn single_bytes_take_no_more_than_twice_their_number() {
        let budget = Budget::new(1 << 20);
        let mut gathered = BodyBuffer::new(Some(budget.request()), None);
        for number in 1..=10_000_u64 {
            gathered.push(b"x").unwrap();
            assert!((number..=2 * number).contains(&budget.taken()), "{number}: {}", budget.taken());
        }
        assert!(budget.taken() > 15_000);
        let bytes = gathered.into_bytes();
        assert_eq!((budget.taken(), &*bytes), (10_000, &[b'x'; 10_000][..]), "and no more than it once they are there");
        drop(bytes);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn announced_bytes_are_counted_on_arrival() {
        let roomy = Budget::new(4000);
        let mut lying = BodyBuffer::new(Some(roomy.request()), Some(u64::MAX));
        assert_eq!((lying.push(&[0; 100]), roomy.taken()), (Ok(()), 100));
        assert_eq!((lying.push(&[0; 1]), roomy.taken()), (Ok(()), 800));
        let budget = Budget::new(1000);
        let mut exact = BodyBuffer::new(Some(budget.request()), Some(250));
        for _ in 0..5 {
            exact.push(&[0; 50]).unwrap();
        }
        assert_eq!(budget.taken(), 250, "no more than there will be");
        let mut late = BodyBuffer::new(Some(budget.request()), Some(501));
        assert_eq!((late.push(&[0; 501]), late.len()), (Err(Full), 0));
        drop((exact, late));
        assert_eq!(budget.taken(), 0);
    }
}
