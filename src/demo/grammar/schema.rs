// SPDX-License-Identifier: Apache-2.0
//! Compiles a JSON schema to rules for the texts of its values.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{Grammar, Id, Rule};

/// The maximum number of characters of a string, unless `minLength` is greater.
const MAX_CHARS: usize = 32;

/// The maximum number of items of a list, unless `minItems` is greater.
const MAX_ITEMS: usize = 3;

/// The maximum number of digits of an integer part after the first digit.
const MAX_DIGITS: usize = 3;

/// The maximum number of digits of a fraction.
const MAX_FRACTION_DIGITS: usize = 2;

/// The maximum number of schemas and of values of an enum, in a whole schema.
const MAX_PARTS: usize = 1000;

/// The number of steps between the smallest and the greatest value within the bounds of a number.
const STEPS: f64 = 10.0;

/// The greatest integer up to which each integer is a float.
const MAX_INTEGER: f64 = (1_u64 << 53) as f64;

/// Whether a number is within a bound.
type Fits = fn(&f64, &f64) -> bool;

/// The bounds of a number.
const BOUNDS: [(&str, Fits); 4] =
    [("minimum", f64::ge), ("exclusiveMinimum", f64::gt), ("maximum", f64::le), ("exclusiveMaximum", f64::lt)];

/// Keywords that determine the value without a type.
const WHOLE: [&str; 6] = ["$ref", "const", "enum", "anyOf", "oneOf", "allOf"];

/// The types of a value without a type. Lists and objects are left out.
const SCALARS: [&str; 4] = ["null", "boolean", "string", "number"];

/// A part of a schema.
#[derive(Clone, Copy)]
struct Part<'a> {
    object: &'a Map<String, Value>,
    /// Its path in the schema.
    place: &'a str,
}

struct Compiler {
    rules: Vec<Rule>,
    /// The rules of referenced schemas, by JSON pointer.
    referenced: HashMap<String, Id>,
    /// The referenced schemas that are not compiled yet, so that the depth of references does not matter.
    open: Vec<(String, Id)>,
    /// The number of parts so far.
    parts: usize,
}

/// # Errors
/// An error message if the schema is invalid, or if the demo engine does not support a part of it.
pub(super) fn compile(text: &str) -> Result<Grammar, String> {
    let root: Value = serde_json::from_str(text).map_err(|error| format!("json_schema is not JSON: {error}"))?;
    let mut compiler = Compiler { rules: Vec::new(), referenced: HashMap::new(), open: Vec::new(), parts: 0 };
    compiler.reference("#");
    while let Some((pointer, id)) = compiler.open.pop() {
        let schema = pointer.strip_prefix('#').and_then(|path| root.pointer(path));
        let schema = schema.ok_or_else(|| unsupported(&format!("$ref {pointer:?}"), &pointer))?;
        let inner = compiler.schema(schema, &pointer)?;
        compiler.rules[id] = Rule::Choice(vec![inner]);
    }
    let heights = heights(&compiler.rules).ok_or(
        "json_schema: a part that requires itself has only values without an end, so there is no value for it",
    )?;
    Ok(Grammar { rules: compiler.rules, heights })
}

/// By rule: the height of its flattest derivation. `None` if a rule requires itself, so that it derives no finite text.
fn heights(rules: &[Rule]) -> Option<Vec<usize>> {
    let mut heights: Vec<Option<usize>> = vec![None; rules.len()];
    // each round finds at least the rules that are one level higher
    loop {
        let before = heights.clone();
        for (id, rule) in rules.iter().enumerate() {
            heights[id] = match rule {
                Rule::Bytes(_) | Rule::Class(_) | Rule::Repeat { least: 0, .. } => Some(0),
                Rule::Sequence(parts) => {
                    parts.iter().try_fold(1, |highest: usize, part| Some(highest.max(1 + heights[*part]?)))
                }
                Rule::Choice(ids) => ids.iter().filter_map(|id| heights[*id]).min(),
                Rule::Repeat { item, .. } => heights[*item].map(|height| 1 + height),
            };
        }
        if heights == before {
            return heights.into_iter().collect();
        }
    }
}

fn unsupported(what: &str, place: &str) -> String {
    format!("json_schema: {what} (at {place}) is not supported by the demo engine")
}

