// SPDX-License-Identifier: Apache-2.0
//! SGLang: every key and rule of its requests, replies and routes.

pub mod abort;
pub mod chat_reply;
pub(crate) mod expert_sample;
pub(crate) mod extras;
pub mod flat;
pub(crate) mod forcing;
pub(crate) mod guard;
pub(crate) mod image_probe;
pub(crate) mod plan;
pub mod probe;
pub(crate) mod refusal;
pub mod request;
pub mod response;
pub(crate) mod resume;
pub(crate) mod rewrite;
pub(crate) mod routes;
pub(crate) mod same_tokens;
pub mod scan;
pub(crate) mod score;
pub mod sglext;
pub(crate) mod tokenize;
pub(crate) mod trim;
pub(crate) mod workers;

use super::capabilities::{Product, ProductTraits};

/// What all versions of SGLang have in common.
pub(super) static TRAITS: ProductTraits = ProductTraits {
    product: Product::Sglang,
    name: "SGLang",
    ignores_unknown_members: true,
    lists_sampled_ids: true,
    omits_sampled_ids: false,
    compiles_for_logprobs: false,
    decodes_top_logprobs: false,
    placeholder_needs_k: false,
    streams_need_overlap: false,
    can_stream_increments: true,
    has_plugins: true,
};
