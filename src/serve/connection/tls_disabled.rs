//! The stub of a build without the feature `tls`. The settings refuse the TLS flags.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::config::TlsFiles;
use crate::metrics::Metrics;

/// Cannot be constructed.
#[derive(Debug)]
pub enum Tls {}

impl Tls {
    /// Always fails.
    ///
    /// # Errors
    /// A message for the user.
    pub fn load(files: &TlsFiles, _: &'static str, _: &Arc<Metrics>) -> Result<Self, String> {
        Err(format!("{} needs the feature tls", files.flags[0]))
    }

    /// Never called.
    pub async fn follow(&self) {
        match *self {}
    }

    pub(super) async fn accept(&self, _: TcpStream, _: Instant) -> Option<TcpStream> {
        match *self {}
    }
}
