//! Parses a JSON schema into the shapes of the values that the demo engine generates.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::bounds;

/// The index of a shape in a schema.
pub(super) type Id = usize;

/// The maximum number of characters of a string, unless `minLength` is greater.
const MAX_CHARS: usize = 32;

/// The maximum number of members that an object may list or require.
const MAX_MEMBERS: usize = 100;

/// The maximum number of items of a list, unless `minItems` is greater.
const MAX_ITEMS: usize = 3;

/// `minLength` and `minItems` may be at most this multiple of [`MAX_CHARS`] and [`MAX_ITEMS`].
const MAX_LENGTH_FACTOR: usize = 32;

/// The maximum depth of nested schemas.
const MAX_SCHEMA_DEPTH: usize = 64;

/// The maximum number of schemas in a schema, and of values in an enum.
const MAX_PARTS: usize = 1000;

/// The number of types of JSON schema.
const TYPE_COUNT: usize = 7;

/// Keywords that do not constrain the value.
const ANNOTATIONS: [&str; 12] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
];

/// The shape of a value.
#[derive(Debug, PartialEq)]
pub(super) enum ValueShape {
    OneOf(Vec<Id>),
    Literal(Arc<[u8]>),
    /// A string. `least` and `most` are numbers of characters.
    Text {
        least: usize,
        most: usize,
    },
    Integer,
    Number,
    Object {
        members: Vec<Member>,
        /// The shape of additional members; `None` if the object may have none.
        others: Option<Id>,
    },
    /// A list. `least` and `most` are numbers of items.
    Array {
        items: Id,
        least: usize,
        most: usize,
    },
}

#[derive(Debug, PartialEq)]
pub(super) struct Member {
    /// The JSON text of the name and the colon.
    pub(super) name: Arc<[u8]>,
    pub(super) value: Id,
    pub(super) required: bool,
}

/// A parsed schema.
#[derive(Debug, PartialEq)]
pub(super) struct Schema {
    shapes: Vec<ValueShape>,
    /// By shape: the depth of nested lists and objects in its flattest value.
    depths: Vec<usize>,
}

/// A part of a schema and its path in the schema.
type Part<'a> = (&'a Map<String, Value>, &'a str);

struct SchemaParser<'a> {
    root: &'a Value,
    shapes: Vec<ValueShape>,
    /// The shapes of referenced schemas, by JSON pointer.
    referenced: HashMap<String, Id>,
    /// The number of schemas around the current one.
    depth: usize,
    /// The number of parsed schemas.
    parts: usize,
}

impl Schema {
    /// The shape of the whole value.
    pub(super) const ROOT: Id = 0;

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let root: Value = serde_json::from_str(text).map_err(|error| format!("json_schema is not JSON: {error}"))?;
        let mut parser =
            SchemaParser { root: &root, shapes: Vec::new(), referenced: HashMap::new(), depth: 0, parts: 0 };
        parser.reference("#", "#")?;
        let mut schema = Self { shapes: parser.shapes, depths: Vec::new() };
        schema.flatten_choices()?;
        schema.compute_depths()?;
        Ok(schema)
    }

    pub(super) fn shape(&self, id: Id) -> &ValueShape {
        &self.shapes[id]
    }

    /// Returns the choices with the smallest depth of their flattest values.
    pub(super) fn flattest<'a>(&'a self, choices: &'a [Id]) -> impl Iterator<Item = Id> {
        let least = choices.iter().map(|id| self.depths[*id]).min();
        choices.iter().copied().filter(move |id| Some(self.depths[*id]) == least)
    }

    /// Computes the depth of the flattest value of each shape.
    ///
    /// # Errors
    /// An error message if a shape has only infinite values, because it requires itself.
    fn compute_depths(&mut self) -> Result<(), String> {
        let mut depths: Vec<Option<usize>> = vec![None; self.shapes.len()];
        // each round finds at least the values that are one level deeper
        loop {
            let before = depths.clone();
            for (id, shape) in self.shapes.iter().enumerate() {
                let found = match shape {
                    ValueShape::OneOf(ids) => ids.iter().filter_map(|id| depths[*id]).min(),
                    ValueShape::Literal(_) | ValueShape::Text { .. } | ValueShape::Integer | ValueShape::Number => {
                        Some(0)
                    }
                    ValueShape::Object { members, .. } => members
                        .iter()
                        .filter(|member| member.required)
                        .try_fold(1, |deepest: usize, member| Some(deepest.max(1 + depths[member.value]?))),
                    ValueShape::Array { least: 0, .. } => Some(1),
                    ValueShape::Array { items, .. } => depths[*items].map(|depth| 1 + depth),
                };
                depths[id] = found;
            }
            if depths == before {
                break;
            }
        }
        let endless = || "json_schema: a part that requires itself has only values without an end".to_owned();
        self.depths = depths.into_iter().collect::<Option<_>>().ok_or_else(endless)?;
        Ok(())
    }

    /// Merges nested choices into one choice, so that it lists each value once.
    ///
    /// # Errors
    /// An error message if a choice consists only of itself.
    fn flatten_choices(&mut self) -> Result<(), String> {
        for id in 0..self.shapes.len() {
            if !matches!(self.shapes[id], ValueShape::OneOf(_)) {
                continue;
            }
            let (mut seen, mut open, mut ends) = (vec![false; self.shapes.len()], vec![id], Vec::new());
            while let Some(at) = open.pop() {
                if std::mem::replace(&mut seen[at], true) {
                    continue;
                }
                match &self.shapes[at] {
                    ValueShape::OneOf(ids) => open.extend(ids),
                    _ => ends.push(at),
                }
            }
            if ends.is_empty() {
                return Err("json_schema: a choice consists of itself, so there is no value for it".to_owned());
            }
            self.shapes[id] = ValueShape::OneOf(ends);
        }
        Ok(())
    }
}

