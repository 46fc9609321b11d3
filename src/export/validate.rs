// SPDX-License-Identifier: Apache-2.0
//! Validates turns before they are exported.

use super::{ExportImages, images};
use crate::session::{Path, Row, Turn};

/// The values that a format needs for each trained token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// A finite logprob.
    pub logprobs: bool,
    /// A finite entropy.
    pub entropy: bool,
    /// The temperature that the logprobs are of.
    pub temperature: bool,
    /// The number of tokens after the first prompt that the format keeps; `None` keeps all.
    pub kept: Option<usize>,
    /// The number of last tokens of the first prompt that the format keeps; `None` keeps all.
    pub kept_prompt: Option<usize>,
    /// Ids that fit into an int32, also in prompts.
    pub int32_ids: bool,
    /// What the format has of pictures; `None` if it has no place for them.
    pub images: Option<ExportImages>,
}

/// For each turn of the session of `row` whether the path that ends in it can be exported, or the name of the problem. A problem of a turn
/// is a problem of every path that holds it: the row that would train it is refused, and no other row trains it.
pub(super) fn verdicts(row: &Row, needs: Needs) -> Vec<Result<(), &'static str>> {
    let turns = row.turns();
    let placeholders = images::placeholders(turns.iter().map(|turn| &**turn));
    // the bytes of the pictures of each path
    let mut known: Vec<Result<u64, &'static str>> = Vec::with_capacity(turns.len());
    for turn in turns {
        let before = match turn.parent {
            Some(parent) => known[parent as usize],
            None if turn.prompt.is_empty() => Err("no_prompt"),
            None => Ok(0),
        };
        known.push(before.and_then(|before| {
            whole(turn, needs, row.export_trains(turn), &placeholders)?;
            image_bytes(before, turn, needs)
        }));
    }
    known.into_iter().map(|verdict| verdict.map(|_| ())).collect()
}

/// The bytes of the pictures of a path through this turn, or the problem of its pictures. The path before it has `before` bytes.
fn image_bytes(before: u64, turn: &Turn, needs: Needs) -> Result<u64, &'static str> {
    let (Some(images), Some(wanted)) = (&turn.about.images, needs.images) else { return Ok(before) };
    let length = turn.prompt.len();
    let has_no_rest = |kept| images::start_of_prompt(turn, length.saturating_sub(kept)) == length;
    if turn.parent.is_none() && needs.kept_prompt.is_some_and(|kept| kept > 0 && has_no_rest(kept)) {
        return Err("truncated_image");
    }
    let bytes = images.list.iter().fold(before, |bytes, image| bytes.saturating_add(image.image.size));
    let is_too_large = wanted == ExportImages::Embed && bytes > images::MAX_EMBEDDED;
    if is_too_large { Err("images_too_large") } else { Ok(bytes) }
}

/// Whether a path can be a row of the columnar formats with all its pictures, or the name of the problem.
///
/// # Errors
/// The problem of its first turn that has one.
pub(crate) fn verdict(path: &Path) -> Result<(), &'static str> {
    let needs = Needs { int32_ids: true, images: Some(ExportImages::Embed), ..Needs::default() };
    if path.prompt_len() == 0 {
        return Err("no_prompt");
    }
    let placeholders = images::placeholders(path.steps.iter().map(|step| &*step.turn));
    path.steps.iter().try_for_each(|step| whole(&step.turn, needs, step.trained, &placeholders))
}

fn whole(turn: &Turn, needs: Needs, is_trained: bool, placeholders: &[u32]) -> Result<(), &'static str> {
    lengths(turn)?;
    images::check(turn, needs.images)?;
    if needs.images.is_some() && images::has_stray(turn, placeholders) {
        return Err("images_mismatch");
    }
    if needs.int32_ids && !fits_int32(&turn.prompt, &turn.response) {
        return Err("token_id_too_large");
    }
    if is_trained { numbers(turn, needs) } else { Ok(()) }
}

