// SPDX-License-Identifier: Apache-2.0
//! A test certificate authority, and clients that trust only it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

use crate::support::client::{Answer, Connection, written};
use crate::support::manual_upstream::soon;

/// A certificate authority that issues certificates for `localhost` and 127.0.0.1.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// The directory of the test's files; the CA certificate is `ca.crt`.
    pub dir: TempDir,
}

/// A certificate and its key.
#[derive(Clone)]
pub struct CertifiedKey {
    pub der: CertificateDer<'static>,
    pub cert: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // with the same name as the certificates it signs, OpenSSL would treat those as self-signed
        params.distinguished_name.push(DnType::CommonName, "authority of the tests");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), issuer.pem()).unwrap();
        Self { issuer, dir }
    }

    /// Issues a certificate that is valid until the start of a year.
    pub fn issue(&self, until: i32) -> CertifiedKey {
        self.issue_for(&["localhost", "127.0.0.1"], until)
    }

    /// As [`Self::issue`], for a server with these names.
    pub fn issue_for(&self, names: &[&str], until: i32) -> CertifiedKey {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        CertifiedKey { der: cert.der().clone(), cert: cert.pem(), key: key.serialize_pem() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The path of the authority's certificate.
    pub fn ca(&self) -> String {
        self.path("ca.crt").to_str().unwrap().to_owned()
    }

    /// Writes a pair to `NAME.crt` and `NAME.key`, and returns the paths.
    pub fn write(&self, name: &str, issued: &CertifiedKey) -> [String; 2] {
        let paths = [self.path(&format!("{name}.crt")), self.path(&format!("{name}.key"))];
        std::fs::write(&paths[0], &issued.cert).unwrap();
        std::fs::write(&paths[1], &issued.key).unwrap();
        paths.map(|path| path.to_str().unwrap().to_owned())
    }

    /// A new certificate, and the flags of a tokentap with it on both ports.
    pub fn flags(&self) -> (Vec<String>, CertifiedKey) {
        let issued = self.issue(2099);
        let [cert, key] = self.write("tls", &issued);
        (["--tls-cert".into(), cert, "--tls-key".into(), key].to_vec(), issued)
    }

    pub fn client(&self) -> Client {
        Client { root: self.issuer.der().clone(), versions: vec![&TLS12, &TLS13], alpn: vec!["http/1.1"] }
    }
}

/// The settings of a client. It resumes no sessions: each handshake is complete.
#[derive(Clone)]
pub struct Client {
    pub root: CertificateDer<'static>,
    pub versions: Vec<&'static SupportedProtocolVersion>,
    pub alpn: Vec<&'static str>,
}

impl Client {
    /// Connects and completes the handshake.
    pub async fn try_connect(&self, addr: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&self.versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = self.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config.resumption = Resumption::disabled();
        let stream = TcpStream::connect(addr).await?;
        let name = ServerName::IpAddress(addr.ip().into());
        soon("the handshake ends", TlsConnector::from(Arc::new(config)).connect(name, stream)).await
    }

    pub async fn connect(&self, addr: SocketAddr) -> TlsStream<TcpStream> {
        self.try_connect(addr).await.unwrap()
    }

    pub async fn open(&self, addr: SocketAddr) -> Connection {
        Connection::over(self.connect(addr).await)
    }

    /// The certificate that a port presents.
    pub async fn presented_certificate(&self, addr: SocketAddr) -> CertificateDer<'static> {
        presented_certificate(&self.connect(addr).await)
    }

    /// One request on a new connection.
    pub async fn request(&self, addr: SocketAddr, method: &str, path: &str, body: &[u8]) -> Answer {
        let mut connection = self.open(addr).await;
        connection.send(&written(addr, method, path, &[], body)).await;
        connection.answer().await
    }

    /// The value of a metric with exactly these labels.
    pub async fn metric(&self, control: SocketAddr, name: &str) -> f64 {
        let text = self.request(control, "GET", "/metrics", b"").await.text();
        let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.map_or(-1.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    /// Waits until a metric has this value.
    pub async fn metric_is(&self, control: SocketAddr, name: &str, value: f64) {
        soon(name, async { while self.metric(control, name).await != value {} }).await;
    }
}

/// The certificate that the server of a connection presented.
pub fn presented_certificate(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

/// The flags as string slices.
pub fn borrowed(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// Replaces a symbolic link atomically, as Kubernetes does for the data of a secret.
pub fn swap(link: &Path, to: &Path) {
    let temporary = link.with_file_name("..data_tmp");
    std::os::unix::fs::symlink(to, &temporary).unwrap();
    std::fs::rename(temporary, link).unwrap();
}
