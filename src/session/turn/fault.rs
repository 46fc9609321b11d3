// SPDX-License-Identifier: Apache-2.0
//! Why the tokens of a turn are not trained.

use crate::named_enum::named_enum;

named_enum! {
    /// Why a turn is not trained, except where an export trains a turn that was cut off and resumed. Its tokens are kept as context for turns
    /// that continue it.
    pub enum Fault {
        /// The engine aborted the generation. A later call may continue the turn.
        Aborted = "aborted",
        /// The client disconnected before the end of the reply. The tokens until then are recorded. A later call may continue the turn.
        Disconnected = "disconnected",
        /// The connection to the engine broke before the end of the reply. A later call may continue the turn.
        Broken = "broken",
        /// The token ids of the prompt are unknown. Send `input_ids`, or use an engine that echoes prompt ids.
        /// With `session_params`, continue a turn of the same session and name its `rid`.
        PromptUnknown = "prompt_unknown",
        /// The number of recorded prompt tokens differs from the engine's count. Report it, with the version of the engine.
        PromptMismatch = "prompt_mismatch",
        /// The number of recorded response tokens differs from the engine's count. Report it, with the version of the engine.
        CompletionMismatch = "completion_mismatch",
        /// `output_ids` and the ids of the logprobs differ. Report it, with the version of the engine.
        IdsMismatch = "ids_mismatch",
        /// The listed ids may not be the sampled ones: the engine is not known to be SGLang and sent no logprobs, or the
        /// events of its stream contradict each other. Request logprobs, or start sglang-jax with `--skip-tokenizer-init`.
        IdsUnverified = "ids_unverified",
        /// A sampled id is outside the vocabulary of the engine. Report it, with the version of the engine; or correct `--vocab-size`.
        IdsOutside = "ids_outside",
        /// The number of logprobs differs from the number of tokens. Report it, with the version of the engine.
        LogprobsMismatch = "logprobs_mismatch",
        /// The number of entropies differs from the number of tokens. Report it, with the version of the engine.
        EntropiesMismatch = "entropies_mismatch",
        /// The reply could not be parsed to its end. Report it, with the version of the engine.
        Unreadable = "unreadable",
        /// The turn is missing in the log from which its session was restored: the log was damaged, degraded or over its limit.
        /// See the persistence guide.
        Lost = "lost",
        /// The engine's own chat endpoint rendered and sampled the turn. The engine reported its ids, without logprobs and entropies.
        /// `forwarded_reason`, of the turn in a path and in `extras` of trajectories, says why: tokentap cannot read the tokenizer, `--chat
        /// passthrough`, or a part that only the engine renders, such as a picture by URL, audio or video.
        Forwarded = "forwarded",
        /// The engine did not confirm how it expanded the pictures of the prompt: it tokenised the text anew, left a picture out, or echoed
        /// another prompt. Send `input_ids` without `text`, with one placeholder token for each picture of `image_data`, not expanded.
        ImagesUnverified = "images_unverified",
        /// A picture is a URL or the name of a file, whose content may change. Send it as a data URI or as base64.
        ImageRemote = "image_remote",
        /// A picture is the output of a processor or an embedding instead of a picture. Send it as a data URI or as base64.
        ImageProcessed = "image_processed",
        /// The prompt has video or audio, which is not recorded.
        MediaUnrecorded = "media_unrecorded",
        /// The pictures of the request need more memory than one request may use. Send fewer or smaller ones, or raise
        /// `--max-bytes-in-flight`.
        ImagesTooLarge = "images_too_large",
    }
}

impl Fault {
    /// Whether the recorded tokens of such a turn are the sampled tokens, up to the end of the reply or to where it was cut off. The tokens
    /// of a `forwarded` turn are those that the engine reported.
    pub(in crate::session) fn has_sampled_tokens(self) -> bool {
        self.is_cut_off() || self == Self::Forwarded
    }

    /// Whether the reply was cut off: the recorded tokens are those that were sampled until then.
    pub(in crate::session) fn is_cut_off(self) -> bool {
        matches!(self, Self::Aborted | Self::Disconnected | Self::Broken)
    }

    /// Whether the recorded turn is inconsistent. The other faults mean that the turn was cut off, or
    /// that the engine rendered it.
    #[must_use]
    pub fn is_quarantine(self) -> bool {
        !self.has_sampled_tokens()
    }
}
