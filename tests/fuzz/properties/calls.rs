//! The parsers of what a model wrote.

use tokentap::parse::{Format, Grammar, Message, Think};

/// However a text is cut, the events of its pieces make the message that is parsed from the whole text. The first byte says how the
/// text is read, the second where it is cut.
pub fn calls(bytes: &[u8]) {
    let [how, cuts, text @ ..] = bytes else { return };
    let (how, cuts) = (usize::from(*how), usize::from(*cuts));
    let text = String::from_utf8_lossy(text);
    let think = Think { start: "<think>".to_owned(), end: "</think>".to_owned() };
    let grammar = Grammar {
        format: Format::ALL.get(how % (Format::ALL.len() + 1)).copied(),
        think: (how & 0x40 == 0).then_some(think),
        opened: how & 0x80 != 0,
    };
    let (mut stream, mut events, mut piece) = (grammar.stream(), Vec::new(), String::new());
    for (at, character) in text.chars().enumerate() {
        piece.push(character);
        // pieces of one character up to a few
        if (at * (2 * cuts + 1)).is_multiple_of(cuts % 7 + 1) {
            stream.push(&piece, &mut events);
            piece.clear();
        }
    }
    stream.push(&piece, &mut events);
    stream.finish(&mut events);
    let told: Message = events.into_iter().collect();
    assert_eq!(told, grammar.parse(&text), "{grammar:?} {text:?}");
}
