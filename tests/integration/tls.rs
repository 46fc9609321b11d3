// SPDX-License-Identifier: Apache-2.0
//! TLS on the ports and to the engine: real handshakes with generated certificates.

pub(crate) mod authority;
mod draining;
mod exporting;
mod reloading;
mod starting;
mod strangers;
mod talking;
mod upstream;
