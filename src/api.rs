//! The APIs that agents speak, one folder each.
//!
//! An API decodes a request to a generation, and encodes the events of its reply. All else is the same for every API: sessions, retries, recording,
//! aborts, admission and metrics. A new one implements [`Api`], and [`Apis`] gets its path.

pub(crate) mod openai;
pub mod openai_chat;
pub mod openai_completions;
pub mod sample;

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};

use crate::chat::RequestError;
use crate::chat::remembered::Remembered;
use crate::engine::request::{GenerateRequest, SessionNames};
use crate::error::BoxError;
use crate::session::{Chat, Session};
use sample::Sample;

/// An API.
pub trait Api: Debug + Send + Sync {
    /// Whether requests can be decoded now. Others are forwarded to the engine's own endpoint.
    fn is_served(&self) -> bool {
        true
    }

    /// Whether requests that go to the engine's own endpoint are read, because the engine may tell the ids of its reply.
    fn reads_passthrough(&self) -> bool {
        false
    }

    /// Decodes the body of a request, without its session.
    ///
    /// # Errors
    /// [`RequestError`].
    fn decode(&self, request: &Request<Bytes>) -> Result<Box<dyn ApiRequest>, RequestError>;

    /// The error that a client gets for this status and message.
    fn error(&self, status: StatusCode, message: String) -> ApiError;

    /// The error for an answer of the engine that is not 200.
    fn engine_error(&self, status: StatusCode, body: &[u8]) -> ApiError;

    /// The error for the `error` member of an event of the engine, which is JSON text.
    fn event_error(&self, error: &str) -> ApiError;
}

/// A decoded request.
pub trait ApiRequest: Debug + Send + Sync {
    /// The names that the body has for its session.
    fn session_names(&self) -> SessionNames;

    /// Whether [`Self::generation`] takes longer than other requests should wait. `session` is the one that the request names, if it exists.
    fn is_long(&self, _session: Option<&Session>) -> bool {
        false
    }

    /// The generation that the request asks for.
    ///
    /// # Errors
    /// [`RequestError`].
    fn generation(&self, session: RequestSession<'_>) -> Result<ApiGeneration, RequestError>;

    /// What the turn is to remember of the request where the engine's own endpoint serves it.
    fn remembered(&self, _session: Option<&Session>) -> Option<Remembered> {
        None
    }
}

/// The session of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestSession<'a> {
    /// The client has named it.
    pub is_named: bool,
    /// The session that it has named, if it exists.
    pub existing: Option<&'a Arc<Session>>,
}

/// A generation, and the encoder of its reply.
#[derive(Debug)]
pub struct ApiGeneration {
    /// The request for /generate.
    pub request: GenerateRequest,
    /// What its turn remembers, if it is a turn of a chat.
    pub chat: Option<Box<Chat>>,
    /// Encodes the reply.
    pub encoder: Box<dyn ReplyEncoder>,
}

/// Encodes a reply.
pub trait ReplyEncoder: Debug + Send + Sync {
    /// The body of a reply that does not stream.
    ///
    /// # Errors
    /// When it cannot be encoded, such as by a tokenizer that fails.
    fn whole(&self, samples: &[Sample<'_>]) -> Result<String, BoxError>;

    /// How many tokens of a sequence have been encoded: an event has those that follow.
    fn known(&self, index: usize) -> usize;

    /// Appends the events of a stream that one of the engine's events becomes.
    ///
    /// # Errors
    /// When it cannot be encoded; the stream then breaks off.
    fn event(&mut self, sample: &Sample<'_>, out: &mut String) -> Result<(), BoxError>;

    /// Appends the event by which a stream fails.
    fn fail(&mut self, error: &ApiError, out: &mut String);

    /// Appends the events at the end of a stream.
    fn finish(&mut self, out: &mut String);
}

/// An error in the shape of an API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// 4xx or 5xx.
    pub status: StatusCode,
    /// JSON.
    pub body: String,
}

/// The APIs by their paths.
#[derive(Debug, Clone, Default)]
pub struct Apis(Vec<(&'static str, Arc<dyn Api>)>);

impl Apis {
    /// Serves requests to `path` by an API.
    #[must_use]
    pub fn with(mut self, path: &'static str, api: Arc<dyn Api>) -> Self {
        self.0.push((path, api));
        self
    }

    /// The API of a path, with its path.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<(&'static str, &Arc<dyn Api>)> {
        self.0.iter().find(|(known, _)| *known == path).map(|(known, api)| (*known, api))
    }
}
