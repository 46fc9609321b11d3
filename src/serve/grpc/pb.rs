// SPDX-License-Identifier: Apache-2.0
//! Messages and services generated from `proto/tokentap/v1/tokentap.proto`. `tests/codegen.rs` checks them, and writes them with
//! `UPDATE=1`.

#![allow(missing_docs, clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
#![allow(rustdoc::broken_intra_doc_links, reason = "comments of the .proto, which are not Markdown")]

include!("pb/tokentap.v1.rs");

/// The descriptors of the `.proto`, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("pb/tokentap.v1.bin");
