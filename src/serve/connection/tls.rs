//! TLS on a port: the certificate that it shows comes from files, and is another once the files are.
//!
//! The files are looked at by the clock, and by what is in them. A watch of the folder would need a crate, and would have to follow
//! the links by which Kubernetes swaps a secret; times and inodes may stay the same; and two reads of a few kilobytes cost less than
//! either can go wrong.

mod pair;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::config::TlsFiles;
use crate::metrics::Metrics;
use pair::{Content, Pair};

/// Between two looks at the files.
const LOOK: Duration = Duration::from_millis(500);

/// TLS of one port.
pub struct Tls {
    acceptor: TlsAcceptor,
    shown: Arc<Shown>,
    files: TlsFiles,
    /// What the files held when the port was bound.
    loaded: Content,
    port: &'static str,
    metrics: Arc<Metrics>,
}

/// What new connections are shown; those that run keep theirs. The lock is held for a clone.
#[derive(Debug)]
struct Shown(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Shown {
    /// The one there is, whatever name the client asks for.
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("port", &self.port).field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// TLS of `port` from these files.
    ///
    /// # Errors
    /// A line for the user that names the flag, the file and what is wrong.
    pub fn load(files: &TlsFiles, port: &'static str, metrics: &Arc<Metrics>) -> Result<Self, String> {
        let loaded = Content::read(files);
        let pair = loaded.pair(files)?;
        let shown = Arc::new(Shown(RwLock::new(Arc::clone(&pair.key))));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has suites for TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&shown) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let tls = Self { acceptor, shown, files: files.clone(), loaded, port, metrics: Arc::clone(metrics) };
        // so that a rate is known from the first failure on
        for result in ["ok", "failed"] {
            tls.metrics.tls.reloads.with_label_values(&[port, result]);
        }
        tls.tell(&pair);
        Ok(tls)
    }

    /// Looks at the files for as long as it is polled. A pair is taken up once it was the same at two looks: nobody can read two
    /// files at the same instant, and who writes them needs more than one.
    pub async fn follow(&self) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut settled = self.loaded.clone();
        let mut before = settled.clone();
        loop {
            looks.tick().await;
            let files = self.files.clone();
            // a folder that hangs must not hang a thread that serves
            let Ok(seen) = tokio::task::spawn_blocking(move || Content::read(&files)).await else { continue };
            if seen == before && seen != settled {
                self.take(&seen);
                settled = seen.clone();
            }
            before = seen;
        }
    }

    fn take(&self, content: &Content) {
        let result = match content.pair(&self.files) {
            Ok(pair) => {
                *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&pair.key);
                tracing::info!(port = self.port, "the certificate has changed");
                self.tell(&pair);
                "ok"
            }
            Err(error) => {
                tracing::warn!(port = self.port, %error, "the certificate stays as it was");
                "failed"
            }
        };
        self.metrics.tls.reloads.with_label_values(&[self.port, result]).inc();
    }

    fn tell(&self, pair: &Pair) {
        self.metrics.tls.expiry.with_label_values(&[self.port]).set(pair.expiry);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if pair.expiry < now.cast_signed() {
            tracing::warn!(port = self.port, "the certificate has expired: clients will refuse it");
        }
    }

    /// A connection whose handshake has come to its end before `deadline`.
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

/// Why there is no TLS, in a word.
fn reason(error: &std::io::Error) -> &'static str {
    match error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
        // plain HTTP, mostly
        Some(rustls::Error::InvalidMessage(_)) => "not_tls",
        Some(rustls::Error::PeerIncompatible(_) | rustls::Error::NoApplicationProtocol) => "incompatible",
        // the client does not take the certificate, mostly
        Some(rustls::Error::AlertReceived(_)) => "refused_by_client",
        Some(_) => "error",
        None => "closed",
    }
}
