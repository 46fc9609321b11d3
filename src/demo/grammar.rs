//! A JSON schema as a grammar: returns the tokens that may follow an output.
//!
//! The grammar allows only a subset of the values of the schema, so that a value is complete after a limited number of tokens:
//! - Strings, numbers and lists are short.
//! - A deeply nested value takes the alternative with the smallest depth.
//! - Members are in the order of their names.
//! - White space is one space after each comma and colon.
//!
//! A schema that has no finite value, or that requires a long string or list, is refused. Nested lists may still be long:
//! `max_new_tokens` may truncate such a value.

mod bounds;
mod schema;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use schema::{Id, Schema, ValueShape};

/// The number of steps on a stack from which optional parts are left out and the alternative with the smallest depth is chosen, because a
/// schema may be recursive.
const MAX_DEPTH: usize = 24;

/// The maximum number of stacks in a state: the maximum number of values of an enum.
const MAX_STACKS: usize = 1000;

/// The maximum number of additional members of an object, whose names the schema does not list.
const MAX_OTHER_MEMBERS: usize = 3;

/// The maximum number of characters of the name of an additional member.
const MAX_NAME_CHARS: usize = 12;

/// The maximum number of digits of an integer part after the first digit.
const MAX_DIGITS: usize = 3;

/// The maximum number of digits of a fraction.
const MAX_FRACTION_DIGITS: usize = 2;

/// Constrains the text of a generation to values of a JSON schema.
#[derive(Debug)]
pub struct Grammar {
    schema: Arc<Schema>,
    /// The last output and its state, so that each token is read once.
    // locked while the new tokens are read, never across an await
    last: Mutex<(Vec<u32>, State)>,
}

impl Clone for Grammar {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.schema))
    }
}

impl PartialEq for Grammar {
    fn eq(&self, other: &Self) -> bool {
        self.schema == other.schema
    }
}

/// A part of the value that has not been read yet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum GrammarStep {
    Value(Id),
    /// Fixed bytes, and the index of the next one.
    Literal(Arc<[u8]>, usize),
    /// The minimum and maximum number of further characters of a string, and the quote after them.
    Text(usize, usize),
    /// The minimum and maximum number of further digits.
    Digits(usize, usize),
    /// The fraction of a number, or no fraction.
    Fraction,
    /// The members of an object from this index on, and whether the next member is the first in the text.
    Members(Id, usize, bool),
    /// Additional members of an object: their number so far, and whether the next member is the first in the text.
    OtherMembers(Id, usize, bool),
    /// The items of a list after this number of items.
    Items(Id, usize),
}

/// The unread parts of a value; the next part is the last entry. An empty stack is a complete value.
type Stack = Vec<GrammarStep>;

/// The alternative continuations of an output.
type State = BTreeSet<Stack>;

fn literal(text: &str) -> GrammarStep {
    GrammarStep::Literal(text.as_bytes().into(), 0)
}

impl Grammar {
    /// Compiles a JSON schema.
    ///
    /// # Errors
    /// An error message if the schema is invalid, or if the demo engine does not support a part of it.
    pub fn of_schema(text: &str) -> Result<Self, String> {
        Schema::parse(text).map(|schema| Self::of(Arc::new(schema)))
    }

    fn of(schema: Arc<Schema>) -> Self {
        let mut grammar = Self { schema, last: Mutex::default() };
        grammar.last = Mutex::new((Vec::new(), grammar.begin()));
        grammar
    }

    fn begin(&self) -> State {
        let mut state = State::new();
        self.expand(vec![GrammarStep::Value(Schema::ROOT)], &mut state);
        state
    }

