//! In a tokentap without the feature `tls` no port has it; the settings refuse its flags.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::config::TlsFiles;
use crate::metrics::Metrics;

/// There is none.
#[derive(Debug)]
pub enum Tls {}

impl Tls {
    /// Never comes to be.
    ///
    /// # Errors
    /// A line for the user.
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
