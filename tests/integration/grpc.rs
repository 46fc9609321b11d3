//! The gRPC services through real sockets: what they say is what HTTP says.

mod client;
mod listing;
