// SPDX-License-Identifier: Apache-2.0
//! The HTTP client of the upstream, for agents' traffic and tokentap's own calls.

use std::borrow::Cow;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use url::Url;

use crate::engine::transport::breaker::Breaker;
use crate::engine::transport::exchange::SendError;
use crate::engine::transport::failure::{Failure, UploadError, innermost};
use crate::engine::transport::pool::{ConnectionLimits, Transport};
pub use crate::engine::transport::reply_body::ReplyBody;
use crate::engine::transport::tls::Tls;

/// An upstream reply whose body has not been read.
pub type Reply = http::Response<ReplyBody>;

/// A request to the upstream.
#[derive(Debug)]
pub struct UpstreamCall {
    /// The method.
    pub method: Method,
    /// The path and query, byte for byte.
    pub target: Cow<'static, str>,
    /// Headers, without hop-by-hop ones.
    pub headers: HeaderMap,
    body: CallBody,
}

impl UpstreamCall {
    /// Creates a call with a streamed body.
    #[must_use]
    pub fn new<B>(method: Method, target: Cow<'static, str>, mut headers: HeaderMap, body: B) -> Self
    where
        B: Body<Data = Bytes, Error = UploadError> + Send + 'static,
    {
        // an empty body must not become a chunked one
        if body.is_end_stream() {
            return Self { method, target, headers, body: CallBody::empty() };
        }
        if body.size_hint().exact().is_none() {
            headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        Self { method, target, headers, body: CallBody::Streamed(Box::pin(body)) }
    }

    /// Creates a call with a complete body.
    #[must_use]
    pub fn whole(method: Method, target: Cow<'static, str>, headers: HeaderMap, body: Bytes) -> Self {
        Self { method, target, headers, body: CallBody::Whole(body) }
    }
}

/// The body of a call.
pub(super) enum CallBody {
    /// The bytes that are not sent yet.
    Whole(Bytes),
    /// A client's body, while it arrives.
    Streamed(Pin<Box<dyn Body<Data = Bytes, Error = UploadError> + Send>>),
}

impl CallBody {
    /// No body.
    pub(super) fn empty() -> Self {
        Self::Whole(Bytes::new())
    }
}

impl std::fmt::Debug for CallBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallBody").field("size_hint", &self.size_hint()).finish_non_exhaustive()
    }
}

impl Body for CallBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Streamed(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Streamed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Streamed(body) => body.size_hint(),
        }
    }
}

/// The target of most traffic, which needs no check.
const GENERATE: &str = "/generate";

/// Checks the URL of a server, which may have a path.
fn check(url: &str) -> Result<(), String> {
    let parsed = Url::parse(url).map_err(|error| format!("{url}: {error}"))?;
    if parsed.host().is_none() {
        return Err(format!("{url}: names no host"));
    }
    let target = format!("{url}{GENERATE}");
    let given = target.parse::<http::Uri>().map_err(|error| format!("{url}: {error}"))?;
    let is_kept = Url::parse(&target)
        .is_ok_and(|parsed| parsed.path() == given.path() && parsed.query().is_none() && parsed.fragment().is_none());
    if is_kept {
        Ok(())
    } else {
        Err(format!("{url}: its path must be normalised and percent-encoded, and be the last"))
    }
}

/// The bytes of a reply to one of tokentap's own calls, at most, if the call has no lower limit.
const MOST_REPLY_BYTES: usize = 64 << 20;

/// The limits of the reply to one of tokentap's own calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplyLimits {
    /// The bytes of its body.
    pub bytes: usize,
    /// The longest pause before its head and within it; it may take six times as long in total. `None` for no limit.
    pub pause: Option<Duration>,
}

impl Default for ReplyLimits {
    fn default() -> Self {
        Self { bytes: MOST_REPLY_BYTES, pause: None }
    }
}

/// The keys and limits of a client.
#[derive(Debug, Clone, Copy)]
pub struct ClientSettings<'a> {
    /// The key for tokentap's own calls.
    pub api_key: Option<&'a str>,
    /// The key for calls that need an administrator's, such as aborts.
    pub admin_key: Option<&'a str>,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long an idle connection is kept.
    pub pool_idle_timeout: Duration,
    /// After this number of failed connections in a row, calls fail without an attempt. 0 for never.
    pub breaker_failures: u32,
    /// PEM file with the CAs of servers with `https://`.
    pub ca: Option<&'a Path>,
}

