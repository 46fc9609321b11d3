// SPDX-License-Identifier: Apache-2.0
//! The TLS of clients, from PEM files: for the shared ledger and for commands that call a control port.
//!
//! The CAs of the system are never used, because servers and CAs belong to the operator.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// A client certificate, for servers with mutual TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// PEM file with its certificate chain.
    pub certificate: PathBuf,
    /// PEM file with its private key.
    pub key: PathBuf,
}

/// Installs the default crypto provider, which the clients of object storage and of control ports use.
pub(crate) fn install_provider() {
    #[expect(clippy::let_underscore_must_use, reason = "an error means that a provider is installed already")]
    let _ = ring::default_provider().install_default();
}

/// A configuration that trusts the CAs of a PEM file.
///
/// # Errors
/// The file, and why it cannot be used.
pub(crate) fn config(ca: &Path, client: Option<&ClientCertificate>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| wrong(ca, &error))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has suites for TLS 1.2 and 1.3")
        .with_root_certificates(roots);
    let Some(ClientCertificate { certificate, key }) = client else {
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
