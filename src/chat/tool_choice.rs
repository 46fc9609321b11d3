// SPDX-License-Identifier: Apache-2.0
//! Which tools the model may call, and the JSON schema of forced calls.

use std::collections::HashSet;

use super::schema_references::Definitions;
use crate::json::Value;

/// Which tools the model may or must call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// It may call any tool.
    Auto,
    /// It may not call a tool.
    None,
    /// It must call at least one tool.
    Required,
    /// It must call at least one of these tools, and no other tool.
    OneOf(HashSet<String>),
    /// It must call this tool.
    Named(String),
}

impl ToolChoice {
    /// Whether a call is forced: the reply is then a JSON list of calls and nothing else.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        matches!(self, Self::Required | Self::OneOf(_) | Self::Named(_))
    }

    /// The JSON schema of forced calls, a list; `None` if no call is forced. It is SGLang's schema for formats without a grammar. It is
    /// used for every format, because it constrains the name and the parameters. With `parallel`, the list may have several calls.
    #[must_use]
    pub fn schema(&self, tools: &[Value], parallel: bool) -> Option<Value> {
        if !self.is_forced() {
            return None;
        }
        let allowed = tools.iter().filter(|tool| match self {
            Self::Named(named) => name(tool) == Some(named),
            Self::OneOf(names) => name(tool).is_some_and(|name| names.contains(name)),
            _ => true,
        });
        let mut definitions = Definitions::default();
        let calls: Vec<Value> = allowed.filter_map(|tool| call_schema(tool, &mut definitions)).collect();
        let items = match <[Value; 1]>::try_from(calls) {
            Ok([only]) => only,
            Err(calls) => Value::object([("type", "object".into()), ("anyOf", calls.into())]),
        };
        let number = |text: &str| Value::Number(text.into());
        let mut schema = vec![("type", "array".into()), ("minItems", number("1"))];
        if !parallel || matches!(self, Self::Named(_)) {
            schema.push(("maxItems", number("1")));
        }
        schema.push(("items", items));
        schema.extend(definitions.into_value().map(|definitions| ("$defs", definitions)));
        Some(Value::object(schema))
    }
}

/// `function.name` of a tool.
#[must_use]
pub(crate) fn name(tool: &Value) -> Option<&str> {
    tool.get("function")?.get_str("name")
}

