//! The gRPC services through real sockets: what they say is what HTTP says.

mod access;
mod ahead;
pub mod client;
mod counted;
mod generating;
mod health;
mod leaving;
mod listing;
mod measuring;
mod places;
mod samples;
mod sharing;
mod stopping;
mod watching;