/// A client of one engine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    transport: Transport,
    breaker: Breaker,
    upstream: Arc<str>,
    api_key: Option<HeaderValue>,
    admin_key: Option<HeaderValue>,
}

impl Client {
    /// A client of the server at `upstream`, `http://HOST:PORT` or `https://HOST:PORT`, below whose path, if it has one, all calls go.
    ///
    /// # Errors
    /// Error message if `upstream` is not such a URL, a key is not valid in a header, or the CAs cannot be used.
    pub fn try_new(upstream: &str, settings: ClientSettings<'_>) -> Result<Self, String> {
        check(upstream).map_err(|error| format!("--upstream {error}"))?;
        let ClientSettings { api_key, admin_key, connect_timeout, pool_idle_timeout, breaker_failures, ca } = settings;
        let limits = ConnectionLimits { connect_timeout, idle_timeout: pool_idle_timeout };
        let tls = ca.map(Tls::try_new).transpose().map_err(|error| format!("--upstream-ca {error}"))?;
        let bearer = |key: Option<&str>| {
            key.map(|key| {
                let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                    .map_err(|_| "a key has characters that are not valid in a header".to_owned())?;
                value.set_sensitive(true);
                Ok::<_, String>(value)
            })
            .transpose()
        };
        Ok(Self {
            transport: Transport::try_new(upstream, tls, limits).map_err(|error| format!("--upstream {error}"))?,
            breaker: Breaker::new(breaker_failures),
            upstream: upstream.into(),
            api_key: bearer(api_key)?,
            admin_key: bearer(admin_key)?,
        })
    }

    /// A client of the engine at `url`, with the same keys and limits, but with its own connections and without a breaker.
    ///
    /// # Errors
    /// Error message if `url` is not the URL of a server.
    pub fn at(&self, url: &str) -> Result<Self, String> {
        check(url)?;
        let transport = self.transport.to(url)?;
        Ok(Self { transport, upstream: url.into(), breaker: Breaker::new(0), ..self.clone() })
    }

    /// The URL of the server.
    #[must_use]
    pub fn upstream(&self) -> &str {
        &self.upstream
    }

    /// The same, shared.
    #[must_use]
    pub fn shared_upstream(&self) -> &Arc<str> {
        &self.upstream
    }

    /// The path below which the server has its routes: empty, or without a slash at its end.
    #[must_use]
    pub fn base_path(&self) -> &str {
        self.transport.base_path()
    }