/// The value as ASCII JSON, which every tokenizer can encode.
fn ascii_json(value: &Value) -> String {
    let mut text = String::new();
    for character in value.to_string().chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            let mut units = [0; 2];
            text.extend(character.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    text
}

impl Compiler {
    fn add(&mut self, rule: Rule) -> Id {
        self.rules.push(rule);
        self.rules.len() - 1
    }

    fn bytes(&mut self, text: &str) -> Id {
        self.add(Rule::Bytes(text.into()))
    }

    /// Counts parts. Their number is limited, because a schema comes from a client.
    fn count(&mut self, parts: usize, place: &str) -> Result<(), String> {
        self.parts += parts;
        let most = || unsupported(&format!("a schema of more than {MAX_PARTS} parts"), place);
        if self.parts > MAX_PARTS { Err(most()) } else { Ok(()) }
    }

    /// The rule of the schema that a reference points to.
    fn reference(&mut self, pointer: &str) -> Id {
        if let Some(id) = self.referenced.get(pointer) {
            return *id;
        }
        let id = self.add(Rule::Choice(Vec::new()));
        self.referenced.insert(pointer.to_owned(), id);
        self.open.push((pointer.to_owned(), id));
        id
    }

    fn schema(&mut self, schema: &Value, place: &str) -> Result<Id, String> {
        self.count(1, place)?;
        let empty = Map::new();
        let object = match schema {
            Value::Bool(true) => &empty,
            Value::Object(object) => object,
            _ => return Err(unsupported("a schema that is no object", place)),
        };
        let part = Part { object, place };
        if let Some(name) = WHOLE.into_iter().find(|name| object.contains_key(*name)) {
            part.check_keywords(&[name, "type"])?;
            return match &object[name] {
                Value::String(pointer) if name == "$ref" => Ok(self.reference(pointer)),
                value if name == "const" => self.literals(std::slice::from_ref(value), place),
                Value::Array(values) if name == "enum" => self.literals(values, place),
                Value::Array(all) if !all.is_empty() && (name != "allOf" || all.len() == 1) => {
                    let compile = |(at, one)| self.schema(one, &format!("{place}/{name}/{at}"));
                    let ids = all.iter().enumerate().map(compile).collect::<Result<_, _>>()?;
                    Ok(self.add(Rule::Choice(ids)))
                }
                _ => Err(unsupported(&format!("this {name}"), place)),
            };
        }
        let types: Vec<&str> = match object.get("type") {
            Some(Value::Array(types)) => types.iter().map(|name| name.as_str().unwrap_or_default()).collect(),
            Some(name) => vec![name.as_str().unwrap_or_default()],
            None if object.contains_key("properties") => vec!["object"],
            None => SCALARS.to_vec(),
        };
        let ids = types.into_iter().map(|name| self.of_type(name, part)).collect::<Result<_, _>>()?;
        Ok(self.add(Rule::Choice(ids)))
    }

    fn literals(&mut self, values: &[Value], place: &str) -> Result<Id, String> {
        if values.is_empty() {
            return Err(no_value(place));
        }
        self.count(values.len(), place)?;
        let ids = values.iter().map(|value| self.bytes(&ascii_json(value))).collect();
        Ok(self.add(Rule::Choice(ids)))
    }

    fn of_type(&mut self, name: &str, part: Part<'_>) -> Result<Id, String> {
        match name {
            "null" => Ok(self.bytes("null")),
            "boolean" => self.literals(&[true.into(), false.into()], part.place),
            "string" => {
                part.check_keywords(&["type", "minLength", "maxLength"])?;
                let (least, most) = part.lengths("minLength", "maxLength", MAX_CHARS)?;
                let (quote, item) = (self.bytes("\""), self.add(Rule::Class(&[b' '..=b'!', b'#'..=b'[', b']'..=b'~'])));
                let text = self.add(Rule::Repeat { item, least, most });
                Ok(self.add(Rule::Sequence(vec![quote, text, quote])))
            }
            "integer" | "number" => {
                part.check_keywords(&["type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])?;
                let is_integer = name == "integer";
                let written = |number| if is_integer { Value::from(number as i64) } else { Value::from(number) };
                match part.numbers(if is_integer { 1.0 } else { 100.0 }) {
                    Some(numbers) => self.literals(&numbers.into_iter().map(written).collect::<Vec<_>>(), part.place),
                    None => Ok(self.number(is_integer)),
                }
            }
            "array" => self.array(part),
            "object" => self.object(part),
            _ => Err(unsupported(&format!("the type {name:?}"), part.place)),
        }
    }

    fn number(&mut self, is_integer: bool) -> Id {
        let (zero, first) = (self.bytes("0"), self.add(Rule::Class(&[b'1'..=b'9'])));
        let item = self.add(Rule::Class(&[b'0'..=b'9']));
        let digits = self.add(Rule::Repeat { item, least: 0, most: MAX_DIGITS });
        let positive = self.add(Rule::Sequence(vec![first, digits]));
        let integer = self.add(Rule::Choice(vec![zero, positive]));
        if is_integer {
            return integer;
        }
        let digits = self.add(Rule::Repeat { item, least: 1, most: MAX_FRACTION_DIGITS });
        let point = self.bytes(".");
        let item = self.add(Rule::Sequence(vec![point, digits]));
        let fraction = self.add(Rule::Repeat { item, least: 0, most: 1 });
        self.add(Rule::Sequence(vec![integer, fraction]))
    }

    fn array(&mut self, part: Part<'_>) -> Result<Id, String> {
        part.check_keywords(&["type", "items", "minItems", "maxItems"])?;
        let items = part.object.get("items").unwrap_or(&Value::Bool(true));
        let items = self.schema(items, &format!("{}/items", part.place))?;
        let (least, most) = part.lengths("minItems", "maxItems", MAX_ITEMS)?;
        let [open, comma, close] = ["[", ", ", "]"].map(|text| self.bytes(text));
        let item = self.add(Rule::Sequence(vec![comma, items]));
        let rest = self.add(Rule::Repeat { item, least: least.saturating_sub(1), most: most.saturating_sub(1) });
        let empty = self.add(Rule::Sequence(vec![open, close]));
        let full = self.add(Rule::Sequence(vec![open, items, rest, close]));
        let ids = [(least == 0, empty), (most > 0, full)].into_iter().filter_map(|(fits, id)| fits.then_some(id));
        Ok(self.add(Rule::Choice(ids.collect())))
    }

    fn object(&mut self, part: Part<'_>) -> Result<Id, String> {
        part.check_keywords(&["type", "properties", "required", "additionalProperties"])?;
        let empty = Map::new();
        let properties = part.object.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required = part.object.get("required").and_then(Value::as_array);
        let required: Vec<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
        if let Some(missing) = required.iter().find(|name| !properties.contains_key(**name)) {
            return Err(unsupported(&format!("the required member {missing:?} without a schema"), part.place));
        }
        let [open, close] = ["{", "}"].map(|text| self.bytes(text));
        // the members from one on, without a member before them and after one
        let (mut first, mut later) = (close, close);
        for (name, schema) in properties.iter().rev() {
            let value = self.schema(schema, &format!("{}/properties/{name}", part.place))?;
            let key = ascii_json(&name.as_str().into());
            let [begun, continued] = ["", ", "].map(|comma| {
                let key = self.bytes(&format!("{comma}{key}: "));
                self.add(Rule::Sequence(vec![key, value, later]))
            });
            (first, later) = match required.contains(&&**name) {
                true => (begun, continued),
                false => (self.add(Rule::Choice(vec![begun, first])), self.add(Rule::Choice(vec![continued, later]))),
            };
        }
        Ok(self.add(Rule::Sequence(vec![open, first])))
    }
}

fn no_value(place: &str) -> String {
    format!("json_schema: there is no value for {place}")
}

/// Whether a keyword does not constrain the value.
fn is_annotation(name: &str) -> bool {
    matches!(name, "title" | "description" | "default" | "examples" | "deprecated" | "readOnly" | "writeOnly")
        || matches!(name, "$schema" | "$id" | "$comment" | "$defs" | "definitions")
}

impl Part<'_> {
    /// Returns an error for a keyword that is neither one of `names` nor an annotation.
    fn check_keywords(&self, names: &[&str]) -> Result<(), String> {
        let mut keys = self.object.keys().map(String::as_str);
        let other = keys.find(|key| !names.contains(key) && !is_annotation(key));
        other.map_or(Ok(()), |key| Err(unsupported(&format!("the keyword {key:?}"), self.place)))
    }

    /// The minimum and maximum length of a string or a list. The maximum is at most `cap`, unless the minimum is greater.
    fn lengths(&self, least: &str, most: &str, cap: usize) -> Result<(usize, usize), String> {
        // a length may be written as 1e3
        let length = |name: &str| self.object.get(name).and_then(Value::as_f64).map(|length| length as usize);
        let least = length(least).unwrap_or(0);
        let most = length(most).unwrap_or(usize::MAX).min(least.max(cap));
        if least > most { Err(no_value(self.place)) } else { Ok((least, most)) }
    }

    /// Some multiples of `1 / scale` within the bounds of a number, empty if the bounds exclude all; `None` without bounds.
    fn numbers(&self, scale: f64) -> Option<Vec<f64>> {
        let bound = |name: &str| self.object.get(name).and_then(Value::as_f64);
        let low = bound("minimum").into_iter().chain(bound("exclusiveMinimum")).reduce(f64::max);
        let high = bound("maximum").into_iter().chain(bound("exclusiveMaximum")).reduce(f64::min);
        let (low, high) = (low.or(high.map(|high| high - STEPS))?, high.or(low.map(|low| low + STEPS))?);
        let (low, high) = (low.max(-MAX_INTEGER), high.min(MAX_INTEGER));
        let between = (0..=STEPS as u8).map(|at| low + (high - low) * (f64::from(at) / STEPS));
        let mut numbers: Vec<f64> = between.map(|number| (number * scale).round() / scale).collect();
        let fits =
            |number: &f64| BOUNDS.iter().all(|(name, fits)| bound(name).is_none_or(|bound| fits(number, &bound)));
        numbers.retain(|number| number.abs() <= MAX_INTEGER && fits(number));
        numbers.dedup();
        Some(numbers)
    }
}
