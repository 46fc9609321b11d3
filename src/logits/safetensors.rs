// SPDX-License-Identifier: Apache-2.0
//! Slices of logits as safetensors: an incremental parser for the body, and the encoder of the reply.

mod body;
mod header;
mod reply;

pub use body::{Body, SafetensorsError};
pub use header::Header;
pub use reply::RowNumbers;
