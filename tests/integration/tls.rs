//! TLS on the ports: real handshakes with generated certificates.

pub(crate) mod authority;
mod draining;
mod exporting;
mod reloading;
mod starting;
mod strangers;
mod talking;