fn unsupported(what: &str, place: &str) -> String {
    format!("json_schema: {what} (at {place}) is not supported by the demo engine")
}

/// The value as ASCII JSON, which every tokenizer can encode.
fn ascii_json(value: &Value) -> Arc<[u8]> {
    let mut text = String::new();
    for character in value.to_string().chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            let mut units = [0; 2];
            text.extend(character.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    text.into_bytes().into()
}

impl SchemaParser<'_> {
    /// Parses a schema. Its depth and size are limited, because it comes from a client.
    fn parse(&mut self, schema: &Value, place: &str) -> Result<Id, String> {
        self.parts += 1;
        if self.depth >= MAX_SCHEMA_DEPTH || self.parts > MAX_PARTS {
            return Err(unsupported(
                &format!("a schema of more than {MAX_SCHEMA_DEPTH} levels or {MAX_PARTS} parts"),
                place,
            ));
        }
        self.depth += 1;
        let id = self.parse_schema(schema, place);
        self.depth -= 1;
        id
    }

    fn add(&mut self, shape: ValueShape) -> Id {
        self.shapes.push(shape);
        self.shapes.len() - 1
    }

    /// Parses the schema that a reference points to, once.
    fn reference(&mut self, pointer: &str, place: &str) -> Result<Id, String> {
        if let Some(id) = self.referenced.get(pointer) {
            return Ok(*id);
        }
        let root = self.root;
        let schema = pointer.strip_prefix('#').and_then(|path| root.pointer(path));
        let schema = schema.ok_or_else(|| unsupported(&format!("$ref {pointer:?}"), place))?;
        // the id is assigned first, because the schema may reference itself
        let id = self.add(ValueShape::OneOf(Vec::new()));
        self.referenced.insert(pointer.to_owned(), id);
        let inner = self.parse(schema, pointer)?;
        self.shapes[id] = ValueShape::OneOf(vec![inner]);
        Ok(id)
    }

    fn parse_schema(&mut self, schema: &Value, place: &str) -> Result<Id, String> {
        let object = match schema {
            Value::Bool(true) => return Ok(self.any_scalar()),
            Value::Object(object) => object,
            _ => return Err(unsupported("a schema that is no object", place)),
        };
        let part = (object, place);
        if let Some(Value::String(pointer)) = object.get("$ref") {
            check_keywords(part, &["$ref"])?;
            return self.reference(pointer, place);
        }
        if let Some(value) = object.get("const") {
            check_keywords(part, &["const", "type"])?;
            return Ok(self.add(ValueShape::Literal(ascii_json(value))));
        }
        if let Some(Value::Array(values)) = object.get("enum") {
            check_keywords(part, &["enum", "type"])?;
            return self.literals(values, place);
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            if let Some(Value::Array(all)) = object.get(name) {
                check_keywords(part, &[name, "type"])?;
                if all.is_empty() || name == "allOf" && all.len() > 1 {
                    return Err(unsupported(&format!("{name} of {}", all.len()), place));
                }
                let parse = |(at, one)| self.parse(one, &format!("{place}/{name}/{at}"));
                let ids = all.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
                return Ok(self.add(ValueShape::OneOf(ids)));
            }
        }
        match object.get("type") {
            Some(Value::Array(types)) if types.len() > TYPE_COUNT => Err(unsupported("a list of so many types", place)),
            Some(Value::Array(types)) => {
                let parse = |name: &Value| self.parse_type(name.as_str().unwrap_or_default(), part);
                let ids = types.iter().map(parse).collect::<Result<_, _>>()?;
                Ok(self.add(ValueShape::OneOf(ids)))
            }
            Some(Value::String(name)) => self.parse_type(name, part),
            Some(_) => Err(unsupported("a type that is no name", place)),
            None if object.contains_key("properties") => self.parse_type("object", part),
            None => {
                check_keywords(part, &[])?;
                Ok(self.any_scalar())
            }
        }
    }

    /// The shape of any value that is not a list or an object.
    fn any_scalar(&mut self) -> Id {
        let shapes = [Value::Null, true.into(), false.into()].map(|value| ValueShape::Literal(ascii_json(&value)));
        let shapes = shapes.into_iter().chain([ValueShape::Text { least: 0, most: MAX_CHARS }, ValueShape::Number]);
        let ids = shapes.map(|shape| self.add(shape)).collect();
        self.add(ValueShape::OneOf(ids))
    }

    fn literals(&mut self, values: &[Value], place: &str) -> Result<Id, String> {
        if values.is_empty() {
            return Err(format!("json_schema: there is no value for {place}"));
        }
        if values.len() > MAX_PARTS {
            return Err(unsupported(&format!("an enum of more than {MAX_PARTS} parts"), place));
        }
        let ids = values.iter().map(|value| self.add(ValueShape::Literal(ascii_json(value)))).collect();
        Ok(self.add(ValueShape::OneOf(ids)))
    }

    fn parse_type(&mut self, name: &str, part: Part<'_>) -> Result<Id, String> {
        let (object, place) = part;
        let shape = match name {
            "null" => ValueShape::Literal(ascii_json(&Value::Null)),
            "boolean" => return self.literals(&[true.into(), false.into()], place),
            "string" => {
                check_keywords(part, &["type", "minLength", "maxLength"])?;
                let (least, most) = length_range(part, "minLength", "maxLength", MAX_CHARS)?;
                ValueShape::Text { least, most }
            }
            "integer" | "number" => {
                check_keywords(part, &["type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])?;
                let (values, unbounded) = match name {
                    "integer" => (
                        bounds::integers(object).map_err(|_| unsupported("an integer beyond 64 bits", place))?,
                        ValueShape::Integer,
                    ),
                    _ => (bounds::numbers(object), ValueShape::Number),
                };
                match values {
                    Some(values) => return self.literals(&values, place),
                    None => unbounded,
                }
            }
            "array" => {
                check_keywords(part, &["type", "items", "minItems", "maxItems"])?;
                let items = self.parse(object.get("items").unwrap_or(&Value::Bool(true)), &format!("{place}/items"))?;
                let (least, most) = length_range(part, "minItems", "maxItems", MAX_ITEMS)?;
                ValueShape::Array { items, least, most }
            }
            "object" => return self.object(part),
            _ => return Err(unsupported(&format!("the type {name:?}"), place)),
        };
        Ok(self.add(shape))
    }

    fn object(&mut self, part: Part<'_>) -> Result<Id, String> {
        let (object, place) = part;
        check_keywords(part, &["type", "properties", "required", "additionalProperties"])?;
        let empty = Map::new();
        let properties = object.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required: Vec<&str> =
            object.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        if properties.len() > MAX_MEMBERS || required.len() > MAX_MEMBERS {
            return Err(unsupported(&format!("an object of more than {MAX_MEMBERS} parts"), place));
        }
        if let Some(missing) = required.iter().find(|name| !properties.contains_key(**name)) {
            return Err(unsupported(&format!("the required member {missing:?} without a schema"), place));
        }
        let mut members = Vec::with_capacity(properties.len());
        for (name, schema) in properties {
            let value = self.parse(schema, &format!("{place}/properties/{name}"))?;
            let quoted = [&*ascii_json(&name.as_str().into()), b": "].concat();
            members.push(Member { name: quoted.into(), value, required: required.contains(&&**name) });
        }
        let others = match object.get("additionalProperties") {
            Some(Value::Bool(false)) => None,
            Some(schema @ Value::Object(_)) => Some(self.parse(schema, &format!("{place}/additionalProperties"))?),
            // the engine generates additional members only for an object without listed members
            _ if members.is_empty() => Some(self.any_scalar()),
            _ => None,
        };
        Ok(self.add(ValueShape::Object { members, others }))
    }
}

/// Returns an error for a keyword that is neither one of `names` nor an annotation.
fn check_keywords((object, place): Part<'_>, names: &[&str]) -> Result<(), String> {
    let other = object.keys().find(|key| !names.contains(&key.as_str()) && !ANNOTATIONS.contains(&key.as_str()));
    other.map_or(Ok(()), |key| Err(unsupported(&format!("the keyword {key:?}"), place)))
}

/// Parses the minimum and maximum length of a string or a list. The maximum is at most `cap`, unless the minimum
/// is greater.
fn length_range((object, place): Part<'_>, least: &str, most: &str, cap: usize) -> Result<(usize, usize), String> {
    // a size may be written as 1e3
    let size = |name: &str| object.get(name).and_then(Value::as_f64).map(|size| size as usize);
    let limit = MAX_LENGTH_FACTOR * cap;
    let least = match size(least) {
        Some(size) if size > limit => return Err(unsupported(&format!("a {least} above {limit}"), place)),
        size => size.unwrap_or(0),
    };
    let most = size(most).unwrap_or(usize::MAX).min(least.max(cap));
    if least > most { Err(format!("json_schema: there is no value for {place}")) } else { Ok((least, most)) }
}
