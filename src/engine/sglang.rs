//! SGLang.

pub mod flat;
pub(crate) mod forcing;
pub(crate) mod guard;
pub(crate) mod plan;
pub mod probe;
pub mod request;
pub mod response;
pub(crate) mod rewrite;
pub(crate) mod rid;
pub(crate) mod routes;
pub mod scan;
pub(crate) mod text_prompt;
pub(crate) mod tokenize;
pub(crate) mod trim;
