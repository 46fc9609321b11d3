//! What trainers read: one file a format.

use std::sync::Arc;

use bytes::Bytes;

use super::Path;

/// What is to be exported.
#[derive(Debug)]
pub struct Batch {
    /// The rows in the order of the export.
    pub rows: Vec<Path>,
    /// Leaves that are not exported.
    pub refused: Vec<Refused>,
    /// How rows become tensors.
    pub shape: Shape,
}

/// A leaf that is not exported, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its session.
    pub session: Arc<str>,
    /// Its last turn.
    pub leaf: u32,
    /// A name: of a [`Fault`](super::Fault), or of what the format needs and the row lacks.
    pub reason: &'static str,
}

/// How rows become tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// What stands where there is no token.
    pub pad_token_id: u32,
    /// Tokens of the prompt side; `None`: of the longest. Longer prompts lose their beginning.
    pub max_prompt_length: Option<usize>,
    /// Tokens of the response side; `None`: of the longest. Longer responses lose their end.
    pub max_response_length: Option<usize>,
}

/// A format's bytes, made as they are taken.
pub struct Export {
    /// For the reply's head.
    pub content_type: &'static str,
    /// Bytes altogether, where they are known beforehand.
    pub length: Option<u64>,
    /// The bytes, in pieces of at most about a megabyte.
    pub chunks: Box<dyn Iterator<Item = Bytes> + Send>,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("content_type", &self.content_type).field("length", &self.length).finish()
    }
}
