// SPDX-License-Identifier: Apache-2.0
//! Moves what the references of nested JSON schemas point to to the root of the schema around them.
//!
//! `#/$defs/Point` begins at the root of the whole schema, and so do `#` and `#/properties/a`. If the schema with the reference becomes a part
//! of another one, nothing is there, and grammar backends refuse the request. They find definitions at the root under plain names only.

use std::collections::{HashMap, HashSet};
use std::ptr;

use crate::json::{Resolver, Value, pointer};

/// Members of a schema whose values are data and not schemas.
const DATA: [&str; 4] = ["enum", "const", "default", "examples"];

/// Members of a schema whose values are schemas by name.
const SCHEMAS_BY_NAME: [&str; 4] = ["properties", "patternProperties", "dependentSchemas", "dependencies"];

/// Members of a schema that are used by references only.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// The schemas that references of nested schemas point to.
#[derive(Debug, Default)]
pub(super) struct Definitions<'a> {
    /// The schemas by their names at the root.
    list: Vec<(String, Value)>,
    names: UniqueNames,
    /// The targets of references by their JSON pointers. Nested schemas share them where equal pointers have equal targets.
    shared: HashMap<String, Target<'a>>,
}

/// What a reference points to.
#[derive(Debug, Clone)]
struct Target<'a> {
    /// The part of the nested schema; `None` if the reference leads nowhere.
    schema: Option<&'a Value>,
    /// Its name at the root.
    name: String,
}

impl<'a> Definitions<'a> {
    /// Returns a schema as it must be written inside another one, and adds the definitions that it needs. `name` is the name of a
    /// definition that is the whole schema.
    pub(super) fn nest(&mut self, schema: &'a Value, name: &str) -> Value {
        let targets = targets(schema);
        let is_other = |(pointer, target): &(String, Option<&Value>)| {
            self.shared.get(pointer).is_some_and(|known| known.schema != *target)
        };
        let mut own = HashMap::new();
        let is_shared = !targets.iter().any(is_other);
        let known = if is_shared { &mut self.shared } else { &mut own };
        let (mut added, mut places) = (Vec::new(), HashMap::new());
        for (pointer, target) in targets {
            if !known.contains_key(&pointer) {
                let name = self.names.add(pointer.rsplit_once('/').map_or(name, |(_, last)| last));
                added.extend(target.map(|schema| (name.clone(), schema)));
                known.insert(pointer.clone(), Target { schema: target, name });
            }
            places.extend(target.map(|schema| (ptr::from_ref(schema), known[&pointer].name.clone())));
        }
        let writer = Writer { targets: known, places };
        self.list.extend(added.into_iter().map(|(name, schema)| (name, writer.members(schema))));
        writer.schema(schema)
    }

    /// The member `$defs` of the schema around the nested ones; `None` if they need no definition.
    pub(super) fn into_value(self) -> Option<Value> {
        (!self.list.is_empty()).then_some(Value::Object(self.list))
    }
}

/// Writes a nested schema with references to the definitions at the root.
struct Writer<'w, 'a> {
    targets: &'w HashMap<String, Target<'a>>,
    /// The names of the parts that move to the root. A reference takes their places, so that no part is written twice.
    places: HashMap<*const Value, String>,
}

impl Writer<'_, '_> {
    fn schema(&self, schema: &Value) -> Value {
        match self.places.get(&ptr::from_ref(schema)) {
            Some(name) => Value::Object(vec![("$ref".to_owned(), reference_to(name))]),
            None => self.members(schema),
        }
    }

    /// The schema itself, also if it moves to the root.
    fn members(&self, schema: &Value) -> Value {
        match schema {
            Value::Object(members) => {
                let is_definitions = |name: &str| DEFINITIONS.contains(&name);
                let members = members.iter().filter(|(name, _)| !is_definitions(name));
                Value::Object(members.map(|(name, value)| (name.clone(), self.member(name, value))).collect())
            }
            Value::Array(schemas) => schemas.iter().map(|schema| self.schema(schema)).collect::<Vec<_>>().into(),
            other => other.clone(),
        }
    }

    fn member(&self, name: &str, value: &Value) -> Value {
        match value {
            Value::String(reference) if name == "$ref" => {
                let target = pointer(reference).and_then(|pointer| self.targets.get(&*pointer));
                let target = target.filter(|target| target.schema.is_some());
                target.map_or_else(|| value.clone(), |target| reference_to(&target.name))
            }
            value if DATA.contains(&name) => value.clone(),
            Value::Object(schemas) if SCHEMAS_BY_NAME.contains(&name) => {
                Value::Object(schemas.iter().map(|(name, schema)| (name.clone(), self.schema(schema))).collect())
            }
            value => self.schema(value),
        }
    }
}

/// The reference to a definition at the root.
fn reference_to(name: &str) -> Value {
    format!("#/$defs/{name}").as_str().into()
}

/// The JSON pointers of the references in a schema, and their targets, which may have references too.
fn targets(root: &Value) -> Vec<(String, Option<&Value>)> {
    let (mut targets, mut known, mut read) = (Vec::new(), HashSet::new(), HashSet::new());
    let mut resolver = Resolver::default();
    let mut unread = vec![root];
    while let Some(schema) = unread.pop() {
        let mut found = Vec::new();
        add_references(schema, &mut read, &mut found);
        for pointer in found.into_iter().filter_map(pointer) {
            if known.insert(pointer.clone()) {
                let target = resolver.resolve(root, &pointer);
                unread.extend(target);
                targets.push((pointer.into_owned(), target));
            }
        }
    }
    targets
}

/// Adds the references of a schema, without those of its definitions. `read` has the schemas that have been read.
fn add_references<'a>(schema: &'a Value, read: &mut HashSet<*const Value>, references: &mut Vec<&'a str>) {
    match schema {
        Value::Object(members) if read.insert(ptr::from_ref(schema)) => {
            for (name, value) in members {
                let name = name.as_str();
                match value {
                    Value::String(reference) if name == "$ref" => references.push(reference),
                    _ if DATA.contains(&name) || DEFINITIONS.contains(&name) => {}
                    Value::Object(schemas) if SCHEMAS_BY_NAME.contains(&name) => {
                        schemas.iter().for_each(|(_, schema)| add_references(schema, read, references));
                    }
                    value => add_references(value, read, references),
                }
            }
        }
        Value::Array(schemas) => schemas.iter().for_each(|schema| add_references(schema, read, references)),
        _ => {}
    }
}

/// Names without characters that a reference would have to escape.
#[derive(Debug, Default)]
struct UniqueNames {
    names: HashSet<String>,
    /// The number at the end of the last name that was taken before.
    number: usize,
}

impl UniqueNames {
    /// A name that is not taken yet, and takes it.
    fn add(&mut self, wanted: &str) -> String {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
        let wanted: String = wanted.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
        let mut name = wanted.clone();
        while !self.names.insert(name.clone()) {
            self.number += 1;
            name = format!("{wanted}_{}", self.number);
        }
        name
    }
}
