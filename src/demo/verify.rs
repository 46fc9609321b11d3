//! Checks the values of `sampling_params`, and writes SGLang's error messages.

use super::refusal::Refusal;
use super::sampling::SamplingParams;

/// Checks parameters against the vocabulary and SGLang's limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct ParamsVerifier {
    pub(super) vocab_size: usize,
    /// Errors do not name the valid range of ids.
    pub(super) hide_vocab: bool,
    /// The limits and messages of SGLang 0.5.6.
    pub(super) older: bool,
}

impl ParamsVerifier {
    /// Checks the values in SGLang's order. The error names the first value that is out of range.
    pub(super) fn verify(&self, params: &SamplingParams) -> Result<(), Refusal> {
        let ensure = |holds: bool, message: String| {
            if holds { Ok(()) } else { Err(Refusal::Value(message)) }
        };
        let SamplingParams { temperature, top_p, min_p, .. } = params;
        let number = if self.older { "non-negative" } else { "a non-negative finite number" };
        ensure(*temperature >= 0.0, format!("temperature must be {number}, got {temperature}."))?;
        ensure(*top_p > 0.0 && *top_p <= 1.0, format!("top_p must be in (0, 1], got {top_p}."))?;
        ensure((0.0..=1.0).contains(min_p), format!("min_p must be in [0, 1], got {min_p}."))?;
        ensure(params.top_k != Some(0), "top_k must be -1 (disable) or at least 1, got 0.".into())?;
        let penalties = [("frequency", params.frequency_penalty), ("presence", params.presence_penalty)];
        for (name, penalty) in penalties {
            let fits = (-2.0..=2.0).contains(&penalty);
            ensure(fits, format!("{name}_penalty must be in [-2, 2], got {penalty}."))?;
        }
        let repetition = params.repetition_penalty;
        let message = format!("repetition_penalty must be in (0, 2] (1.0 = no penalty), got {repetition}.");
        ensure(repetition > 0.0 && repetition <= 2.0, message)?;
        let least = params.min_new_tokens;
        ensure(least >= 0, format!("min_new_tokens must be in [0, max_new_tokens], got {least}."))?;
        if let Some(most) = params.max_new_tokens {
            ensure(most >= 0, format!("max_new_tokens must be at least 0, got {most}."))?;
            let message = format!("min_new_tokens must be in [0, max_new_tokens({most})], got {least}.");
            ensure(least <= most, message)?;
        }
        for (id, _) in &params.logit_bias {
            let message = match self.hide_vocab {
                true => format!("logit_bias has an invalid key {id}."),
                false => format!("logit_bias must has keys in [0, {}], got {id}.", self.vocab_size - 1),
            };
            ensure(self.in_vocab(*id), message)?;
        }
        // a scripted output is assumed to follow the grammar
        match &params.unsupported {
            Some(message) if params.script.is_none() => Err(Refusal::value(message)),
            _ => Ok(()),
        }
    }

    /// Checks `token_ids_logprob`.
    pub(super) fn verify_ids(&self, ids: &[i64]) -> Result<(), Refusal> {
        // 0.5.6 does not check the ids; its behaviour with invalid ones is not emulated
        match ids.iter().find(|id| !self.in_vocab(**id)) {
            None => Ok(()),
            Some(_) if self.hide_vocab => {
                Err(Refusal::value("token_ids_logprob contains an out-of-vocabulary token id."))
            }
            Some(id) => Err(Refusal::Value(format!(
                "token_ids_logprob contains out-of-vocabulary token id {id}; valid range is [0, {}).",
                self.vocab_size
            ))),
        }
    }

    pub(super) fn in_vocab(&self, id: i64) -> bool {
        usize::try_from(id).is_ok_and(|id| id < self.vocab_size)
    }
}
