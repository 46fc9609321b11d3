//! What the tests stand on.

pub mod binary;
pub mod client;
pub mod demo;
pub mod engine;
pub mod fixture;
pub mod hand;
pub mod proxy;
pub mod upstream;
