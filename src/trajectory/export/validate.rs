//! The last look at a row before it leaves.

use crate::trajectory::{Path, Turn};

/// What a format needs of the tokens that it trains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// A finite logprob for each of them.
    pub logprobs: bool,
    /// A finite entropy for each of them.
    pub entropy: bool,
    /// How many tokens behind the first prompt are kept, where the rest is cut off.
    pub kept: Option<usize>,
}

/// Whether the row is whole and has what the format needs.
///
/// # Errors
///
/// The name of what is wrong with it.
pub fn validate(path: &Path, needs: Needs) -> Result<(), &'static str> {
    let steps = &path.steps;
    let rooted = steps.first().is_some_and(|step| step.turn.parent.is_none());
    let linked = steps.windows(2).all(|pair| {
        let (turn, next) = (&pair[0].turn, &pair[1].turn);
        next.parent == Some(turn.id) && next.id > turn.id
    });
    if !rooted || !linked {
        return Err("broken_path");
    }
    if path.prompt_len() == 0 {
        return Err("no_prompt");
    }
    for step in steps {
        lengths(&step.turn)?;
    }
    if path.trained_tokens() == 0 {
        return Err("no_trained_tokens");
    }
    if needs.kept.is_some_and(|kept| first_trained(path) >= kept) {
        return Err("truncated");
    }
    for step in steps.iter().filter(|step| step.trained) {
        let turn = &step.turn;
        if needs.logprobs && !is_full(&turn.logprobs, turn) {
            return Err("missing_logprobs");
        }
        if needs.entropy && !is_full(&turn.entropy, turn) {
            return Err("missing_entropy");
        }
    }
    Ok(())
}

/// Where behind the first prompt the first trained token stands.
fn first_trained(path: &Path) -> usize {
    let before = path.segments().take_while(|segment| !segment.trained).map(|segment| segment.ids.len());
    before.sum::<usize>().saturating_sub(path.prompt_len())
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

fn is_full(values: &[f32], turn: &Turn) -> bool {
    values.len() == turn.response.len() && values.iter().all(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trajectory::Fault;
    use crate::trajectory::export::fixture::{rows_of, turns};

    const ALL: Needs = Needs { logprobs: true, entropy: true, kept: None };

    /// What is said of the first row when its second turn, or the row itself, is changed.
    fn verdict(turn: impl FnOnce(&mut Turn), row: impl FnOnce(&mut Path), needs: Needs) -> Result<(), &'static str> {
        let mut turns = turns();
        turn(&mut turns[1]);
        let mut path = rows_of(turns).swap_remove(0);
        path.steps.iter_mut().for_each(|step| step.trained = step.turn.is_trainable());
        row(&mut path);
        validate(&path, needs)
    }

    #[test]
    fn what_is_whole_passes() {
        assert_eq!(verdict(|_| {}, |_| {}, ALL), Ok(()));
        assert_eq!(verdict(|turn| turn.about.fault = Some(Fault::Aborted), |_| {}, ALL), Ok(()), "it is context");
    }

    #[test]
    fn paths_are_in_order() {
        for parent in [None, Some(1), Some(3)] {
            assert_eq!(verdict(|turn| turn.parent = parent, |_| {}, ALL), Err("broken_path"), "{parent:?}");
        }
        assert_eq!(verdict(|turn| turn.id = 0, |_| {}, ALL), Err("broken_path"));
        assert_eq!(verdict(|_| {}, |row| drop(row.steps.remove(0)), ALL), Err("broken_path"), "no root");
        assert_eq!(verdict(|_| {}, |row| row.steps.clear(), ALL), Err("broken_path"));
    }

    #[test]
    fn lengths_agree() {
        assert_eq!(verdict(|turn| turn.logprobs = [0.0; 2].into(), |_| {}, ALL), Err("logprobs_mismatch"));
        assert_eq!(verdict(|turn| turn.entropy = [0.0; 4].into(), |_| {}, ALL), Err("entropies_mismatch"));
    }

    #[test]
    fn there_is_something_to_train_and_a_prompt() {
        let untrained = |row: &mut Path| row.steps.iter_mut().for_each(|step| step.trained = false);
        assert_eq!(verdict(|_| {}, untrained, ALL), Err("no_trained_tokens"));
        let mut turns = turns();
        turns[0].prompt = [].into();
        assert_eq!(validate(&rows_of(turns)[0], ALL), Err("no_prompt"));
    }

    #[test]
    fn numbers_are_there_where_they_are_needed() {
        let drop_logprob = |turn: &mut Turn| turn.logprobs[0] = f32::NAN;
        assert_eq!(verdict(drop_logprob, |_| {}, ALL), Err("missing_logprobs"));
        assert_eq!(verdict(drop_logprob, |_| {}, Needs::default()), Ok(()));
        assert_eq!(verdict(drop_logprob, |row| row.steps[1].trained = false, ALL), Ok(()), "context needs none");
        let drop_entropies = |turn: &mut Turn| turn.entropy = Box::default();
        assert_eq!(verdict(drop_entropies, |_| {}, ALL), Err("missing_entropy"));
        assert_eq!(verdict(drop_entropies, |_| {}, Needs { entropy: false, ..ALL }), Ok(()));
    }
}
