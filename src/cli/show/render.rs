// SPDX-License-Identifier: Apache-2.0
//! A path as lines of the terminal.

use std::fmt::Write;

use super::path::{Kind, Path, Segment};
use super::pieces::{Piece, Pieces};
use crate::cli::scale::{Scale, mean, shown};
use crate::cli::terminal::printable;

/// The maximum number of listed spikes.
const SPIKES: usize = 8;

/// The largest number of characters of a token in the list of spikes.
const SPIKE_TEXT: usize = 20;

/// The whole output. Without colours the text of each segment is unchanged, except for characters that control terminals.
pub(super) fn text(path: &Path, pieces: &Pieces, scale: &Scale) -> String {
    let palette = scale.palette;
    let mut out = String::new();
    let mut line = |text: &str| {
        out.push_str(text);
        out.push('\n');
    };
    let thinking = path.thinking();
    let mut rest = pieces.0.as_slice();
    for (segment, range) in path.segments() {
        line(&palette.attribute("2", &separator(path, segment, range.clone())));
        let count = rest.iter().take_while(|piece| piece.tokens.start < range.end).count();
        let (own, later) = rest.split_at(count);
        rest = later;
        let text: String = own.iter().map(|piece| painted(path, piece, segment.kind, &thinking, scale)).collect();
        line(&text);
    }
    line(&palette.attribute("2", "\u{2500}\u{2500}"));
    if let Some(legend) = scale.legend() {
        line(&legend);
    }
    line(&summary(path));
    if let Some(spikes) = spikes(path, pieces) {
        line(&spikes);
    }
    out
}

fn separator(path: &Path, segment: &Segment, range: std::ops::Range<usize>) -> String {
    let kind = match segment.kind {
        Kind::Prompt => "prompt",
        Kind::Response => "response",
    };
    let mut text = format!("\u{2500}\u{2500} turn {}, {kind}", segment.turn);
    // writing to a String cannot fail
    let (from, end) = (path.from + range.start, path.from + range.end);
    let _ = match range.len() == segment.end - segment.start {
        true => write!(text, ", {} tokens", range.len()),
        false => write!(text, ", tokens {from} to {} of the path", end - 1),
    };
    if segment.kind == Kind::Response {
        let _ = write!(text, ", mean entropy {} nats", shown(mean(path.entropy[range].iter().copied())));
        if segment.loss_mask == 0 {
            text.push_str(", not trained");
        }
    }
    text
}

/// The text of a piece. A piece of several tokens has the colour of the highest entropy.
fn painted(path: &Path, piece: &Piece, kind: Kind, thinking: &[bool], scale: &Scale) -> String {
    let text = shown_text(path, piece);
    if !scale.palette.has_colours() {
        return text;
    }
    let nats = path.entropy[piece.tokens.clone()].iter().copied().fold(f32::NAN, f32::max);
    let code = match (kind, scale.code(nats)) {
        (Kind::Response, Some(code)) if thinking[piece.tokens.start] => format!("3;{code}"),
        (Kind::Response, Some(code)) => code.to_owned(),
        _ => "2".to_owned(),
    };
    let mut painted = String::new();
    for (at, part) in text.split('\n').enumerate() {
        if at > 0 {
            painted.push('\n');
        }
        // a line end is visible in its colour, and the colour ends before the end of the line
        let is_ended = kind == Kind::Response && at < text.matches('\n').count();
        let part = if is_ended { format!("{part}\u{21b5}") } else { part.to_owned() };
        if !part.is_empty() {
            let _ = write!(painted, "\x1b[{code}m{part}\x1b[0m");
        }
    }
    painted
}

/// The text of a piece; its ids if the engine does not decode them.
fn shown_text(path: &Path, piece: &Piece) -> String {
    match &piece.text {
        Some(text) => printable(text),
        None => path.ids[piece.tokens.clone()].iter().map(|id| format!("{id} ")).collect(),
    }
}

