//! Why an entropy, or its temperature, is missing.

/// Why there is no top-k, or no temperature; the values of `entropy_info.reason` and of the metric's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// (1) A stream that repeats everything in each event would be too long.
    CumulativeStream,
    /// (2) The reply would be larger than `--reply-budget`.
    ReplyBudget,
    /// (3) sglang-jax compiles the model anew for each shape; `--jax-force` or `return_entropy: true` forces.
    Jax,
    /// (3) sglang-jax cannot stream logprobs while its overlap scheduler is off, or not known to be on.
    JaxStream,
    /// (3) The engine is not known to be SGLang: a stream of sglang-jax would break.
    EngineUnknown,
    /// (4) The client's own `logprob_start_len` shares k with the prompt side.
    PromptLogprobs,
    /// (6) The engine refused the forced request; this reply is to the request as the client wrote it.
    Refused,
    /// (6) The engine refused a request of this shape since the last probe.
    RefusedBefore,
    /// (7) The reply is larger than `--max-reply-bytes`.
    TooLarge,
    /// (7) There is no room for it within `--max-bytes-in-flight`.
    NoRoom,
    /// (7) The reply could not be read.
    Unreadable,
    /// Beam search refuses logprobs.
    BeamSearch,
    /// The kind of speculation this engine does refuses logprobs.
    Speculation,
    /// A field that would have to be edited has no clear meaning.
    Request,
    /// The probe has not answered yet.
    ProbePending,
    /// The probe could not tell at which temperature this engine's logprobs are.
    Temperature,
    /// `top_k` is 1 and the temperature is not: the engine's answer depends on its batch.
    TopK1,
    /// The distribution sampled from was wanted, and the engine names it only for a finite `top_k`, or not at all.
    OpenSupport,
    /// The engine's plugin, or its sampling mask, was asked and gave no number, or not one a token.
    MissingValues,
    /// The engine sent no top-k although it was asked.
    MissingRows,
    /// Rows that came are no part of a distribution: NaN, a sum that cannot be, or the likeliest token missing.
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
