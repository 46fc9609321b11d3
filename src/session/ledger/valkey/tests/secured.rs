// SPDX-License-Identifier: Apache-2.0
//! TLS and restricted users.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::process::{Binary, ledger, options};
use super::{append, next};
use crate::images::Image;
use crate::session::ledger::valkey::{TlsFiles, Valkey, ValkeyOptions};
use crate::session::ledger::{Append, Appended, ImageKey, Ledger, StreamId, partition_of};
use crate::tls_client::ClientCertificate;
use std::time::Duration;

/// The permissions that the documentation states.
pub(super) const ACL: &str = "resetkeys resetchannels ~tt:* -@all +eval +evalsha +script|load +wait +ping +info +llen +lindex +lrange \
                              +rpush +unlink +exists +pexpire +time +get +set +zadd +zrem +zremrangebyscore +zscore +zrange +xadd +xtrim +xrange \
                              +xrevrange +xinfo|stream +hget +hset +hmget +cluster|slots +auth +hello";

/// A CA, and a certificate for this machine that it signed.
struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // with the same name as the certificates it signs, OpenSSL would treat those as self-signed
        params.distinguished_name.push(DnType::CommonName, "authority of the tests");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let certificate = names.signed_by(&key, &issuer).unwrap();
        std::fs::write(folder.path().join("ca"), issuer.pem()).unwrap();
        std::fs::write(folder.path().join("certificate"), certificate.pem()).unwrap();
        std::fs::write(folder.path().join("key"), key.serialize_pem()).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

#[tokio::test]
async fn tls_verifies_the_server_and_presents_the_client() {
    let Some(binary) = Binary::with_tls() else { return };
    let (own, other) = (Certificates::new(), Certificates::new());
    let path = |name| own.path(name).to_str().unwrap().to_owned();
    let port = super::process::free_port();
    let (certificate, key, ca) = (path("certificate"), path("key"), path("ca"));
    let port_text = port.to_string();
    let tls =
        ["--tls-port", &port_text, "--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    // the plain port is another one
    let _server = binary.start(&tls);
    let url = format!("rediss://127.0.0.1:{port}");
    let client = ClientCertificate { certificate: own.path("certificate"), key: own.path("key") };
    let with = |tls| ledger(ValkeyOptions { tls, ..options(&url) }).0;
    let valkey = with(TlsFiles { ca: Some(own.path("ca")), client: Some(client.clone()) });
    assert_eq!(valkey.append(append("s")).await, Ok(Appended::Stored { replicated: true }));

    let error = async |valkey: Valkey| valkey.append(append("t")).await.unwrap_err().to_string();
    for (files, expected) in [
        (TlsFiles { ca: Some(other.path("ca")), client: Some(client.clone()) }, "certificate"),
        (TlsFiles { ca: None, client: Some(client.clone()) }, "TLS needs a file with the CAs"),
        (TlsFiles { ca: Some(own.path("absent")), client: None }, "cannot be read"),
        (TlsFiles { ca: Some(own.path("key")), client: None }, "holds no certificate"),
        // the server closes the connection after the handshake
        (TlsFiles { ca: Some(own.path("ca")), client: None }, "cannot be reached"),
    ] {
        let text = error(with(files.clone())).await;
        assert!(text.contains(expected), "{files:?}: {text}");
    }
    let (plain, _) = ledger(options(&format!("redis://127.0.0.1:{port}")));
    assert!(plain.append(append("t")).await.is_err());
}

#[tokio::test]
async fn a_user_with_the_documented_permissions_can_do_everything() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&[]);
    let _replica = server.replica(&binary).await;
    let mut raw = server.raw().await;
    raw.send(&format!("ACL SETUSER tokentap on >secret {ACL}")).await;
    raw.send("ACL SETUSER default off").await;
    let url = format!("redis://tokentap:secret@127.0.0.1:{}", server.port);
    let (valkey, _) = ledger(ValkeyOptions { replicas: 1, ..options(&url) });
    valkey.fleet().await.unwrap();
    assert_eq!(valkey.is_replicated(&"s".into()).await, Ok(true));
    let first = Append { finished: vec![crate::session::Uid::unique()], ..append("s") };
    for append in [first.clone(), Append { in_use: false, ..next(&first) }] {
        assert_eq!(valkey.append(append).await, Ok(Appended::Stored { replicated: true }));
    }
    let partition = partition_of("s");
    assert_eq!(valkey.fetch(&"s".into(), None).await.unwrap().unwrap().length, 2);
    assert_eq!(valkey.finished(partition, StreamId::default(), 9).await.unwrap().entries.len(), 2);
    valkey.renew(vec!["s".into()]).await.unwrap();
    let idle = valkey.idle(partition, Duration::ZERO, 9).await.unwrap();
    valkey.end_use(idle[0].clone()).await.unwrap();
    assert_eq!(valkey.claim(partition, first.entries[0].uid, Duration::from_secs(9)).await, Ok(true));
    let image = Image::new(vec![1; 1000].into());
    let key = ImageKey { digest: image.digest, size: image.size };
    let session = first.entries[0].uid;
    assert_eq!(valkey.put_image(session, key, image.bytes.clone().unwrap()).await, Ok(true));
    assert_eq!(valkey.hold_images(session, vec![key]).await.unwrap().present, [true]);
    assert_eq!(valkey.images(vec![key]).await, Ok(vec![image.bytes]));
    valkey.release_images(Some(session), vec![key]).await.unwrap();
    assert_eq!(valkey.delete(&"s".into(), first.entries[0].uid).await, Ok(true));
    let deletion = valkey.deletion(&"s".into()).await.unwrap().expect("it was deleted");
    assert_eq!(deletion.birth, first.entries[0].uid);
    let now_ms = valkey.now_ms(partition).await.unwrap();
    valkey.restore_deletion(&"s".into(), deletion.birth, now_ms).await.unwrap();

    let mut restricted = super::process::Raw::open(server.port, &options(&url)).await;
    for forbidden in ["GET other", "KEYS *", "FLUSHALL", "CONFIG GET maxmemory"] {
        let error = restricted.try_send(forbidden).await.unwrap_err();
        assert_eq!(error.code(), Some("NOPERM"), "{forbidden}: {error}");
    }
}