    /// Whether the breaker is open: calls fail without being sent, because no connection can be made.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.breaker.is_open()
    }

    /// Sends a call; the reply's body is read by the caller.
    ///
    /// # Errors
    /// [`Failure`] when no head of a reply came.
    pub async fn send(&self, call: UpstreamCall) -> Result<Reply, Failure> {
        self.check_target(&call.target)?;
        let unreachable = |failures| Failure::Unreachable { upstream: self.upstream.to_string(), failures };
        self.breaker.admit().map_err(unreachable)?;
        let UpstreamCall { method, target, headers, body } = call;
        let sent = self.exchange(&method, &target, &headers, body).await;
        match &sent {
            Err(Failure::Connect { .. }) => self.breaker.connect_failed(),
            Err(_) => {}
            Ok(_) => self.breaker.connected(),
        }
        let mut reply = sent?;
        // the version belongs to this hop: a client's connection must not close because the engine's does
        *reply.version_mut() = http::Version::HTTP_11;
        Ok(reply)
    }

    async fn exchange(
        &self,
        method: &Method,
        target: &str,
        headers: &HeaderMap,
        body: CallBody,
    ) -> Result<Reply, Failure> {
        let sent = self.transport.send(method, target, headers, body).await;
        let reply = sent.map_err(|error| self.failure(error))?;
        // no request asks for an upgrade, and the bytes after it would not be a reply
        if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Failure::Broken("it switched protocols without a request to do so".to_owned()));
        }
        Ok(reply)
    }

    /// Checks a target: a URL parser must leave it unchanged. Otherwise the engine would get another path than the client sent.
    fn check_target(&self, target: &str) -> Result<(), Failure> {
        if target == GENERATE {
            return Ok(());
        }
        let changed = || Failure::Target(target.to_owned());
        let text = format!("{}{target}", self.upstream);
        let url = Url::parse(&text).map_err(|_| changed())?;
        // the URL of the server is normalised, so the rest must equal the target
        let parsed_target = url.as_str().len().checked_sub(target.len()).and_then(|at| url.as_str().get(at..));
        let whole = target.starts_with('/') && parsed_target == Some(target) && url.fragment().is_none();
        if whole && text.parse::<http::Uri>().is_ok() { Ok(()) } else { Err(changed()) }
    }

    fn failure(&self, error: SendError) -> Failure {
        match error {
            SendError::Upload(upload) => upload.into(),
            SendError::Connect(cause) => {
                Failure::Connect { upstream: self.upstream.to_string(), cause: innermost(&*cause) }
            }
            error => Failure::Broken(innermost(&error)),
        }
    }

    /// Authorizes a request with tokentap's admin key, otherwise with its API key. Removes a key that was not meant for the upstream.
    pub fn sign(&self, headers: &mut HeaderMap) {
        headers.remove(header::AUTHORIZATION);
        if let Some(key) = self.admin_key.as_ref().or(self.api_key.as_ref()) {
            headers.insert(header::AUTHORIZATION, key.clone());
        }
    }

    /// The same for a generation, which does not accept the admin key.
    pub fn sign_generation(&self, headers: &mut HeaderMap) {
        headers.remove(header::AUTHORIZATION);
        if let Some(key) = &self.api_key {
            headers.insert(header::AUTHORIZATION, key.clone());
        }
    }

    /// Sends one of tokentap's own calls with the API key, and reads the whole reply.
    ///
    /// # Errors
    /// [`Failure`] when no whole reply came.
    pub async fn call(&self, method: Method, path: &str, body: Option<String>) -> Result<(StatusCode, Bytes), Failure> {
        self.limited_call(method, path, body, ReplyLimits::default()).await
    }

    /// The same within these limits.
    ///
    /// # Errors
    /// [`Failure`] when no whole reply came, or one beyond the limits.
    pub(crate) async fn limited_call(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        limits: ReplyLimits,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let read = self.read_reply(method, path, body, self.api_key.clone(), limits);
        within(limits.pause.map(|pause| 6 * pause), read).await
    }

    /// The key for an abort: the admin key, otherwise the client's key, otherwise tokentap's API key.
    pub(crate) fn abort_key(&self, client_key: Option<HeaderValue>) -> Option<HeaderValue> {
        self.admin_key.clone().or(client_key).or_else(|| self.api_key.clone())
    }

    /// Replaces the admin key by the API key, for a call to an engine that a router lists.
    pub(crate) fn without_admin_key(&self, key: Option<HeaderValue>) -> Option<HeaderValue> {
        // a call without a key stays without one
        if key.is_some() && key == self.admin_key { self.api_key.clone() } else { key }
    }

    /// Sends one of tokentap's own calls with this key, and reads the whole reply.
    ///
    /// # Errors
    /// [`Failure`] when no whole reply came.
    pub(crate) async fn signed_call(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        key: Option<HeaderValue>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        self.read_reply(method, path, body, key, ReplyLimits::default()).await
    }

    async fn read_reply(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        key: Option<HeaderValue>,
        limits: ReplyLimits,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let is_json = body.is_some();
        self.check_target(path)?;
        let body = CallBody::Whole(body.map(Bytes::from).unwrap_or_default());
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        if is_json {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(key) = key {
            headers.insert(header::AUTHORIZATION, key);
        }
        let reply = within(limits.pause, self.exchange(&method, path, &headers, body)).await?;
        self.breaker.connected();
        let status = reply.status();
        let (mut body, mut bytes) = (reply.into_body(), BytesMut::new());
        while let Some(frame) = within(limits.pause, async { Ok(body.frame().await.transpose()?) }).await? {
            let Ok(data) = frame.into_data() else { continue };
            if data.len() > limits.bytes - bytes.len() {
                // the connection closes with the rest of the body
                return Err(Failure::Broken(format!("its reply is larger than {} bytes", limits.bytes)));
            }
            bytes.extend_from_slice(&data);
        }
        Ok((status, bytes.freeze()))
    }
}

