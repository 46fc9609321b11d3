//! What must hold of every reader for any bytes at all: a function a reader. The fuzz targets call it with what they think of, an
//! ordinary test (`tests/hostile.rs`) with the seeds and with whatever once broke it.

#![allow(clippy::unwrap_used, reason = "what an oracle cannot do is a failure")]
#![allow(missing_docs, reason = "a name is a reader's")]

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

/// A property: panics where it does not hold.
pub type Property = fn(&[u8]);

/// Every property under the name of its target and of the folder of its seeds.
#[allow(dead_code, reason = "for the ordinary test")]
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
