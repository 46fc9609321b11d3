// SPDX-License-Identifier: Apache-2.0
//! A request for a generation, independent of the client's API.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock, OnceLock};

use bytes::Bytes;
use foldhash::quality::RandomState;
use http::{HeaderMap, HeaderValue, Method};
use parking_lot::Mutex;

use super::event::EventAccess;
use crate::budget::Work;
use crate::engine::rid;
use crate::engine::sglang::request::{GenerateRequest, PerItem};
use crate::engine::sglang::routes::Route;
use crate::engine::sglang::sglext::SglextOptions;
use crate::engine::transport::client::UpstreamCall;
use crate::session::{Chat, Labels, Tags};
use crate::traces::UnsentSpan;

/// A request's id, set once it is known.
pub(crate) type RequestId = OnceLock<Arc<str>>;

/// The id of a call's request. Calls that share an attempt share its id.
#[derive(Debug, Default)]
pub struct RidSlot {
    own: RequestId,
    /// The latest attempt. The lock is held for one access.
    attempt: Mutex<Option<Arc<RequestId>>>,
}

impl RidSlot {
    /// The id, once it is known.
    #[must_use]
    pub fn get(&self) -> Option<Arc<str>> {
        let attempt = self.attempt.lock();
        attempt.as_deref().map_or_else(|| self.own.get(), OnceLock::get).cloned()
    }

    /// The id of a call that shares no attempt.
    pub(super) fn own(&self) -> &RequestId {
        &self.own
    }

    /// Takes the id of an attempt. A call whose pictures were refused has two.
    pub(super) fn share(&self, rid: &Arc<RequestId>) {
        *self.attempt.lock() = Some(Arc::clone(rid));
    }
}

/// The source of the events of a reply.
#[derive(Debug)]
pub enum Source {
    Generate {
        /// The request. On the heap: futures that hold it are copied.
        request: Box<GenerateRequest>,
        /// The conversation that its turns continue, for a chat request.
        chat: Option<Box<Chat>>,
    },
    /// The engine's own chat endpoint, for what only the engine can render. Its turns have ids and no logprobs.
    EngineChat(Box<EngineChat>),
}

/// A chat for the engine's own endpoint.
#[derive(Debug)]
pub struct EngineChat {
    pub body: Bytes,
    /// The route of the client's call, for metrics.
    pub route: Route,
    /// The request id, if the body has it.
    pub rid: Option<Arc<str>>,
    /// The ids that the client gets in `sglext`.
    pub sglext: SglextOptions,
    /// The number of choices.
    pub n: usize,
    /// The sampling fields under their names in `sampling_params`, as a JSON object.
    pub sampling: Box<str>,
    /// The adapter.
    pub lora_path: Option<Arc<str>>,
    /// The conversation that its turns continue.
    pub chat: Option<ChatOfPrompt>,
    /// Who wrote the body.
    pub kind: ChatKind,
    /// Why tokentap does not build its prompt.
    pub reason: Box<str>,
}

/// Who wrote the body of a chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatKind {
    /// The client, which gets the bytes of the reply.
    PassedThrough,
    /// An API. It asks for a whole reply, from whose ids it encodes its own.
    Translated {
        /// The client expects a stream.
        is_deferred: bool,
    },
}

impl EngineChat {
    /// Whether the client expects a stream of a reply that does not stream.
    #[must_use]
    pub fn is_deferred(&self) -> bool {
        self.kind == ChatKind::Translated { is_deferred: true }
    }

    /// Gives the chat a request id if it has none, so that it can be aborted before the engine returns its id.
    pub(crate) fn assign_rid(&mut self) {
        if self.kind != ChatKind::PassedThrough && self.rid.is_none() {
            let rid = rid::fresh();
            // the body is an object with members
            self.body = [b"{\"rid\":\"", rid.as_bytes(), b"\",", &self.body[1..]].concat().into();
            self.rid = Some(rid);
        }
    }
}

/// Returns the conversation after a prompt with these ids.
type DescribeChat = dyn FnOnce(&[u32]) -> Box<Chat> + Send + Sync;

/// Describes the conversation of a prompt that only the engine renders, once its ids are known.
pub struct ChatOfPrompt(Box<DescribeChat>);

