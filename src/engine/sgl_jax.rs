// SPDX-License-Identifier: Apache-2.0
//! sglang-jax, the port of SGLang to JAX: what differs from SGLang. Its requests and replies have SGLang's format.

use serde_json::{Map, Value, json};

use super::capabilities::{Product, ProductTraits};

/// What all versions of sglang-jax have in common.
pub(super) static TRAITS: ProductTraits = ProductTraits {
    product: Product::SglJax,
    name: "sglang-jax",
    // an unknown member can be a 500
    ignores_unknown_members: false,
    // it omits special ids and the stop token, and repeats ids whose text is incomplete
    lists_sampled_ids: false,
    omits_sampled_ids: true,
    compiles_for_logprobs: true,
    decodes_top_logprobs: true,
    placeholder_needs_k: true,
    streams_need_overlap: true,
    can_stream_increments: false,
    has_plugins: false,
};

/// A setting that only sglang-jax has.
const OWN_SETTING: &str = "precompile_token_paddings";

/// Whether these settings of an engine are those of sglang-jax.
pub(super) fn has_settings(settings: &Map<String, Value>) -> bool {
    settings.contains_key(OWN_SETTING)
}

/// Whether the overlap schedule runs. It is off in two cases whatever its setting says: multimodal and disaggregated engines.
pub(super) fn overlap_schedule(is_disabled: Option<bool>, is_multimodal: bool, is_disaggregated: bool) -> Option<bool> {
    is_disabled.map(|is_disabled| !is_disabled && !is_multimodal && !is_disaggregated)
}

/// Adds the members of a probing request for logprobs. Only members that every version knows: an unknown one can be a 500.
pub(super) fn add_probe_members(request: &mut Value) {
    request["return_text_in_logprobs"] = json!(false);
}
