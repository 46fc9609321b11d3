//! Calls to the control port of a tokentap, plain or by TLS.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::trust::Trust;
use crate::config::ExportArgs;
use crate::engine::client::innermost;

/// The time limit to open a connection. The request then has no limit: an export is made while it is read.
const PATIENCE: Duration = Duration::from_secs(5);

/// The address of a control port. Each call opens a new connection.
#[derive(Debug)]
pub(super) struct Port {
    /// As the user wrote it.
    url: String,
    authority: HeaderValue,
    host: String,
    port: u16,
    trust: Option<Trust>,
}

impl Port {
    pub(super) fn try_new(args: &ExportArgs) -> Result<Self, String> {
        let url = args.control.clone();
        let wrong = || format!("--control {url}: is no URL of a control port");
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let authority = uri.authority().ok_or_else(wrong)?;
        let trust = args.control_ca.as_deref().map(Trust::try_new).transpose()?;
        let port = authority.port_u16().unwrap_or(if trust.is_some() { 443 } else { 80 });
        // the brackets of an address of IPv6 belong to the URL
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let authority = HeaderValue::from_str(authority.as_str()).map_err(|_| wrong())?;
        Ok(Self { url, authority, host, port, trust })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The head of the answer to `request`; its body is still to come.
    pub(super) async fn call(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
        request.headers_mut().insert(header::HOST, self.authority.clone());
        let opened = tokio::time::timeout(PATIENCE, self.open()).await;
        let stream =
            opened.unwrap_or_else(|_| Err(format!("nothing for {} s", PATIENCE.as_secs()))).map_err(|cause| {
                format!("cannot connect to the tokentap at {}: {cause}; --control names its control port", self.url)
            })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(&error))?;
        // it ends with the body, and the reader of the body receives its errors
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| self.broken(&error))
    }

    pub(super) fn broken(&self, error: &hyper::Error) -> String {
        format!("the connection failed to the tokentap at {}: {}", self.url, innermost(error))
    }

    async fn open(&self) -> Result<Box<dyn Stream>, String> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|error| error.to_string())?;
        match &self.trust {
            None => Ok(Box::new(stream)),
            Some(trust) => trust.greet(&self.host, stream).await,
        }
    }
}

/// A connection of either kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}
