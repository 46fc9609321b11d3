// SPDX-License-Identifier: Apache-2.0
//! The bytes of requests and replies that are held whole, and of the work on requests, of all of them together.
//!
//! A body is counted for as long as its bytes are in memory, also while they wait for a client that reads slowly. What parsing, rendering and
//! encoding a request will take is counted before it begins. Requests are refused once three quarters of the budget are in use. The last
//! quarter is for replies, because the engine has already done the work for them.

mod body_buffer;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

pub(crate) use body_buffer::BodyBuffer;
use work::WorkState;
pub use work::{Stopped, Work};

/// The memory of a parsed JSON value, besides its text.
const VALUE_BYTES: usize = 64;

/// The copies of a body's text that exist while it is decoded.
const DECODED_COPIES: usize = 2;

/// The memory that the values in a JSON text take.
#[must_use]
pub(crate) fn values_bytes(json: &[u8]) -> usize {
    let (mut values, mut rest) = (1, json);
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            b',' | b'[' | b'{' => values += 1,
            b'"' => {
                while let Some(at) = memchr::memchr2(b'"', b'\\', rest) {
                    let is_escape = rest[at] == b'\\';
                    rest = &rest[(at + 1 + usize::from(is_escape)).min(rest.len())..];
                    if !is_escape {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    DECODED_COPIES * json.len() + VALUE_BYTES * values
}

/// A limit in bytes and a count of the bytes in use. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Budget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    limit: u64,
    taken: AtomicU64,
    /// Requests that found no room.
    shed: AtomicU64,
}

/// The budget has no room for these bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(BudgetState { limit, taken: AtomicU64::new(0), shed: AtomicU64::new(0) }))
    }

    /// Bytes in use.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// Requests that were refused because the budget was full.
    #[must_use]
    pub fn shed(&self) -> u64 {
        self.0.shed.load(Ordering::Relaxed)
    }

    /// The bytes that requests may use: three quarters of the budget.
    fn most_of_requests(&self) -> u64 {
        self.0.limit / 4 * 3
    }

    /// An empty share for a request.
    #[must_use]
    pub fn request(&self) -> Share {
        Share { budget: self.clone(), most: self.most_of_requests(), bytes: 0, work: None }
    }

    /// An empty share for a reply. It may use the whole budget.
    #[must_use]
    pub fn reply(&self) -> Share {
        Share { budget: self.clone(), most: self.0.limit, bytes: 0, work: None }
    }

    /// A share of this many bytes, even beyond the limit: later requests get less.
    #[must_use]
    pub fn insist(&self, bytes: usize) -> Share {
        let mut share = self.reply();
        share.insist(bytes);
        share
    }

    /// Counts bytes that must be held, even beyond the limit.
    #[must_use]
    pub fn hold(&self, bytes: impl Into<Bytes>) -> Bytes {
        let bytes = bytes.into();
        self.insist(bytes.len()).hold(bytes)
    }
}

/// A part of the budget; released when it is dropped.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    /// The number of bytes in use, by all shares together, above which this share does not grow.
    most: u64,
    bytes: u64,
    /// The work that it is a part of.
    work: Option<Arc<WorkState>>,
}

impl Share {
    /// Takes `bytes` more.
    ///
    /// # Errors
    /// [`Full`]; the share keeps its size.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Full> {
        let bytes = bytes as u64;
        let fits = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= self.most);
        self.budget.0.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|_| Full)?;
        self.add(bytes);
        Ok(())
    }

    /// Grows or shrinks the share to `bytes`.
    ///
    /// # Errors
    /// [`Full`]; the share keeps its size.
    pub fn resize(&mut self, bytes: usize) -> Result<(), Full> {
        if bytes as u64 == self.bytes {
            return Ok(());
        }
        let more = (bytes as u64).saturating_sub(self.bytes);
        if more > 0 {
            return self.grow(bytes - self.bytes as usize);
        }
        let less = self.remove(self.bytes - bytes as u64);
        self.budget.0.taken.fetch_sub(less, Ordering::Relaxed);
        Ok(())
    }

    /// Adds bytes that the budget has counted.
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        if let Some(work) = &self.work {
            work.taken.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Removes bytes, which the budget still counts.
    fn remove(&mut self, bytes: u64) -> u64 {
        self.bytes -= bytes;
        if let Some(work) = &self.work {
            work.taken.fetch_sub(bytes, Ordering::Relaxed);
        }
        bytes
    }

    /// Grows or shrinks the share to `bytes`, even beyond the limit: later requests get less.
    pub fn insist(&mut self, bytes: usize) {
        self.most = u64::MAX;
        // there is always room below this
        let _ = self.resize(bytes);
    }

    /// Takes over the bytes of another share of the same budget.
    pub fn join(&mut self, mut other: Self) {
        self.add(other.remove(other.bytes));
    }

    /// Counts a refused request and releases the share.
    pub fn shed(self) {
        self.budget.0.shed.fetch_add(1, Ordering::Relaxed);
    }

    /// Ties the share to `bytes`: it is released when the last reference to them is dropped.
    #[must_use]
    pub fn hold(self, bytes: impl Into<Bytes>) -> Bytes {
        Bytes::from_owner(BudgetedBytes { bytes: bytes.into(), _share: self })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let bytes = self.remove(self.bytes);
        self.budget.0.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

struct BudgetedBytes {
    bytes: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for BudgetedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_strings() {
        let count = |json: &str| (values_bytes(json.as_bytes()) - DECODED_COPIES * json.len()) / VALUE_BYTES;
        assert_eq!(count("7"), 1);
        assert_eq!(count(r#"{"a,[{": [1, "\\\"],{,", {}], "b": "\\"}"#), 7);
        assert_eq!(count(r#"["unterminated, \"#), 2);
    }

    #[test]
    fn requests_leave_a_quarter_to_replies() {
        let budget = Budget::new(100);
        let mut request = budget.request();
        assert_eq!((request.grow(75), request.grow(1), budget.taken()), (Ok(()), Err(Full), 75));
        let mut reply = budget.reply();
        assert_eq!((reply.grow(26), budget.request().grow(1)), (Err(Full), Err(Full)));
        assert_eq!((reply.grow(25), reply.grow(1), budget.taken()), (Ok(()), Err(Full), 100));
        let held = budget.hold(vec![0; 10]);
        assert_eq!((held.len(), budget.taken()), (10, 110), "what must be held is");
        drop((request, reply));
        assert_eq!((budget.taken(), budget.request().grow(65)), (10, Ok(())));
        drop(held);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn bytes_are_counted_until_the_last_of_them_is_gone() {
        let budget = Budget::new(100);
        let mut share = budget.request();
        share.grow(8).unwrap();
        let bytes = share.hold(Bytes::from_static(b"eight by"));
        let part = bytes.slice(2..4);
        drop(bytes);
        assert_eq!((&*part, budget.taken()), (&b"gh"[..], 8));
        drop(part);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn a_share_that_did_not_fit_takes_nothing() {
        let budget = Budget::new(10);
        let mut share = budget.reply();
        assert_eq!((share.resize(11), budget.taken()), (Err(Full), 0));
        assert_eq!((share.resize(10), share.resize(4), budget.taken()), (Ok(()), Ok(()), 4));
        assert_eq!((share.grow(usize::MAX), budget.taken()), (Err(Full), 4));
    }
}
