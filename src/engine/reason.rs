//! Why an entropy, or its temperature, is missing.

/// Why there is no top-k, or no temperature; the values of `entropy_info.reason` and of the metric's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A cumulative stream, which repeats all tokens in each event, would be too long.
    CumulativeStream,
    /// The reply would be larger than 64 MiB.
    ReplyBudget,
    /// sglang-jax recompiles the model for each shape. `--entropy always` or `return_entropy: true` forces logprobs nevertheless.
    Jax,
    /// sglang-jax cannot stream logprobs unless its overlap scheduler is known to be on.
    JaxStream,
    /// The engine is unknown. If it is sglang-jax, forced logprobs would break its stream.
    EngineUnknown,
    /// The client's own `logprob_start_len` shares k with the prompt side.
    PromptLogprobs,
    /// The engine refused the forced request. This reply answers the client's unchanged request.
    Refused,
    /// The engine refused a request of this shape since the last probe.
    RefusedBefore,
    /// The reply is larger than an eighth of `--max-bytes-in-flight`, and than 64MiB.
    TooLarge,
    /// The reply does not fit within `--max-bytes-in-flight`.
    NoRoom,
    /// The reply could not be read.
    Unreadable,
    /// Beam search refuses logprobs.
    BeamSearch,
    /// The engine's kind of speculative decoding refuses logprobs.
    Speculation,
    /// A field that tokentap would edit is ambiguous.
    Request,
    /// The probe has not answered yet.
    ProbePending,
    /// The probe could not determine the temperature of this engine's logprobs.
    Temperature,
    /// `top_k` is 1 and the temperature is not: the engine's answer depends on its batch.
    TopK1,
    /// The request asks for the sampled distribution. The engine reports it only for a finite `top_k`, or not at all.
    OpenSupport,
    /// The engine's plugin or its sampling mask was requested and did not return one number per token.
    MissingValues,
    /// The engine returned no top-k although it was requested.
    MissingRows,
    /// The returned rows are not part of a distribution: they hold NaN, sum to more than 1, or lack the likeliest token.
    UnusableRows,
    /// The events of a stream contradict each other or the engine's count of tokens.
    StreamContradiction,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::CumulativeStream,
        Self::ReplyBudget,
        Self::Jax,
        Self::JaxStream,
        Self::EngineUnknown,
        Self::PromptLogprobs,
        Self::Refused,
        Self::RefusedBefore,
        Self::TooLarge,
        Self::NoRoom,
        Self::Unreadable,
        Self::BeamSearch,
        Self::Speculation,
        Self::Request,
        Self::ProbePending,
        Self::Temperature,
        Self::TopK1,
        Self::OpenSupport,
        Self::MissingValues,
        Self::MissingRows,
        Self::UnusableRows,
        Self::StreamContradiction,
    ];

    /// The name in replies, logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CumulativeStream => "cumulative_stream",
            Self::ReplyBudget => "reply_budget",
            Self::Jax => "jax",
            Self::JaxStream => "jax_stream",
            Self::EngineUnknown => "engine_unknown",
            Self::PromptLogprobs => "prompt_logprobs",
            Self::Refused => "refused_by_engine",
            Self::RefusedBefore => "refused_before",
            Self::TooLarge => "reply_too_large",
            Self::NoRoom => "no_room",
            Self::Unreadable => "unreadable_reply",
            Self::BeamSearch => "beam_search",
            Self::Speculation => "speculation",
            Self::Request => "unreadable_request",
            Self::ProbePending => "probe_pending",
            Self::Temperature => "temperature_unknown",
            Self::TopK1 => "top_k_1",
            Self::OpenSupport => "open_support",
            Self::MissingValues => "missing_values",
            Self::MissingRows => "missing_rows",
            Self::UnusableRows => "unusable_rows",
            Self::StreamContradiction => "stream_contradiction",
        }
    }
}
