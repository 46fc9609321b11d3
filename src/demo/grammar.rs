// SPDX-License-Identifier: Apache-2.0
//! A JSON schema as a grammar: returns the tokens that may follow an output.
//!
//! The grammar allows only a subset of the values of the schema, so that a value is complete after a limited number of tokens:
//! - Strings, numbers and lists are short.
//! - A deeply nested value takes the alternative with the smallest height.
//! - Members are in the order of their names, and an object has no members that its schema does not list.
//! - White space is one space after each comma and colon.
//!
//! A schema that has no finite value is refused. Nested lists may still be long: `max_new_tokens` may truncate such a value.

mod schema;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// The number of steps on a stack from which optional parts are left out and the alternative with the smallest height is chosen, because a
/// schema may be recursive.
const MAX_DEPTH: usize = 24;

/// The maximum number of stacks in a state: the maximum number of values of an enum.
const MAX_STACKS: usize = 1000;

/// The index of a rule of a [`Grammar`].
type Id = usize;

/// What a part of a text may be.
#[derive(Debug, Clone, PartialEq)]
enum Rule {
    Bytes(Vec<u8>),
    /// One byte of these ranges.
    Class(&'static [RangeInclusive<u8>]),
    Sequence(Vec<Id>),
    Choice(Vec<Id>),
    Repeat {
        item: Id,
        least: usize,
        most: usize,
    },
}

/// A rule that has not been read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    rule: Id,
    /// The number of bytes or items that were read.
    read: usize,
}

/// The unread parts of a value; the next part is the last entry. An empty stack is a complete value.
type Stack = Vec<Step>;

/// The alternative continuations of an output.
type State = BTreeSet<Stack>;

/// Constrains the text of a generation to values of a JSON schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Grammar {
    /// The rule of the whole value is the first.
    rules: Vec<Rule>,
    /// By rule: the height of its flattest derivation.
    heights: Vec<usize>,
}

impl Grammar {
    /// Compiles a JSON schema.
    ///
    /// # Errors
    /// An error message if the schema is invalid, or if the demo engine does not support a part of it.
    pub fn from_schema(text: &str) -> Result<Self, String> {
        schema::compile(text)
    }

    /// Returns for each of the tokens whether it may follow `output`, and whether the text may end after `output`.
    pub(super) fn allowed(&self, pieces: &[Vec<u8>], output: &[u32]) -> (Vec<bool>, bool) {
        let mut state = State::new();
        self.expand(vec![Step { rule: 0, read: 0 }], &mut state);
        for id in output {
            state = pieces.get(*id as usize).map_or_else(State::new, |piece| self.read(state, piece));
        }
        let fits = |piece: &Vec<u8>| !piece.is_empty() && !self.read(state.clone(), piece).is_empty();
        (pieces.iter().map(fits).collect(), state.is_empty() || state.contains(&Stack::new()))
    }

    fn read(&self, mut state: State, bytes: &[u8]) -> State {
        for byte in bytes {
            let mut next = State::new();
            for stack in &state {
                if let Some(stack) = self.advance(stack, *byte) {
                    self.expand(stack, &mut next);
                }
            }
            state = next;
            if state.is_empty() {
                break;
            }
        }
        state
    }

    /// The stack after this byte; `None` if the byte is not allowed.
    fn advance(&self, stack: &Stack, byte: u8) -> Option<Stack> {
        let mut stack = stack.clone();
        let Step { rule, read } = stack.pop()?;
        match &self.rules[rule] {
            Rule::Bytes(bytes) if bytes[read] == byte => stack.push(Step { rule, read: read + 1 }),
            Rule::Class(ranges) if ranges.iter().any(|range| range.contains(&byte)) => {}
            _ => return None,
        }
        Some(stack)
    }

