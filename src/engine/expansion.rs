// SPDX-License-Identifier: Apache-2.0
//! The expansion of a prompt: an engine replaces the placeholder of each picture by a run of the same token.

use std::borrow::Cow;
use std::ops::Range;

use crate::images::ImagePlaceholder;

/// Why a prompt is not the expansion of what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExpansionError {
    /// Another token than a placeholder differs, or is missing.
    #[error("token {at} of the prompt differs from the ids that were sent")]
    Differs {
        /// The position in the prompt.
        at: usize,
    },
    /// The placeholders that became runs are not as many as the pictures.
    #[error("{runs} placeholders became runs, for {images} pictures")]
    Count {
        /// The number of runs.
        runs: usize,
        /// The number of pictures.
        images: usize,
    },
    /// The runs are longer or shorter than what the engine counts.
    #[error("the runs have {tokens} tokens, and the engine counts {counted}")]
    Tokens {
        /// The tokens of the runs.
        tokens: u64,
        /// The engine's number.
        counted: u64,
    },
}

/// A prompt as the engine returns it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EchoedPrompt<'a> {
    /// Its ids.
    pub ids: &'a [u32],
    /// The engine's number of tokens of its pictures, if it reports one.
    pub image_tokens: Option<u64>,
}

/// Compares a prompt with the ids that were sent with this many pictures. Returns the range of each picture's tokens in the prompt. Which
/// token is the placeholder follows from the prompt: the one that was sent once for each picture and became a run each time. All other tokens
/// must be equal. A picture of one token cannot be told from a placeholder that the engine left, and is refused. So is a run at the beginning, where
/// some processors repeat the token that begins a text.
pub(crate) fn walk(
    sent: &[u32],
    EchoedPrompt { ids: prompt, image_tokens }: EchoedPrompt<'_>,
    images: usize,
) -> Result<Vec<Range<u32>>, ExpansionError> {
    let (mut from, mut at) = (0, 0);
    let mut placeholder = None;
    let mut spans = Vec::with_capacity(images.min(prompt.len()));
    while let Some(id) = sent.get(from) {
        let [before, after] = [run(*id, &sent[from..]), run(*id, prompt.get(at..).unwrap_or_default())];
        let is_expanded = from > 0 && before == 1 && after > 1 && *placeholder.get_or_insert(*id) == *id;
        if is_expanded {
            let end = u32::try_from(at + after).map_err(|_| ExpansionError::Differs { at })?;
            spans.push(end - after as u32..end);
        } else if before != after {
            return Err(ExpansionError::Differs { at: at + before.min(after) });
        }
        (from, at) = (from + before, at + after);
    }
    if at < prompt.len() {
        return Err(ExpansionError::Differs { at });
    }
    let sent_placeholders = sent.iter().filter(|id| Some(**id) == placeholder).count();
    if spans.len() != images || sent_placeholders != images {
        return Err(ExpansionError::Count { runs: spans.len(), images });
    }
    let tokens = spans.iter().map(|span| u64::from(span.end - span.start)).sum();
    if let Some(counted) = image_tokens.filter(|counted| *counted != tokens) {
        return Err(ExpansionError::Tokens { tokens, counted });
    }
    Ok(spans)
}

/// Why a prompt cannot be sent with its pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlaceholderError {
    /// It has another number of placeholders than pictures.
    #[error("{placeholders} placeholders (token {id}) for {images} pictures; send one placeholder for each picture")]
    Count {
        /// The number of placeholders.
        placeholders: usize,
        /// The placeholder.
        id: u32,
        /// The number of pictures.
        images: usize,
    },
    /// It has a placeholder that stands for no picture.
    #[error(
        "the placeholder (token {id}) at {at} is not between the tokens that stand around a picture; if the model sampled it, leave it out"
    )]
    Outside {
        /// The placeholder.
        id: u32,
        /// Its position.
        at: usize,
    },
}

