//! Slices of logits as safetensors: a body read as it comes, and the numbers written.

mod body;
mod header;
mod reply;
mod shm;

pub use body::{Body, Refused};
pub use header::Header;
pub use reply::Numbers;
pub use shm::{Place, Unread};
