// SPDX-License-Identifier: Apache-2.0
//! The properties of each parser for arbitrary bytes, one function per parser. The fuzz targets call them with generated inputs, and
//! `tests/hostile.rs` calls them with the seeds and with inputs that once failed.

#![allow(clippy::unwrap_used, reason = "an error of an oracle is a failure")]
#![allow(missing_docs, reason = "each function is named after its parser")]

mod abort;
mod calls;
mod chat;
mod control;
mod edit;
mod flat;
mod grammar;
mod headers;
mod json;
mod log;
mod redact;
mod reply;
mod request;
mod scan;
mod sse;
mod tensors;

pub use abort::abort;
pub use calls::calls;
pub use chat::chat;
pub use control::control;
pub use edit::edit;
pub use flat::flat;
pub use headers::headers;
pub use json::json;
pub use log::log;
pub use redact::redact;
pub use reply::reply;
pub use request::request;
pub use scan::scan;
pub use sse::sse;
pub use tensors::tensors;

/// A property of a parser: panics if it does not hold for these bytes.
pub type Property = fn(&[u8]);

/// Every property with its name, which is also that of its fuzz target and of the folder of its seeds.
#[allow(dead_code, reason = "only tests/hostile.rs uses it")]
pub const ALL: [(&str, Property); 15] = [
    ("abort", abort),
    ("calls", calls),
    ("chat", chat),
    ("control", control),
    ("edit", edit),
    ("flat", flat),
    ("headers", headers),
    ("json", json),
    ("log", log),
    ("redact", redact),
    ("reply", reply),
    ("request", request),
    ("scan", scan),
    ("sse", sse),
    ("tensors", tensors),
];