/// The ids to send of a prompt with this many pictures: one placeholder for each. Runs of placeholders, which a client took from an earlier
/// prompt, are collapsed if each stands between the tokens around a picture. Ids with a run that does not, so that it may be several
/// pictures, are returned unchanged; a processor may fail on them.
///
/// # Errors
/// [`PlaceholderError`].
pub(crate) fn collapse(
    ids: &[u32],
    placeholder: ImagePlaceholder,
    images: usize,
) -> Result<Cow<'_, [u32]>, PlaceholderError> {
    let ImagePlaceholder { id, frame } = placeholder;
    let runs = runs(id, ids);
    let placeholders: usize = runs.iter().map(|run| run.len()).sum();
    let is_framed = |run: &Range<usize>| frame.is_some_and(|frame| around(ids, run) == frame.each_ref().map(Some));
    let outside = runs.iter().find(|run| !is_framed(run));
    let framed = runs.iter().filter(|run| is_framed(run)).count();
    match outside {
        Some(outside) if framed == images => return Err(PlaceholderError::Outside { id, at: outside.start }),
        // a prompt with other tokens around its pictures, or with runs that cannot be told apart
        Some(_) if placeholders == images || placeholders > runs.len() => return Ok(Cow::Borrowed(ids)),
        None if framed == images && placeholders == images => return Ok(Cow::Borrowed(ids)),
        None if framed == images => {}
        // a run may be several pictures
        None if framed < images && placeholders > framed => return Ok(Cow::Borrowed(ids)),
        _ => return Err(PlaceholderError::Count { placeholders: runs.len(), id, images }),
    }
    let mut collapsed = Vec::with_capacity(ids.len() - placeholders + images);
    let mut from = 0;
    for run in runs {
        collapsed.extend_from_slice(&ids[from..=run.start]);
        from = run.end;
    }
    collapsed.extend_from_slice(&ids[from..]);
    Ok(Cow::Owned(collapsed))
}

/// Whether each placeholder is single and stands between the tokens around a picture, if those are known.
pub(crate) fn are_framed(ids: &[u32], ImagePlaceholder { id, frame }: ImagePlaceholder) -> bool {
    let is_framed =
        |run: &Range<usize>| run.len() == 1 && frame.is_none_or(|frame| around(ids, run) == frame.each_ref().map(Some));
    runs(id, ids).iter().all(is_framed)
}

/// The ranges of consecutive tokens `id`.
fn runs(id: u32, ids: &[u32]) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut at = 0;
    while let Some(start) = ids[at..].iter().position(|other| *other == id).map(|next| at + next) {
        at = start + run(id, &ids[start..]);
        runs.push(start..at);
    }
    runs
}

/// The tokens before and after a range.
fn around<'a>(ids: &'a [u32], range: &Range<usize>) -> [Option<&'a u32>; 2] {
    [range.start.checked_sub(1).and_then(|before| ids.get(before)), ids.get(range.end)]
}

