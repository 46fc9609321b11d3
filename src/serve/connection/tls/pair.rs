//! A certificate chain and its private key, read from two files.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls;
use tokio_rustls::rustls::InconsistentKeys::KeyMismatch;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use x509_cert::Certificate;
use x509_cert::der::Decode;

use crate::config::TlsFiles;

/// The content of both files, or the error message. It holds a private key, so it has no `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct FileContent(Result<PemBytes, String>);

#[derive(Clone, PartialEq, Eq)]
struct PemBytes {
    cert: Vec<u8>,
    key: Vec<u8>,
}

/// A certificate and the key that matches it.
pub(super) struct Pair {
    pub(super) key: Arc<CertifiedKey>,
    /// When the certificate expires, in seconds since 1970.
    pub(super) expiry: i64,
}

impl FileContent {
    pub(super) fn read(files: &TlsFiles) -> Self {
        let read = |flag: &str, path: &Path| {
            std::fs::read(path).map_err(|error| format!("{flag} {}: cannot be read: {error}", path.display()))
        };
        let [cert, key] = files.flags;
        Self(read(cert, &files.cert).and_then(|cert| Ok(PemBytes { cert, key: read(key, &files.key)? })))
    }

    /// Parses the files.
    ///
    /// # Errors
    /// A message for the user. It leaves out the parser's message, which may quote the file.
    pub(super) fn pair(&self, files: &TlsFiles) -> Result<Pair, String> {
        let PemBytes { cert, key } = self.0.as_ref().map_err(Clone::clone)?;
        let of_cert = |cause: &str| format!("{} {}: {cause}", files.flags[0], files.cert.display());
        let of_key = |cause: &str| format!("{} {}: {cause}", files.flags[1], files.key.display());
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(cert)
            .collect::<Result<_, _>>()
            .map_err(|_| of_cert("is no PEM, or is cut short"))?;
        let first = chain.first().ok_or_else(|| of_cert("holds no certificate in PEM"))?;
        let parsed =
            Certificate::from_der(first).map_err(|error| of_cert(&format!("the first certificate: {error}")))?;
        let expiry = parsed.tbs_certificate().validity().not_after.to_unix_duration().as_secs().cast_signed();
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
            PemError::NoItemsFound => of_key("holds no private key in PEM; one that is encrypted cannot be used"),
            _ => of_key("is no PEM, or is cut short"),
        })?;
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(KeyMismatch) => {
                of_key(&format!("is not the key of the certificate in {}", files.cert.display()))
            }
            rustls::Error::InvalidCertificate(error) => of_cert(&format!("the first certificate: {error:?}")),
            _ => of_key("holds no RSA, ECDSA or Ed25519 key that can be used"),
        })?;
        Ok(Pair { key: Arc::new(key), expiry })
    }
}
