//! A JSON schema, read into the shapes that the demo engine writes.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::bounds;

/// A shape among those of a schema.
pub(super) type Id = usize;

/// Characters of a string whose length the schema leaves open.
const TEXT: usize = 32;

/// Members of an object.
const MEMBERS: usize = 100;

/// Items of a list whose length the schema leaves open, or members of one.
const ITEMS: usize = 3;

/// A string or a list may have to be at most this many times as long as one whose length the schema leaves open.
const LONGEST: usize = 32;

/// Schemas within each other, and values of a schema.
const DEEPEST: usize = 64;
const PARTS: usize = 1000;

/// JSON has seven types with integers.
const TYPES: usize = 7;

/// Keywords that say nothing about the value.
const REMARKS: [&str; 12] = [
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

/// What a value looks like.
#[derive(Debug, PartialEq)]
pub(super) enum ReplyShape {
    OneOf(Vec<Id>),
    Literal(Arc<[u8]>),
    /// A string with at least `least` and at most `most` characters.
    Text {
        least: usize,
        most: usize,
    },
    Integer,
    Number,
    Object {
        members: Vec<Member>,
        /// The values of members of other names; `None` where there may be none.
        others: Option<Id>,
    },
    Array {
        items: Id,
        least: usize,
        most: usize,
    },
}

#[derive(Debug, PartialEq)]
pub(super) struct Member {
    /// Its name in quotes, and the colon.
    pub(super) name: Arc<[u8]>,
    pub(super) value: Id,
    pub(super) required: bool,
}

/// The shapes of a schema.
#[derive(Debug, PartialEq)]
pub(super) struct Schema {
    shapes: Vec<ReplyShape>,
    /// Lists and objects within each other in the flattest value of each shape.
    depths: Vec<usize>,
}

/// A part of a schema and its path in the schema.
type Part<'a> = (&'a Map<String, Value>, &'a str);

struct Reader<'a> {
    root: &'a Value,
    shapes: Vec<ReplyShape>,
    /// Those that references name.
    named: HashMap<String, Id>,
    /// Schemas around the one that is read.
    depth: usize,
    /// Schemas that were read.
    parts: usize,
}

