//! The last look at a row before it leaves.

use std::sync::Arc;

use crate::session::Turn;

/// What a format needs of the tokens that it trains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// A finite logprob for each of them.
    pub logprobs: bool,
    /// A finite entropy for each of them.
    pub entropy: bool,
    /// How many tokens behind the first prompt are kept, where the rest is cut off.
    pub kept: Option<usize>,
    /// Ids that fit into an int32, in the prompts as well.
    pub int32_ids: bool,
}

/// For each turn whether the path that ends in it may leave, else the name of what is wrong with it. What is wrong with a turn is wrong
/// with every path that holds it: a row that would train it is refused, so no other row does.
pub(super) fn verdicts(turns: &[Arc<Turn>], needs: Needs) -> Vec<Result<(), &'static str>> {
    let mut known: Vec<Result<(), &'static str>> = Vec::with_capacity(turns.len());
    for turn in turns {
        let before = match turn.parent {
            Some(parent) => known[parent as usize],
            None if turn.prompt.is_empty() => Err("no_prompt"),
            None => Ok(()),
        };
        known.push(before.and_then(|()| whole(turn, needs)));
    }
    known
}

fn whole(turn: &Turn, needs: Needs) -> Result<(), &'static str> {
    lengths(turn)?;
    if needs.int32_ids && !fits_int32(&turn.prompt, &turn.response) {
        return Err("token_id_too_large");
    }
    if !turn.is_trainable() {
        return Ok(());
    }
    if needs.logprobs && !is_full(&turn.logprobs, turn) {
        return Err("missing_logprobs");
    }
    if needs.entropy && !is_full(&turn.entropy, turn) {
        return Err("missing_entropy");
    }
    Ok(())
}

fn lengths(turn: &Turn) -> Result<(), &'static str> {
    let fits = |values: &[f32]| values.is_empty() || values.len() == turn.response.len();
    if !fits(&turn.logprobs) {
        return Err("logprobs_mismatch");
    }
    if !fits(&turn.entropy) {
        return Err("entropies_mismatch");
    }
    Ok(())
}

/// Without a branch for each id, because every token of an export passes here.
fn fits_int32(prompt: &[u32], response: &[u32]) -> bool {
    let bits = |ids: &[u32]| ids.iter().fold(0, |bits, id| bits | id);
    i32::try_from(bits(prompt) | bits(response)).is_ok()
}

fn is_full(values: &[f32], turn: &Turn) -> bool {
    values.len() == turn.response.len() && values.iter().all(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::fixture::turns;
    use crate::session::Fault;

    const ALL: Needs = Needs { logprobs: true, entropy: true, kept: None, int32_ids: false };

    /// The problem of the path through the second turn after a turn of it was changed.
    fn verdict(at: usize, change: impl FnOnce(&mut Turn), needs: Needs) -> Result<(), &'static str> {
        let mut turns = turns();
        change(&mut turns[at]);
        verdicts(&turns.map(Arc::new), needs)[1]
    }

    #[test]
    fn complete_path_is_valid() {
        assert_eq!(verdict(1, |_| {}, ALL), Ok(()));
        assert_eq!(verdict(1, |turn| turn.about.fault = Some(Fault::Aborted), ALL), Ok(()), "it is context");
    }

    #[test]
    fn ids_fit_into_an_int32_where_that_is_needed() {
        let needs = Needs { int32_ids: true, ..Needs::default() };
        for (id, expected) in [(i32::MAX as u32, Ok(())), (1 << 31, Err("token_id_too_large"))] {
            assert_eq!(verdict(0, |turn| turn.prompt = [id].into(), needs), expected);
            assert_eq!(verdict(1, |turn| turn.response[0] = id, needs), expected);
        }
        assert_eq!(verdict(1, |turn| turn.response[0] = 1 << 31, ALL), Ok(()), "others have wider columns");
    }

    #[test]
    fn lengths_agree_on_the_whole_path() {
        for at in 0..2 {
            assert_eq!(verdict(at, |turn| turn.logprobs = [0.0; 9].into(), ALL), Err("logprobs_mismatch"));
            assert_eq!(verdict(at, |turn| turn.entropy = [0.0; 9].into(), ALL), Err("entropies_mismatch"));
        }
        assert_eq!(verdict(2, |turn| turn.entropy = [0.0; 9].into(), ALL), Ok(()), "a branch is not on the path");
    }

    #[test]
    fn a_path_has_a_prompt() {
        assert_eq!(verdict(0, |turn| turn.prompt = [].into(), ALL), Err("no_prompt"));
        assert_eq!(verdict(1, |turn| turn.prompt = [].into(), ALL), Ok(()), "a resumed turn adds none");
    }

    #[test]
    fn numbers_are_there_where_they_are_needed() {
        let drop_logprob = |turn: &mut Turn| turn.logprobs[0] = f32::NAN;
        assert_eq!(verdict(1, drop_logprob, ALL), Err("missing_logprobs"));
        assert_eq!(verdict(1, drop_logprob, Needs::default()), Ok(()));
        let context = |turn: &mut Turn| (turn.logprobs[0], turn.about.fault) = (f32::NAN, Some(Fault::Aborted));
        assert_eq!(verdict(1, context, ALL), Ok(()), "context needs none");
        let drop_entropies = |turn: &mut Turn| turn.entropy = Box::default();
        assert_eq!(verdict(1, drop_entropies, ALL), Err("missing_entropy"));
        assert_eq!(verdict(1, drop_entropies, Needs { entropy: false, ..ALL }), Ok(()));
    }
}
