// SPDX-License-Identifier: Apache-2.0
//! Why an entropy, or its temperature, is missing.

use crate::named_enum::named_enum;

named_enum! {
    /// Why there is no top-k, or no temperature; the values of `entropy_info.reason` and of the metric's label.
    pub enum Reason {
        /// A cumulative stream, which repeats all tokens in each event, would be too long.
        CumulativeStream = "cumulative_stream",
        /// The reply would be larger than 64 MiB.
        ReplyBudget = "reply_budget",
        /// sglang-jax recompiles the model for each shape. `--entropy always` or `return_entropy: true` forces logprobs nevertheless.
        Jax = "jax",
        /// sglang-jax cannot stream logprobs unless its overlap scheduler is known to be on.
        JaxStream = "jax_stream",
        /// The engine is unknown. If it is sglang-jax, forced logprobs would break its stream.
        EngineUnknown = "engine_unknown",
        /// The client's own `logprob_start_len` shares k with the prompt side.
        PromptLogprobs = "prompt_logprobs",
        /// The engine refused the forced request. This reply answers the client's unchanged request.
        Refused = "refused_by_engine",
        /// The engine refused a request of this shape since the last probe.
        RefusedBefore = "refused_before",
        /// The reply is larger than an eighth of `--max-bytes-in-flight`, and than 64MiB.
        TooLarge = "reply_too_large",
        /// The reply does not fit within `--max-bytes-in-flight`.
        NoRoom = "no_room",
        /// The reply could not be read.
        Unreadable = "unreadable_reply",
        /// Beam search refuses logprobs.
        BeamSearch = "beam_search",
        /// The engine's kind of speculative decoding refuses logprobs.
        Speculation = "speculation",
        /// A field that tokentap would edit is ambiguous.
        Request = "unreadable_request",
        /// The probe has not answered yet.
        ProbePending = "probe_pending",
        /// The probe could not determine the temperature of this engine's logprobs.
        Temperature = "temperature_unknown",
        /// `top_k` is 1 and the temperature is not: the engine's answer depends on its batch.
        TopK1 = "top_k_1",
        /// The request asks for the sampled distribution. The engine reports it only for a finite `top_k`, or not at all.
        OpenSupport = "open_support",
        /// The engine's plugin or its sampling mask was requested and did not return one number per token.
        MissingValues = "missing_values",
        /// The engine returned no top-k although it was requested.
        MissingRows = "missing_rows",
        /// The returned rows are not part of a distribution: they hold NaN, sum to more than 1, or lack the likeliest token.
        UnusableRows = "unusable_rows",
        /// The events of a stream contradict each other or the engine's count of tokens.
        StreamContradiction = "stream_contradiction",
    }
}
