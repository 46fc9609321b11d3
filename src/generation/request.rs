//! A request for a generation, independent of the client's API.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock, OnceLock};

use bytes::Bytes;
use foldhash::quality::RandomState;
use http::{HeaderMap, HeaderValue, Method};

use super::event::EventAccess;
use crate::budget::Work;
use crate::engine::sglang::request::GenerateRequest;
use crate::engine::transport::client::UpstreamCall;
use crate::session::{Chat, Labels};

/// A request's id, set once it is known.
pub(crate) type RequestId = Arc<OnceLock<Arc<str>>>;

/// A request for a generation, decoded from the client's API.
#[derive(Debug)]
pub struct GenerationRequest {
    /// Method, path and headers for the engine.
    pub head: RequestHead,
    /// Counts the memory of the body, and of what the generation takes besides.
    pub work: Work,
    /// The body for the engine. On the heap: futures that hold the request are copied.
    pub request: Box<GenerateRequest>,
    /// The session of its turns.
    pub session: Arc<str>,
    /// The conversation that its turns continue, for a chat request.
    pub chat: Option<Box<Chat>>,
    /// The labels of its turns; `None` without a signal.
    pub labels: Option<Arc<Labels>>,
    /// The client marks this call as the last of its session.
    pub is_last: bool,
    /// The client's API key.
    pub authorization: Option<HeaderValue>,
    /// The request id from a client header. Without it tokentap may assign one.
    pub header_rid: Option<HeaderValue>,
    /// How the events are accessed.
    pub reads: EventAccess,
    /// Identifies the call when it is retried; `None` if its reply is not kept.
    pub retry: Option<Retry>,
}

/// Identifies a call that the client may send again.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// The digest of the client's body.
    pub digest: Digest,
    /// The client marks the call as a retry.
    pub is_marked: bool,
}

/// A keyed hash of a body, which avoids most comparisons of bodies. The key is random, so that a client cannot construct many bodies with
/// the same hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Hashes `bytes`, in time proportional to their length.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        Self(KEY.hash_one(bytes))
    }
}

/// The head of an upstream request, which may be sent several times.
#[derive(Debug)]
pub struct RequestHead {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub target: Cow<'static, str>,
    /// The headers.
    pub headers: HeaderMap,
}

impl RequestHead {
    /// Builds a call with this head.
    #[must_use]
    pub fn call(&self, body: Bytes) -> UpstreamCall {
        UpstreamCall::whole(self.method.clone(), self.target.clone(), self.headers.clone(), body)
    }
}
