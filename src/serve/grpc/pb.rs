//! Messages and services of `proto/tokentap/v1/tokentap.proto`: generated; `tests/codegen.rs` compares, and `UPDATE=1` writes.

#![allow(missing_docs, clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
#![allow(rustdoc::broken_intra_doc_links, reason = "comments of the .proto, which are no Markdown")]

include!("pb/tokentap.v1.rs");

/// The `.proto` as reflection hands it out.
pub const DESCRIPTORS: &[u8] = include_bytes!("pb/tokentap.v1.bin");
