// SPDX-License-Identifier: Apache-2.0
//! The capabilities of the terminal at standard output: colours and width.

use std::fmt::Write;
use std::io::IsTerminal;

/// The colours that the terminal has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Palette {
    /// No colours: standard output is not a terminal, or the user switched them off.
    Plain,
    /// The 256 colours of xterm.
    Indexed,
    /// 24 bits.
    True,
}

/// A colour of sRGB.
pub(super) type Rgb = [u8; 3];

impl Palette {
    /// The palette of standard output.
    pub(super) fn of_stdout() -> Self {
        if !has_colours(&std::io::stdout()) {
            return Self::Plain;
        }
        let variable = |name| std::env::var(name).unwrap_or_default();
        Self::of(&variable("TERM"), &variable("COLORTERM"))
    }

    fn of(term: &str, colorterm: &str) -> Self {
        match (term, colorterm) {
            ("" | "dumb", _) => Self::Plain,
            (_, "truecolor" | "24bit") => Self::True,
            _ => Self::Indexed,
        }
    }

    /// Whether there are colours.
    pub(super) fn has_colours(self) -> bool {
        self != Self::Plain
    }

    /// `text` with an attribute of SGR, such as `2` for dim. Without colours it is unchanged.
    pub(super) fn attribute(self, code: &str, text: &str) -> String {
        if self.has_colours() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// The SGR parameters of a background and of the text on it.
    pub(super) fn on(self, background: Rgb, text: Rgb) -> String {
        let mut codes = String::new();
        for (kind, [red, green, blue]) in [(48, background), (38, text)] {
            let separator = if codes.is_empty() { "" } else { ";" };
            // writing to a String cannot fail
            let _ = match self {
                Self::Plain => Ok(()),
                Self::Indexed => write!(codes, "{separator}{kind};5;{}", nearest([red, green, blue])),
                Self::True => write!(codes, "{separator}{kind};2;{red};{green};{blue}"),
            };
        }
        codes
    }
}

/// Whether a stream is a terminal, and the user has not switched colours off: <https://no-color.org>.
pub(super) fn has_colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The columns of the terminal at standard output; `None` if it is not a terminal.
pub(super) fn width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    crossterm::terminal::size().ok().map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0)
}

/// The index of the nearest colour among the cube and the greys of xterm's 256.
fn nearest(colour: Rgb) -> u8 {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let distance = |other: Rgb| -> u32 {
        colour.iter().zip(other).map(|(one, other)| u32::from(one.abs_diff(other)).pow(2)).sum()
    };
    let cube = (0..216_u8).map(|at| (16 + at, [at / 36, at / 6 % 6, at % 6].map(|level| LEVELS[usize::from(level)])));
    let greys = (0..24_u8).map(|at| (232 + at, [8 + 10 * at; 3]));
    cube.chain(greys).min_by_key(|(_, other)| distance(*other)).map_or(16, |(index, _)| index)
}

/// Replaces characters that could control the terminal or reorder its text: every control character but line ends and tabs, and the marks
/// of bidirectional text. They are shown by their code points.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => shown.push(character),
            _ if is_hostile(character) => {
                // writing to a String cannot fail
                let _ = write!(shown, "<U+{:04X}>", u32::from(character));
            }
            _ => shown.push(character),
        }
    }
    shown
}

fn is_hostile(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn palette_follows_the_environment() {
        assert_eq!(Palette::of("xterm-256color", "truecolor"), Palette::True);
        assert_eq!(Palette::of("xterm-256color", ""), Palette::Indexed);
        assert_eq!((Palette::of("dumb", "truecolor"), Palette::of("", "")), (Palette::Plain, Palette::Plain));
    }

    #[test]
    fn nearest_colour_of_256_is_found() {
        assert_eq!([[0; 3], [255; 3], [255, 0, 0], [128; 3]].map(nearest), [16, 231, 196, 244]);
        assert_eq!(Palette::Indexed.on([255, 0, 0], [0; 3]), "48;5;196;38;5;16");
        assert_eq!(Palette::True.on([1, 2, 3], [4, 5, 6]), "48;2;1;2;3;38;2;4;5;6");
    }

    #[test]
    fn control_characters_are_shown_by_their_code_points() {
        assert_eq!(
            printable("a\x1b[31m\r\u{9b}\x07\u{202e}b\n\tc"),
            "a<U+001B>[31m<U+000D><U+009B><U+0007><U+202E>b\n\tc"
        );
        assert_eq!(printable("caf\u{e9} \u{1f468}\u{200d}\u{1f469}"), "caf\u{e9} \u{1f468}\u{200d}\u{1f469}");
    }
}