/// Whether a turn has the values that its trained tokens need, or the name of the problem.
pub(super) fn numbers(turn: &Turn, needs: Needs) -> Result<(), &'static str> {
    if needs.logprobs && !is_full(&turn.logprobs, turn) {
        return Err("missing_logprobs");
    }
    if needs.entropy && !is_full(&turn.entropy, turn) {
        return Err("missing_entropy");
    }
    if needs.temperature && temperature(turn).is_none() {
        return Err("missing_temperature");
    }
    Ok(())
}

/// The temperature of the distribution that the logprobs of a turn describe, if it is known. Of a turn whose entropies were not wanted it
/// is the one that the client asked for, unless `top_k` is 1: then the engine's logprobs depend on the other requests of the batch.
pub(crate) fn temperature(turn: &Turn) -> Option<f64> {
    #[derive(serde::Deserialize)]
    struct Sampling {
        temperature: Option<f64>,
        top_k: Option<serde_json::Number>,
    }
    if let Some(how) = &turn.about.measured {
        return how.temperature;
    }
    let sampling: Sampling = serde_json::from_str(turn.about.sampling.as_deref()?).ok()?;
    // below this the engine samples greedily, and its logprobs are at temperature 1
    let temperature = sampling.temperature.map(|temperature| if temperature < 1e-6 { 1.0 } else { temperature })?;
    let is_top_1 = sampling.top_k.is_some_and(|top_k| top_k.as_f64() == Some(1.0));
    Some(temperature).filter(|temperature| *temperature == 1.0 || !is_top_1)
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

/// Whether all ids fit. Without a branch per id, because every token of an export is checked.
fn fits_int32(prompt: &[u32], response: &[u32]) -> bool {
    let bits = |ids: &[u32]| ids.iter().fold(0, |bits, id| bits | id);
    i32::try_from(bits(prompt) | bits(response)).is_ok()
}

fn is_full(values: &[f32], turn: &Turn) -> bool {
    values.len() == turn.response.len() && values.iter().all(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::ops::Range;
    use std::sync::Arc;

    use super::*;
    use crate::export::fixture::{ALL, path, turns};
    use crate::images::Image;
    use crate::session::{EntropyMethod, Fault, PromptImages, Snapshot};

    /// The problem of the path through the second turn after a turn of it was changed.
    fn verdict(at: usize, change: impl FnOnce(&mut Turn), needs: Needs) -> Result<(), &'static str> {
        let mut turns = turns();
        change(&mut turns[at]);
        let turns = turns.map(Arc::new).to_vec();
        let snapshot = Snapshot::of_path(&path(&[&turns[0]]), turns, HashMap::new());
        verdicts(&snapshot.context(1), needs)[1]
    }

    #[test]
    fn complete_path_is_valid() {
        assert_eq!(verdict(1, |_| {}, ALL), Ok(()));
        assert_eq!(verdict(1, |turn| turn.about.fault = Some(Fault::Aborted), ALL), Ok(()), "the turn is context");
    }

    #[test]
    fn ids_above_int32_are_refused_if_the_format_needs_int32() {
        let needs = Needs { int32_ids: true, ..Needs::default() };
        for (id, expected) in [(i32::MAX as u32, Ok(())), (1 << 31, Err("token_id_too_large"))] {
            assert_eq!(verdict(0, |turn| turn.prompt = [id].into(), needs), expected);
            assert_eq!(verdict(1, |turn| turn.response[0] = id, needs), expected);
        }
        assert_eq!(verdict(1, |turn| turn.response[0] = 1 << 31, ALL), Ok(()), "other formats have wider columns");
    }

    #[test]
    fn wrong_lengths_are_refused_anywhere_on_the_path() {
        for at in 0..2 {
            assert_eq!(verdict(at, |turn| turn.logprobs = [0.0; 9].into(), ALL), Err("logprobs_mismatch"));
            assert_eq!(verdict(at, |turn| turn.entropy = [0.0; 9].into(), ALL), Err("entropies_mismatch"));
        }
        assert_eq!(verdict(2, |turn| turn.entropy = [0.0; 9].into(), ALL), Ok(()), "the turn is on another path");
    }

    /// Adds a picture with these tokens of the prompt.
    fn add_picture(turn: &mut Turn, tokens: Range<u32>, is_known: bool) {
        let mut picture = Image::new(b"picture"[..].into());
        picture.bytes = picture.bytes.filter(|_| is_known);
        turn.about.images = Some(Box::new(PromptImages::new(&turn.prompt, [(Arc::new(picture), tokens)])));
    }

    #[test]
    fn path_with_a_picture_is_refused_without_a_place_for_it() {
        for at in 0..2 {
            let with = |is_known, images| {
                let needs = Needs { images, ..Needs::default() };
                verdict(at, |turn| add_picture(turn, 0..1, is_known), needs)
            };
            assert_eq!(with(true, None), Err("images_unsupported"));
            assert_eq!(with(true, Some(ExportImages::Embed)), Ok(()));
            assert_eq!(with(false, Some(ExportImages::Embed)), Err("image_unavailable"));
            assert_eq!(with(false, Some(ExportImages::Refs)), Ok(()), "a reference needs no bytes");
        }
        assert_eq!(verdict(2, |turn| add_picture(turn, 0..1, true), ALL), Ok(()), "the turn is on another path");
    }

    #[test]
    fn prompt_of_which_a_cut_picture_is_the_rest_is_refused() {
        // 1 2 3
        let with = |kept_prompt, tokens: Range<u32>| {
            let needs = Needs { images: Some(ExportImages::Refs), kept_prompt, ..Needs::default() };
            verdict(0, |turn| add_picture(turn, tokens, true), needs)
        };
        assert_eq!(
            (with(None, 1..3), with(Some(3), 0..3), with(Some(1), 0..2), with(Some(2), 0..2)),
            (Ok(()), Ok(()), Ok(()), Ok(()))
        );
        for (kept, tokens) in [(1, 1..3), (2, 1..3), (2, 0..3), (1, 2..3)] {
            assert_eq!(with(Some(kept), tokens), Err("truncated_image"));
        }
    }

    #[test]
    fn picture_outside_of_its_prompt_is_refused() {
        for tokens in [0..4, 3..5, 0..u32::MAX, u32::MAX - 1..u32::MAX] {
            let needs = Needs { images: Some(ExportImages::Refs), ..Needs::default() };
            assert_eq!(verdict(0, |turn| add_picture(turn, tokens, true), needs), Err("images_mismatch"));
        }
    }

    #[test]
    fn placeholder_without_a_picture_is_refused() {
        let with = |at: usize, change: fn(&mut Turn), images| {
            let pictured = |turn: &mut Turn| {
                turn.prompt = [7, 900, 900, 8].into();
                add_picture(turn, 1..3, true);
            };
            let mut turns = turns();
            pictured(&mut turns[0]);
            change(&mut turns[at]);
            let turns = turns.map(Arc::new).to_vec();
            let snapshot = Snapshot::of_path(&path(&[&turns[0]]), turns, HashMap::new());
            verdicts(&snapshot.context(1), Needs { images, ..Needs::default() })[1]
        };
        let sampled = |turn: &mut Turn| turn.response[0] = 900;
        let (refs, none) = (Some(ExportImages::Refs), None);
        assert_eq!(with(0, |_| {}, refs), Ok(()));
        assert_eq!(with(0, sampled, refs), Err("images_mismatch"));
        assert_eq!(with(1, sampled, refs), Err("images_mismatch"), "of a turn without pictures");
        assert_eq!(with(2, sampled, refs), Ok(()), "the turn is on another path");
        assert_eq!(with(0, |turn| turn.prompt = [900, 900, 900, 8].into(), refs), Err("images_mismatch"));
        assert_eq!(with(1, sampled, none), Err("images_unsupported"));
    }

    #[test]
    fn embedded_pictures_of_a_path_are_limited() {
        let verdicts_of = |images, sizes: [u64; 2]| {
            let mut turns = turns();
            for (turn, size) in turns.iter_mut().zip(sizes) {
                let picture = Image { size, ..Image::new(b"picture"[..].into()) };
                turn.about.images = Some(Box::new(PromptImages::new(&turn.prompt, [(Arc::new(picture), 0..1)])));
            }
            let turns = turns.map(Arc::new).to_vec();
            let snapshot = Snapshot::of_path(&path(&[&turns[0]]), turns, HashMap::new());
            verdicts(&snapshot.context(1), Needs { images: Some(images), ..Needs::default() })
        };
        let most = images::MAX_EMBEDDED;
        assert_eq!(verdicts_of(ExportImages::Embed, [most - 1, 1]), [Ok(()); 3]);
        assert_eq!(verdicts_of(ExportImages::Embed, [most, 1]), [Ok(()), Err("images_too_large"), Ok(())]);
        assert_eq!(verdicts_of(ExportImages::Refs, [most, 1]), [Ok(()); 3]);
    }

    #[test]
    fn path_without_a_prompt_is_refused() {
        assert_eq!(verdict(0, |turn| turn.prompt = [].into(), ALL), Err("no_prompt"));
        assert_eq!(verdict(1, |turn| turn.prompt = [].into(), ALL), Ok(()), "a resumed turn adds no prompt");
    }

    #[test]
    fn temperature_is_the_measured_one_else_the_requested_one() {
        let measured = |temperature| EntropyMethod {
            source: "top_k".into(),
            estimator: "estimate".into(),
            temperature,
            top_k: Some(20),
            reason: None,
        };
        for (of_measured, sampling, expected) in [
            (Some(Some(1.0)), r#"{"temperature":0.7}"#, Some(1.0)),
            (Some(None), r#"{"temperature":1}"#, None),
            (None, r#"{"temperature":0.7}"#, Some(0.7)),
            (None, r#"{"temperature":1,"top_k":1}"#, Some(1.0)),
            (None, r#"{"temperature":0}"#, Some(1.0)),
            (None, r#"{"temperature":0,"top_k":1}"#, Some(1.0)),
            (None, r#"{"temperature":0.7,"top_k":1}"#, None),
            (None, r#"{"temperature":0.7,"top_k":-1}"#, Some(0.7)),
            (None, r#"{"temperature":null}"#, None),
            (None, "{}", None),
        ] {
            let [mut turn, ..] = turns();
            turn.about.measured = of_measured.map(|temperature| Arc::new(measured(temperature)));
            turn.about.sampling = Some(sampling.into());
            assert_eq!(temperature(&turn), expected, "{sampling}");
        }
    }

    #[test]
    fn missing_numbers_are_refused_if_the_format_needs_them() {
        let drop_logprob = |turn: &mut Turn| turn.logprobs[0] = f32::NAN;
        assert_eq!(verdict(1, drop_logprob, ALL), Err("missing_logprobs"));
        assert_eq!(verdict(1, drop_logprob, Needs::default()), Ok(()));
        let context = |turn: &mut Turn| (turn.logprobs[0], turn.about.fault) = (f32::NAN, Some(Fault::Aborted));
        assert_eq!(verdict(1, context, ALL), Ok(()), "context needs no numbers");
        let drop_entropies = |turn: &mut Turn| turn.entropy = Box::default();
        assert_eq!(verdict(1, drop_entropies, ALL), Err("missing_entropy"));
        assert_eq!(verdict(1, drop_entropies, Needs { entropy: false, ..ALL }), Ok(()));
    }
}
