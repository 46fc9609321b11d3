//! Probes one server for its capabilities.

mod ask;
mod facts;
mod logprobs;
mod plugin;
mod refusal;
mod stream;

pub(crate) use ask::Probe;
pub use ask::ProbeError;
pub use facts::InfoObject;
