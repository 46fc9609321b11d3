// SPDX-License-Identifier: Apache-2.0
//! The APIs that agents speak, one folder each.
//!
//! An API decodes a request, plans its generation, and encodes the events of the reply. Sessions, retries, recording, aborts, admission and
//! metrics are the same for every API. A new API implements [`Api`], [`ApiRequest`] and [`ReplyEncoder`], and [`Apis`] gets its path. The
//! [native] API needs no [`ReplyEncoder`]: its events keep the engine's bytes.

pub mod anthropic_messages;
mod body;
pub(crate) mod client_headers;
pub(crate) mod engine_chat;
pub mod generate_request;
pub(crate) mod native;
pub(crate) mod openai;
pub mod openai_chat;
pub mod openai_completions;
pub mod openai_responses;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldhash::quality::RandomState;
use http::{Method, Request, StatusCode};
use serde::Serialize;

use crate::budget::{Work, values_bytes};
use crate::chat::forwarded::ForwardedChat;
use crate::chat::{RequestError, RequestSession};
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::request::{GenerateRequest, SessionNames};
use crate::engine::sglang::routes::Route;
use crate::error::BoxError;
use crate::generation::event::GenerationEvent;
use crate::generation::request::EngineChat;
use crate::generation::update::SequenceUpdate;
use crate::session::ledger::Ack;
use crate::session::{Chat, Dialect, Labels, Session};
use openai::error::OpenAiError;

/// An API.
pub trait Api: Debug + Send + Sync {
    /// Why requests are not decoded here now, so that the engine's own endpoint serves them. `None` if they are.
    fn not_served(&self) -> Option<String> {
        None
    }

    /// The API in the labels of its turns. `None` adds no label.
    fn dialect(&self) -> Option<Dialect> {
        None
    }

    /// Whether requests generate tokens.
    fn generates(&self) -> bool {
        true
    }

    /// Whether requests with this method are decoded here. The engine serves those with other methods.
    fn accepts(&self, method: &Method) -> bool {
        method == Method::POST
    }

    /// The memory that decoding a body takes besides the body.
    fn decoded_bytes(&self, body: &[u8]) -> usize {
        values_bytes(body)
    }

    /// Decodes a request. Its session is not known yet.
    ///
    /// # Errors
    /// [`RequestError`].
    fn decode(&self, request: &Request<Bytes>) -> Result<Box<dyn ApiRequest>, RequestError>;

    /// Returns the error of this API for a status and a message.
    fn error(&self, status: StatusCode, message: String) -> ApiError;

    /// The message for a prompt that leaves no room for a reply in the context of the model. The numbers are tokens.
    fn prompt_too_long(&self, tokens: usize, context: u64) -> String {
        RequestError::TooLong { tokens, context }.to_string()
    }
}

impl dyn Api + '_ {
    /// Converts an error reply of the engine.
    #[must_use]
    pub fn engine_error(&self, status: StatusCode, body: &[u8]) -> ApiError {
        self.error(status, OpenAiError::from_engine(status, body).message)
    }

    /// Converts the `error` member of an engine event, which is JSON text.
    #[must_use]
    pub fn event_error(&self, error: &str) -> ApiError {
        let OpenAiError { status, message } = OpenAiError::from_event(error);
        self.error(status, message)
    }
}

/// A decoded request.
pub trait ApiRequest: Debug + Send + Sync {
    /// The members of the body that may name its session.
    fn session_names(&self) -> SessionNames;

    /// Adds the labels that the body gives. Those of the headers are set already; [`fill_label`](crate::session::fill_label) keeps them.
    fn add_labels(&self, _labels: &mut Labels) {}

    /// Whether [`Self::plan`] takes too long for a runtime thread. `session` is the named session, if it exists.
    fn is_long(&self, _session: Option<&Session>) -> bool {
        false
    }

    /// Plans the generation of the reply, or makes a reply that needs none.
    ///
    /// # Errors
    /// [`RequestError`].
    fn plan(&self, session: RequestSession<'_>, work: &Work) -> Result<ApiPlan, RequestError>;

    /// Checks that the engine's own endpoint can serve the request.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if the request refers to a response that only tokentap stores.
    fn check_passthrough(&self) -> Result<(), RequestError> {
        Ok(())
    }

    /// Encodes a stream that only reports this error. `None` if the reply has the status of the error and no events.
    fn encode_failed_stream(&self, _error: &RequestError) -> Option<String> {
        None
    }

    /// Describes the chat that a turn records if the engine's own endpoint serves the request.
    fn forwarded_chat(&self, _session: RequestSession<'_>, _work: &Work) -> Option<ForwardedChat> {
        None
    }

    /// The request as the client wrote it, for the engine's own endpoint of `route`. `None` unless that endpoint reports token ids.
    fn client_chat(
        &self,
        _route: Route,
        _session: RequestSession<'_>,
        _work: &Work,
        _engine: &Capabilities,
    ) -> Option<EngineChat> {
        None
    }
}

/// What a request needs.
#[derive(Debug)]
pub enum ApiPlan {
    /// A generation.
    Generation(ApiGeneration),
    /// No generation: this is the reply.
    Local(LocalReply),
}

/// A reply without a generation.
#[derive(Debug)]
pub struct LocalReply {
    /// The body.
    pub encoded: EncodedReply,
    /// The reply is sent when the ledger has stored the changes that the request made.
    pub stored: Ack,
}

impl From<EncodedReply> for ApiPlan {
    fn from(encoded: EncodedReply) -> Self {
        Self::Local(LocalReply { encoded, stored: Ack::done() })
    }
}

/// A generation and the encoder of its reply.
#[derive(Debug)]
pub struct ApiGeneration {
    /// The request for /generate.
    pub request: Box<GenerateRequest>,
    /// The chat that its turn records; `None` if it is not a chat.
    pub chat: Option<Box<Chat>>,
    /// Encodes the reply.
    pub encoder: Box<dyn ReplyEncoder>,
}

/// Encodes the reply to one request.
pub trait ReplyEncoder: Debug + Send + Sync {
    /// Sets the engine's request id before anything is encoded. It is not called if the id is not known before the engine's reply. All
    /// retries of a request have the id of the first.
    fn set_rid(&mut self, _rid: &str) {}

