//! Connections to the upstream: the HTTP client, the pool, the breaker, and bodies.

mod breaker;
pub mod client;
mod eof_check;
pub mod failure;
pub(crate) mod forwarded;
pub mod headers;
pub(crate) mod pool;
pub mod sse;
