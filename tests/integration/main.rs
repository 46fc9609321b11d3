//! Tests through the public interface: real sockets, a real tokentap, and a fake engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]
#![allow(unreachable_pub, reason = "a test binary exports nothing")]

mod access_log;
mod accuracy;
mod adapters;
mod advantages;
mod agent;
mod archive;
mod branched;
mod breaker;
mod budget;
mod chat;
mod columns;
mod commands;
mod constrained;
mod control;
mod crash;
mod dawdling;
mod deploy;
#[cfg(feature = "cuda")]
mod device;
mod disk;
mod draining;
mod effective;
mod engine_sessions;
mod entropy;
mod exact;
mod exporting;
mod extras;
mod failed_replies;
mod failures;
mod faults;
mod fleet;
mod forwarding;
mod gate;
mod giving_way;
mod grpc;
mod guard;
mod head_method;
mod heads;
mod images;
mod information_routes;
mod jax;
mod kernels;
mod labels;
mod leaving;
mod limits;
mod long_bodies;
mod messages;
mod misdirected;
mod multiplexed;
mod nested;
mod openapi;
mod oracle;
mod outgoing;
mod oversize;
mod page;
mod recordings;
mod replaced;
mod responses;
mod restart;
mod resumed;
mod retries;
mod returned;
mod reuse;
mod router;
mod rows;
mod shm;
mod slices;
#[cfg(feature = "cuda")]
mod stand_in;
mod streams;
mod support;
mod targets;
mod terminal;
mod thought;
#[cfg(feature = "tls")]
mod tls;
mod toy_api;
mod truth;
mod weights;
mod wire;
