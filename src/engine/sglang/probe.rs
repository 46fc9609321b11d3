//! Probes the upstream for its capabilities.

mod ask;
mod facts;
mod identity;
mod logprobs;
mod plugin;
mod refusal;
mod stream;
mod survey;

use ask::Probe;
pub use ask::ProbeError;
pub use facts::InfoObject;
pub use identity::{EngineIdentity, Identities, IdentityTracker, Observation};
pub use survey::{LivenessReport, Survey};
