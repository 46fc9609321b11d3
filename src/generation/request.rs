//! What a generation is asked with, whatever the client's API.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};

use super::event::Reads;
use super::retries::Digest;
use crate::engine::client::Call;
use crate::engine::request::GenerateRequest;
use crate::session::Chat;

/// A request's id: set once it is known.
pub type RequestId = Arc<OnceLock<String>>;

/// A request for a generation, decoded from the client's API.
#[derive(Debug)]
pub struct GenerationRequest {
    /// Method, path and headers for the engine.
    pub head: Head,
    /// The body for the engine.
    pub request: GenerateRequest,
    /// The session of its turns.
    pub session: Arc<str>,
    /// What its turns remember, where they are of a chat.
    pub chat: Option<Box<Chat>>,
    /// Nothing follows in this session.
    pub is_last: bool,
    /// The client's own key.
    pub authorization: Option<HeaderValue>,
    /// The id that a header of the client names; without one the request may be given an id.
    pub header_rid: Option<HeaderValue>,
    /// What is read of its events.
    pub reads: Reads,
    /// Tells the call from others of its session; `None` where its reply is not kept for a retry.
    pub retry: Option<Retry>,
}

/// How a call is found again when the client sends it again.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// The digest of the client's body.
    pub digest: Digest,
    /// The client says that it has sent the call before.
    pub is_marked: bool,
}

/// The head of a request that goes upstream, perhaps several times.
#[derive(Debug)]
pub struct Head {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// The headers.
    pub headers: HeaderMap,
}

impl Head {
    /// A call with this head.
    #[must_use]
    pub fn call(&self, body: Bytes) -> Call {
        Call::whole(self.method.clone(), self.target.clone(), self.headers.clone(), body)
    }
}
