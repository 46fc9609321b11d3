//! TLS to a server.

#[cfg(feature = "tls")]
pub(super) use enabled::handshake;

#[cfg(not(feature = "tls"))]
pub(super) async fn handshake(
    _address: &super::options::Address,
    _files: &super::options::TlsFiles,
    _tcp: tokio::net::TcpStream,
) -> Result<Box<dyn super::connection::Stream>, crate::session::ledger::LedgerError> {
    Err(crate::session::ledger::LedgerError::Refused("this tokentap was built without the feature `tls`".into()))
}

#[cfg(feature = "tls")]
mod enabled {
    use std::fmt;
    use std::path::Path;
    use std::sync::Arc;

    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    use super::super::connection::Stream;
    use super::super::options::{Address, ClientCertificate, TlsFiles};
    use crate::session::ledger::LedgerError;

    /// Performs the handshake, and verifies that the certificate is for the host of `address`.
    pub(in super::super) async fn handshake(
        address: &Address,
        files: &TlsFiles,
        tcp: TcpStream,
    ) -> Result<Box<dyn Stream>, LedgerError> {
        let config = client(files).map_err(|text| LedgerError::Refused(text.into()))?;
        let name = ServerName::try_from(address.host.to_string())
            .map_err(|_| LedgerError::Refused(format!("{address}: the host is no name of a certificate").into()))?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.map_err(|error| {
            LedgerError::Unavailable(format!("{address}: the TLS handshake failed: {error}").into())
        })?;
        Ok(Box::new(stream))
    }

    fn client(files: &TlsFiles) -> Result<ClientConfig, String> {
        let ca = files.ca.as_deref().ok_or(
            "TLS needs a file with the CAs of the servers. For a public CA, use the bundle of the system, such as \
             /etc/ssl/certs/ca-certificates.crt",
        )?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(|error| wrong(ca, &error))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has suites for TLS 1.2 and 1.3")
            .with_root_certificates(roots);
        let Some(ClientCertificate { certificate, key }) = &files.client else {
            return Ok(builder.with_no_client_auth());
        };
        let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| wrong(key, &error))?;
        builder.with_client_auth_cert(certificates(certificate)?, private).map_err(|error| wrong(certificate, &error))
    }

    fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
        let found: Vec<_> = CertificateDer::pem_slice_iter(&read(file)?)
            .collect::<Result<_, _>>()
            .map_err(|_| wrong(file, &"is no PEM, or is cut short"))?;
        if found.is_empty() { Err(wrong(file, &"holds no certificate in PEM")) } else { Ok(found) }
    }

    fn read(file: &Path) -> Result<Vec<u8>, String> {
        std::fs::read(file).map_err(|error| wrong(file, &format_args!("cannot be read: {error}")))
    }

    fn wrong(file: &Path, cause: &dyn fmt::Display) -> String {
        format!("{}: {cause}", file.display())
    }
}
