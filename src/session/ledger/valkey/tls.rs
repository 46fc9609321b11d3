//! TLS to a server.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::connection::Stream;
use super::options::{Address, TlsFiles};
use crate::session::ledger::LedgerError;
use crate::tls_client;

/// Performs the handshake, and verifies that the certificate is for the host of `address`.
pub(super) async fn handshake(
    address: &Address,
    files: &TlsFiles,
    tcp: TcpStream,
) -> Result<Box<dyn Stream>, LedgerError> {
    let ca = files.ca.as_deref().ok_or_else(|| {
        LedgerError::Refused(
            "TLS needs a file with the CAs of the servers. For a public CA, use the bundle of the system, such as \
             /etc/ssl/certs/ca-certificates.crt"
                .into(),
        )
    })?;
    let config = tls_client::config(ca, files.client.as_ref()).map_err(|text| LedgerError::Refused(text.into()))?;
    let name = ServerName::try_from(address.host.to_string())
        .map_err(|_| LedgerError::Refused(format!("{address}: the host is no name of a certificate").into()))?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await
        .map_err(|error| LedgerError::Unavailable(format!("{address}: the TLS handshake failed: {error}").into()))?;
    Ok(Box::new(stream))
}