/// The schema of a call of this tool. The definitions that it refers to are added to `definitions`.
fn call_schema<'a>(tool: &'a Value, definitions: &mut Definitions<'a>) -> Option<Value> {
    let none = || Value::object([("type", "object".into()), ("properties", Value::Object(Vec::new()))]);
    let called = name(tool)?;
    let parameters = tool.get("function")?.get("parameters");
    let parameters = parameters.map_or_else(none, |schema| definitions.nest(schema, called));
    let named = Value::object([("type", "string".into()), ("enum", vec![called.into()].into())]);
    let properties = Value::object([("name", named), ("parameters", parameters)]);
    let required = vec!["name".into(), "parameters".into()];
    Some(Value::object([("type", "object".into()), ("properties", properties), ("required", required.into())]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::dumps;

    /// The members `items` and `$defs` of the schema of a required call of tools `f`, `g`, … with these parameters.
    fn required(parameters: &[&str]) -> (Vec<String>, String) {
        let tool = |(at, parameters): (usize, &&str)| {
            let name = ["f", "g", "h"][at];
            Value::parse(format!(r#"{{"function":{{"name":"{name}","parameters":{parameters}}}}}"#).as_bytes()).unwrap()
        };
        let tools: Vec<Value> = parameters.iter().enumerate().map(tool).collect();
        let schema = ToolChoice::Required.schema(&tools, true).unwrap();
        let items = schema.get("items").unwrap();
        let calls = items.get("anyOf").and_then(Value::as_array).unwrap_or(std::slice::from_ref(items));
        let parameters = calls.iter().map(|call| dumps(call.get("properties").unwrap().get("parameters").unwrap()));
        (parameters.collect(), schema.get("$defs").map(dumps).unwrap_or_default())
    }

    #[test]
    fn references_of_forced_calls_lead_to_definitions_at_the_root() {
        let x = r##"{"properties": {"a": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"type": "string"}}}"##;
        let other_x = r##"{"properties": {"a": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"type": "integer"}}}"##;
        let moved_x = r##"{"properties": {"a": {"$ref": "#/$defs/X"}}}"##;
        let by_reference = r##"{"$ref": "#/$defs/f"}"##;
        for (case, parameters, expected, definitions) in [
            ("a definition", &[x][..], &[moved_x][..], r#"{"X": {"type": "string"}}"#),
            ("equal definitions", &[x, x], &[moved_x, moved_x], r#"{"X": {"type": "string"}}"#),
            (
                "unequal definitions",
                &[x, other_x, x],
                &[moved_x, r##"{"properties": {"a": {"$ref": "#/$defs/X_1"}}}"##, moved_x],
                r#"{"X": {"type": "string"}, "X_1": {"type": "integer"}}"#,
            ),
            (
                "equal definitions that refer to unequal ones",
                &[
                    r##"{"$ref": "#/$defs/X", "$defs": {"X": {"$ref": "#/$defs/Y"}, "Y": {"type": "string"}}}"##,
                    r##"{"$ref": "#/$defs/X", "$defs": {"X": {"$ref": "#/$defs/Y"}, "Y": {"type": "integer"}}}"##,
                ],
                &[r##"{"$ref": "#/$defs/X"}"##, r##"{"$ref": "#/$defs/X_1"}"##],
                r##"{"X": {"$ref": "#/$defs/Y"}, "Y": {"type": "string"}, "X_1": {"$ref": "#/$defs/Y_2"}, "Y_2": {"type": "integer"}}"##,
            ),
            (
                "definitions of draft 7, one that refers to itself, and siblings of a reference",
                &[
                    r##"{"$ref": "#/definitions/N", "definitions": {"N": {"properties": {"next": {"$ref": "#/definitions/N", "description": "d"}}}, "unused": {}}}"##,
                ],
                &[r##"{"$ref": "#/$defs/N"}"##],
                r##"{"N": {"properties": {"next": {"$ref": "#/$defs/N", "description": "d"}}}}"##,
            ),
            (
                "escapes in a pointer",
                &[
                    r##"{"anyOf": [{"$ref": "#/$defs/a~1b~0c"}, {"$ref": "#/definitions/List%3Cstring%3E"}], "$defs": {"a/b~c": {"type": "null"}}, "definitions": {"List<string>": {"type": "array"}}}"##,
                ],
                &[r##"{"anyOf": [{"$ref": "#/$defs/a_1b_0c"}, {"$ref": "#/$defs/List_string_"}]}"##],
                r#"{"a_1b_0c": {"type": "null"}, "List_string_": {"type": "array"}}"#,
            ),
            (
                "the whole schema",
                &[r##"{"properties": {"next": {"$ref": "#"}}}"##],
                &[by_reference],
                r##"{"f": {"properties": {"next": {"$ref": "#/$defs/f"}}}}"##,
            ),
            (
                "parts of the schema",
                &[
                    r##"{"properties": {"x": {"type": "string"}, "y": {"$ref": "#/properties/x"}, "z": {"anyOf": [{"type": "null"}, {"$ref": "#/properties/z/anyOf/0"}]}}}"##,
                ],
                &[
                    r##"{"properties": {"x": {"$ref": "#/$defs/x"}, "y": {"$ref": "#/$defs/x"}, "z": {"anyOf": [{"$ref": "#/$defs/0"}, {"$ref": "#/$defs/0"}]}}}"##,
                ],
                r#"{"x": {"type": "string"}, "0": {"type": "null"}}"#,
            ),
            (
                "parts of parts are written once",
                &[
                    r##"{"properties": {"a": {"properties": {"b": {"type": "string"}}}, "c": {"$ref": "#/properties/a"}, "d": {"$ref": "#/properties/a/properties/b"}}}"##,
                ],
                &[
                    r##"{"properties": {"a": {"$ref": "#/$defs/a"}, "c": {"$ref": "#/$defs/a"}, "d": {"$ref": "#/$defs/b"}}}"##,
                ],
                r##"{"a": {"properties": {"b": {"$ref": "#/$defs/b"}}}, "b": {"type": "string"}}"##,
            ),
            (
                "names and data that look like references",
                &[
                    r##"{"properties": {"$ref": {"enum": [{"$ref": "#/$defs/X"}]}, "$defs": {"const": {"$ref": "#"}}, "definitions": {"default": {"$ref": "#"}}}}"##,
                ],
                &[
                    r##"{"properties": {"$ref": {"enum": [{"$ref": "#/$defs/X"}]}, "$defs": {"const": {"$ref": "#"}}, "definitions": {"default": {"$ref": "#"}}}}"##,
                ],
                "",
            ),
            (
                "references that lead nowhere stay as they are, and the engine names them",
                &[
                    r##"{"anyOf": [{"$ref": "#/$defs/X"}, {"$ref": "#X"}, {"$ref": "https://host/x#/$defs/X"}, {"$ref": "#/anyOf/+0"}, {"$ref": "#/~"}]}"##,
                ],
                &[
                    r##"{"anyOf": [{"$ref": "#/$defs/X"}, {"$ref": "#X"}, {"$ref": "https://host/x#/$defs/X"}, {"$ref": "#/anyOf/+0"}, {"$ref": "#/~"}]}"##,
                ],
                "",
            ),
        ] {
            let actual = required(parameters);
            assert_eq!(actual.0, expected, "{case}");
            assert_eq!(actual.1, definitions, "{case}");
        }
    }

    #[test]
    fn named_call_has_its_definitions_at_the_root() {
        let tool = Value::parse(
            br##"{"function":{"name":"f","parameters":{"$ref":"#/$defs/X","$defs":{"X":{"type":"object"}}}}}"##,
        );
        let schema = ToolChoice::Named("f".to_owned()).schema(&[tool.unwrap()], true).unwrap();
        assert_eq!(
            dumps(&schema),
            r##"{"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "object", "properties": {"name": {"type": "string", "enum": ["f"]}, "parameters": {"$ref": "#/$defs/X"}}, "required": ["name", "parameters"]}, "$defs": {"X": {"type": "object"}}}"##
        );
    }
}
