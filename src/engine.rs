//! The upstream engine: its wire format and its client.

mod breaker;
pub mod chat_reply;
pub mod client;
pub mod engines;
mod failure;
pub mod flat;
pub(crate) mod forwarded;
pub mod headers;
pub mod probe;
pub mod request;
pub mod response;
pub(crate) mod routes;
pub mod scan;
pub mod sglext;
pub mod sse;
pub(crate) mod tokenize;
mod transport;
pub(crate) mod upstream;
