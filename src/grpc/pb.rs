//! Messages and services of `proto/tokentap/v1/tokentap.proto`: generated; `tests/codegen.rs` compares, and `UPDATE=1` writes.

#![allow(missing_docs, clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]

include!("pb/tokentap.v1.rs");

/// The `.proto` as reflection hands it out.
pub const DESCRIPTORS: &[u8] = include_bytes!("pb/tokentap.v1.bin");