    /// Expands the next step of a stack until each alternative begins with a byte or is empty. Adds the alternatives to `out`.
    fn expand(&self, stack: Stack, out: &mut State) {
        let (mut open, mut choices) = (vec![stack], State::new());
        while let Some(mut stack) = open.pop() {
            // alternatives with the same beginning double at each level; a subset of the values is enough
            if out.len() >= MAX_STACKS {
                return;
            }
            let Some(step) = stack.pop() else {
                out.insert(stack);
                continue;
            };
            let is_shallow = stack.len() < MAX_DEPTH;
            let with = |rule: Id| [&stack[..], &[Step { rule, read: 0 }]].concat();
            match &self.rules[step.rule] {
                Rule::Bytes(bytes) if step.read == bytes.len() => open.push(stack),
                Rule::Bytes(_) | Rule::Class(_) => {
                    stack.push(step);
                    out.insert(stack);
                }
                Rule::Sequence(parts) => {
                    stack.extend(parts.iter().rev().map(|rule| Step { rule: *rule, read: 0 }));
                    open.push(stack);
                }
                Rule::Choice(ids) => {
                    // a choice may lead to itself
                    if choices.insert(with(step.rule)) {
                        let least = ids.iter().map(|id| self.heights[*id]).min();
                        let ids = ids.iter().filter(|id| is_shallow || Some(self.heights[**id]) == least);
                        open.extend(ids.map(|id| with(*id)));
                    }
                }
                Rule::Repeat { item, least, most } => {
                    if step.read >= *least {
                        open.push(stack.clone());
                    }
                    if step.read < *least || step.read < *most && is_shallow {
                        stack.push(Step { read: step.read + 1, ..step });
                        stack.push(Step { rule: *item, read: 0 });
                        open.push(stack);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All tokens of one ASCII byte, and two tokens of several bytes.
    fn pieces() -> Vec<Vec<u8>> {
        let bytes = (0..=127_u8).map(|byte| vec![byte]);
        bytes.chain([b"{\"".to_vec(), b"\": ".to_vec()]).collect()
    }

    /// Whether the grammar allows each byte of the text, and the end after it.
    fn accepts(schema: &str, text: &str) -> bool {
        let (grammar, pieces) = (Grammar::from_schema(schema).unwrap(), pieces());
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        let fits = (0..ids.len()).all(|at| grammar.allowed(&pieces, &ids[..at]).0[ids[at] as usize]);
        fits && grammar.allowed(&pieces, &ids).1
    }

    #[test]
    fn values_of_each_type_are_accepted_or_rejected() {
        for (schema, accepted, rejected) in [
            (r#"{"type": "integer"}"#, &["0", "7", "1234"][..], &["", "-", "01", "12345", "1.5", "true"][..]),
            (r#"{"type": "number"}"#, &["0", "0.5", "12.25"], &["1.", ".5", "1.234"]),
            (r#"{"type": "string", "maxLength": 3}"#, &[r#""""#, r#""abc""#], &[r#""abcd""#, "abc", "\"\n\""]),
            (r#"{"type": "string", "minLength": 2, "maxLength": 2}"#, &[r#""ab""#], &[r#""a""#]),
            (r#"{"type": ["boolean", "null"]}"#, &["true", "false", "null"], &["True", "0"]),
            (r#"{"enum": ["a", 1, null]}"#, &[r#""a""#, "1", "null"], &["2", r#""b""#]),
            (r#"{"const": "é"}"#, &[r#""\u00e9""#], &[r#""e""#]),
            (r#"{"type": "integer", "minimum": 3, "maximum": 5}"#, &["3", "4", "5"], &["2", "6", "33"]),
            (r#"{"type": "number", "exclusiveMinimum": 0, "maximum": 1}"#, &["1.0", "0.1"], &["0.0", "2"]),
            (
                r#"{"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}"#,
                &["[1]", "[1, 2]"],
                &["[]", "[1,2]"],
            ),
            (r#"{"type": "integer", "minimum": 5}"#, &["5", "15"], &["4", "16"]),
            (r#"{"type": "integer", "minimum": 0.5, "maximum": 2.5}"#, &["1", "2"], &["0", "3"]),
            (r#"{"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 1.5}"#, &["1"], &["0", "2"]),
            (
                r#"{"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}"#,
                &["-9007199254740991", "9007199254740991"],
                &["9007199254740992"],
            ),
            (r#"{"type": "object"}"#, &["{}"], &["[]", r#"{"": 1}"#, r#"{"a": 1}"#]),
            (r#"{"anyOf": [{"type": "integer"}, {"type": "null"}]}"#, &["1", "null"], &["true"]),
            ("true", &["1", "null", r#""x""#], &["["]),
        ] {
            for text in accepted {
                assert!(accepts(schema, text), "{schema} {text}");
            }
            for text in rejected {
                assert!(!accepts(schema, text), "{schema} {text}");
            }
        }
    }

    #[test]
    fn pydantic_object_schema_is_supported() {
        let schema = r##"{"$defs": {"GrammarStep": {"properties": {"note": {"title": "Note", "type": "string"}}, "required": ["note"],
            "title": "GrammarStep", "type": "object"}}, "properties": {"steps": {"items": {"$ref": "#/$defs/GrammarStep"}, "type": "array"},
            "answer": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null}}, "required": ["steps"],
            "additionalProperties": false, "type": "object"}"##;
        for text in [r#"{"steps": []}"#, r#"{"answer": null, "steps": [{"note": "a"}, {"note": ""}]}"#] {
            assert!(accepts(schema, text), "{text}");
        }
        for text in
            [r#"{"answer": 1}"#, r#"{"steps": [{}]}"#, r#"{"answer": "x", "steps": []}"#, r#"{"steps": [], "b": 1}"#]
        {
            assert!(!accepts(schema, text), "{text}");
        }
    }

    #[test]
    fn recursive_optional_member_is_left_out_at_the_maximum_depth() {
        let schema = r##"{"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": false}"##;
        assert!(accepts(schema, r#"{"next": {"next": {}}}"#));
        let (grammar, pieces) = (Grammar::from_schema(schema).unwrap(), pieces());
        let deep: Vec<u32> = r#"{"next": "#.repeat(2 * MAX_DEPTH).bytes().map(u32::from).collect();
        assert!(!grammar.allowed(&pieces, &deep).0[usize::from(b'{')]);
    }

    #[test]
    fn required_choice_takes_the_flattest_value_at_the_maximum_depth() {
        let schema = r##"{"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["next"], "additionalProperties": false}"##;
        assert!(accepts(schema, r#"{"next": {"next": null}}"#));
        let (grammar, pieces) = (Grammar::from_schema(schema).unwrap(), pieces());
        let deep: Vec<u32> = r#"{"next": "#.repeat(2 * MAX_DEPTH).bytes().map(u32::from).collect();
        let (allowed, _) = grammar.allowed(&pieces, &deep);
        assert!(!allowed[usize::from(b'{')], "the deepest value is the shortest");
    }

    #[test]
    fn schema_without_a_finite_value_is_refused() {
        let required = r##"{"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}"##;
        let list = r##"{"type": "array", "items": {"$ref": "#"}, "minItems": 1}"##;
        let within = r##"{"$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}}, "required": ["b"]}},
            "properties": {"a": {"$ref": "#/$defs/a"}}}"##;
        for schema in [required, list, within] {
            let refusal = Grammar::from_schema(schema).unwrap_err();
            assert!(refusal.contains("without an end"), "{refusal}");
        }
        let finite = r##"{"type": "array", "items": {"$ref": "#"}, "maxItems": 2}"##;
        assert!(accepts(finite, "[[], [[]]]"));
    }

    #[test]
    fn bounds_beyond_the_exact_floats_are_refused() {
        for schema in [r#"{"type": "integer", "minimum": 1e300}"#, r#"{"type": "integer", "maximum": -1e300}"#] {
            let refusal = Grammar::from_schema(schema).unwrap_err();
            assert!(refusal.contains("no value"), "{refusal}");
        }
        assert!(accepts(r#"{"type": "integer", "minimum": 1e15}"#, "1000000000000000"));
    }

    #[test]
    fn token_is_allowed_only_if_all_its_bytes_are() {
        let grammar =
            Grammar::from_schema(r#"{"type": "object", "properties": {"a": {}}, "required": ["a"]}"#).unwrap();
        let (allowed, end) = grammar.allowed(&pieces(), &[]);
        let fits: Vec<usize> = (0..allowed.len()).filter(|at| allowed[*at]).collect();
        assert_eq!((fits, end), (vec![usize::from(b'{'), 128], false));
    }

    #[test]
    fn exponential_schema_is_refused_or_cheap() {
        // each definition references the next one twice, so 2^25 paths lead to the last one
        let twice = |at: usize| {
            format!(r##""d{at}": {{"anyOf": [{{"$ref": "#/$defs/d{0}"}}, {{"$ref": "#/$defs/d{0}"}}]}}"##, at + 1)
        };
        let all: Vec<String> = (0..25).map(twice).collect();
        let schema =
            format!(r##"{{"$defs": {{{}, "d25": {{"type": "null"}}}}, "$ref": "#/$defs/d0"}}"##, all.join(", "));
        assert!(accepts(&schema, "null"));
        let chain: Vec<String> =
            (0..5_000).map(|at| format!(r##""d{at}": {{"$ref": "#/$defs/d{}"}}"##, at + 1)).collect();
        let schema = format!(r##"{{"$defs": {{{}}}, "$ref": "#/$defs/d0"}}"##, chain.join(", "));
        assert!(Grammar::from_schema(&schema).unwrap_err().contains("parts"), "no deep recursion");
        let like = r##"{"type": "object", "properties": {"l": {"$ref": "#/$defs/e"}}, "required": ["l"]}"##;
        let schema = format!(
            r##"{{"$defs": {{"e": {{"anyOf": [{like}, {like}, {{"type": "null"}}]}}}}, "$ref": "#/$defs/e"}}"##
        );
        let deep: Vec<u32> = r#"{"l": "#.repeat(MAX_DEPTH - 4).bytes().map(u32::from).collect();
        let (allowed, _) = Grammar::from_schema(&schema).unwrap().allowed(&pieces(), &deep);
        assert!(allowed[usize::from(b'{')], "two to the power of twenty ways to read it");
        let members: Vec<String> = (0..200).map(|at| format!(r##""m{at}": {{"$ref": "#/$defs/a"}}"##)).collect();
        let schema = format!(r##"{{"$defs": {{"a": {{}}}}, "properties": {{{}}}}}"##, members.join(", "));
        assert!(accepts(&schema, r#"{"m1": null, "m7": 0}"#));
        let schema = format!(r#"{{"enum": [{}]}}"#, vec!["1"; 100_000].join(", "));
        assert!(Grammar::from_schema(&schema).unwrap_err().contains("parts"));
    }

    #[test]
    fn error_names_the_unsupported_part() {
        for (schema, named) in [
            (r#"{"type": "string", "pattern": "a+"}"#, "pattern"),
            (r#"{"properties": {"a": {"format": "date"}}}"#, "#/properties/a"),
            (r#"{"type": "tuple"}"#, "tuple"),
            (r##"{"$ref": "#/$defs/Missing"}"##, "Missing"),
            (r##"{"$ref": "#"}"##, "no value"),
            ("{", "JSON"),
            (r#"{"type": "integer", "minimum": 5, "maximum": 3}"#, "no value"),
        ] {
            let error = Grammar::from_schema(schema).unwrap_err();
            assert!(error.contains(named), "{schema}: {error}");
        }
    }
}
