//! A body that is held whole, gathered from its pieces.
//!
//! In one buffer, of which the budget counts all that it has room for. Kept piece by piece a body of single bytes would take thirty times
//! its length, and a buffer that is there before its bytes are is memory, too, once it has been used before.

use bytes::Bytes;

use super::{Full, Share};

/// What has come of it.
#[derive(Debug)]
pub struct BodyBuffer {
    bytes: Vec<u8>,
    /// What the buffer takes of the budget; `None` where it is too small to be counted.
    share: Option<Share>,
    /// How long it will be, where that has been said.
    whole: Option<usize>,
}

impl BodyBuffer {
    /// Nothing yet of a body of `whole` bytes.
    #[must_use]
    pub fn new(share: Option<Share>, whole: Option<u64>) -> Self {
        Self { bytes: Vec::new(), share, whole: whole.and_then(|whole| usize::try_from(whole).ok()) }
    }

    /// Makes room for all that has been announced, by somebody who will send it.
    ///
    /// # Errors
    /// [`Full`], and nothing is taken.
    pub fn reserve(&mut self) -> Result<(), Full> {
        self.grow(self.whole.unwrap_or(0))
    }

    /// Adds what has come next.
    ///
    /// # Errors
    /// [`Full`], and what has come before stays.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Full> {
        let length = self.bytes.len() + piece.len();
        if length > self.bytes.capacity() {
            // what was announced and does not come takes no room: twice what there is, and no more than there will be
            let doubled = self.bytes.capacity().saturating_mul(2);
            let room = self.whole.map_or(doubled, |whole| whole.min(doubled)).max(length);
            self.grow(room).or_else(|Full| self.grow(length))?;
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Adds what is here already and cannot be refused, room or not.
    pub fn insist(&mut self, piece: &[u8]) {
        self.bytes.reserve_exact(piece.len());
        self.bytes.extend_from_slice(piece);
        if let Some(share) = &mut self.share {
            share.insist(self.bytes.capacity());
        }
    }

    fn grow(&mut self, capacity: usize) -> Result<(), Full> {
        if let Some(share) = &mut self.share {
            share.resize(capacity)?;
        }
        self.bytes.reserve_exact(capacity - self.bytes.len());
        Ok(())
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What there is. Its share is kept for as long as any of it is in use.
    #[must_use]
    pub fn into_bytes(mut self) -> Bytes {
        // kept for as long as a generation takes; a copy is less
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

    /// A request is refused because there is no room for it.
    pub fn shed(self) {
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
    fn what_is_announced_is_taken_when_it_comes_or_at_once_where_it_will() {
        let budget = Budget::new(1000);
        let mut lying = BodyBuffer::new(Some(budget.request()), Some(u64::MAX));
        assert_eq!((lying.push(&[0; 100]), budget.taken()), (Ok(()), 100));
        assert_eq!((lying.push(&[0; 1]), budget.taken()), (Ok(()), 200));
        drop(lying);
        let mut exact = BodyBuffer::new(Some(budget.request()), Some(250));
        for _ in 0..5 {
            exact.push(&[0; 50]).unwrap();
        }
        assert_eq!(budget.taken(), 250, "no more than there will be");
        let mut reply = BodyBuffer::new(Some(budget.reply()), Some(750));
        assert_eq!((reply.reserve(), budget.taken()), (Ok(()), 1000));
        assert_eq!((reply.push(&[0; 750]), budget.taken()), (Ok(()), 1000));
        let mut late = BodyBuffer::new(Some(budget.reply()), Some(1));
        assert_eq!((late.reserve(), late.push(b"x"), late.len()), (Err(Full), Err(Full), 0));
        late.insist(b"x");
        assert_eq!((budget.taken(), late.into_bytes()), (1001, Bytes::from_static(b"x")));
        drop((exact, reply));
        assert_eq!(budget.taken(), 0);
    }
}
