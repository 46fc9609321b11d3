//! The mapping from fields of an OpenAI request to fields of a /generate request.

use crate::engine::sglang::request::{RequestOption, SamplingParam};

/// The destination of a field in the /generate request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldTarget {
    /// A sampling parameter.
    Sampling(SamplingParam),
    /// Another member of the request.
    Top(RequestOption),
}

use FieldTarget::{Sampling, Top};

/// Fields whose values are copied unchanged: the name in the OpenAI request, and the destination.
pub(crate) const FIELDS: &[(&str, FieldTarget)] = &[
    ("temperature", Sampling(SamplingParam::Temperature)),
    ("top_p", Sampling(SamplingParam::TopP)),
    ("top_k", Sampling(SamplingParam::TopK)),
    ("min_p", Sampling(SamplingParam::MinP)),
    ("repetition_penalty", Sampling(SamplingParam::RepetitionPenalty)),
    ("presence_penalty", Sampling(SamplingParam::PresencePenalty)),
    ("frequency_penalty", Sampling(SamplingParam::FrequencyPenalty)),
    ("min_tokens", Sampling(SamplingParam::MinNewTokens)),
    ("n", Sampling(SamplingParam::N)),
    ("stop", Sampling(SamplingParam::Stop)),
    ("stop_token_ids", Sampling(SamplingParam::StopTokenIds)),
    ("stop_regex", Sampling(SamplingParam::StopRegex)),
    ("seed", Sampling(SamplingParam::Seed)),
    ("logit_bias", Sampling(SamplingParam::LogitBias)),
    ("regex", Sampling(SamplingParam::Regex)),
    ("ebnf", Sampling(SamplingParam::Ebnf)),
    ("ignore_eos", Sampling(SamplingParam::IgnoreEos)),
    ("no_stop_trim", Sampling(SamplingParam::NoStopTrim)),
    ("custom_params", Sampling(SamplingParam::CustomParams)),
    ("rid", Top(RequestOption::Rid)),
    ("session_id", Top(RequestOption::SessionId)),
    ("_proxy_session_id", Top(RequestOption::ProxySessionId)),
    ("metadata", Top(RequestOption::Metadata)),
    ("user", Top(RequestOption::User)),
    ("lora_path", Top(RequestOption::LoraPath)),
    ("custom_logit_processor", Top(RequestOption::CustomLogitProcessor)),
    ("extra_key", Top(RequestOption::ExtraKey)),
    ("cache_salt", Top(RequestOption::CacheSalt)),
    ("priority", Top(RequestOption::Priority)),
    ("bootstrap_host", Top(RequestOption::BootstrapHost)),
    ("bootstrap_port", Top(RequestOption::BootstrapPort)),
    ("bootstrap_room", Top(RequestOption::BootstrapRoom)),
    ("data_parallel_rank", Top(RequestOption::DataParallelRank)),
    ("routed_dp_rank", Top(RequestOption::RoutedDpRank)),
    ("disagg_prefill_dp_rank", Top(RequestOption::DisaggPrefillDpRank)),
    ("return_routed_experts", Top(RequestOption::ReturnRoutedExperts)),
    ("routed_experts_start_len", Top(RequestOption::RoutedExpertsStartLen)),
    ("return_entropy", Top(RequestOption::ReturnEntropy)),
    ("entropy_options", Top(RequestOption::EntropyOptions)),
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
