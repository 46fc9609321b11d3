//! The CA type of a tokentap without the feature `tls`, which has no value; the settings refuse `https://`.

use std::path::Path;

use tokio::net::TcpStream;

use super::connection::Stream;

/// Has no value.
#[derive(Debug)]
pub(super) enum Trust {}

impl Trust {
    pub(super) fn try_new(_: &Path) -> Result<Self, String> {
        Err("--control-ca needs the feature tls".to_owned())
    }

    pub(super) async fn greet(&self, _: &str, _: TcpStream) -> Result<Box<dyn Stream>, String> {
        match *self {}
    }
}
