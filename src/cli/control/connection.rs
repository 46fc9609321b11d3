//! HTTP calls to the control port of a tokentap, with or without TLS.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::tls::TlsClient;
use crate::config::ControlPortArgs;
use crate::engine::transport::client::innermost;

/// The timeout of opening a connection. The request has no timeout, because the reply of an export is encoded while it is read.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of a control port. Each call opens a new connection.
#[derive(Debug)]
pub(super) struct ControlPort {
    /// The value of `--control`.
    url: String,
    authority: HeaderValue,
    host: String,
    port: u16,
    tls: Option<TlsClient>,
}

impl ControlPort {
    pub(super) fn try_new(args: &ControlPortArgs) -> Result<Self, String> {
        let url = args.control.clone();
        let wrong = || format!("--control {url}: is no URL of a control port");
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let authority = uri.authority().ok_or_else(wrong)?;
        let tls = args.control_ca.as_deref().map(TlsClient::try_new).transpose()?;
        let port = authority.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        // in a URL, an IPv6 address has brackets, which are not part of the address
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let authority = HeaderValue::from_str(authority.as_str()).map_err(|_| wrong())?;
        Ok(Self { url, authority, host, port, tls })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Sends `request` and returns the reply, whose body has not been read yet.
    pub(super) async fn call(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
        request.headers_mut().insert(header::HOST, self.authority.clone());
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, self.open()).await;
        let stream = opened.unwrap_or_else(|_| Err(format!("nothing for {} s", CONNECT_TIMEOUT.as_secs()))).map_err(
            |cause| {
                format!("cannot connect to the tokentap at {}: {cause}; --control names its control port", self.url)
            },
        )?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.connection_error(&error))?;
        // the task ends with the body, and the reader of the body receives the errors of the connection
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| self.connection_error(&error))
    }

    /// The error message of a failed connection.
    pub(super) fn connection_error(&self, error: &hyper::Error) -> String {
        format!("the connection failed to the tokentap at {}: {}", self.url, innermost(error))
    }

    async fn open(&self) -> Result<Box<dyn Stream>, String> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|error| error.to_string())?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some(tls) => tls.handshake(&self.host, stream).await,
        }
    }
}

/// A connection with or without TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}
