//! A JSON schema as a grammar: which tokens may come next in a value that it describes.
//!
//! The values are a part of those that the schema allows, so that they are complete after some tokens: strings, numbers and lists are short, values
//! that are deep take the flattest choice, members come in the order of their names, and white space is one blank after each comma and colon. A
//! schema with a part whose values have no end is refused, and so is one that demands a long string or list. Long lists within each other are
//! not: such a value may be cut by `max_new_tokens`.

mod bounds;
mod schema;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use schema::{Id, ReplyShape, Schema};

/// Steps on a stack beyond which nothing optional begins and the flattest choice is taken: a schema may name itself.
const DEEP: usize = 24;

/// Alternatives that are followed at a time: as many as an enum may have values.
const STACKS: usize = 1000;

/// Members of an object whose names the schema leaves open.
const OTHERS: usize = 3;

/// Characters of such a name.
const NAME: usize = 12;

/// Digits of a number after the first, and of its fraction.
const DIGITS: usize = 3;
const FRACTION: usize = 2;

/// What the text of a generation must be.
#[derive(Debug)]
pub struct Grammar {
    schema: Arc<Schema>,
    /// The output that was read last and what may follow it, so that each token is read once.
    // held for the tokens that have come since, never across an await
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

/// A part of a value that is still to come.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum GrammarStep {
    Value(Id),
    /// The bytes from this one on.
    Literal(Arc<[u8]>, usize),
    /// Characters of a string, at least and at most, and the quote after them.
    Text(usize, usize),
    /// Digits, at least and at most.
    Digits(usize, usize),
    /// The fraction of a number, or none.
    Fraction,
    /// The members of an object from this one on; whether it is the first in the text.
    Members(Id, usize, bool),
    /// Members whose names are open: how many there are, and whether the next is the first in the text.
    Others(Id, usize, bool),
    /// The items of a list after this many.
    Items(Id, usize),
}

/// What is still to come, the next at the end. Empty: the value is whole.
type Stack = Vec<GrammarStep>;

/// All that may be to come.
type State = BTreeSet<Stack>;

fn literal(text: &str) -> GrammarStep {
    GrammarStep::Literal(text.as_bytes().into(), 0)
}

impl Grammar {
    /// The grammar of a JSON schema.
    ///
    /// # Errors
    /// What is wrong with it, or which part of it is not supported.
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

    /// Which of these tokens may come after `output`, and whether the text may end there.
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