    /// Returns for each of the tokens whether it may follow `output`, and whether the text may end after `output`.
    pub(super) fn allowed(&self, pieces: &[Vec<u8>], output: &[u32]) -> (Vec<bool>, bool) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (read, state) = &mut *last;
        if !output.starts_with(read) {
            (*read, *state) = (Vec::new(), self.begin());
        }
        for id in &output[read.len()..] {
            *state = pieces.get(*id as usize).map_or_else(State::new, |piece| self.read(state, piece));
        }
        read.extend_from_slice(&output[read.len()..]);
        let state = &*state;
        let fits = |piece: &Vec<u8>| !piece.is_empty() && !self.read(state, piece).is_empty();
        (pieces.iter().map(fits).collect(), state.is_empty() || state.contains(&Stack::new()))
    }

    fn read(&self, state: &State, bytes: &[u8]) -> State {
        let mut state = state.clone();
        for byte in bytes {
            let mut next = State::new();
            for stack in &state {
                if let Some(stack) = advance(stack, *byte) {
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

    /// Expands the next step of a stack until each alternative begins with a byte or is empty. Adds the alternatives to `out`.
    fn expand(&self, mut stack: Stack, out: &mut State) {
        // alternatives with the same beginning double at each level; a subset of the values is enough
        if out.len() >= MAX_STACKS {
            return;
        }
        let Some(step) = stack.pop() else {
            out.insert(stack);
            return;
        };
        let mut with = |steps: &[GrammarStep]| {
            let mut stack = stack.clone();
            stack.extend(steps.iter().rev().cloned());
            self.expand(stack, out);
        };
        let is_shallow = stack.len() < MAX_DEPTH;
        match step {
            GrammarStep::Value(id) => match self.schema.shape(id) {
                ValueShape::OneOf(ids) if is_shallow => ids.iter().for_each(|id| with(&[GrammarStep::Value(*id)])),
                ValueShape::OneOf(ids) => self.schema.flattest(ids).for_each(|id| with(&[GrammarStep::Value(id)])),
                ValueShape::Literal(bytes) => with(&[GrammarStep::Literal(Arc::clone(bytes), 0)]),
                ValueShape::Text { least, most } => with(&[literal("\""), GrammarStep::Text(*least, *most)]),
                ValueShape::Integer => {
                    with(&[literal("0")]);
                    ('1'..='9')
                        .for_each(|digit| with(&[literal(&digit.to_string()), GrammarStep::Digits(0, MAX_DIGITS)]));
                }
                ValueShape::Number => {
                    with(&[literal("0"), GrammarStep::Fraction]);
                    ('1'..='9').for_each(|digit| {
                        with(&[literal(&digit.to_string()), GrammarStep::Digits(0, MAX_DIGITS), GrammarStep::Fraction]);
                    });
                }
                ValueShape::Object { .. } => with(&[literal("{"), GrammarStep::Members(id, 0, true)]),
                ValueShape::Array { .. } => with(&[literal("["), GrammarStep::Items(id, 0)]),
            },
            GrammarStep::Literal(bytes, at) if at == bytes.len() => with(&[]),
            GrammarStep::Fraction => {
                with(&[]);
                with(&[literal("."), GrammarStep::Digits(1, MAX_FRACTION_DIGITS)]);
            }
            GrammarStep::Digits(least, most) => {
                if least == 0 {
                    with(&[]);
                }
                if most > 0 {
                    stack.push(step);
                    out.insert(stack);
                }
            }
            GrammarStep::Members(id, at, first) => {
                let ValueShape::Object { members, others } = self.schema.shape(id) else { return };
                let Some(member) = members.get(at) else {
                    return match others {
                        Some(_) => with(&[GrammarStep::OtherMembers(id, 0, first)]),
                        None => with(&[literal("}")]),
                    };
                };
                if member.required || is_shallow {
                    let comma = literal(if first { "" } else { ", " });
                    let name = GrammarStep::Literal(Arc::clone(&member.name), 0);
                    with(&[comma, name, GrammarStep::Value(member.value), GrammarStep::Members(id, at + 1, false)]);
                }
                if !member.required {
                    with(&[GrammarStep::Members(id, at + 1, first)]);
                }
            }
            GrammarStep::OtherMembers(id, count, first) => {
                with(&[literal("}")]);
                if let (ValueShape::Object { others: Some(value), .. }, true) =
                    (self.schema.shape(id), count < MAX_OTHER_MEMBERS && is_shallow)
                {
                    let quote = literal(if first { "\"" } else { ", \"" });
                    let rest =
                        [literal(": "), GrammarStep::Value(*value), GrammarStep::OtherMembers(id, count + 1, false)];
                    with(&[&[quote, GrammarStep::Text(1, MAX_NAME_CHARS)][..], &rest].concat());
                }
            }
            GrammarStep::Items(id, count) => {
                let ValueShape::Array { items, least, most } = self.schema.shape(id) else { return };
                if count >= *least {
                    with(&[literal("]")]);
                }
                if count < *least || count < *most && is_shallow {
                    let comma = literal(if count == 0 { "" } else { ", " });
                    with(&[comma, GrammarStep::Value(*items), GrammarStep::Items(id, count + 1)]);
                }
            }
            GrammarStep::Literal(..) | GrammarStep::Text(..) => {
                stack.push(step);
                out.insert(stack);
            }
        }
    }
}

/// The stack after this byte; `None` if the byte is not allowed.
fn advance(stack: &Stack, byte: u8) -> Option<Stack> {
    let mut stack = stack.clone();
    match stack.pop()? {
        GrammarStep::Literal(bytes, at) if bytes.get(at) == Some(&byte) => {
            stack.push(GrammarStep::Literal(bytes, at + 1))
        }
        GrammarStep::Text(0, _) if byte == b'"' => {}
        GrammarStep::Text(least, most) if most > 0 && matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\') => {
            stack.push(GrammarStep::Text(least.saturating_sub(1), most - 1));
        }
        GrammarStep::Digits(least, most) if byte.is_ascii_digit() => {
            stack.push(GrammarStep::Digits(least.saturating_sub(1), most - 1));
        }
        _ => return None,
    }
    Some(stack)
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
        let (grammar, pieces) = (Grammar::of_schema(schema).unwrap(), pieces());
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
            (r#"{"type": "object"}"#, &["{}", r#"{"a": 1}"#, r#"{"a": "b", "c": null}"#], &["[]", r#"{"": 1}"#]),
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
        let (grammar, pieces) = (Grammar::of_schema(schema).unwrap(), pieces());
        let deep: Vec<u32> = r#"{"next": "#.repeat(2 * MAX_DEPTH).bytes().map(u32::from).collect();
        assert!(!grammar.allowed(&pieces, &deep).0[usize::from(b'{')]);
    }

    #[test]
    fn required_choice_takes_the_flattest_value_at_the_maximum_depth() {
        let schema = r##"{"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["next"], "additionalProperties": false}"##;
        assert!(accepts(schema, r#"{"next": {"next": null}}"#));
        let (grammar, pieces) = (Grammar::of_schema(schema).unwrap(), pieces());
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
            let refusal = Grammar::of_schema(schema).unwrap_err();
            assert!(refusal.contains("without an end"), "{refusal}");
        }
        let finite = r##"{"type": "array", "items": {"$ref": "#"}, "maxItems": 2}"##;
        assert!(accepts(finite, "[[], [[]]]"));
    }

    #[test]
    fn integer_bounds_beyond_64_bits_are_refused() {
        for schema in [r#"{"type": "integer", "minimum": 1e300}"#, r#"{"type": "integer", "maximum": -1e300}"#] {
            let refusal = Grammar::of_schema(schema).unwrap_err();
            assert!(refusal.contains("64 bits"), "{refusal}");
        }
        assert!(accepts(r#"{"type": "integer", "minimum": 1e15}"#, "1000000000000000"));
    }

    #[test]
    fn token_is_allowed_only_if_all_its_bytes_are() {
        let grammar = Grammar::of_schema(r#"{"type": "object", "properties": {"a": {}}, "required": ["a"]}"#).unwrap();
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
        assert!(Grammar::of_schema(&schema).unwrap_err().contains("parts"), "no deep recursion");
        let like = r##"{"type": "object", "properties": {"l": {"$ref": "#/$defs/e"}}, "required": ["l"]}"##;
        let schema = format!(
            r##"{{"$defs": {{"e": {{"anyOf": [{like}, {like}, {{"type": "null"}}]}}}}, "$ref": "#/$defs/e"}}"##
        );
        let deep: Vec<u32> = r#"{"l": "#.repeat(MAX_DEPTH - 4).bytes().map(u32::from).collect();
        let (allowed, _) = Grammar::of_schema(&schema).unwrap().allowed(&pieces(), &deep);
        assert!(allowed[usize::from(b'{')], "two to the power of twenty ways to read it");
        let members: Vec<String> = (0..200).map(|at| format!(r##""m{at}": {{"$ref": "#/$defs/a"}}"##)).collect();
        let schema = format!(r##"{{"$defs": {{"a": {{}}}}, "properties": {{{}}}}}"##, members.join(", "));
        assert!(Grammar::of_schema(&schema).unwrap_err().contains("parts"));
        let schema = format!(r#"{{"enum": [{}]}}"#, vec!["1"; 100_000].join(", "));
        assert!(Grammar::of_schema(&schema).unwrap_err().contains("parts"));
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
            (r#"{"type": "array", "minItems": 1e300}"#, "minItems above 96 (at #)"),
            (r#"{"type": "string", "minLength": 1025}"#, "minLength above 1024 (at #)"),
        ] {
            let error = Grammar::of_schema(schema).unwrap_err();
            assert!(error.contains(named), "{schema}: {error}");
        }
    }
}
