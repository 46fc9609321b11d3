//! The expansion of a prompt: an engine replaces the placeholder of each picture by a run of the same token.

use std::ops::Range;

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
        fn another_token_is_found((texts, counts) in prompts(), at in any::<prop::sample::Index>(), id in 100..200_u32) {
            let (sent, mut prompt) = (join(&texts, &vec![1; counts.len()]), join(&texts, &counts));
            let at = at.index(prompt.len());
            prompt[at] = id;
            prop_assert!(walk(&sent, echoed(&prompt), counts.len()).is_err());
        }

        #[test]
        fn any_ids_are_compared(sent in prop::collection::vec(0..4_u32, 0..20), prompt in prop::collection::vec(0..4_u32, 0..20), images in 0..4_usize) {
            let _ = walk(&sent, echoed(&prompt), images);
        }
    }
}
