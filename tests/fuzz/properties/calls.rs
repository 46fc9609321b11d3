// SPDX-License-Identifier: Apache-2.0
//! The parsers of model output: thinking, text and tool calls.

use tokentap::parse::{Format, Grammar, Message, Think};

/// However a text is split, the events of its pieces add up to the message that is parsed from the whole text. The first byte selects the
/// grammar, the second where the text is split.
pub fn calls(bytes: &[u8]) {
    let [kind, cuts, text @ ..] = bytes else { return };
    let (kind, cuts) = (usize::from(*kind), usize::from(*cuts));
    let text = String::from_utf8_lossy(text);
    let think = Think { start: "<think>".to_owned(), end: "</think>".to_owned() };
    let grammar = Grammar {
        format: Format::ALL.get(kind % (Format::ALL.len() + 1)).copied(),
        think: (kind & 0x40 == 0).then_some(think),
        opened: kind & 0x80 != 0,
        ..Grammar::default()
    };
    let (mut stream, mut events, mut piece) = (grammar.stream(), Vec::new(), String::new());
    for (at, character) in text.chars().enumerate() {
        piece.push(character);
        // a piece has one or a few characters
        if (at * (2 * cuts + 1)).is_multiple_of(cuts % 7 + 1) {
            stream.push(&piece, &mut events);
            piece.clear();
        }
    }
    stream.push(&piece, &mut events);
    stream.finish(&mut events);
    let streamed: Message = events.into_iter().collect();
    assert_eq!(streamed, grammar.parse(&text), "{grammar:?} {text:?}");
}