fn summary(path: &Path) -> String {
    let sampled = path.sampled().count();
    let mean = mean(path.sampled().map(|at| path.entropy[at]));
    let name = printable(&path.head.session);
    let mut text = format!("session {name}, path to turn {}: ", path.head.leaf);
    let _ = match path.ids.len() == path.head.tokens {
        true => write!(text, "{} tokens", path.head.tokens),
        false => write!(text, "{} of {} tokens", path.ids.len(), path.head.tokens),
    };
    let spikes = path.spikes().len();
    let plural = if spikes == 1 { "" } else { "s" };
    let _ = write!(text, ", {sampled} sampled, mean entropy {} nats, {spikes} spike{plural}", shown(mean));
    let mut policies: Vec<String> = Vec::new();
    for span in path.head.policy.iter().filter(|span| span.start < path.end() && span.end > path.from) {
        let version = span.version.as_deref().or(span.weight_version.as_deref());
        let version = version.map(|version| format!(" ({})", printable(version))).unwrap_or_default();
        let adapter = span.adapter.as_deref().zip(span.adapter_epoch);
        let adapter = adapter.map(|(name, epoch)| format!(", adapter {} epoch {epoch}", printable(name)));
        let policy = format!("epoch {}{version}{}", span.epoch, adapter.unwrap_or_default());
        if policies.last() != Some(&policy) {
            policies.push(policy);
        }
    }
    if !policies.is_empty() {
        let _ = write!(text, ", policy {}", policies.join(", "));
    }
    text
}

/// The highest spikes with their positions, which are readable without colours, too.
fn spikes(path: &Path, pieces: &Pieces) -> Option<String> {
    let mut found = path.spikes();
    found.sort_by(|one, other| path.entropy[*other].total_cmp(&path.entropy[*one]));
    let listed: Vec<String> = found
        .iter()
        .take(SPIKES)
        .map(|&at| {
            let piece = pieces.0.iter().find(|piece| piece.tokens.contains(&at));
            let text = piece.map(|piece| shown_text(path, piece)).unwrap_or_default().replace('\n', "\u{21b5}");
            let text: String = text.replace('\t', " ").chars().take(SPIKE_TEXT).collect();
            format!("token {} \"{text}\" {}", path.from + at, shown(Some(path.entropy[at])))
        })
        .collect();
    (!listed.is_empty()).then(|| format!("highest spikes: {}", listed.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::path::tests::path;
    use super::*;
    use crate::cli::terminal::Palette;

    fn pieces(texts: &[&str]) -> Pieces {
        let piece = |(at, text): (usize, &&str)| Piece { tokens: at..at + 1, text: Some((*text).to_owned()) };
        Pieces(texts.iter().enumerate().map(piece).collect())
    }

    #[test]
    fn plain_output_is_the_text_with_separators_and_a_summary() {
        let path = path(&[1, 2, 3, 4, 5], &[0.5, 1.5, f32::NAN]);
        let shown =
            text(&path, &pieces(&["The", " sea", " is\n", "\twide", "\x1b[2J"]), &Scale::new(Palette::Plain, false));
        let expected = "\u{2500}\u{2500} turn 0, prompt, 2 tokens\nThe sea\n\
                        \u{2500}\u{2500} turn 0, response, 3 tokens, mean entropy 1.000 nats\n is\n\twide<U+001B>[2J\n\u{2500}\u{2500}\n\
                        session s, path to turn 0: 5 tokens, 3 sampled, mean entropy 1.000 nats, 1 spike, policy epoch 4 (w<U+001B>)\n\
                        highest spikes: token 3 \" wide\" 1.500\n";
        assert_eq!(shown, expected);
    }

    #[test]
    fn sampled_tokens_have_the_colours_of_their_steps() {
        let path = path(&[1, 90, 3, 91, 5], &[0.0, 4.0, f32::NAN]);
        let scale = Scale::new(Palette::True, false);
        let shown = text(&path, &pieces(&["The", "<think>", "a\n", "b", "c"]), &scale);
        let [low, high] = [0.0, 4.0].map(|nats| scale.code(nats).unwrap().to_owned());
        assert!(shown.contains("\x1b[2mThe\x1b[0m"), "{shown:?}");
        assert!(shown.contains(&format!("\x1b[3;{low}ma\u{21b5}\x1b[0m\n")), "thinking is italic: {shown:?}");
        assert!(
            shown.contains(&format!("\x1b[{high}mb\x1b[0m\x1b[4mc\x1b[0m")),
            "a missing entropy is no colour: {shown:?}"
        );
        assert!(shown.contains("entropy 0 \x1b[") && shown.contains("4+ nats"), "{shown:?}");
    }

    #[test]
    fn ids_are_shown_without_texts() {
        let path = path(&[1, 2, 3], &[0.5]);
        let none = Pieces((0..3).map(|at| Piece { tokens: at..at + 1, text: None }).collect());
        let shown = text(&path, &none, &Scale::new(Palette::Plain, false));
        assert!(shown.contains("\n1 2 \n") && shown.contains("nats\n3 \n"), "{shown}");
    }
}
