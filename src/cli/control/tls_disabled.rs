//! The TLS client of a build without the feature `tls`. No value exists, and the settings refuse `https://`.

use std::path::Path;

use tokio::net::TcpStream;

use super::connection::Stream;

/// A type without values.
#[derive(Debug)]
pub(super) enum TlsClient {}

impl TlsClient {
    pub(super) fn try_new(_: &Path) -> Result<Self, String> {
        Err("--control-ca needs the feature tls".to_owned())
    }

    pub(super) async fn handshake(&self, _: &str, _: TcpStream) -> Result<Box<dyn Stream>, String> {
        match *self {}
    }
}