impl Schema {
    /// The shape of the whole.
    pub(super) const ROOT: Id = 0;

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let root: Value = serde_json::from_str(text).map_err(|error| format!("json_schema is not JSON: {error}"))?;
        let mut reader = Reader { root: &root, shapes: Vec::new(), named: HashMap::new(), depth: 0, parts: 0 };
        reader.reference("#", "#")?;
        let mut schema = Self { shapes: reader.shapes, depths: Vec::new() };
        schema.flatten()?;
        schema.measure()?;
        Ok(schema)
    }

    pub(super) fn shape(&self, id: Id) -> &ReplyShape {
        &self.shapes[id]
    }

    /// Those of these choices whose flattest value is the flattest of all: below them no value gets deeper.
    pub(super) fn flattest<'a>(&'a self, choices: &'a [Id]) -> impl Iterator<Item = Id> {
        let least = choices.iter().map(|id| self.depths[*id]).min();
        choices.iter().copied().filter(move |id| Some(self.depths[*id]) == least)
    }

    /// Finds how deep the flattest value of each shape is.
    ///
    /// # Errors
    /// When a shape has only values without an end, because it requires itself.
    fn measure(&mut self) -> Result<(), String> {
        let mut depths: Vec<Option<usize>> = vec![None; self.shapes.len()];
        // a round finds at least the values that are deeper by one
        loop {
            let before = depths.clone();
            for (id, shape) in self.shapes.iter().enumerate() {
                let found = match shape {
                    ReplyShape::OneOf(ids) => ids.iter().filter_map(|id| depths[*id]).min(),
                    ReplyShape::Literal(_) | ReplyShape::Text { .. } | ReplyShape::Integer | ReplyShape::Number => {
                        Some(0)
                    }
                    ReplyShape::Object { members, .. } => members
                        .iter()
                        .filter(|member| member.required)
                        .try_fold(1, |deepest: usize, member| Some(deepest.max(1 + depths[member.value]?))),
                    ReplyShape::Array { least: 0, .. } => Some(1),
                    ReplyShape::Array { items, .. } => depths[*items].map(|depth| 1 + depth),
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

    /// Makes a choice of choices one choice, so that each value is found once however many ways lead to it.
    fn flatten(&mut self) -> Result<(), String> {
        for id in 0..self.shapes.len() {
            if !matches!(self.shapes[id], ReplyShape::OneOf(_)) {
                continue;
            }
            let (mut seen, mut open, mut ends) = (vec![false; self.shapes.len()], vec![id], Vec::new());
            while let Some(at) = open.pop() {
                if std::mem::replace(&mut seen[at], true) {
                    continue;
                }
                match &self.shapes[at] {
                    ReplyShape::OneOf(ids) => open.extend(ids),
                    _ => ends.push(at),
                }
            }
            if ends.is_empty() {
                return Err("json_schema: a choice consists of itself, so there is no value for it".to_owned());
            }
            self.shapes[id] = ReplyShape::OneOf(ends);
        }
        Ok(())
    }
}

fn unsupported(what: &str, place: &str) -> String {
    format!("json_schema: {what} (at {place}) is not supported by the demo engine")
}

/// JSON of ASCII alone, which every tokenizer has.
fn written(value: &Value) -> Arc<[u8]> {
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

impl Reader<'_> {
    /// Reads a schema within bounds: this engine is for trying things out, and a schema is the client's.
    fn read(&mut self, schema: &Value, place: &str) -> Result<Id, String> {
        self.parts += 1;
        if self.depth >= DEEPEST || self.parts > PARTS {
            return Err(unsupported(&format!("a schema of more than {DEEPEST} levels or {PARTS} parts"), place));
        }
        self.depth += 1;
        let id = self.read_schema(schema, place);
        self.depth -= 1;
        id
    }

    fn add(&mut self, shape: ReplyShape) -> Id {
        self.shapes.push(shape);
        self.shapes.len() - 1
    }

    /// The shape of the schema behind a reference.
    fn reference(&mut self, pointer: &str, place: &str) -> Result<Id, String> {
        if let Some(id) = self.named.get(pointer) {
            return Ok(*id);
        }
        let root = self.root;
        let schema = pointer.strip_prefix('#').and_then(|path| root.pointer(path));
        let schema = schema.ok_or_else(|| unsupported(&format!("$ref {pointer:?}"), place))?;
        // its own id is needed where it names itself
        let id = self.add(ReplyShape::OneOf(Vec::new()));
        self.named.insert(pointer.to_owned(), id);
        let inner = self.read(schema, pointer)?;
        self.shapes[id] = ReplyShape::OneOf(vec![inner]);
        Ok(id)
    }

    fn read_schema(&mut self, schema: &Value, place: &str) -> Result<Id, String> {
        let object = match schema {
            Value::Bool(true) => return Ok(self.any()),
            Value::Object(object) => object,
            _ => return Err(unsupported("a schema that is no object", place)),
        };
        let part = (object, place);
        if let Some(Value::String(pointer)) = object.get("$ref") {
            known(part, &["$ref"])?;
            return self.reference(pointer, place);
        }
        if let Some(value) = object.get("const") {
            known(part, &["const", "type"])?;
            return Ok(self.add(ReplyShape::Literal(written(value))));
        }
        if let Some(Value::Array(values)) = object.get("enum") {
            known(part, &["enum", "type"])?;
            return self.literals(values, place);
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            if let Some(Value::Array(all)) = object.get(name) {
                known(part, &[name, "type"])?;
                if all.is_empty() || name == "allOf" && all.len() > 1 {
                    return Err(unsupported(&format!("{name} of {}", all.len()), place));
                }
                let read = |(at, one)| self.read(one, &format!("{place}/{name}/{at}"));
                let ids = all.iter().enumerate().map(read).collect::<Result<_, _>>()?;
                return Ok(self.add(ReplyShape::OneOf(ids)));
            }
        }
        match object.get("type") {
            Some(Value::Array(types)) if types.len() > TYPES => Err(unsupported("a list of so many types", place)),
            Some(Value::Array(types)) => {
                let typed = |name: &Value| self.typed(name.as_str().unwrap_or_default(), part);
                let ids = types.iter().map(typed).collect::<Result<_, _>>()?;
                Ok(self.add(ReplyShape::OneOf(ids)))
            }
            Some(Value::String(name)) => self.typed(name, part),
            Some(_) => Err(unsupported("a type that is no name", place)),
            None if object.contains_key("properties") => self.typed("object", part),
            None => {
                known(part, &[])?;
                Ok(self.any())
            }
        }
    }

    /// Any value that is no list and no object.
    fn any(&mut self) -> Id {
        let shapes = [Value::Null, true.into(), false.into()].map(|value| ReplyShape::Literal(written(&value)));
        let shapes = shapes.into_iter().chain([ReplyShape::Text { least: 0, most: TEXT }, ReplyShape::Number]);
        let ids = shapes.map(|shape| self.add(shape)).collect();
        self.add(ReplyShape::OneOf(ids))
    }

    fn literals(&mut self, values: &[Value], place: &str) -> Result<Id, String> {
        if values.is_empty() {
            return Err(format!("json_schema: there is no value for {place}"));
        }
        if values.len() > PARTS {
            return Err(unsupported(&format!("an enum of more than {PARTS} parts"), place));
        }
        let ids = values.iter().map(|value| self.add(ReplyShape::Literal(written(value)))).collect();
        Ok(self.add(ReplyShape::OneOf(ids)))
    }

    fn typed(&mut self, name: &str, part: Part<'_>) -> Result<Id, String> {
        let (object, place) = part;
        let shape = match name {
            "null" => ReplyShape::Literal(written(&Value::Null)),
            "boolean" => return self.literals(&[true.into(), false.into()], place),
            "string" => {
                known(part, &["type", "minLength", "maxLength"])?;
                let (least, most) = sizes(part, "minLength", "maxLength", TEXT)?;
                ReplyShape::Text { least, most }
            }
            "integer" | "number" => {
                known(part, &["type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])?;
                let (values, unbounded) = match name {
                    "integer" => (
                        bounds::integers(object).map_err(|_| unsupported("an integer beyond 64 bits", place))?,
                        ReplyShape::Integer,
                    ),
                    _ => (bounds::numbers(object), ReplyShape::Number),
                };
                match values {
                    Some(values) => return self.literals(&values, place),
                    None => unbounded,
                }
            }
            "array" => {
                known(part, &["type", "items", "minItems", "maxItems"])?;
                let items = self.read(object.get("items").unwrap_or(&Value::Bool(true)), &format!("{place}/items"))?;
                let (least, most) = sizes(part, "minItems", "maxItems", ITEMS)?;
                ReplyShape::Array { items, least, most }
            }
            "object" => return self.object(part),
            _ => return Err(unsupported(&format!("the type {name:?}"), place)),
        };
        Ok(self.add(shape))
    }

    fn object(&mut self, part: Part<'_>) -> Result<Id, String> {
        let (object, place) = part;
        known(part, &["type", "properties", "required", "additionalProperties"])?;
        let empty = Map::new();
        let properties = object.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required: Vec<&str> =
            object.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        if properties.len() > MEMBERS || required.len() > MEMBERS {
            return Err(unsupported(&format!("an object of more than {MEMBERS} parts"), place));
        }
        if let Some(missing) = required.iter().find(|name| !properties.contains_key(**name)) {
            return Err(unsupported(&format!("the required member {missing:?} without a schema"), place));
        }
        let mut members = Vec::with_capacity(properties.len());
        for (name, schema) in properties {
            let value = self.read(schema, &format!("{place}/properties/{name}"))?;
            let quoted = [&*written(&name.as_str().into()), b": "].concat();
            members.push(Member { name: quoted.into(), value, required: required.contains(&&**name) });
        }
        let others = match object.get("additionalProperties") {
            Some(Value::Bool(false)) => None,
            Some(schema @ Value::Object(_)) => Some(self.read(schema, &format!("{place}/additionalProperties"))?),
            // beside members that have names others would be noise
            _ if members.is_empty() => Some(self.any()),
            _ => None,
        };
        Ok(self.add(ReplyShape::Object { members, others }))
    }
}

/// Fails at a keyword that is neither one of these nor a remark.
fn known((object, place): Part<'_>, names: &[&str]) -> Result<(), String> {
    let other = object.keys().find(|key| !names.contains(&key.as_str()) && !REMARKS.contains(&key.as_str()));
    other.map_or(Ok(()), |key| Err(unsupported(&format!("the keyword {key:?}"), place)))
}

/// The least and the greatest size of a string or a list. `usual` is the greatest where the schema leaves it open.
fn sizes((object, place): Part<'_>, least: &str, most: &str, usual: usize) -> Result<(usize, usize), String> {
    // a size may be written as 1e3
    let size = |name: &str| object.get(name).and_then(Value::as_f64).map(|size| size as usize);
    let limit = LONGEST * usual;
    let least = match size(least) {
        Some(size) if size > limit => return Err(unsupported(&format!("a {least} above {limit}"), place)),
        size => size.unwrap_or(0),
    };
    let most = size(most).unwrap_or(usize::MAX).min(least.max(usual));
    if least > most { Err(format!("json_schema: there is no value for {place}")) } else { Ok((least, most)) }
}
