// SPDX-License-Identifier: Apache-2.0
//! The document as a test reads it: operations, parameters, and schemas that validate replies.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use tokentap::json;

use crate::support::client::Answer;

const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

/// The document of a tokentap.
pub struct Document {
    value: Value,
    /// The schemas of the document, in which an object has no other members than those that are described.
    components: Value,
    /// The operations in the order of the document.
    pub operations: Vec<Operation>,
}

/// An operation.
#[derive(Debug, Clone)]
pub struct Operation {
    /// In capitals.
    pub method: String,
    /// With a name in braces for each variable part.
    pub path: String,
    /// Its object.
    pub value: Value,
    /// It has separate servers.
    pub is_of_data_port: bool,
}

impl Document {
    pub fn parse(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).unwrap();
        let mut components = value["components"].clone();
        close(&mut components);
        // the test's own parser sorts the paths, and the examples need their order
        let json::Value::Object(members) = json::Value::parse(text.as_bytes()).unwrap() else { panic!("an object") };
        let (_, paths) = members.into_iter().find(|(name, _)| name == "paths").unwrap();
        let json::Value::Object(paths) = paths else { panic!("an object") };
        let mut operations = Vec::new();
        for (path, item) in paths {
            let json::Value::Object(item) = item else { panic!("an object") };
            for (method, _) in item.iter().filter(|(name, _)| METHODS.contains(&&**name)) {
                let described = &value["paths"][&path];
                operations.push(Operation {
                    method: method.to_uppercase(),
                    path: path.clone(),
                    value: described[method].clone(),
                    is_of_data_port: described.get("servers").is_some(),
                });
            }
        }
        Self { value, components, operations }
    }

    /// The operation that serves a path.
    pub fn operation(&self, method: &str, path: &str) -> &Operation {
        let matching = |operation: &&Operation, exact: bool| {
            let (mut parts, mut names) = (path.split('/'), operation.path.split('/'));
            let is_equal = |(part, name): (&str, &str)| part == name || (!exact && name.starts_with('{'));
            operation.method == method
                && parts.clone().count() == names.clone().count()
                && parts.by_ref().zip(names.by_ref()).all(is_equal)
        };
        let found = |exact| self.operations.iter().find(|operation| matching(operation, exact));
        found(true).or_else(|| found(false)).unwrap_or_else(|| panic!("{method} {path} is not described"))
    }

    /// The object at the place of a `$ref`, or the object itself.
    fn resolve<'a>(&'a self, object: &'a Value) -> &'a Value {
        match object.get("$ref") {
            Some(place) => self.value.pointer(place.as_str().unwrap().trim_start_matches('#')).unwrap(),
            None => object,
        }
    }

    /// The parameters of an operation.
    pub fn parameters(&self, operation: &Operation) -> Vec<&Value> {
        let listed = self.value["paths"][&operation.path][operation.method.to_lowercase()].get("parameters");
        listed.and_then(Value::as_array).into_iter().flatten().map(|parameter| self.resolve(parameter)).collect()
    }

    /// The headers that the document describes anywhere.
    fn header_names(&self) -> BTreeSet<&str> {
        let replies =
            self.operations.iter().flat_map(|operation| operation.value["responses"].as_object().unwrap().values());
        replies
            .filter_map(|reply| self.resolve(reply)["headers"].as_object())
            .flatten()
            .map(|(name, _)| &**name)
            .collect()
    }

    /// Checks that the document describes this reply: its status, its headers, its media type, its members and the code of its error.
    pub fn check(&self, operation: &Operation, answer: &Answer) {
        let about = format!("{} {}: {} {}", operation.method, operation.path, answer.status, answer.text());
        let reply = operation.value["responses"].get(answer.status.to_string());
        let reply = self.resolve(reply.unwrap_or_else(|| panic!("the status is not described: {about}")));
        for name in self.header_names() {
            let described = || reply["headers"].as_object().into_iter().flatten();
            let is_described = described().any(|(known, _)| known.eq_ignore_ascii_case(name));
            assert!(is_described || answer.header(name).is_none(), "{name} is not described: {about}");
        }
        let Some(content) = reply.get("content") else { return };
        let media_type = answer.header("content-type").unwrap_or_default().split(';').next().unwrap().trim();
        let media = content.get(media_type).unwrap_or_else(|| panic!("{media_type} is not described: {about}"));
        match (media_type, media.get("x-item-schema")) {
            ("application/x-ndjson", Some(schema)) => {
                for line in answer.text().lines() {
                    self.validate(schema, &serde_json::from_str(line).unwrap(), &about);
                }
            }
            ("text/event-stream", Some(schema)) => {
                answer.events().iter().for_each(|event| self.validate(schema, event, &about));
            }
            ("application/json", _) => self.validate(&media["schema"], &answer.json(), &about),
            _ => {}
        }
        if let Some(codes) = reply.get("x-error-codes") {
            let code = &answer.json()["error"]["code"];
            assert!(codes.as_array().unwrap().contains(code), "{code} is not one of {codes}: {about}");
        }
    }

    /// Validates a value against a schema of the document.
    pub fn validate(&self, schema: &Value, value: &Value, about: &str) {
        let mut schema = schema.clone();
        close(&mut schema);
        let mut root =
            json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "components": self.components});
        root.as_object_mut().unwrap().append(schema.as_object_mut().unwrap());
        let validator = jsonschema::validator_for(&root).unwrap_or_else(|error| panic!("{error}: {about}"));
        let errors: Vec<String> =
            validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{}\n{about}", errors.join("\n"));
    }

    /// Validates every example of the document; returns their number.
    pub fn check_examples(&self) -> usize {
        self.examples_below(&self.value, "#")
    }

    fn examples_below(&self, value: &Value, place: &str) -> usize {
        let members: Vec<(String, &Value)> = match value {
            Value::Object(members) => members.iter().map(|(name, value)| (name.clone(), value)).collect(),
            Value::Array(items) => items.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect(),
            _ => return 0,
        };
        let mut count = 0;
        if let Some(schema) = value.get("schema") {
            let named = value.get("examples").and_then(Value::as_object).into_iter().flatten();
            let examples = named.map(|(_, example)| &example["value"]).chain(value.get("example"));
            for example in examples {
                self.validate(schema, example, place);
                count += 1;
            }
            if let (Some(schema), Some(lines)) = (value.get("x-item-schema"), value.get("example")) {
                for line in lines.as_str().unwrap().lines() {
                    self.validate(schema, &serde_json::from_str(line).unwrap(), place);
                }
            }
        }
        let is_example = |name: &str| name == "example" || name == "examples";
        count
            + members
                .into_iter()
                .filter(|(name, _)| !is_example(name))
                .map(|(name, value)| self.examples_below(value, &format!("{place}/{name}")))
                .sum::<usize>()
    }
}

/// Forbids other members in each object of a schema that lists its members and does not allow others.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if is_open_object(members) {
                members.insert("additionalProperties".to_owned(), json!(false));
            }
            members.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

fn is_open_object(schema: &Map<String, Value>) -> bool {
    schema.get("type").is_some_and(|kind| kind == "object")
        && schema.contains_key("properties")
        && !schema.contains_key("additionalProperties")
}
