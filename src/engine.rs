//! The upstream engine: its wire format and its client.

pub mod capabilities;
pub mod engines;
pub mod events;
pub(crate) mod plan;
pub mod product;
pub mod reason;
pub(crate) mod rid;
pub mod sgl_jax;
pub mod sglang;
pub mod survey;
pub mod transport;
pub(crate) mod upstream;
