//! What the tests stand on.

pub mod client;
pub mod engine;
pub mod fixture;
pub mod proxy;
pub mod upstream;