    /// The stacks that begin with a byte to be read, or are empty.
    fn expand(&self, mut stack: Stack, out: &mut State) {
        // alternatives that begin alike double at each level; some of the values are enough
        if out.len() >= STACKS {
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
        let shallow = stack.len() < DEEP;
        match step {
            GrammarStep::Value(id) => match self.schema.shape(id) {
                ReplyShape::OneOf(ids) if shallow => ids.iter().for_each(|id| with(&[GrammarStep::Value(*id)])),
                ReplyShape::OneOf(ids) => self.schema.flattest(ids).for_each(|id| with(&[GrammarStep::Value(id)])),
                ReplyShape::Literal(bytes) => with(&[GrammarStep::Literal(Arc::clone(bytes), 0)]),
                ReplyShape::Text { least, most } => with(&[literal("\""), GrammarStep::Text(*least, *most)]),
                ReplyShape::Integer => {
                    with(&[literal("0")]);
                    ('1'..='9').for_each(|digit| with(&[literal(&digit.to_string()), GrammarStep::Digits(0, DIGITS)]));
                }
                ReplyShape::Number => {
                    with(&[literal("0"), GrammarStep::Fraction]);
                    ('1'..='9').for_each(|digit| {
                        with(&[literal(&digit.to_string()), GrammarStep::Digits(0, DIGITS), GrammarStep::Fraction]);
                    });
                }
                ReplyShape::Object { .. } => with(&[literal("{"), GrammarStep::Members(id, 0, true)]),
                ReplyShape::Array { .. } => with(&[literal("["), GrammarStep::Items(id, 0)]),
            },
            GrammarStep::Literal(bytes, at) if at == bytes.len() => with(&[]),
            GrammarStep::Fraction => {
                with(&[]);
                with(&[literal("."), GrammarStep::Digits(1, FRACTION)]);
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
                let ReplyShape::Object { members, others } = self.schema.shape(id) else { return };
                let Some(member) = members.get(at) else {
                    return match others {
                        Some(_) => with(&[GrammarStep::Others(id, 0, first)]),
                        None => with(&[literal("}")]),
                    };
                };
                if member.required || shallow {
                    let comma = literal(if first { "" } else { ", " });
                    let name = GrammarStep::Literal(Arc::clone(&member.name), 0);
                    with(&[comma, name, GrammarStep::Value(member.value), GrammarStep::Members(id, at + 1, false)]);
                }
                if !member.required {
                    with(&[GrammarStep::Members(id, at + 1, first)]);
                }
            }
            GrammarStep::Others(id, count, first) => {
                with(&[literal("}")]);
                if let (ReplyShape::Object { others: Some(value), .. }, true) =
                    (self.schema.shape(id), count < OTHERS && shallow)
                {
                    let quote = literal(if first { "\"" } else { ", \"" });
                    let rest = [literal(": "), GrammarStep::Value(*value), GrammarStep::Others(id, count + 1, false)];
                    with(&[&[quote, GrammarStep::Text(1, NAME)][..], &rest].concat());
                }
            }
            GrammarStep::Items(id, count) => {
                let ReplyShape::Array { items, least, most } = self.schema.shape(id) else { return };
                if count >= *least {
                    with(&[literal("]")]);
                }
                if count < *least || count < *most && shallow {
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

/// What is to come after this byte; `None` where it does not fit.
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

    /// Tokens of one byte, and two of more.
    fn pieces() -> Vec<Vec<u8>> {
        let bytes = (0..=127_u8).map(|byte| vec![byte]);
        bytes.chain([b"{\"".to_vec(), b"\": ".to_vec()]).collect()
    }

    /// Whether the schema allows each prefix of the text, and its end.
    fn takes(schema: &str, text: &str) -> bool {
        let (grammar, pieces) = (Grammar::of_schema(schema).unwrap(), pieces());
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        let fits = (0..ids.len()).all(|at| grammar.allowed(&pieces, &ids[..at]).0[ids[at] as usize]);
        fits && grammar.allowed(&pieces, &ids).1
    }

    #[test]
    fn values_of_each_type() {
        for (schema, taken, refused) in [
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
            for text in taken {
                assert!(takes(schema, text), "{schema} {text}");
            }
            for text in refused {
                assert!(!takes(schema, text), "{schema} {text}");
            }
        }
    }

    #[test]
    fn objects_as_pydantic_describes_them() {
        let schema = r##"{"$defs": {"GrammarStep": {"properties": {"note": {"title": "Note", "type": "string"}}, "required": ["note"],
            "title": "GrammarStep", "type": "object"}}, "properties": {"steps": {"items": {"$ref": "#/$defs/GrammarStep"}, "type": "array"},
            "answer": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null}}, "required": ["steps"],
            "additionalProperties": false, "type": "object"}"##;
        for text in [r#"{"steps": []}"#, r#"{"answer": null, "steps": [{"note": "a"}, {"note": ""}]}"#] {
            assert!(takes(schema, text), "{text}");
        }
        for text in
            [r#"{"answer": 1}"#, r#"{"steps": [{}]}"#, r#"{"answer": "x", "steps": []}"#, r#"{"steps": [], "b": 1}"#]
        {
            assert!(!takes(schema, text), "{text}");
        }
    }

    #[test]
    fn a_schema_that_names_itself_ends() {
        let schema = r##"{"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": false}"##;
        assert!(takes(schema, r#"{"next": {"next": {}}}"#));
        let (grammar, pieces) = (Grammar::of_schema(schema).unwrap(), pieces());
        let deep: Vec<u32> = r#"{"next": "#.repeat(2 * DEEP).bytes().map(u32::from).collect();
        assert!(!grammar.allowed(&pieces, &deep).0[usize::from(b'{')]);
    }

    #[test]
    fn a_required_choice_ends_where_it_is_deep() {
        let schema = r##"{"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["next"], "additionalProperties": false}"##;
        assert!(takes(schema, r#"{"next": {"next": null}}"#));
        let (grammar, pieces) = (Grammar::of_schema(schema).unwrap(), pieces());
        let deep: Vec<u32> = r#"{"next": "#.repeat(2 * DEEP).bytes().map(u32::from).collect();
        let (allowed, _) = grammar.allowed(&pieces, &deep);
        assert!(!allowed[usize::from(b'{')], "the deepest value is the shortest");
    }

    #[test]
    fn a_schema_without_a_finite_value_is_refused() {
        let required = r##"{"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}"##;
        let list = r##"{"type": "array", "items": {"$ref": "#"}, "minItems": 1}"##;
        let within = r##"{"$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}}, "required": ["b"]}},
            "properties": {"a": {"$ref": "#/$defs/a"}}}"##;
        for schema in [required, list, within] {
            let refusal = Grammar::of_schema(schema).unwrap_err();
            assert!(refusal.contains("without an end"), "{refusal}");
        }
        let finite = r##"{"type": "array", "items": {"$ref": "#"}, "maxItems": 2}"##;
        assert!(takes(finite, "[[], [[]]]"));
    }

    #[test]
    fn integer_bounds_beyond_64_bits_are_refused() {
        for schema in [r#"{"type": "integer", "minimum": 1e300}"#, r#"{"type": "integer", "maximum": -1e300}"#] {
            let refusal = Grammar::of_schema(schema).unwrap_err();
            assert!(refusal.contains("64 bits"), "{refusal}");
        }
        assert!(takes(r#"{"type": "integer", "minimum": 1e15}"#, "1000000000000000"));
    }

    #[test]
    fn tokens_of_several_bytes_fit_as_a_whole() {
        let grammar = Grammar::of_schema(r#"{"type": "object", "properties": {"a": {}}, "required": ["a"]}"#).unwrap();
        let (allowed, end) = grammar.allowed(&pieces(), &[]);
        let fits: Vec<usize> = (0..allowed.len()).filter(|at| allowed[*at]).collect();
        assert_eq!((fits, end), (vec![usize::from(b'{'), 128], false));
    }

    #[test]
    fn a_hostile_schema_is_refused_or_costs_little() {
        // each definition names the next one twice: two to the power of 25 ways to the end
        let twice = |at: usize| {
            format!(r##""d{at}": {{"anyOf": [{{"$ref": "#/$defs/d{0}"}}, {{"$ref": "#/$defs/d{0}"}}]}}"##, at + 1)
        };
        let all: Vec<String> = (0..25).map(twice).collect();
        let schema =
            format!(r##"{{"$defs": {{{}, "d25": {{"type": "null"}}}}, "$ref": "#/$defs/d0"}}"##, all.join(", "));
        assert!(takes(&schema, "null"));
        let chain: Vec<String> =
            (0..5_000).map(|at| format!(r##""d{at}": {{"$ref": "#/$defs/d{}"}}"##, at + 1)).collect();
        let schema = format!(r##"{{"$defs": {{{}}}, "$ref": "#/$defs/d0"}}"##, chain.join(", "));
        assert!(Grammar::of_schema(&schema).unwrap_err().contains("parts"), "no deep recursion");
        let like = r##"{"type": "object", "properties": {"l": {"$ref": "#/$defs/e"}}, "required": ["l"]}"##;
        let schema = format!(
            r##"{{"$defs": {{"e": {{"anyOf": [{like}, {like}, {{"type": "null"}}]}}}}, "$ref": "#/$defs/e"}}"##
        );
        let deep: Vec<u32> = r#"{"l": "#.repeat(DEEP - 4).bytes().map(u32::from).collect();
        let (allowed, _) = Grammar::of_schema(&schema).unwrap().allowed(&pieces(), &deep);
        assert!(allowed[usize::from(b'{')], "two to the power of twenty ways to read it");
        let members: Vec<String> = (0..200).map(|at| format!(r##""m{at}": {{"$ref": "#/$defs/a"}}"##)).collect();
        let schema = format!(r##"{{"$defs": {{"a": {{}}}}, "properties": {{{}}}}}"##, members.join(", "));
        assert!(Grammar::of_schema(&schema).unwrap_err().contains("parts"));
        let schema = format!(r#"{{"enum": [{}]}}"#, vec!["1"; 100_000].join(", "));
        assert!(Grammar::of_schema(&schema).unwrap_err().contains("parts"));
    }

    #[test]
    fn an_unsupported_part_is_named() {
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
