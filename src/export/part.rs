// SPDX-License-Identifier: Apache-2.0
//! A path in parts, for viewers: first everything but the tokens, then ranges of tokens.

use std::ops::Range;

use super::Annotate;
use super::entry::{outcome, placed, policy, segments};
use super::text::Text;
use crate::session::{Path, Segment};

/// Writes an entry without its tokens, and their number as `tokens`. The turns have no `extras`.
pub(crate) fn head(path: &Path, annotate: Option<&Annotate>, out: &mut Vec<u8>) {
    let mut text = Text::default();
    text.object(|text| {
        text.key("session").string(&path.session);
        text.key("version").integer(path.version);
        text.key("leaf").integer(path.leaf().id);
        text.key("tokens").integer(path.len());
        segments(path, text);
        policy(path, text);
        outcome(path, false, annotate, text);
    });
    out.append(&mut text.into_bytes());
}

/// Writes the existing tokens of `range`: `from`, and lists with one item per token. `lower`, `upper` and `rank` are the intervals and
/// ranks of turns whose request asked for bounds and statistics; else null.
pub(crate) fn tokens(path: &Path, range: Range<usize>, out: &mut Vec<u8>) {
    let range = range.start.min(path.len())..range.end.min(path.len());
    let parts: Vec<Part<'_>> =
        placed(path).filter_map(|(start, segment)| Part::within(segment, start, &range)).collect();
    let mut text = Text::default();
    text.object(|text| {
        text.key("from").integer(range.start);
        text.key("token_ids").array(|list| parts.iter().for_each(|part| list.ids(&part.segment.ids[part.own.clone()])));
        text.key("loss_mask").array(|list| {
            parts.iter().for_each(|part| list.repeat(if part.segment.trained { "1" } else { "0" }, part.own.len()));
        });
        column(&parts, |part| part.numbers(part.segment.logprobs).map(<[f32]>::to_vec), text.key("logprobs"));
        column(&parts, |part| part.numbers(part.segment.entropy).map(<[f32]>::to_vec), text.key("entropy"));
        column(&parts, |part| part.extra("output_token_entropy_lower", None), text.key("lower"));
        column(&parts, |part| part.extra("output_token_entropy_upper", None), text.key("upper"));
        column(&parts, |part| part.extra("output_token_stats", Some("rank")), text.key("rank"));
    });
    out.append(&mut text.into_bytes());
}

/// The tokens of a segment inside a range.
struct Part<'a> {
    segment: Segment<'a>,
    own: Range<usize>,
}

impl<'a> Part<'a> {
    fn within(segment: Segment<'a>, start: usize, range: &Range<usize>) -> Option<Self> {
        let end = (start + segment.ids.len()).min(range.end);
        let from = start.max(range.start);
        (from < end).then(|| Self { segment, own: from - start..end - start })
    }

    fn numbers(&self, all: &'a [f32]) -> Option<&'a [f32]> {
        (all.len() == self.segment.ids.len()).then(|| &all[self.own.clone()])
    }

    /// A list of numbers in the extras of the turn, with NaN for null.
    fn extra(&self, name: &str, member: Option<&str>) -> Option<Vec<f32>> {
        if !self.segment.is_response {
            return None;
        }
        let mut value: serde_json::Value = serde_json::from_str(self.segment.turn.about.extras.get(name)?).ok()?;
        let list = match member {
            Some(member) => value.get_mut(member)?.take(),
            None => value,
        };
        let list: Vec<Option<f32>> = serde_json::from_value(list).ok()?;
        let fits = list.len() == self.segment.ids.len();
        fits.then(|| list[self.own.clone()].iter().map(|value| value.unwrap_or(f32::NAN)).collect())
    }
}

/// Writes a list with one item per token, or null if no part has numbers.
fn column(parts: &[Part<'_>], numbers: impl Fn(&Part<'_>) -> Option<Vec<f32>>, text: &mut Text) {
    let found: Vec<Option<Vec<f32>>> = parts.iter().map(numbers).collect();
    if found.iter().all(Option::is_none) {
        return text.literal("null");
    }
    text.array(|list| {
        for (part, numbers) in parts.iter().zip(&found) {
            match numbers {
                Some(numbers) => list.floats(numbers),
                None => list.repeat("null", part.own.len()),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::export::fixture::{rows_of, turns};

    fn read(write: impl FnOnce(&mut Vec<u8>)) -> Value {
        let mut text = Vec::new();
        write(&mut text);
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn parts_add_up_to_the_entry() {
        for path in rows_of(turns()) {
            let mut entry = read(|out| super::super::entry::write(&path, None, out));
            let entry = entry.as_object_mut().unwrap();
            entry["turns"].as_array_mut().unwrap().iter_mut().for_each(|turn| {
                turn.as_object_mut().unwrap().remove("extras");
            });
            let columns =
                ["token_ids", "loss_mask", "logprobs", "entropy"].map(|name| (name, entry.remove(name).unwrap()));
            entry.insert("tokens".into(), json!(path.len()));
            assert_eq!(read(|out| head(&path, None, out)), json!(entry));
            for from in 0..=path.len() {
                for end in from..path.len() + 3 {
                    let part = read(|out| tokens(&path, from..end, out));
                    let end = end.min(path.len());
                    for (name, all) in &columns {
                        let expected = &all.as_array().unwrap()[from..end];
                        let none = part[name].is_null() && expected.iter().all(Value::is_null);
                        assert!(none || part[name] == json!(expected), "{name} of {from}..{end}: {part}");
                    }
                    assert_eq!(part["from"], from);
                }
            }
        }
    }

    #[test]
    fn intervals_and_ranks_are_written_for_turns_with_bounds_and_statistics() {
        let mut turns = turns();
        turns[1].about.extras = [
            ("output_token_entropy_lower".into(), "[0.1,null,0.3]".into()),
            ("output_token_entropy_upper".into(), "[0.2,0.3]".into()),
            ("output_token_stats".into(), r#"{"rank":[1,null,3]}"#.into()),
        ]
        .into();
        let path = rows_of(turns).swap_remove(0);
        let part = read(|out| tokens(&path, 5..8, out));
        assert_eq!(part["lower"], json!([null, 0.1, null]));
        assert_eq!(part["upper"], json!(null), "a list of another length is ignored");
        assert_eq!(part["rank"], json!([null, 1.0, null]));
        assert_eq!(read(|out| tokens(&path, 50..60, out))["token_ids"], json!([]));
    }
}
