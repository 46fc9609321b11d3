// SPDX-License-Identifier: Apache-2.0
//! TLS on a port. The certificate comes from files and is reloaded when they change.
//!
//! The files are read at an interval and compared by content. A watch of the folder would need a crate and would have to follow the
//! links by which Kubernetes swaps a secret. Times and inodes may stay the same. Two reads of a few kilobytes cost little.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::InconsistentKeys::KeyMismatch;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;
use x509_cert::Certificate;
use x509_cert::der::Decode;

use crate::config::TlsFiles;
use crate::metrics::Metrics;

/// The interval between two reads of the files.
const READ_INTERVAL: Duration = Duration::from_millis(500);

/// TLS of one port.
pub struct Tls {
    acceptor: TlsAcceptor,
    current: Arc<CurrentCertificate>,
    files: TlsFiles,
    /// The content of the files when the port was bound.
    loaded: FileContent,
    port: &'static str,
    metrics: Arc<Metrics>,
}

/// The certificate of new connections; open connections keep theirs. The lock is held for a clone.
#[derive(Debug)]
struct CurrentCertificate(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for CurrentCertificate {
    /// Returns the same certificate for every server name.
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("port", &self.port).field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Loads the TLS of `port` from these files.
    ///
    /// # Errors
    /// A message for the user that names the flag, the file and the cause.
    pub fn load(files: &TlsFiles, port: &'static str, metrics: &Arc<Metrics>) -> Result<Self, String> {
        let loaded = FileContent::read(files);
        let pair = loaded.pair(files)?;
        let current = Arc::new(CurrentCertificate(RwLock::new(Arc::clone(&pair.key))));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has suites for TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&current) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let tls = Self { acceptor, current, files: files.clone(), loaded, port, metrics: Arc::clone(metrics) };
        // both series begin at 0, so that `rate` sees the first failure
        for result in ["ok", "failed"] {
            tls.metrics.tls.reloads.with_label_values(&[port, result]);
        }
        tls.report_expiry(&pair);
        Ok(tls)
    }

    /// Watches the files while it is polled. A pair is loaded once two reads in a row return the same content, because the two files are
    /// neither written nor read atomically.
    pub async fn follow(&self) {
        let mut reads = interval(READ_INTERVAL);
        reads.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut loaded = self.loaded.clone();
        let mut before = loaded.clone();
        loop {
            reads.tick().await;
            let files = self.files.clone();
            // a file system that hangs must not block a runtime thread
            let Ok(content) = tokio::task::spawn_blocking(move || FileContent::read(&files)).await else { continue };
            if content == before && content != loaded {
                self.reload(&content);
                loaded = content.clone();
            }
            before = content;
        }
    }

    fn reload(&self, content: &FileContent) {
        let result = match content.pair(&self.files) {
            Ok(pair) => {
                *self.current.0.write() = Arc::clone(&pair.key);
                tracing::info!(port = self.port, "the certificate has changed");
                self.report_expiry(&pair);
                "ok"
            }
            Err(error) => {
                tracing::warn!(port = self.port, %error, "the certificate stays as it was");
                "failed"
            }
        };
        self.metrics.tls.reloads.with_label_values(&[self.port, result]).inc();
    }

    fn report_expiry(&self, pair: &Pair) {
        self.metrics.tls.expiry.with_label_values(&[self.port]).set(pair.expiry);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if pair.expiry < now.cast_signed() {
            tracing::warn!(port = self.port, "the certificate has expired: clients will refuse it");
        }
    }

    /// Performs the handshake; `None` if it fails or does not end before `deadline`.
    pub(super) async fn accept(&self, stream: TcpStream, deadline: Instant) -> Option<TlsStream<TcpStream>> {
        let reason = match timeout_at(deadline, self.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(port = self.port, %error, "no TLS");
                reason(&error)
            }
            Err(_) => "timeout",
        };
        self.metrics.tls.failures.with_label_values(&[self.port, reason]).inc();
        None
    }
}

/// The metric label of a failed handshake.
fn reason(error: &std::io::Error) -> &'static str {
    match error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
        // usually plain HTTP
        Some(rustls::Error::InvalidMessage(_)) => "not_tls",
        Some(rustls::Error::PeerIncompatible(_) | rustls::Error::NoApplicationProtocol) => "incompatible",
        // usually the client does not accept the certificate
        Some(rustls::Error::AlertReceived(_)) => "refused_by_client",
        Some(_) => "error",
        None => "closed",
    }
}

/// The content of both files, or the error message. It holds a private key, so it has no `Debug`.
#[derive(Clone, PartialEq, Eq)]
struct FileContent(Result<PemBytes, String>);

#[derive(Clone, PartialEq, Eq)]
struct PemBytes {
    cert: Vec<u8>,
    key: Vec<u8>,
}

/// A certificate and the key that matches it.
struct Pair {
    key: Arc<CertifiedKey>,
    /// When the certificate expires, in seconds since 1970.
    expiry: i64,
}

impl FileContent {
    fn read(files: &TlsFiles) -> Self {
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
    fn pair(&self, files: &TlsFiles) -> Result<Pair, String> {
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