/// The number of leading tokens that are `id`.
fn run(id: u32, ids: &[u32]) -> usize {
    ids.iter().take_while(|other| **other == id).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAD: u32 = 9;

    #[test]
    fn each_placeholder_is_a_run_and_all_else_is_equal() {
        let differs = |at| Err(ExpansionError::Differs { at });
        let count = |runs, images| Err(ExpansionError::Count { runs, images });
        for (sent, prompt, images, expected) in [
            (&[1, 7, 9, 8, 2][..], &[1, 7, 9, 9, 9, 8, 2][..], 1, Ok(vec![(2, 5)])),
            (&[7, 9, 8, 7, 9, 8], &[7, 9, 9, 8, 7, 9, 9, 9, 8], 2, Ok(vec![(1, 3), (5, 8)])),
            (&[1, 1, 7, 9, 8, 1], &[1, 1, 7, 9, 9, 8, 1], 1, Ok(vec![(3, 5)])),
            // some processors repeat the first token
            (&[1, 7, 8], &[1, 1, 7, 8], 1, differs(1)),
            (&[1, 7, 9, 8], &[1, 1, 7, 9, 9, 8], 1, differs(1)),
            (&[9], &[9, 9], 1, differs(1)),
            // the picture was ignored
            (&[7, 9, 8], &[7, 9, 8], 1, count(0, 1)),
            (&[7, 8], &[7, 8], 1, count(0, 1)),
            // one of two was, or the model sampled a placeholder
            (&[7, 9, 8, 7, 9, 8], &[7, 9, 9, 8, 7, 9, 8], 2, count(1, 2)),
            (&[7, 9, 8, 9], &[7, 9, 9, 8, 9], 1, count(1, 1)),
            (&[7, 9, 8], &[7, 9, 9, 8], 2, count(1, 2)),
            // tokenised anew
            (&[1, 2, 7, 9, 8], &[3, 7, 9, 9, 8], 1, differs(0)),
            (&[7, 9, 8, 1, 2], &[7, 9, 9, 8, 3], 1, differs(4)),
            (&[7, 9, 8], &[7, 9, 9, 8, 1], 1, differs(4)),
            (&[7, 9, 8, 1], &[7, 9, 9, 8], 1, differs(4)),
            (&[7, 9, 8], &[], 1, differs(0)),
            // which run belongs to which picture is unknown
            (&[7, 9, 9, 8], &[7, 9, 9, 9, 9, 8], 2, differs(3)),
            // two kinds of tokens became runs
            (&[7, 9, 8, 6], &[7, 9, 9, 8, 6, 6], 2, differs(5)),
            // a frame is added
            (&[7], &[5, 7, 7, 6], 1, differs(0)),
        ] {
            let spans = walk(sent, echoed(prompt), images);
            let spans = spans.map(|spans| spans.iter().map(|span| (span.start, span.end)).collect::<Vec<_>>());
            assert_eq!(spans, expected, "{sent:?} {prompt:?}");
        }
    }

    #[test]
    fn runs_have_the_tokens_that_the_engine_counts() {
        for (image_tokens, is_equal) in [(None, true), (Some(3), true), (Some(2), false), (Some(4), false)] {
            let spans = walk(&[7, 9, 8], EchoedPrompt { image_tokens, ..echoed(&[7, 9, 9, 9, 8]) }, 1);
            let expected = ExpansionError::Tokens { tokens: 3, counted: image_tokens.unwrap_or_default() };
            assert_eq!(spans.map(|spans| spans[0].len()), if is_equal { Ok(3) } else { Err(expected) });
        }
    }

    #[test]
    fn runs_between_the_tokens_around_a_picture_are_collapsed() {
        let placeholder = ImagePlaceholder { id: PAD, frame: Some([7, 8]) };
        let count = |placeholders, images| Err(PlaceholderError::Count { placeholders, id: PAD, images });
        for (ids, images, expected) in [
            (&[1, 7, 9, 8, 2][..], 1, Ok(vec![1, 7, 9, 8, 2])),
            (&[1, 7, 9, 9, 9, 8, 2], 1, Ok(vec![1, 7, 9, 8, 2])),
            // earlier pictures are expanded and the last one is not
            (&[7, 9, 9, 8, 1, 7, 9, 9, 9, 8, 7, 9, 8], 3, Ok(vec![7, 9, 8, 1, 7, 9, 8, 7, 9, 8])),
            // adjacent pictures without tokens around each
            (&[7, 9, 9, 9, 9, 8], 2, Ok(vec![7, 9, 9, 9, 9, 8])),
            (&[1, 9, 9, 2], 1, Ok(vec![1, 9, 9, 2])),
            (&[9, 9], 1, Ok(vec![9, 9])),
            (&[7, 9, 8], 2, count(1, 2)),
            (&[7, 8], 1, count(0, 1)),
            (&[7, 9, 8, 7, 9, 8], 1, count(2, 1)),
            (&[7, 9, 9, 8, 7, 9, 9, 8], 1, count(2, 1)),
            (&[7, 9, 9, 8], 2, Ok(vec![7, 9, 9, 8])),
            // a client with other tokens around its pictures
            (&[1, 9, 2, 9], 2, Ok(vec![1, 9, 2, 9])),
            // the model has sampled one
            (&[7, 9, 8, 1, 9, 2], 1, Err(PlaceholderError::Outside { id: PAD, at: 4 })),
            (&[7, 9, 9, 8, 9], 1, Err(PlaceholderError::Outside { id: PAD, at: 4 })),
        ] {
            assert_eq!(collapse(ids, placeholder, images).map(Cow::into_owned), expected, "{ids:?} {images}");
        }
        for (ids, expected) in [(&[7, 9, 8][..], true), (&[7, 9, 9, 8], false), (&[7, 9, 8, 9], false), (&[1], true)] {
            assert_eq!(are_framed(ids, placeholder), expected, "{ids:?}");
        }
        let unknown = ImagePlaceholder { id: PAD, frame: None };
        assert_eq!(*collapse(&[7, 9, 9, 8], unknown, 1).unwrap(), [7, 9, 9, 8]);
    }

    fn echoed(ids: &[u32]) -> EchoedPrompt<'_> {
        EchoedPrompt { ids, image_tokens: None }
    }

    /// Texts without a placeholder, and the tokens of the picture after each but the last.
    fn prompts() -> impl Strategy<Value = (Vec<Vec<u32>>, Vec<usize>)> {
        prop::collection::vec(2_usize..20, 1..5).prop_flat_map(|counts| {
            let texts = prop::collection::vec(prop::collection::vec(0..8_u32, 1..6), counts.len() + 1);
            (texts, Just(counts))
        })
    }

    fn join(texts: &[Vec<u32>], counts: &[usize]) -> Vec<u32> {
        let mut ids = texts[0].clone();
        for (text, count) in texts[1..].iter().zip(counts) {
            ids.extend(std::iter::repeat_n(PAD, *count));
            ids.extend_from_slice(text);
        }
        ids
    }

    proptest! {
        #[test]
        fn expansion_has_the_spans_of_its_pictures((texts, counts) in prompts()) {
            let (sent, prompt) = (join(&texts, &vec![1; counts.len()]), join(&texts, &counts));
            let spans = walk(&sent, echoed(&prompt), counts.len()).unwrap();
            prop_assert_eq!(spans.iter().map(|span| span.len()).collect::<Vec<_>>(), counts);
            for span in spans {
                prop_assert!(prompt[span.start as usize..span.end as usize].iter().all(|id| *id == PAD));
            }
        }

        #[test]
        fn collapsed_prompt_is_the_one_that_was_sent((texts, counts) in prompts()) {
            let framed: Vec<_> = texts.iter().map(|text| [&[8][..], text, &[7]].concat()).collect();
            let (sent, prompt) = (join(&framed, &vec![1; counts.len()]), join(&framed, &counts));
            let placeholder = ImagePlaceholder { id: PAD, frame: Some([7, 8]) };
            prop_assert_eq!(&*collapse(&prompt, placeholder, counts.len()).unwrap(), &sent);
            prop_assert_eq!(&*collapse(&sent, placeholder, counts.len()).unwrap(), &sent);
        }

        #[test]
        fn another_token_is_found((texts, counts) in prompts(), at in any::<prop::sample::Index>(), id in 100..200_u32) {
            let (sent, mut prompt) = (join(&texts, &vec![1; counts.len()]), join(&texts, &counts));
            let at = at.index(prompt.len());
            prompt[at] = id;
            prop_assert!(walk(&sent, echoed(&prompt), counts.len()).is_err());
        }

        #[test]
        fn any_ids_are_compared(sent in prop::collection::vec(0..4_u32, 0..20), prompt in prop::collection::vec(0..4_u32, 0..20), images in 0..4_usize) {
            let _ = walk(&sent, echoed(&prompt), images);
            let _ = collapse(&sent, ImagePlaceholder { id: 1, frame: Some([2, 3]) }, images);
        }
    }
}
