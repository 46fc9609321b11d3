//! TLS on the ports, through real handshakes with certificates that are made here.

mod authority;
mod draining;
mod exporting;
mod reloading;
mod starting;
mod strangers;
mod talking;
