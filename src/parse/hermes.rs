//! `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use super::buffer::MarkerSearch;
use super::call_reader::CallReader;
use super::json_call::parse_call;
use super::space::{strip, strip_start};
use super::step::Step;

/// The marker at the start of a block.
pub(super) const START: &str = "<tool_call>";
/// The marker at the end of a block.
pub(super) const END: &str = "</tool_call>";

const ARGUMENTS: [&str; 1] = ["arguments"];

/// Parses one block. The call starts at the opening brace of its arguments if its name is before them.
#[derive(Debug, Clone)]
pub(super) struct Hermes {
    end: MarkerSearch,
    /// The start of the JSON in the buffered text, or of the text before which only white space was found.
    from: usize,
    /// `None` before the JSON.
    call: Option<CallReader>,
}

impl Hermes {
    pub(super) fn new() -> Self {
        Self { end: MarkerSearch::new(END, START.len()), from: START.len(), call: None }
    }

    /// Continues in `buffered`, which begins with the start marker, or with text of a started call.
    pub(super) fn read(&mut self, buffered: &str) -> Step {
        let length = self.end.read(buffered);
        let body = &buffered[..length];
        if self.call.is_none() {
            let json = strip_start(&body[self.from..]);
            self.from = length - json.len();
            self.call = (!json.is_empty()).then(|| CallReader::of_call(&ARGUMENTS));
        }
        if let Some(call) = &mut self.call
            && let Some((length, events)) = call.read(&body[self.from..])
        {
            let length = std::mem::take(&mut self.from) + length;
            self.end.skip(length);
            return Step::Part(length, events);
        }
        if self.end.found().is_none() {
            return Step::More;
        }
        let end = length + END.len();
        match &self.call {
            Some(call) if call.has_started() => Step::End(end, call.end(body, "")),
            _ => Step::call(end, parse_call(strip(&body[START.len()..]), &ARGUMENTS)),
        }
    }

    /// Ends a started call that has no end marker.
    pub(super) fn end(&self, buffered: &str) -> Step {
        let call = self.call.as_ref().filter(|call| call.has_started());
        call.map_or(Step::Text(buffered.len()), |call| Step::End(buffered.len(), call.cut_off(buffered)))
    }
}
