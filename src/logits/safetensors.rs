//! Slices of logits as safetensors: a body read as it comes, and the numbers written.

mod body;
mod header;
mod reply;

pub use body::{Body, SafetensorsError};
pub use header::Header;
pub use reply::Numbers;
