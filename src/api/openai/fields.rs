//! The mapping from fields of an OpenAI request to fields of a /generate request.

/// The destination of a field in the /generate request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldTarget {
    /// A member of `sampling_params`.
    Sampling(&'static str),
    /// A top-level member of the request.
    Top(&'static str),
}

use FieldTarget::{Sampling, Top};

/// Fields whose values are copied unchanged: the name in the OpenAI request, and the destination.
pub(crate) const FIELDS: &[(&str, FieldTarget)] = &[
    ("temperature", Sampling("temperature")),
    ("top_p", Sampling("top_p")),
    ("top_k", Sampling("top_k")),
    ("min_p", Sampling("min_p")),
    ("repetition_penalty", Sampling("repetition_penalty")),
    ("presence_penalty", Sampling("presence_penalty")),
    ("frequency_penalty", Sampling("frequency_penalty")),
    ("min_tokens", Sampling("min_new_tokens")),
    ("n", Sampling("n")),
    ("stop", Sampling("stop")),
    ("stop_token_ids", Sampling("stop_token_ids")),
    ("stop_regex", Sampling("stop_regex")),
    ("seed", Sampling("sampling_seed")),
    ("logit_bias", Sampling("logit_bias")),
    ("regex", Sampling("regex")),
    ("ebnf", Sampling("ebnf")),
    ("ignore_eos", Sampling("ignore_eos")),
    ("no_stop_trim", Sampling("no_stop_trim")),
    ("custom_params", Sampling("custom_params")),
    ("rid", Top("rid")),
    ("session_id", Top("session_id")),
    ("_proxy_session_id", Top("_proxy_session_id")),
    ("metadata", Top("metadata")),
    ("user", Top("user")),
    ("lora_path", Top("lora_path")),
    ("custom_logit_processor", Top("custom_logit_processor")),
    ("extra_key", Top("extra_key")),
    ("cache_salt", Top("cache_salt")),
    ("priority", Top("priority")),
    ("bootstrap_host", Top("bootstrap_host")),
    ("bootstrap_port", Top("bootstrap_port")),
    ("bootstrap_room", Top("bootstrap_room")),
    ("data_parallel_rank", Top("data_parallel_rank")),
    ("routed_dp_rank", Top("routed_dp_rank")),
    ("disagg_prefill_dp_rank", Top("disagg_prefill_dp_rank")),
    ("return_routed_experts", Top("return_routed_experts")),
    ("routed_experts_start_len", Top("routed_experts_start_len")),
    ("return_entropy", Top("return_entropy")),
    ("entropy_options", Top("entropy_options")),
];

/// Fields that only the engine's own endpoint supports.
pub(crate) const UNSUPPORTED: &[&str] = &[
    "return_hidden_states",
    "return_sampling_mask",
    "return_flat_raw_output_top_logprobs",
    "return_cached_tokens_details",
    "return_spec_tokens_details",
    "mm_processor_kwargs",
    "task",
];
