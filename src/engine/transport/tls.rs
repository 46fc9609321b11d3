// SPDX-License-Identifier: Apache-2.0
//! TLS of connections to the upstream.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, CertificateError, ClientConfig};

use crate::tls_client;

/// A connection over TLS.
pub(super) type TlsStream = tokio_rustls::client::TlsStream<TcpStream>;

/// Timeout of a handshake. It takes some milliseconds; a server of another protocol may wait for ever.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no connection over TLS.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct HandshakeError(String);

/// The client side of TLS, for any server. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    /// The file with the trusted CAs, for messages.
    ca: Arc<Path>,
}

impl Tls {
    /// Trusts the CAs in this PEM file.
    ///
    /// # Errors
    /// The file, and why it cannot be used.
    pub(super) fn try_new(ca: &Path) -> Result<Self, String> {
        let mut config = tls_client::config(ca, None)?;
        // the only protocol of this client; without it a proxy could choose another one
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), ca: ca.into() })
    }

    /// Performs the handshake with the server of this name or address.
    ///
    /// # Errors
    /// Why the handshake failed.
    pub(super) async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream, HandshakeError> {
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
            .map_err(|_| HandshakeError(format!("{host} cannot be the name of a certificate")))?;
        let connecting = TlsConnector::from(Arc::clone(&self.config)).connect(name, stream);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting).await {
            Ok(connected) => connected.map_err(|error| HandshakeError(self.explain(&error))),
            Err(_) => Err(HandshakeError(format!("no TLS handshake within {} s", HANDSHAKE_TIMEOUT.as_secs()))),
        }
    }

    /// The message for the user, which names the cause.
    fn explain(&self, error: &io::Error) -> String {
        match error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
            // a CA with the same name and another key
            Some(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => {
                format!("its certificate was not issued by a CA in {} (--upstream-ca)", self.ca.display())
            }
            Some(rustls::Error::InvalidCertificate(cause)) => format!("its certificate is not accepted: {cause}"),
            Some(rustls::Error::InvalidMessage(_)) => {
                "it does not speak TLS; without TLS its URL is http://".to_owned()
            }
            _ => format!("the TLS handshake failed: {error}"),
        }
    }
}
