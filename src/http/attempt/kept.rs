//! The pieces of a reply that have come and can still be read.

use std::collections::VecDeque;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;

use super::weight::Weight;

/// The pieces: all of them, or from one too many on only those that somebody still needs.
#[derive(Debug)]
pub(super) struct Kept {
    pieces: VecDeque<Piece>,
    /// Bytes of those.
    held: usize,
    /// How many pieces came before those.
    gone: usize,
    all: bool,
    /// More bytes than this are not kept.
    limit: usize,
    weight: Weight,
}

/// A part of a body.
#[derive(Debug)]
pub(super) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Data(bytes) => bytes.len(),
            Self::Trailers(_) => 0,
        }
    }
}

impl Kept {
    pub(super) fn new(limit: usize, weight: Weight) -> Self {
        Self { pieces: VecDeque::new(), held: 0, gone: 0, all: true, limit, weight }
    }

    /// Whether the reply can be read from its beginning.
    pub(super) fn is_all(&self) -> bool {
        self.all
    }

    /// Whether more is held than may be, so that nothing may come before some of it has been read.
    pub(super) fn is_full(&self) -> bool {
        !self.all && self.held > self.limit
    }

    /// Pieces that have come.
    pub(super) fn count(&self) -> usize {
        self.gone + self.pieces.len()
    }

    /// A piece; `None` where it has not come yet.
    ///
    /// # Errors
    /// When it is gone.
    pub(super) fn get(&self, piece: usize) -> Result<Option<&Piece>, Gone> {
        Ok(self.pieces.get(piece.checked_sub(self.gone).ok_or(Gone)?))
    }

    pub(super) fn push(&mut self, frame: Frame<Bytes>) {
        let piece = match frame.into_data().map_err(Frame::into_trailers) {
            Ok(data) => Piece::Data(data),
            Err(Ok(trailers)) => Piece::Trailers(trailers),
            Err(Err(_)) => return,
        };
        self.held += piece.len();
        if self.held > self.limit {
            self.stop();
        }
        if self.all {
            self.weight.add(piece.len());
        }
        self.pieces.push_back(piece);
    }

    /// From here on pieces go when they are no longer needed: nobody can begin at the beginning any more.
    pub(super) fn stop(&mut self) {
        self.all = false;
        self.weight.clear();
    }

    /// The pieces before this one are no longer needed.
    pub(super) fn trim(&mut self, needed: usize) {
        while !self.all && self.gone < needed {
            let Some(piece) = self.pieces.pop_front() else { return };
            self.held -= piece.len();
            self.gone += 1;
        }
    }

    /// Counts the request, which is kept as well.
    pub(super) fn weigh_request(&mut self, bytes: usize) {
        self.weight.ask(bytes);
    }
}

/// A piece was not kept.
#[derive(Debug)]
pub(super) struct Gone;