impl ChatOfPrompt {
    /// The conversation that `describe` returns for the ids of the prompt.
    #[must_use]
    pub fn new(describe: impl FnOnce(&[u32]) -> Box<Chat> + Send + Sync + 'static) -> Self {
        Self(Box::new(describe))
    }

    /// The conversation after a prompt with these ids.
    #[must_use]
    pub fn describe(self, prompt: &[u32]) -> Box<Chat> {
        (self.0)(prompt)
    }
}

impl std::fmt::Debug for ChatOfPrompt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ChatOfPrompt")
    }
}

impl Source {
    /// The body, as the API of the client made it.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        match self {
            Self::Generate { request, .. } => &request.bytes,
            Self::EngineChat(chat) => &chat.body,
        }
    }

    /// The number of turns that a complete reply has.
    #[must_use]
    pub fn turns(&self) -> usize {
        match self {
            Self::Generate { request, .. } => request.batch().unwrap_or(1).saturating_mul(request.n()),
            Self::EngineChat(chat) => chat.n,
        }
    }

    /// Whether the client is known to expect a stream.
    #[must_use]
    pub fn streams(&self) -> bool {
        match self {
            Self::Generate { request, .. } => request.stream == Some(true),
            Self::EngineChat(chat) => chat.is_deferred(),
        }
    }

    /// Whether the body has a request id. Two equal calls with the same id are retries of one call.
    #[must_use]
    pub fn has_rid(&self) -> bool {
        match self {
            Self::Generate { request, .. } => match &request.rid {
                PerItem::One(_) => true,
                PerItem::Many(rids) => rids.iter().any(Option::is_some),
                PerItem::Absent | PerItem::Unreadable => false,
            },
            Self::EngineChat(chat) => chat.rid.is_some(),
        }
    }

    /// The ids that are removed from the engine's bytes depend on this.
    #[must_use]
    pub(crate) fn sglext(&self) -> SglextOptions {
        match self {
            Self::Generate { .. } => SglextOptions::default(),
            Self::EngineChat(chat) => chat.sglext,
        }
    }
}

/// A request for a generation, decoded from a call of an API.
#[derive(Debug)]
pub struct GenerationRequest {
    /// The source of its events, with the request for it.
    pub source: Source,
    /// The call. On the heap: futures that hold it are copied.
    pub call: Box<ClientCall>,
}

/// The parts of a client's call that do not depend on the source of its events.
#[derive(Debug)]
pub struct ClientCall {
    /// Method, path and headers for the engine.
    pub head: RequestHead,
    /// Counts the memory of the body, and of what the generation takes besides.
    pub work: Work,
    /// The session of its turns.
    pub session: Arc<str>,
    /// The client named the session. Only then may it retry the call.
    pub is_named: bool,
    /// The labels of its turns; `None` without a signal.
    pub labels: Option<Arc<Labels>>,
    /// The tags that its session gets with its first turn.
    pub tags: Tags,
    /// What its headers tell tokentap.
    pub signals: ClientSignals,
    /// How the events are accessed.
    pub reads: EventAccess,
    /// The span of its generation, until the capture of the reply has it.
    pub(crate) span: UnsentSpan,
}

/// What the headers of a call tell tokentap.
#[derive(Debug)]
pub struct ClientSignals {
    /// The client's API key.
    pub authorization: Option<HeaderValue>,
    /// The request id. Without it tokentap may assign one.
    pub rid: Option<HeaderValue>,
    /// The call is a retry.
    pub is_retry: bool,
    /// The call is the last of its session.
    pub is_last: bool,
}

/// A keyed hash of a body, which avoids most comparisons of bodies. The key is random, so that a client cannot construct many bodies with
/// the same hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyDigest(u64);

impl BodyDigest {
    /// Hashes `bytes`, in time proportional to their length.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        Self(KEY.hash_one(bytes))
    }
}

/// The head of an upstream request, which may be sent several times.
#[derive(Debug, Clone)]
pub struct RequestHead {
    pub method: Method,
    /// Path and query.
    pub target: Cow<'static, str>,
    pub headers: HeaderMap,
}

impl RequestHead {
    /// Builds a call with this head.
    #[must_use]
    pub fn call(&self, body: Bytes) -> UpstreamCall {
        UpstreamCall::whole(self.method.clone(), self.target.clone(), self.headers.clone(), body)
    }
}
