//! A reply that several clients read: pulled by whoever has read furthest, and kept for those who come later.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Response, StatusCode, response};
use http_body::{Body as _, Frame, SizeHint};

use super::kept::{Kept, Piece};
use crate::generation::Observed;
use crate::http::body::Body;

/// A generation that will be answered; dropped before, it is aborted.
pub type Pending = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// How many bytes a reader is given at once. The server asks for more only when it has written nearly all of what it was given, so
/// to have taken the last of a large reply means that the system has taken all but the last hundred kilobytes.
const PIECE: usize = 64 * 1024;

/// The reply.
pub(super) struct Reply {
    source: Source,
    head: Option<response::Parts>,
    /// Bytes of the body, where they are known beforehand.
    total: Option<u64>,
    kept: Kept,
    end: Option<Result<(), Arc<str>>>,
    /// So many pieces say all there is to say, although the body may not have ended.
    complete: Option<usize>,
    /// By the order in which they came.
    readers: BTreeMap<u64, At>,
    came: u64,
    delivered: bool,
    observed: Option<Observed>,
}

enum Source {
    Head(Pending),
    Body(Body),
    Over,
}

/// How far a reader is.
#[derive(Debug, Default)]
struct At {
    /// It has the head.
    head: bool,
    piece: usize,
    /// Bytes of that piece that it has.
    offset: usize,
    /// Bytes that it has altogether.
    taken: u64,
    /// It knows that the reply broke off, and may write what it has before it is told so.
    warned: bool,
    /// What it has, its client has not been given yet.
    held: bool,
}

/// What a reader gets.
#[derive(Debug)]
pub(super) enum Next {
    Frame(Frame<Bytes>),
    End,
    Failed(Arc<str>),
    /// Once before a failure.
    Warning,
    /// Nothing has come yet.
    Nothing,
}

impl Reply {
    pub(super) fn new(pending: Pending, kept: Kept) -> Self {
        Self {
            source: Source::Head(pending),
            head: None,
            total: None,
            kept,
            end: None,
            complete: None,
            readers: BTreeMap::new(),
            came: 0,
            delivered: false,
            observed: None,
        }
    }

    /// A reader at the beginning; `None` where that is no longer to be had, the reply broke off, or it has arrived. One that nobody
    /// reads must also be whole and good.
    pub(super) fn join(&mut self) -> Option<u64> {
        let broken = matches!(self.end, Some(Err(_)));
        let arrived = self.delivered || self.readers.values().any(|at| self.has_all(at));
        let idle = self.readers.is_empty() && self.came > 0;
        let open = self.kept.is_all() && !broken && !arrived && (!idle || self.is_replayable());
        open.then(|| {
            let reader = self.came;
            self.came += 1;
            self.readers.insert(reader, At::default());
            reader
        })
    }

    /// The reader goes; says whether it was the last. The source goes with it, which aborts what has not ended.
    pub(super) fn leave(&mut self, reader: u64) -> bool {
        let Some(at) = self.readers.remove(&reader) else { return false };
        self.delivered |= self.has_all(&at);
        self.trim();
        if !self.readers.is_empty() {
            return false;
        }
        if self.end.is_none() {
            self.close(Err("nobody reads the reply any more".into()));
        }
        if !self.is_replayable() {
            self.kept.stop();
            self.kept.trim(usize::MAX);
        }
        true
    }

    /// Says whether the reader's client is yet to be given what the reader has taken.
    pub(super) fn hold(&mut self, reader: u64, held: bool) {
        self.readers.entry(reader).or_default().held = held;
    }

    pub(super) fn head(&mut self, reader: u64) -> Option<response::Parts> {
        let head = self.head.clone()?;
        self.readers.entry(reader).or_default().head = true;
        Some(head)
    }

