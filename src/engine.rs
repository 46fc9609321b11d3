//! The upstream engine: its wire format and its client.

mod breaker;
pub mod client;
pub mod engines;
mod failure;
pub mod flat;
pub mod forwarded;
pub mod headers;
pub mod probe;
pub mod request;
pub mod response;
pub mod routes;
pub mod scan;
pub mod sse;
pub mod tokenize;
mod transport;
pub mod upstream;