    /// Encodes the body of a reply that does not stream.
    ///
    /// # Errors
    /// When it cannot be encoded, such as when the tokenizer fails.
    fn encode_whole(&self, updates: &[SequenceUpdate<'_>]) -> Result<EncodedReply, BoxError>;

    /// Appends the events that a stream begins with before the engine has sent one.
    fn begin(&mut self, _out: &mut String) {}

    /// How long a stream waits for the first event of the engine before it begins. If that is an error, the reply is an error with its
    /// status. `None` if it waits as long as necessary, or not at all with `--sse-keepalive`.
    fn first_event_timeout(&self) -> Option<Duration> {
        None
    }

    /// After this time without an event, a stream sends [`Self::keepalive`]. `None` if only `--sse-keepalive` decides.
    fn keepalive_interval(&self) -> Option<Duration> {
        None
    }

    /// Appends an event that only keeps the connection alive. By default it is a comment.
    fn keepalive(&mut self, out: &mut String) {
        out.push_str(": keep-alive\n\n");
    }

    /// The number of tokens of a sequence that are encoded. The next update of the sequence has the tokens after them.
    fn encoded_tokens(&self, index: usize) -> usize;

    /// Appends the events of a stream for the new tokens of a sequence.
    ///
    /// # Errors
    /// When it cannot be encoded. The stream then ends with an error.
    fn encode_update(&mut self, update: &SequenceUpdate<'_>, out: &mut String) -> Result<(), BoxError>;

    /// Whether every requested sequence has ended, as far as events were encoded.
    fn has_ended(&self) -> bool;

    /// Appends the error event of a stream.
    fn fail(&mut self, error: &ApiError, out: &mut String);

    /// Appends the last events of a stream.
    fn finish(&mut self, out: &mut String);
}

/// The body of a reply, or the error that the API replies in its place.
pub type EncodedReply = Result<String, ApiError>;

/// Encodes the events of a stream as bytes.
pub trait EventEncoder: Debug + Send {
    /// Appends an encoded event to `out`.
    ///
    /// # Errors
    /// When the event cannot be encoded. The stream then fails.
    fn encode(&mut self, event: &GenerationEvent, out: &mut Vec<u8>) -> Result<(), BoxError>;

    /// Appends what keeps the connection alive while the engine is silent.
    fn keepalive(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b": keep-alive\n\n");
    }

    /// Returns the encoded event if it exists already, so that an event that fills a frame alone is not copied.
    fn encoded(&self, _event: &GenerationEvent) -> Option<Bytes> {
        None
    }

    /// Whether the encoding of an unparsed event has the event's length.
    fn keeps_length(&self) -> bool {
        false
    }
}

/// An error in the format of an API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// 4xx or 5xx.
    pub status: StatusCode,
    /// The body, as JSON text.
    pub body: String,
}

/// The error of a path that no API serves: in OpenAI's format, which most clients read.
#[must_use]
pub(crate) fn unserved(status: StatusCode, message: String) -> ApiError {
    OpenAiError { status, message }.into()
}

/// The APIs by their paths.
#[derive(Debug, Clone, Default)]
pub struct Apis {
    /// Those of paths without `{id}`.
    exact: HashMap<&'static str, Arc<dyn Api>, RandomState>,
    patterns: Vec<(PathPattern, Arc<dyn Api>)>,
}

/// A path with the segment `{id}`.
#[derive(Debug, Clone, Copy)]
struct PathPattern {
    path: &'static str,
    before: &'static str,
    after: &'static str,
}

impl Apis {
    /// Adds an API that serves requests to `path`. The segment `{id}` stands for any segment.
    #[must_use]
    pub fn with(mut self, path: &'static str, api: Arc<dyn Api>) -> Self {
        match path.split_once("{id}") {
            Some((before, after)) => self.patterns.push((PathPattern { path, before, after }, api)),
            None => drop(self.exact.insert(path, api)),
        }
        self
    }

    /// The paths.
    pub fn paths(&self) -> impl Iterator<Item = &'static str> {
        self.exact.keys().copied().chain(self.patterns.iter().map(|(pattern, _)| pattern.path))
    }

    /// Returns the API of a path, with the path that was added. Paths without `{id}` have priority.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<(&'static str, &Arc<dyn Api>)> {
        if let Some((known, api)) = self.exact.get_key_value(path) {
            return Some((known, api));
        }
        let found = self.patterns.iter().find(|(pattern, _)| pattern.matches(path));
        found.map(|(pattern, api)| (pattern.path, api))
    }
}

impl PathPattern {
    /// Whether a path has the segments of the pattern.
    fn matches(&self, path: &str) -> bool {
        let id = path.strip_prefix(self.before).and_then(|rest| rest.strip_suffix(self.after));
        id.is_some_and(|id| !id.is_empty() && !id.contains('/'))
    }
}

/// A value as JSON text.
#[must_use]
pub(crate) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("structs of strings and numbers serialize without an error")
}
