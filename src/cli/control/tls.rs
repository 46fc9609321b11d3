//! TLS connections to a control port.
//!
//! The certificate of the port is verified with the CA file `--control-ca`. The CAs of the system are never used, because the control port
//! and its CA belong to the operator of the trainers.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::connection::Stream;

/// A TLS client that trusts the CAs of a file.
pub(super) struct TlsClient(TlsConnector);

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsClient")
    }
}

impl TlsClient {
    /// Reads the CA certificates from a PEM file.
    pub(super) fn try_new(file: &Path) -> Result<Self, String> {
        let wrong = |cause: &dyn fmt::Display| format!("--control-ca {}: {cause}", file.display());
        let pem = std::fs::read(file).map_err(|error| wrong(&format_args!("cannot be read: {error}")))?;
        let mut roots = RootCertStore::empty();
        for cert in CertificateDer::pem_slice_iter(&pem) {
            let cert = cert.map_err(|_| wrong(&"is no PEM, or is cut short"))?;
            roots.add(cert).map_err(|error| wrong(&error))?;
        }
        if roots.is_empty() {
            return Err(wrong(&"holds no certificate in PEM"));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has suites for TLS 1.2 and 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Performs the TLS handshake, and verifies that the certificate is for `host`.
    pub(super) async fn handshake(&self, host: &str, stream: TcpStream) -> Result<Box<dyn Stream>, String> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let stream = self.0.connect(name, stream).await.map_err(|error| error.to_string())?;
        Ok(Box::new(stream))
    }
}