    /// What comes next for this reader.
    pub(super) fn take(&mut self, reader: u64) -> Next {
        let at = self.readers.entry(reader).or_default();
        let Ok(piece) = self.kept.get(at.piece) else {
            return Next::Failed("the reply was too large to be kept for a client so far behind".into());
        };
        let frame = match piece {
            Some(Piece::Data(bytes)) => {
                let last = bytes.len().min(at.offset + PIECE);
                let data = bytes.slice(at.offset..last);
                at.taken += data.len() as u64;
                at.offset = last;
                if last == bytes.len() {
                    (at.piece, at.offset) = (at.piece + 1, 0);
                }
                Frame::data(data)
            }
            Some(Piece::Trailers(trailers)) => {
                at.piece += 1;
                Frame::trailers(trailers.clone())
            }
            None => {
                return match &self.end {
                    None => Next::Nothing,
                    Some(Ok(())) => Next::End,
                    Some(Err(_)) if !std::mem::replace(&mut at.warned, true) => Next::Warning,
                    Some(Err(error)) => Next::Failed(Arc::clone(error)),
                };
            }
        };
        self.trim();
        Next::Frame(frame)
    }

    /// Whether nothing may be pulled before the reader that came last has caught up: it is the one whose client has not given up.
    pub(super) fn is_stalled(&self) -> bool {
        self.kept.is_full()
    }

    /// Takes a step: the head, a piece, or the end. Not to be called behind the end.
    pub(super) fn pull(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.source {
            Source::Head(pending) => {
                let (head, body) = ready!(pending.as_mut().poll(cx)).into_parts();
                self.head = Some(head);
                self.total = body.size_hint().exact();
                self.source = Source::Body(body);
            }
            Source::Body(body) => match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    let complete = body.is_complete();
                    self.kept.push(frame);
                    self.trim();
                    if complete && self.complete.is_none() {
                        self.complete = Some(self.kept.count());
                    }
                }
                Some(Err(error)) => self.close(Err(error.to_string().into())),
                None => self.close(Ok(())),
            },
            Source::Over => {}
        }
        if matches!(&self.source, Source::Body(body) if body.is_end_stream()) {
            self.close(Ok(()));
        }
        Poll::Ready(())
    }

    /// From here on pieces stay only until the reader that came last has them: nobody can begin at the beginning any more.
    pub(super) fn stop_keeping(&mut self) {
        self.kept.stop();
        self.trim();
    }

    fn trim(&mut self) {
        if let Some((_, last)) = self.readers.last_key_value() {
            self.kept.trim(last.piece);
        }
    }

    /// Lets go of the source.
    fn close(&mut self, end: Result<(), Arc<str>>) {
        self.observed = self.observed();
        self.source = Source::Over;
        self.end = Some(end);
    }

    fn is_whole(&self) -> bool {
        matches!(self.end, Some(Ok(())))
    }

    /// Whether the reader's client was given all there is to say.
    fn has_all(&self, at: &At) -> bool {
        let all = self.complete.or_else(|| self.is_whole().then(|| self.kept.count()));
        at.head && !at.held && all.is_some_and(|all| at.piece >= all)
    }

    fn is_replayable(&self) -> bool {
        let good = self.head.as_ref().is_some_and(|head| head.status == StatusCode::OK);
        good && self.is_whole() && self.kept.is_all() && !self.delivered
    }

    /// Whether some reader was given all of it.
    pub(super) fn is_delivered(&self) -> bool {
        self.delivered
    }

    /// Whether every piece is kept; where not, some readers may wait for another one.
    pub(super) fn keeps(&self) -> bool {
        self.kept.is_all()
    }

    /// Counts the request, which is kept as well.
    pub(super) fn weigh_request(&mut self, bytes: usize) {
        self.kept.weigh_request(bytes);
    }

    pub(super) fn observed(&self) -> Option<Observed> {
        match &self.source {
            Source::Body(body) => body.observed(),
            Source::Head(_) | Source::Over => self.observed,
        }
    }

    pub(super) fn is_at_end(&self, reader: u64) -> bool {
        self.is_whole() && self.readers.get(&reader).is_some_and(|at| at.piece >= self.kept.count())
    }

    pub(super) fn size_hint(&self, reader: u64) -> SizeHint {
        let taken = self.readers.get(&reader).map_or(0, |at| at.taken);
        self.total.map_or_else(SizeHint::default, |total| SizeHint::with_exact(total.saturating_sub(taken)))
    }
}