/// Runs an operation within a time limit, if there is one.
async fn within<T>(limit: Option<Duration>, operation: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match limit {
        Some(limit) => tokio::time::timeout(limit, operation).await.unwrap_or(Err(Failure::Timeout)),
        None => operation.await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn path_of_a_server_must_reach_it_unchanged() {
        for url in ["http://a", "http://a:80", "https://[::1]:1/b", "http://a/b/c", "http://a/%62"] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
        for url in [
            "http://a/b/../c",
            "http://a/b c",
            "http://a/\u{e9}",
            "http://a/%2e%2e",
            "http://a/b?c",
            "http://a/b#c",
            "http:",
        ] {
            assert!(check(url).is_err(), "{url}");
        }
    }

    /// A client of a server that sends these pieces after any request, each after the pause.
    async fn client_of(pieces: Vec<Vec<u8>>, pause: Duration) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await.unwrap();
            for piece in pieces {
                tokio::time::sleep(pause).await;
                // fails if the client has left
                let _ = stream.write_all(&piece).await;
            }
            std::future::pending::<()>().await;
        });
        Client::try_new(&url, SETTINGS).unwrap()
    }

    fn reply_of(bytes: usize) -> Vec<Vec<u8>> {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n").into_bytes();
        std::iter::once(head).chain(vec![b" ".to_vec(); bytes]).collect()
    }

    #[tokio::test]
    async fn reply_beyond_the_limit_of_bytes_is_not_read() {
        for (bytes, fits) in [(10, true), (11, false)] {
            let client = client_of(reply_of(bytes), Duration::ZERO).await;
            let limits = ReplyLimits { bytes: 10, pause: None };
            let read = client.limited_call(Method::GET, "/a", None, limits).await;
            match read {
                Ok((status, body)) => assert!(fits && status == 200 && body.len() == bytes),
                Err(error) => assert!(!fits && error.to_string().contains("larger than 10 bytes"), "{error}"),
            }
        }
    }

    /// The clock is real, as the connection is.
    #[tokio::test]
    async fn reply_may_pause_and_take_six_times_as_long_in_total() {
        let limit = Duration::from_millis(200);
        for (pause, bytes, ends) in [(10 * limit, 1, false), (Duration::ZERO, 10, true), (limit / 2, 20, false)] {
            let client = client_of(reply_of(bytes), pause).await;
            let limits = ReplyLimits { pause: Some(limit), ..ReplyLimits::default() };
            let read = client.limited_call(Method::GET, "/a", None, limits).await;
            assert_eq!(read.is_ok(), ends, "{pause:?} before each of {bytes} bytes: {read:?}");
            assert!(ends || matches!(read, Err(Failure::Timeout)), "{read:?}");
        }
    }

    const SETTINGS: ClientSettings<'_> = ClientSettings {
        api_key: None,
        admin_key: None,
        connect_timeout: Duration::from_secs(1),
        pool_idle_timeout: Duration::from_secs(1),
        breaker_failures: 0,
        ca: None,
    };

    #[tokio::test]
    async fn target_that_would_leave_the_base_path_is_refused() {
        let client = Client::try_new("http://127.0.0.1:1/a/b", SETTINGS).unwrap();
        for target in ["/../c", "/%2e%2e/c", "/..", "c", "", "/a/b/../../c", "//../c"] {
            let sent = client.call(Method::GET, target, None).await;
            assert!(matches!(sent, Err(Failure::Target(_))), "{target}: {sent:?}");
        }
        let sent = client.call(Method::GET, "/c?d=/../e", None).await;
        assert!(matches!(sent, Err(Failure::Connect { .. })), "{sent:?}");
    }
}
