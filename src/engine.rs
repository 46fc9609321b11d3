//! The upstream engine: its wire format and its client.

pub mod capabilities;
pub mod engines;
pub(crate) mod entropy_request;
pub mod reason;
pub mod sglang;
pub mod transport;
